"""Jobs of a training side by side: a worker for each core."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from index.learn.fit import Watch

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
