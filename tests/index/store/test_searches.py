"""The log of searches: what it keeps, for whom, and how long."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attend import Collection, Data
from attend.core.errors import InvalidRequest, NotFound, UnknownDocument
from attend.store.searches import FILE, SearchLog

QUERY = [1.0, 0.1]


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    data = Data(tmp_path)
    made = data.create("points", dimension=2)
    made.upsert([{"id": str(n), "vector": [10 - n, n]} for n in range(10)])
    made.configure(log=True)
    yield made
    data.close()


def test_nothing_is_logged_unless_the_collection_says_so(collection: Collection) -> None:
    collection.configure(log=False)
    assert collection.search(QUERY).search is None
    assert collection.searches().items == []
    assert not (collection.folder / FILE).exists()
    assert collection.info().searches is None
    with pytest.raises(InvalidRequest, match="logs no searches"):
        collection.used("0" * 16, [])


def test_a_search_is_logged_as_it_was_shown(collection: Collection) -> None:
    answer = collection.search(QUERY, k=3, offset=1)
    worded = collection.search({"text": "first", "vector": QUERY}, k=1)
    latest, first = collection.searches().items
    assert (first.search, latest.search) == (answer.search, worded.search)
    assert [hit.id for hit in first.hits] == [hit.id for hit in answer.hits]
    assert [hit.rank for hit in first.hits] == [1, 2, 3]
    assert (first.query, latest.query) == (None, "first")
    assert first.projection == answer.projection
    assert abs(first.time - time.time()) < 600
    assert not first.judged
    info = collection.info()
    assert (info.searches, info.used) == (2, 0)


def test_what_served_counts_once_and_may_be_corrected(collection: Collection) -> None:
    answer = collection.search(QUERY, k=3)
    assert answer.search is not None
    ids = [hit.id for hit in answer.hits]
    assert collection.used(answer.search, ids[1:2]).used == 1
    again = collection.used(answer.search, ids[1:2])
    assert (again.used, again.replaced) == (1, 1)
    collection.used(answer.search, ids[2:], value=2.5)
    [entry] = collection.searches().items
    assert [hit.used for hit in entry.hits] == [None, None, 2.5]
    collection.used(answer.search, [])
    [entry] = collection.searches().items
    assert entry.judged
    assert [hit.used for hit in entry.hits] == [None, None, None]
    assert collection.info().used == 1


@pytest.mark.parametrize(
    ("search", "ids", "error", "sentence"),
    [
        ("nonsense", [], InvalidRequest, "is not the id of a search"),
        ("0" * 16, [], NotFound, "older than 90 days"),
        ("7" + "f" * 15, [], NotFound, "has no search"),
        (None, ["9"], InvalidRequest, "did not show"),
        (None, ["nobody"], UnknownDocument, "No document has the id 'nobody'"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(
    collection: Collection, search: str | None, ids: list[str], error: type, sentence: str
) -> None:
    shown = collection.search(QUERY, k=2).search
    with pytest.raises(error, match=sentence):
        collection.used(search or str(shown), ids)


def test_the_log_is_read_by_page_and_deleted(collection: Collection) -> None:
    sent = [collection.search(QUERY, k=1).search for _ in range(5)]
    page = collection.searches(2)
    rest = collection.searches(10, before=page.next)
    assert [each.search for each in [*page.items, *rest.items]] == sent[::-1]
    assert rest.next is None
    assert collection.log is not None
    assert collection.log.delete() == 5
    assert collection.searches().items == []


def test_a_deleted_document_leaves_no_trace(collection: Collection) -> None:
    answer = collection.search(QUERY, k=3)
    gone = answer.hits[0].id
    collection.used(str(answer.search), [gone])
    collection.delete([gone])
    collection.upsert([{"id": gone, "vector": QUERY}])  # another document of the same id
    [entry] = collection.searches().items
    assert [hit.id for hit in entry.hits] == [hit.id for hit in answer.hits[1:]]


def test_searches_that_are_too_old_or_too_many_go(tmp_path: Path) -> None:
    log = SearchLog(tmp_path, read_only=False, days=90, most=2**40)
    first = log.add("old", 1, [1])
    log.use(first, {1: 1.0})
    time.sleep(0.01)
    log.flush()
    log.days = 0.005 / 86_400
    log.trim()
    assert log.counts() == (0, 0)
    log.days = 90
    for _ in range(1000):
        log.add("x" * 1000, 1, list(range(10)))
    log.flush()
    log.most = 500_000
    for _ in range(20):
        log.trim()
    searches, _ = log.counts()
    assert 100 < searches < 600
    assert log.latest(1)[0].query == "x" * 1000
    log.close()


def test_searches_of_another_process_are_waited_for(collection: Collection) -> None:
    data = collection.folder.parent.parent
    script = (
        "import sys; from attend import Data; data = Data(sys.argv[1]);"
        "print(data.collection('points').search([1.0, 0.1], k=1).search, flush=True);"
        "import time; time.sleep(0.5); data.close()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(data)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        search = other.stdout.readline().strip()
        assert collection.used(search, ["0"]).used == 1
        assert other.wait() == 0


def test_a_library_that_is_only_read_logs_nothing(collection: Collection) -> None:
    collection.search(QUERY, k=1)
    collection.searches()
    reader = Data(collection.folder.parent.parent, read_only=True)
    opened = reader.collection("points")
    assert opened.search(QUERY, k=1).search is None
    assert len(opened.searches().items) == 1
    reader.close()


def test_wide_rows_are_kept(tmp_path: Path) -> None:
    log = SearchLog(tmp_path, read_only=False, days=90, most=2**40)
    log.add(None, 3, [1, 2**40])
    assert log.latest(1)[0].rows == [1, 2**40]
    log.close()
