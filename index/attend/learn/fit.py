"""The fitting loop that every objective shares, and fits that run in parallel."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from attend.errors import Conflict
from attend.types import Int64

Batch = TypeVar("Batch", contravariant=True)
Result = TypeVar("Result")

Watch = Callable[[float], None]
"""Receives the progress of a fit, 0 to 1; may raise to stop it."""


@dataclass(frozen=True)
class Recipe:
    """The numbers of a fit, chosen on held-out parts of training sets.

    Attributes:
        rates: the learning rate of each group of parameters.
        decay: weight decay of a group; 0 where it is not named.
        epochs, steps: passes over the data, and the bounds of the number of steps.
        batch: units in a step.
        drop: the share of input numbers that dropout leaves out.
        drop_offsets: the share of key offsets left out at each step, so that W_Q and W_K learn to
            do without them.
    """

    name: str
    rates: Mapping[str, float]
    decay: Mapping[str, float] = field(default_factory=dict)
    betas: tuple[float, float] = (0.9, 0.999)
    epochs: int = 14
    steps: tuple[int, int] = (40, 450)
    batch: int = 128
    drop: float = 0.2
    drop_offsets: float = 0.5

    def count_steps(self, batches: int) -> int:
        """Return the number of steps, by the batches of an epoch."""
        fewest, most = self.steps
        return min(max(self.epochs * batches, fewest), most)


class Model(Protocol[Batch]):
    """Parameters in groups that a recipe has rates for, and the loss of a batch."""

    @property
    def parameters(self) -> Mapping[str, Sequence[Any]]: ...

    def loss(self, batch: Batch) -> Any:
        """Return the loss as a tensor; None for a batch that teaches nothing."""


def descend(
    model: Model[Batch], recipe: Recipe, batches: Iterable[Batch], steps: int, watch: Watch
) -> None:
    """Minimise the loss by Adam, with a learning rate that falls to zero.

    Raises:
        Conflict: the loss is not finite.
    """
    import torch  # here: seconds to import, and a search needs none of it

    groups = [
        {
            "params": list(tensors),
            "lr": recipe.rates[name],
            "weight_decay": recipe.decay.get(name, 0),
        }
        for name, tensors in model.parameters.items()
    ]
    optimiser = torch.optim.AdamW(groups, betas=recipe.betas)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / max(1, steps))
    for step, batch in enumerate(batches):
        watch(step / steps)
        optimiser.zero_grad()
        loss = model.loss(batch)
        if loss is None:
            continue
        if not bool(torch.isfinite(loss)):
            raise Conflict(
                "Training came to numbers that are not finite; look for vectors of extreme length "
                "or values of extreme size among the documents and the examples."
            )
        loss.backward()
        optimiser.step()
        schedule.step()


def shuffled_batches(
    members: Int64, size: int, steps: int, random: np.random.Generator
) -> Iterator[Int64]:
    """Yield a batch for each step; every member appears once in an epoch."""
    size = min(size, len(members))
    order = np.empty(0, dtype=np.int64)
    for _ in range(steps):
        if len(order) < size:
            order = np.append(order, random.permutation(members))
        yield order[:size]
        order = order[size:]


def count_batches(members: int, size: int) -> int:
    """Return the number of batches in an epoch."""
    return math.ceil(members / size)


@contextmanager
def workers() -> Iterator[ThreadPoolExecutor]:
    """Open a pool with a worker for each core, each with one thread of torch.

    The products of a fit are small: two threads that wait for each other at every one of them
    take longer than one, and three times as long beside other work.
    """
    import torch  # here: seconds to import

    before = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        with ThreadPoolExecutor(cores, initializer=partial(torch.set_num_threads, 1)) as pool:
            yield pool
    finally:
        # Threads that are there keep their number; those begun later take the last one set.
        torch.set_num_threads(before)


def run_parallel(jobs: Sequence[Callable[[Watch], Result]], watch: Watch) -> list[Result]:
    """Return the results of jobs that run at once, each with a callback for its progress.

    An exception of a job, or of `watch`, stops the others.
    """
    lock, done, stopped = threading.Lock(), [0.0] * len(jobs), threading.Event()

    def report(job: int, share: float) -> None:
        if stopped.is_set():
            raise InterruptedError
        with lock:
            done[job] = max(done[job], share)
            watch(sum(done) / len(jobs))

    with workers() as pool:
        running = [pool.submit(job, partial(report, place)) for place, job in enumerate(jobs)]
        try:
            return [future.result() for future in running]
        except BaseException:
            stopped.set()
            raise
