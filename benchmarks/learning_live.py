"""Rows of the live switch: how long it takes, and what searches meet meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import progress
from learning_rows import Row
from learning_sets import Bench

from attend import Answer, Collection, Document
from attend.api.base import parse
from attend.api.search import SearchRequest
from attend.projection import given

CALM = 20
"""Queries that are asked over and over during a switch."""

DIMENSION = 384
SEED = 20170612

WATCHED = 0.02
"""Seconds between two looks at the memory."""

STATUS = Path("/proc/self/status")


class Met(NamedTuple):
    """One search during a switch: which query, its seconds, and what it gave."""

    query: int
    seconds: float
    answer: Answer | None
    error: str | None


class Switch(NamedTuple):
    """An activation under load.

    Attributes:
        wrong: searches whose documents were those of neither version.
        peak: bytes of memory of the process's own at most, less those before; None where the
            system does not tell.
    """

    seconds: float
    searches: int
    slowest: float
    errors: int
    wrong: int
    peak: int | None

    def rows(self, name: str, what: str, most: float) -> Iterator[Row]:
        yield Row(f"{name}.seconds", f"{what}: seconds", self.seconds).wanted("<=", most)
        yield Row(
            f"{name}.slowest",
            "  slowest search meanwhile, seconds",
            self.slowest,
            note=f"{self.searches} searches",
        )
        yield Row(f"{name}.errors", "  searches that failed", self.errors).wanted("<=", 0)
        yield Row(f"{name}.wrong", "  searches answered wrongly", self.wrong).wanted("<=", 0)
        if self.peak is not None:
            what = "  peak of its own memory above that before, MiB"
            yield Row(f"{name}.peak_mib", what, self.peak / 2**20)


def switched(collection: Collection, version: int, requests: Sequence[SearchRequest]) -> Switch:
    """Activate a version while one thread searches without pause."""
    before = [_documents(collection, request) for request in requests]
    met: list[Met] = []
    stop = threading.Event()
    searching = threading.Thread(target=_search, args=(collection, requests, met, stop))
    memory = Memory()
    searching.start()
    memory.start()
    started = time.perf_counter()
    collection.activate(version)
    seconds = time.perf_counter() - started
    memory.stop()
    stop.set()
    searching.join()
    after = [_documents(collection, request) for request in requests]
    right = {
        answer.projection: [tuple(hit.id for hit in each.hits) for each in answers]
        for answers in (before, after)
        for answer in answers[:1]
    }
    return Switch(
        seconds=seconds,
        searches=len(met),
        slowest=max(each.seconds for each in met),
        errors=sum(each.error is not None for each in met),
        wrong=sum(_is_wrong(each, right) for each in met),
        peak=memory.risen(),
    )


def _search(
    collection: Collection, requests: Sequence[SearchRequest], met: list[Met], stop: threading.Event
) -> None:
    at = 0
    while not stop.is_set() or not met:
        started = time.perf_counter()
        answer, error = None, None
        try:
            answer = _documents(collection, requests[at])
        except Exception as problem:  # whatever it is, a user would have met it
            error = repr(problem)
            progress(f"a search during the switch failed: {error}")
        met.append(Met(at, time.perf_counter() - started, answer, error))
        at = (at + 1) % len(requests)


def _documents(collection: Collection, request: SearchRequest) -> Answer:
    return collection.search_many([request])[0]


def _is_wrong(met: Met, right: dict[int, list[tuple[str, ...]]]) -> bool:
    if met.answer is None:
        return False
    expected = right.get(met.answer.projection)
    return expected is None or tuple(hit.id for hit in met.answer.hits) != expected[met.query]


class Memory:
    """Watches the memory that is this process's own: a file that is mapped is not."""

    def __init__(self) -> None:
        self._before = self._peak = own_memory()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def risen(self) -> int | None:
        if self._before is None or self._peak is None:
            return None
        return self._peak - self._before

    def _watch(self) -> None:
        while not self._done.wait(WATCHED):
            now = own_memory()
            if now is not None and self._peak is not None:
                self._peak = max(self._peak, now)


def own_memory() -> int | None:
    """Anonymous resident bytes of this process; None where the system does not tell."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), None)


# -- a million keys -------------------------------------------------------------------------


def many_keys(bench: Bench) -> Iterator[Row]:
    """The switch over as many keys as --keys says, vectors drawn at random."""
    count = bench.options.keys
    random = np.random.default_rng(SEED)

    def fill(collection: Collection) -> None:
        for at in range(0, count, 10_000):
            rows = random.standard_normal((min(10_000, count - at), DIMENSION), dtype=np.float32)
            collection.write(
                [Document(str(at + each), vectors={"vector": row}) for each, row in enumerate(rows)]
            )
            if at % 100_000 == 0:
                progress(f"stored {at} of {count} keys")
        collection.publish()

    name = f"random-{count}"
    with bench.workshop.copy(name, fill, dimension=DIMENSION, normalize=True) as collection:
        drawn = random.standard_normal((CALM, DIMENSION), dtype=np.float32)
        requests = [parse(SearchRequest, {"query": {"vector": row}}) for row in drawn]
        progress(f"activating over {count} keys")
        switch = switched(collection, collection.add_projection(_turned(random)), requests)
    yield from switch.rows("live-many", f"Live switch, {count} keys of {DIMENSION}", most=60)


def _turned(random: np.random.Generator):  # type: ignore[no-untyped-def]
    """A projection that makes every key anew, as a learned one does."""
    w_q, w_k = (
        np.eye(DIMENSION) + 0.01 * random.standard_normal((DIMENSION, DIMENSION)) for _ in range(2)
    )
    return given(w_q, w_k, normalize_queries=True, normalize_keys=True)
