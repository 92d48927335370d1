"""What is written is read, on either engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attend.api.documents import Written
from attend.collection.collection import Collection
from attend.collection.data import Data
from attend.connect.client import RemoteLibrary
from tests.milvus.contract import WIDTH, check, drawn, query

ORDER = [
    {"id": "a", "text": "the invoice was paid twice", "value": "billing", "payload": {"n": 1}},
    {"id": "b", "fields": {"title": "card", "body": "declined abroad"}, "value": {"x": [1, None]}},
    {"id": "ç/ü 😀", "text": "charged two times", "payload": {"é": {"in": ["x", 2.5, True]}}},
]


def test_a_document_comes_back_as_it_was_sent(texts: Collection) -> None:
    assert texts.upsert(ORDER) == Written(added=3, encoded=4)
    for sent in ORDER:
        stored = texts.document(str(sent["id"]))
        assert stored.id == sent["id"]
        assert stored.fields == sent.get("fields", {"text": sent.get("text")})
        assert stored.value == sent.get("value")
        assert stored.payload == sent.get("payload", {})


def test_the_same_again_changes_nothing_and_encodes_nothing(texts: Collection) -> None:
    texts.upsert(ORDER)
    before = texts.search("two invoices")
    assert texts.upsert(ORDER) == Written(unchanged=3)
    after = texts.search("two invoices")
    assert after.hits == before.hits


def test_a_new_value_encodes_nothing_and_a_new_text_takes_the_old_one_away(
    texts: Collection,
) -> None:
    texts.upsert(ORDER)
    changed = [{**ORDER[0], "value": "other"}, {**ORDER[2], "text": "a zebra crossing"}]
    written = texts.upsert(changed)
    assert written == Written(revised=1, updated=1, encoded=1)
    assert texts.document("a").value == "other"
    best = texts.search("a zebra crossing", k=1, lexical=False).hits[0]
    assert best.id == ORDER[2]["id"]
    assert best.score == pytest.approx(20.0, abs=1e-3)  # the scale of embeddings of length one
    old = texts.search("charged two times", lexical=False).hits
    assert all(hit.score < 20.0 - 1e-3 for hit in old)


def test_a_revision_merges_the_payload(texts: Collection) -> None:
    texts.upsert(ORDER)
    texts.revise("a", {"value": 2, "payload": {"n": None, "m": {"k": 1}}})
    stored = texts.document("a")
    assert (stored.value, stored.payload) == (2, {"m": {"k": 1}})
    assert texts.page({"m.k": 1}).total == 1


def test_what_is_deleted_is_found_by_nothing(empty: Collection) -> None:
    made = drawn((f"d{at}" for at in range(12)), 1)
    empty.upsert([each.document for each in made.values()])
    assert empty.delete(["d3", "d4", "unknown"]) == 2
    assert empty.delete(["d3"]) == 0
    blue = {id for id, each in made.items() if each.colour == "blue"} - {"d3", "d4"}
    assert empty.delete_matching({"colour": "blue"}) == len(blue)
    left = set(made) - {"d3", "d4"} - blue
    assert empty.ids() == left
    assert {hit.id for hit in empty.search(query(2), k=100).hits} == left


def test_pages_have_every_document_once(empty: Collection) -> None:
    made = drawn((f"p{at}" for at in range(25)), 3)
    empty.upsert([each.document for each in made.values()])
    wanted = {id for id, each in made.items() if each.colour != "red"}
    listed, cursor, condition = [], None, {"colour": {"ne": "red"}}
    while True:
        page = empty.page(condition, limit=4, cursor=cursor)
        assert page.total == len(wanted)
        listed += [each.id for each in page.documents]
        if page.next is None:
            break
        cursor = page.next
    assert sorted(listed) == sorted(wanted)


@pytest.mark.parametrize("seed", range(2))
def test_any_writes_and_deletions_leave_what_brute_force_says(empty: Collection, seed: int) -> None:
    """Random batches of new, replaced and deleted documents; after each a search of all."""
    rng, kept = np.random.default_rng(seed), {}
    for step in range(6):
        ids = [f"d{at}" for at in rng.choice(15, size=rng.integers(1, 9), replace=False)]
        if rng.random() < 0.3:
            assert empty.delete(ids) == len(set(ids) & kept.keys())
            kept = {id: each for id, each in kept.items() if id not in ids}
        else:
            made = drawn(ids, 100 * seed + step)
            empty.upsert([each.document for each in made.values()])
            kept |= made
        asked = query(step)
        check(empty.search(asked, k=100), {id: each.keys for id, each in kept.items()}, asked)


def test_another_handle_of_the_library_sees_what_was_written(
    library: Data, empty: Collection
) -> None:
    if isinstance(library, RemoteLibrary):
        other: Any = RemoteLibrary(library.server.url)
    else:
        other = Data(_where(library), load_encoder=library.encoder)
    made = drawn((f"h{at}" for at in range(5)), 9)
    empty.upsert([each.document for each in made.values()])
    asked = query(9, WIDTH)
    answer = other.collection("vectors").search(asked, k=100, consistency="strong")
    check(answer, {id: each.keys for id, each in made.items()}, asked)
    other.close()


def _where(library: Data) -> str:
    address = getattr(library._engine, "address", None)
    return str(library.folder) if address is None else str(address)
