"""Model calls shared by threads, and embeddings kept: what each caller gets, and what it costs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index import Data
from index.encoder import CachedEncoder, EmbeddingCache, SentenceEncoder, load
from index.encoder.cache import Key
from index.encoder.shared import Part, Turns
from index.types import Float32

LIMIT = 30.0
"""Seconds that anything here may take on a busy machine."""

WORDS = ["harbour", "ice", "ferry", "winter", "lantern", "candle", "cart", "bridge", "bell"]


def rows_of(texts: list[str], task: str) -> Float32:
    """A row tells its text and task: their lengths."""
    return np.array([[len(text), len(task)] for text in texts], dtype=np.float32)


class Model:
    """Records each call, and can be held while it runs."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []
        self.begun = threading.Semaphore(0)
        self.may_go_on = threading.Event()

    def __call__(self, texts: list[str], task: str) -> Float32:
        self.calls.append((task, texts))
        self.begun.release()
        assert self.may_go_on.wait(LIMIT)
        if "bad" in texts:
            raise ValueError("bad")
        return rows_of(texts, task)


@pytest.fixture
def model() -> Iterator[Model]:
    model = Model()
    yield model
    model.may_go_on.set()


def part(*texts: str, cost: int | None = None) -> Part:
    return Part(list(texts), len(texts) if cost is None else cost)


def held(model: Model, budget: int, workers: int = 1) -> Turns:
    """Turns whose every worker is in the middle of a call."""
    turns = Turns(model, budget, workers, None)
    for _ in range(workers):
        turns.put([part("first")], "query")
        assert model.begun.acquire(timeout=LIMIT)
    return turns


def texts_of(parts: list[Part]) -> list[list[float]]:
    return [each.result.result(LIMIT).rows[:, 0].tolist() for each in parts]


# --- sharing ----------------------------------------------------------------------------------


def test_an_idle_model_waits_for_nobody(model: Model) -> None:
    turns = held(model, budget=100)
    assert model.calls == [("query", ["first"])]
    assert turns is not None


def test_what_queues_during_a_call_goes_into_the_next_in_order(model: Model) -> None:
    turns = held(model, budget=4)
    parts = [part("a"), part("bb", "ccc"), part("dddd"), part("eeeee"), part("ffffff")]
    for each in parts:
        turns.put([each], "query")
    model.may_go_on.set()
    assert texts_of(parts) == [[1], [2, 3], [4], [5], [6]]
    assert model.calls[1:] == [
        ("query", ["a", "bb", "ccc", "dddd"]),
        ("query", ["eeeee", "ffffff"]),
    ]


def test_a_part_beyond_the_budget_goes_alone(model: Model) -> None:
    turns = held(model, budget=4)
    parts = [part("a"), part("bb", cost=99), part("ccc")]
    turns.put(parts, "query")
    model.may_go_on.set()
    assert texts_of(parts) == [[1], [2], [3]]
    assert [texts for _, texts in model.calls[1:]] == [["a"], ["bb"], ["ccc"]]


def test_tasks_take_turns_and_are_never_mixed(model: Model) -> None:
    turns = held(model, budget=2)
    documents = [part("d" * 3, "d" * 4) for _ in range(4)]
    turns.put(documents, "document")
    queries = [part("q", cost=2), part("qq", cost=2)]
    for each in queries:
        turns.put([each], "query")
    model.may_go_on.set()
    texts_of([*documents, *queries])
    tasks = [task for task, _ in model.calls[1:]]
    assert tasks == ["query", "document", "query", "document", "document", "document"]


def test_what_waits_is_shared_among_idle_workers(model: Model) -> None:
    turns = Turns(model, 100, 2, None)
    parts = [part("a"), part("bb"), part("ccc"), part("dddd")]
    turns.put(parts, "document")
    for _ in range(2):
        assert model.begun.acquire(timeout=LIMIT)
    assert sorted(len(texts) for _, texts in model.calls) == [2, 2]
    model.may_go_on.set()
    assert texts_of(parts) == [[1], [2], [3], [4]]


def test_one_bad_text_fails_for_its_caller_alone(model: Model) -> None:
    turns = held(model, budget=100)
    parts = [part("a"), part("bad", "b"), part("cc")]
    turns.put(parts, "query")
    model.may_go_on.set()
    with pytest.raises(ValueError, match="bad"):
        parts[1].result.result(LIMIT)
    assert texts_of([parts[0], parts[2]]) == [[1], [2]]
    after = part("ddd")
    turns.put([after], "query")
    assert texts_of([after]) == [[3]]


def test_each_part_is_told_how_long_it_waited(model: Model) -> None:
    turns = held(model, budget=100)
    waiting = part("a")
    turns.put([waiting], "query")
    assert not waiting.result.done()
    model.may_go_on.set()
    assert waiting.result.result(LIMIT).spent["queue"] > 0


@given(
    lots=st.lists(
        st.lists(st.text("abc ", max_size=9), min_size=1, max_size=5), min_size=1, max_size=12
    ),
    budget=st.integers(1, 12),
    workers=st.integers(1, 3),
)
def test_every_caller_gets_its_own_rows(lots: list[list[str]], budget: int, workers: int) -> None:
    turns = Turns(rows_of, budget, workers, None)
    parts = [part(*texts) for texts in lots]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda at: turns.put([parts[at]], "qd"[at % 2]), range(len(parts))))
    for texts, each in zip(lots, parts, strict=True):
        assert each.result.result(LIMIT).rows[:, 0].tolist() == [len(text) for text in texts]


def shared_and_alone(encoder: SentenceEncoder, texts: list[str]) -> tuple[Float32, Float32]:
    alone = np.concatenate([encoder.encode_queries([text]) for text in texts])
    with ThreadPoolExecutor(16) as pool:
        shared = np.concatenate(list(pool.map(lambda text: encoder.encode_queries([text]), texts)))
    return shared, alone


def sentences(count: int) -> list[str]:
    rng = np.random.default_rng(3)
    return [" ".join(rng.choice(WORDS, size=1 + at % 40)) for at in range(count)]


def test_shared_embeddings_are_those_of_the_texts_alone(tiny_encoder: SentenceEncoder) -> None:
    shared, alone = shared_and_alone(tiny_encoder, sentences(100))
    np.testing.assert_allclose(shared, alone, atol=1e-6)


def test_the_default_model_gives_a_text_the_same_embedding_in_any_company() -> None:
    shared, alone = shared_and_alone(load(), sentences(80))
    assert (shared * alone).sum(axis=1).min() > 1 - 1e-3


def test_the_default_model_is_run_directly() -> None:
    from index.encoder.direct import DirectEncoder

    encoder = load()
    assert isinstance(encoder._direct, DirectEncoder)
    direct = encoder.encode_documents(sentences(20))
    encoder._direct = None
    plain = encoder.encode_documents(sentences(20))
    assert (direct * plain).sum(axis=1).min() > 0.9995


# --- keeping ----------------------------------------------------------------------------------


class Counting:
    """An encoder that tells what it was asked for."""

    def __init__(self, encoder: SentenceEncoder, name: str) -> None:
        self.asked: list[str] = []
        self.name = name
        self._encoder = encoder

    def encode_queries(self, texts: list[str]) -> Float32:
        self.asked += texts
        return self._encoder.encode_queries(texts)

    def __getattr__(self, name: str) -> object:
        return getattr(self._encoder, name)


Cached = tuple[Counting, CachedEncoder, EmbeddingCache]


@pytest.fixture
def cached(tiny_encoder: SentenceEncoder) -> Callable[[int], Cached]:
    def made(limit: int) -> Cached:
        counting, cache = Counting(tiny_encoder, "tiny"), EmbeddingCache(limit)
        return counting, CachedEncoder(counting, cache), cache  # type: ignore[arg-type]

    return made


def test_a_kept_query_is_the_same_and_is_not_encoded_again(
    cached: Callable[[int], Cached], tiny_encoder: SentenceEncoder
) -> None:
    counting, encoder, cache = cached(10**6)
    first = encoder.encode_queries(["ice", "bell"])
    again = encoder.encode_queries(["bell", "cart", "ice"])
    assert counting.asked == ["ice", "bell", "cart"]
    np.testing.assert_array_equal(again[[2, 0]], first)
    expected = tiny_encoder.encode_queries(["bell", "cart", "ice"])
    np.testing.assert_allclose(again, expected, atol=1e-6)
    assert cache.usage()[:3] == (2, 3, 3)


def test_what_a_caller_does_to_its_rows_is_not_kept(cached: Callable[[int], Cached]) -> None:
    _, encoder, _ = cached(10**6)
    first = encoder.encode_queries(["ice"])
    expected = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(encoder.encode_queries(["ice"]), expected)


def test_the_size_is_bounded_and_what_was_asked_last_stays(
    cached: Callable[[int], Cached],
) -> None:
    counting, encoder, cache = cached(3 * (32 * 4 + 400 + 8))
    for text in ["ice", "bell", "cart", "ice", "ferry"]:
        encoder.encode_queries([text])
    assert cache.usage().size <= cache.limit
    assert cache.usage().entries == 3
    counting.asked.clear()
    encoder.encode_queries(["ice", "cart", "ferry"])
    assert counting.asked == []
    encoder.encode_queries(["bell"])
    assert counting.asked == ["bell"]


def test_what_is_larger_than_the_cache_is_not_kept(cached: Callable[[int], Cached]) -> None:
    _, encoder, cache = cached(600)
    encoder.encode_queries(["x" * 10_000])
    assert cache.usage().entries == 0
    assert cache.usage().size == 0


def test_encoders_do_not_share_entries(tiny_encoder: SentenceEncoder) -> None:
    cache = EmbeddingCache(10**6)
    cache.put(Key("one", "query", "ice"), np.ones(3, dtype=np.float32))
    assert cache.get([Key("two", "query", "ice")]) == [None]
    assert cache.get([Key("one", "document", "ice")]) == [None]


def test_many_threads_may_use_one_cache(
    cached: Callable[[int], Cached], tiny_encoder: SentenceEncoder
) -> None:
    _, encoder, cache = cached(20 * 600)
    texts = sentences(40)
    expected = dict(zip(texts, tiny_encoder.encode_queries(texts), strict=True))

    def ask(at: int) -> None:
        chosen = [texts[at % 40], texts[(at * 7) % 40]]
        for text, row in zip(chosen, encoder.encode_queries(chosen), strict=True):
            np.testing.assert_allclose(row, expected[text], atol=1e-6)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(400)))
    usage = cache.usage()
    assert usage.size <= cache.limit
    assert usage.hits + usage.misses == 800


def test_data_hands_out_encoders_that_remember_where_asked_to(
    tmp_path: Path, tiny_encoder_folder: Path
) -> None:
    plain, remembering = Data(tmp_path), Data(tmp_path, cache_bytes=10**6)
    assert isinstance(plain.encoder(str(tiny_encoder_folder)), SentenceEncoder)
    encoder = remembering.encoder(str(tiny_encoder_folder))
    encoder.encode_queries(["ice"])
    encoder.encode_queries(["ice"])
    assert remembering.embeddings.usage()[:2] == (1, 1)
