"""Drift: what it tells of queries, documents, refusals and an encoder, and when it is quiet."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from attend import Collection, Data
from attend.collection import drift
from attend.collection.drift import Drift, check_encoder, noticed
from attend.encoder import Precision, load
from attend.store import searches, sql
from attend.store.searches import SearchLog

LETTERS = "abcdefghijklm", "nopqrstuvwxyz"
"""Words of the two topics share no pair of letters."""


def texts(rng: np.random.Generator, count: int, topic: int = 0, words: int = 6) -> list[str]:
    letters = list(LETTERS[topic])
    return [" ".join("".join(rng.choice(letters, 4)) for _ in range(words)) for _ in range(count)]


@pytest.fixture
def library(tmp_path: Path, tiny_encoder_folder: Path) -> Iterator[tuple[Data, Path]]:
    model = tmp_path / "model"
    shutil.copytree(tiny_encoder_folder, model)
    data = Data(tmp_path / "data", load_encoder=load)
    made = data.create("default", encoder=str(model))
    written = texts(np.random.default_rng(0), 300)
    made.upsert([{"id": str(n), "text": text} for n, text in enumerate(written)])
    made.configure(log=True)
    yield data, model
    data.close()


@pytest.fixture
def collection(library: tuple[Data, Path]) -> Collection:
    return library[0].collection("default")


def log_of(collection: Collection) -> SearchLog:
    assert collection.log is not None
    return collection.log


def ask(collection: Collection, queries: list[str]) -> None:
    for query in queries:
        log_of(collection).add(query, 1, [])


def alarms(collection: Collection) -> dict[str, bool]:
    figures = noticed(collection)
    return {kind: figures[kind]["alarm"] for kind in drift.KINDS if kind in figures}


def hints(collection: Collection, word: str) -> list[str]:
    return [hint for hint in collection.info().hints or () if word in hint]


def test_a_new_topic_is_told_within_500_queries_and_a_quiet_log_is_not(
    collection: Collection,
) -> None:
    rng, watch = np.random.default_rng(1), Drift(collection)
    ask(collection, texts(rng, drift.LEAST - 1))
    assert watch.look() == []
    assert "queries" not in noticed(collection)  # there is nothing to compare with yet
    quiet = 1100
    ask(collection, texts(rng, 1 + quiet))
    looks = [watch.look() for _ in range(quiet // drift.AT_ONCE + 1)]
    assert not any(looks)
    assert not hints(collection, "Recent queries")
    new = rng.random(500) < 0.2
    ask(collection, [texts(rng, 1, int(topic))[0] for topic in new])
    (told,) = [sentence for _ in range(8) for sentence in watch.look()]
    assert "train again" in told
    assert hints(collection, "Recent queries") == [told]
    assert noticed(collection)["queries"]["p"] <= drift.ALARM
    # Another process goes on, and does not tell it again.
    again = Drift(collection)
    assert [again.look() for _ in range(3)] == [[], [], []]
    assert hints(collection, "Recent queries") == [told]


def test_a_training_is_what_later_queries_and_documents_are_compared_with(
    collection: Collection,
) -> None:
    rng, watch = np.random.default_rng(2), Drift(collection)
    ask(collection, texts(rng, 300))
    watch.look()
    ask(collection, texts(rng, 200, 1))
    assert any(watch.look() for _ in range(5))
    identity = collection.fit_projection("pca", 8)
    number = collection.add_projection(identity)
    collection.activate(number, force=True, report={"promoted": True, "reason": "Because."})
    watch.look()
    assert not hints(collection, "unlike")
    more = texts(rng, 100)
    collection.upsert([{"id": f"same {n}", "text": text} for n, text in enumerate(more)])
    assert not any(watch.look() for _ in range(3))
    # The training knows both topics.
    ask(collection, [texts(rng, 1, int(topic))[0] for topic in rng.random(150) < 0.4])
    assert not any(watch.look() for _ in range(3))
    assert alarms(collection).get("documents", False) is False
    other = texts(rng, 100, 1)
    collection.upsert([{"id": f"other {n}", "text": text} for n, text in enumerate(other)])
    (told,) = [sentence for _ in range(3) for sentence in watch.look()]
    assert "Documents" in told
    assert "Publish" in told
    assert hints(collection, "Documents") == [told]


def test_a_training_within_the_second_of_its_last_queries_knows_all_of_them(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = 1_900_000_000.0  # a whole second, in which the queries of a new topic come

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(moment + 0.6, tz)

    monkeypatch.setattr(sql, "datetime", Clock)
    rng, watch = np.random.default_rng(2), Drift(collection)
    for topic, count, after in ((0, drift.LEAST, -0.3), (1, 200, 0.3)):
        monkeypatch.setattr(searches.time, "time", lambda after=after: moment + after)
        ask(collection, texts(rng, count, topic))
        watch.look()
    number = collection.add_projection(collection.fit_projection("pca", 8))
    collection.activate(number, force=True, report={"promoted": True, "reason": "Because."})
    for _ in range(5):
        watch.look()
    assert not hints(collection, "unlike")
    monkeypatch.setattr(searches.time, "time", lambda: moment + 0.9)
    ask(collection, [texts(rng, 1, int(topic))[0] for topic in rng.random(150) < 0.5])
    assert not any(watch.look() for _ in range(3))


def test_a_deleted_log_is_forgotten(collection: Collection) -> None:
    rng, watch = np.random.default_rng(3), Drift(collection)
    ask(collection, texts(rng, 300))
    watch.look()
    ask(collection, texts(rng, 128, 1))
    assert any(watch.look() for _ in range(3))
    log_of(collection).delete()
    watch.look()
    assert not hints(collection, "Recent queries")
    ask(collection, texts(rng, 300, 1))
    assert not any(watch.look() for _ in range(3))


def test_the_share_of_refusals(collection: Collection) -> None:
    rng, watch = np.random.default_rng(4), Drift(collection)
    collection.publish()
    query = texts(rng, 1)[0]
    assert collection.search(query).calibrated is not None
    assert collection.search(query, min_confidence=1.0).answered is False
    first, second = log_of(collection).texts(9)
    assert second[1:] == (query, 1)
    assert bool(first[2]) is not collection.search(query).answered
    for share, count in ((0.05, 500), (0.4, 250)):
        for text in texts(rng, count):
            log_of(collection).add(text, 1, [], refused=bool(rng.random() < share))
        told = [sentence for _ in range(8) for sentence in watch.look()]
        assert len(told) == (share > 0.1)
    assert 20 <= int(told[0].split("%")[0].split()[-1]) <= 60
    assert alarms(collection)["queries"] is False


def noisy(model: Path, share: float) -> None:
    """Add noise to the weights of a model on disk."""
    from safetensors.numpy import load_file, save_file

    (path,) = model.rglob("*.safetensors")
    rng, weights = np.random.default_rng(5), load_file(path)
    save_file(
        {
            name: (
                rows + share * rows.std() * rng.normal(size=rows.shape).astype(np.float32)
            ).astype(rows.dtype)
            for name, rows in weights.items()
        },
        path,
    )


def test_an_encoder_that_gives_other_numbers_by_one_percent(
    library: tuple[Data, Path],
) -> None:
    data, model = library
    collection = data.collection("default")
    assert check_encoder(collection) is None
    assert alarms(collection) == {"encoder": False}
    noisy(model, 0.01)
    with Data(data.folder, load_encoder=load) as later:
        told = check_encoder(later.collection("default"))
        assert told is not None
        assert "reindex" in told
        assert hints(later.collection("default"), "encoder") == [told]
        # Drift of queries is another matter, and leaves it as it is.
        Drift(later.collection("default")).look()
        assert hints(later.collection("default"), "encoder") == [told]


@pytest.mark.parametrize("stored", ["bfloat16", "int8"])
def test_a_number_format_explains_what_it_changes(
    tmp_path: Path, stored: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Data(tmp_path, precision=stored) as data:
        made = data.create("default")
        made.upsert([{"id": str(n), "text": f"A ship sails to harbour {n}."} for n in range(8)])
        assert check_encoder(made) is None
    with Data(tmp_path, precision="float32") as data:
        collection = data.collection("default")
        assert check_encoder(collection) is None
        monkeypatch.setattr(drift, "in_formats", lambda name: iter([load(precision="float32")]))
        assert check_encoder(collection) is not None  # the formats alone explain it


def test_documents_with_vectors_of_their_own_tell_nothing(tmp_path: Path) -> None:
    with Data(tmp_path) as data:
        made = data.create("points", dimension=2)
        made.upsert([{"id": "a", "vector": [1.0, 0.0]}])
        made.configure(log=True)
        assert check_encoder(made) is None
        assert Drift(made).look() == []
        assert noticed(made) == {}
