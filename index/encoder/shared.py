"""Calls of a model by many threads at once, as few calls with much in each.

A model takes little longer over many short texts than over one. While it runs, others queue up;
whoever is free next takes all that has queued, first in, first out, up to a budget. Nobody waits
for company: an idle model takes the first text that comes at once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from index.timings import collecting
from index.types import Float32

Run = Callable[[list[str], str], Float32]
"""Texts (n,) and the task they are for, as rows (n, dimension)."""


class Encoded(NamedTuple):
    """A part's embeddings, and the seconds by stage of the call that made them."""

    rows: Float32  # (n, dimension)
    spent: dict[str, float]


class Part:
    """Texts that one caller waits for, of one task; they are never divided among calls."""

    def __init__(self, texts: list[str], cost: int) -> None:
        self.texts = texts
        self.cost = cost
        self.result: Future[Encoded] = Future()
        self.since = time.perf_counter()


class Turns:
    """A queue for each task before `workers` threads that run one model.

    The tasks take turns, so that a query waits for at most one batch of documents, however many
    are being written, and documents are written however many queries come.
    """

    def __init__(
        self, run: Run, budget: int, workers: int, prepare: Callable[[], None] | None
    ) -> None:
        """
        Args:
            budget: the cost of one call of `run` at most, except for a part that alone costs more.
            prepare: called once in each worker's thread.
        """
        self._run = run
        self._budget = budget
        self._free = workers
        self._queues: dict[str, deque[Part]] = {}
        self._lock = threading.Lock()
        self._workers = ThreadPoolExecutor(workers, "encoder", initializer=prepare)

    def put(self, parts: Sequence[Part], task: str) -> None:
        """Queue parts; each one's `result` comes when its turn has."""
        with self._lock:
            self._queues.setdefault(task, deque()).extend(parts)
        for _ in parts:
            self._workers.submit(self._turn)

    def _turn(self) -> None:
        """One call of the model with what waits, if another turn has not taken it along."""
        with self._lock:
            task, taken = self._take()
            self._free -= 1
        try:
            if taken:
                self._answer(task, taken)
        finally:
            with self._lock:
                self._free += 1

    def _take(self) -> tuple[str, list[Part]]:
        task = next((each for each, queue in self._queues.items() if queue), "")
        if not task:
            return task, []
        queue = self._queues.pop(task)
        self._queues[task] = queue  # last in line now
        # What waits is shared among the workers that have nothing to do.
        share = min(self._budget, -(-sum(part.cost for part in queue) // self._free))
        taken = [queue.popleft()]
        spent = taken[0].cost
        while queue and spent + queue[0].cost <= share:
            taken.append(queue.popleft())
            spent += taken[-1].cost
        return task, taken

    def _answer(self, task: str, parts: list[Part]) -> None:
        began = time.perf_counter()
        try:
            with collecting() as spent:
                rows = self._run([text for part in parts for text in part.texts], task)
        except BaseException as error:
            if len(parts) == 1:
                parts[0].result.set_exception(error)
                return
            # One of them is at fault, and alone each tells whether it was that one.
            for part in parts:
                self._answer(task, [part])
            return
        start = 0
        for part in parts:
            own = rows[start : start + len(part.texts)]
            start += len(part.texts)
            part.result.set_result(Encoded(own, {"queue": began - part.since, **spent}))
