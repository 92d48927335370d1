"""Jobs of a training side by side: a worker for each core."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from attend.learn.fit import Watch

Result = TypeVar("Result")


@contextmanager
def one_thread_each() -> Iterator[ThreadPoolExecutor]:
    """A worker for each core, each with one thread of its own.

    A fit's products are small: two threads that wait for each other at every one of them take
    longer than one, and three times as long beside other work.
    """
    import torch  # here: seconds to import

    before = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        with ThreadPoolExecutor(cores, initializer=partial(torch.set_num_threads, 1)) as workers:
            yield workers
    finally:
        # Threads that are there keep their number; those begun later take the last one set.
        torch.set_num_threads(before)


def together(jobs: Sequence[Callable[[Watch], Result]], watch: Watch) -> list[Result]:
    """The results of jobs that run at once, each told how to say how far it is.

    What one of them raises, or `watch` does, stops the others.
    """
    lock, done, stopped = threading.Lock(), [0.0] * len(jobs), threading.Event()

    def told(at: int) -> Watch:
        def say(share: float) -> None:
            if stopped.is_set():
                raise InterruptedError
            with lock:
                done[at] = max(done[at], share)
                watch(sum(done) / len(jobs))

        return say

    with one_thread_each() as workers:
        running = [workers.submit(job, told(at)) for at, job in enumerate(jobs)]
        try:
            return [each.result() for each in running]
        except BaseException:
            stopped.set()
            raise


class Steady:
    """The progress of many tasks at once, as one number that only grows; and their stop."""

    def __init__(self, watch: Watch, tasks: int) -> None:
        self._watch, self._tasks = watch, tasks
        self._lock = threading.Lock()
        self._done: list[float] = []
        self._stopped = False

    def part(self) -> Watch:
        """What one of the tasks tells how far it is."""
        with self._lock:
            at = len(self._done)
            self._done.append(0.0)

        def watch(done: float) -> None:
            if self._stopped:
                raise Stopped
            with self._lock:
                self._done[at] = max(self._done[at], done)
                self._watch(min(1.0, sum(self._done) / self._tasks))

        return watch

    def stop(self) -> None:
        """Stop every task at its next word."""
        self._stopped = True


class Stopped(Exception):
    """Another task of the same trial went wrong, or was stopped."""
