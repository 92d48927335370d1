"""Model calls shared by threads, and embeddings kept: what each caller gets, and what it costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attend import Data
from attend.core.deadline import until
from attend.core.errors import OverTime
from attend.core.types import Float32
from attend.encoder import CachedEncoder, EmbeddingCache, SentenceEncoder, load
from attend.encoder.tokens import Key
from tests import warm

LIMIT = 30.0
"""Seconds that anything here may take on a busy machine."""

WORDS = ["harbour", "ice", "ferry", "winter", "lantern", "candle", "cart", "bridge", "bell"]


# --- sharing ----------------------------------------------------------------------------------


class Held:
    """An encoder whose calls for one task stand still until they may go on."""

    def __init__(self, folder: str, task: str) -> None:
        self.calls: list[int] = []
        self.begun, self.may_go_on = threading.Semaphore(0), threading.Event()
        self._encoder, self._task = load(folder), task
        self._run = self._encoder.run
        self._encoder.run = self._held  # type: ignore[method-assign]

    def _held(self, texts: list[str], task: str) -> Float32:
        if task == self._task:
            self.calls.append(len(texts))
            self.begun.release()
            assert self.may_go_on.wait(LIMIT)
        return self._run(texts, task)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)


def test_a_query_waits_for_no_documents(tiny_encoder_folder: Path) -> None:
    encoder = Held(str(tiny_encoder_folder), "document")
    begun, may_go_on = encoder.begun, encoder.may_go_on
    with ThreadPoolExecutor(32) as pool:
        documents = [pool.submit(encoder.encode_documents, [text]) for text in sentences(20)]
        try:
            assert begun.acquire(timeout=LIMIT)
            assert encoder.encode_queries(["ice"]).shape == (1, encoder.dimension)
            assert not any(each.done() for each in documents)
        finally:
            may_go_on.set()
        rows = np.concatenate([each.result(LIMIT) for each in documents])
    np.testing.assert_allclose(rows, encoder.encode_documents(sentences(20)), atol=1e-6)


def test_what_waits_for_the_model_until_its_deadline_is_not_encoded(
    tiny_encoder_folder: Path,
) -> None:
    encoder = Held(str(tiny_encoder_folder), "document")
    texts = sentences(400)
    encoder.may_go_on.set()
    with pytest.raises(OverTime), until(time.monotonic() - 1):
        encoder.encode_documents(texts)
    assert encoder.calls == []
    encoder.encode_documents(texts)
    assert len(encoder.calls) > 1


def test_what_comes_during_a_call_shares_the_next(tiny_encoder_folder: Path) -> None:
    encoder = Held(str(tiny_encoder_folder), "query")
    calls, begun, may_go_on = encoder.calls, encoder.begun, encoder.may_go_on
    with ThreadPoolExecutor(32) as pool:
        asked = [pool.submit(encoder.encode_queries, [text]) for text in sentences(20)]
        for _ in range(encoder._cores):
            assert begun.acquire(timeout=LIMIT)
        for _ in range(int(LIMIT * 1000)):
            if encoder._coalescer.waiting("query") == 20 - encoder._cores:
                break
            threading.Event().wait(0.001)
        may_go_on.set()
        for each in asked:
            each.result(LIMIT)
    assert calls[: encoder._cores] == [1] * encoder._cores
    assert sum(calls) == 20
    assert len(calls) <= encoder._cores + 2


def test_a_thread_keeps_its_number_of_cores(tiny_encoder: SentenceEncoder) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        tiny_encoder.encode_queries(["ice"])
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


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


GROWTH = """
import resource, random
from attend.encoder import load
encoder = load()
random.seed(0)
def run():
    for _ in range(40):
        encoder.encode_queries([f"{random.random()} " * random.randint(1, 9)
                                for _ in range(random.randint(1, 16))])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
print(-run() + run())
"""


def test_shapes_that_came_once_are_not_kept() -> None:
    """In a process of its own: an operator for each shape took a gigabyte by and by."""
    told = warm.run("-c", GROWTH)
    assert int(told.stdout) < 34, told.stderr  # MiB


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
