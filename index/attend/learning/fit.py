"""What every objective fits, the loops that fit it, and fits that run in parallel.

W_Q and W_K are the identity plus what is learned: they start at the identity (or at the directions
in which embeddings vary most), so that nothing learned is nothing changed. Some keys have an offset
of their own beside them.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from attend.core.arrays import unit
from attend.core.errors import Conflict
from attend.core.settings import Settings
from attend.core.types import Float32, Float64, Int64
from attend.learning.data import Memory
from attend.projection import Projection, given, identity
from attend.store import Offsets

Batch = TypeVar("Batch", contravariant=True)

Result = TypeVar("Result")

MOST_RUNS = 32
"""Runs of documents with as many keys each, up to which each run is reduced by itself."""

Watch = Callable[[float], None]
"""Receives the progress of a fit, 0 to 1; may raise to stop it."""

Slope = Callable[[Float64], tuple[float, Float64]]
"""Gives a loss and its gradient."""


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


def minimise(
    loss: Slope, start: Sequence[float], bounds: Sequence[tuple[float, float]] | None = None
) -> tuple[Float64, float]:
    """Return the point of least loss near a start, and that loss, by L-BFGS."""
    point = minimize(loss, np.array(start), jac=True, method="L-BFGS-B", bounds=bounds)
    return np.asarray(point.x, dtype=np.float64), float(point.fun)


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


def run_parallel(jobs: Sequence[Callable[[Watch], Result]], watch: Watch) -> list[Result]:
    """Return the results of jobs that run at once, each with a callback for its progress.

    There is a worker for each core, each with one thread of torch and one of BLAS: the products of
    a fit are small, and two threads that wait for each other at every one of them take longer than
    one, and three times as long beside other work. An exception of a job, or of `watch`, stops the
    others at their next report, and those that wait do not begin.
    """
    lock, done, stopped = threading.Lock(), [0.0] * len(jobs), threading.Event()

    def report(place: int, share: float) -> None:
        if stopped.is_set():
            raise InterruptedError
        with lock:
            done[place] = max(done[place], share)
            watch(sum(done) / len(jobs))

    def run(place: int, job: Callable[[Watch], Result]) -> Result:
        result = job(partial(report, place))
        report(place, 1.0)
        return result

    import torch  # here: seconds to import

    threads = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        with (
            threadpool_limits(1, user_api="blas"),
            ThreadPoolExecutor(cores, initializer=partial(torch.set_num_threads, 1)) as pool,
        ):
            running = [pool.submit(run, place, job) for place, job in enumerate(jobs)]
            try:
                # In the order in which they end: the last one may fail first.
                for ended in wait(running, return_when=FIRST_EXCEPTION).done:
                    ended.result()
                return [future.result() for future in running]
            except BaseException:
                stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        # Threads that are there keep their number; those begun later take the last one set.
        torch.set_num_threads(threads)


class Fitted(NamedTuple):
    """The result of a fit.

    Attributes:
        scale: the factor on scores.
        offset_keys: (o,) positions in the memory, ascending; `offsets` (o, d) are theirs.
        center: (d,) subtracted from embeddings first; None for nothing.
        gates: (n,) the weight of each document in a history; None where all weigh the same.
        deep: (p,) a change of the encoder for queries; None where it is as it was.
    """

    w_q: Float32  # (d_k, d)
    w_k: Float32  # (d_k, d)
    scale: float
    offset_keys: Int64
    offsets: Float32
    center: Float32 | None = None
    gates: Float32 | None = None
    deep: Float32 | None = None

    def mixed(self, start: Float32, share: float) -> Fitted:
        """Return the point on the straight line from the start (d_k, d) to the fit.

        Part of the way often keeps what the start had and training lost (Wortsman et al.
        2022, "Robust fine-tuning of zero-shot models").
        """
        if share == 1:
            return self
        part = np.float32(share)
        return self._replace(
            w_q=start + part * (self.w_q - start),
            w_k=start + part * (self.w_k - start),
            offsets=part * self.offsets,
            gates=None if self.gates is None else self.gates**part,
        )

    def deepened(self, share: float) -> Fitted:
        """Return the same with a share of the change of the encoder: its products B A, scaled."""
        if self.deep is None or not share:
            return self._replace(deep=None)
        return self._replace(deep=self.deep * np.float32(math.sqrt(share)))

    def without_offsets(self) -> Fitted:
        """Return the same matrices alone."""
        return self._replace(offset_keys=self.offset_keys[:0], offsets=self.offsets[:0])

    def queries(self, memory: Memory, embeddings: Float32) -> Float32:
        """Project raw embeddings (q, d) to queries (q, d_k)."""
        return self._projected(memory, embeddings, self.w_q)

    def keys(self, memory: Memory) -> Float32:
        """Project all keys of a memory, with their offsets: (m, d_k)."""
        return self._projected(memory, memory.vectors + self.key_moves(memory), self.w_k)

    def document_queries(self, memory: Memory) -> Float32:
        """Project each document as a query, moved by the mean of its keys' offsets: (n, d_k)."""
        return self.queries(memory, memory.document_embeddings() + self.document_moves(memory))

    def document_moves(self, memory: Memory) -> Float32:
        """Return the mean offset of each document's keys (n, d)."""
        return memory.with_vectors(self.key_moves(memory)).means()

    def key_moves(self, memory: Memory) -> Float32:
        """Return the offset of each key (m, d); zero where it has none."""
        moves = np.zeros_like(memory.vectors)
        moves[self.offset_keys] = self.offsets
        return moves

    def projection(
        self, memory: Memory, settings: Settings, values: tuple[Float64, Float64] | None = None
    ) -> Projection:
        """Return the projection; the identity where nothing was learned.

        Args:
            values: W_V and its bias, where values go through one.
        """
        d_k, width = self.w_q.shape
        eye = np.eye(width, dtype=np.float32)
        plain = d_k == width and all(np.array_equal(w, eye) for w in (self.w_q, self.w_k))
        if plain and values is None and self.center is None and self.deep is None:
            return identity(width, normalize=memory.unit and not settings.unit_embeddings)
        return given(
            self.w_q,
            self.w_k,
            w_v=None if values is None else values[0][None],
            b_v=None if values is None else values[1][None],
            center=self.center,
            deep=self.deep,
            kind="learned",
            normalize_queries=memory.unit,
            normalize_keys=memory.unit,
        )

    def stored_offsets(self, memory: Memory) -> Offsets:
        """Return the offsets by the ids of their keys, ascending."""
        ids = memory.ids[self.offset_keys]
        order = np.argsort(ids)
        return Offsets(ids[order], self.offsets[order])

    def _projected(self, memory: Memory, embeddings: Float32, weights: Float32) -> Float32:
        if self.center is not None:
            embeddings = np.subtract(embeddings, self.center, dtype=np.float32)
        vectors: Float32 = embeddings @ weights.T
        return unit(vectors) if memory.unit else vectors


def unlearned(memory: Memory, start: Float32) -> Fitted:
    """Return the start itself as a fit."""
    none = np.empty(0, dtype=np.int64), np.empty((0, start.shape[1]), dtype=np.float32)
    return Fitted(start, start, memory.scale, *none)


class Residual:
    """The parameters of `Fitted` in torch, with the random draws of one fit.

    Draws come from a generator of its own, so that a seed gives the same fit.
    """

    def __init__(
        self, memory: Memory, start: Float32, *, scale: float, offset_keys: Int64, seed: int
    ) -> None:
        import torch  # here: seconds to import, and a search needs none of it

        self.torch, self.memory = torch, memory
        self.random = np.random.default_rng(seed)
        self.draw = torch.Generator().manual_seed(seed)
        self.start = torch.from_numpy(start)
        self.delta_q = torch.zeros_like(self.start, requires_grad=True)
        self.delta_k = torch.zeros_like(self.start, requires_grad=True)
        self.log_scale = torch.tensor(math.log(scale), requires_grad=True)
        self.offset_keys = offset_keys
        self.offset_places = np.full(len(memory.vectors), -1, dtype=np.int64)
        self.offset_places[offset_keys] = np.arange(len(offset_keys))
        self.offsets = torch.zeros(len(offset_keys), memory.vectors.shape[1], requires_grad=True)

    def project(self, embeddings: Any, delta: Any) -> Any:
        """(b, d) -> (b, d_k), at length one where the memory is."""
        vectors = embeddings @ (self.start + delta).T
        normalize = self.torch.nn.functional.normalize
        return normalize(vectors, dim=1) if self.memory.unit else vectors

    def thinned(self, embeddings: Any, share: float) -> Any:
        """Apply dropout to embeddings."""
        if share == 0:
            return embeddings
        left = self.torch.rand(embeddings.shape, generator=self.draw) >= share
        return embeddings * left / (1 - share)

    def moves(self, positions: Int64, owner: Int64, count: int, share: float) -> Any:
        """Sum the offsets of each owner's keys (m',) to (count, d), a share of them left out."""
        torch, places = self.torch, self.offset_places[positions]
        moved = np.flatnonzero(places >= 0)
        left = torch.rand(len(moved), 1, generator=self.draw) >= share
        deltas = self.offsets[torch.from_numpy(places[moved])] * left
        total = torch.zeros(count, self.offsets.shape[1])
        return total.index_add(0, torch.from_numpy(owner[moved]), deltas)

    def best(self, scores: Any, documents: Int64) -> Any:
        """(b, m') scores of the documents' keys -> (b, c), each document's best key.

        Fast where documents with as many keys are neighbours.
        """
        counts = self.memory.counts[documents]
        if self.memory.single:
            return scores
        cuts = np.flatnonzero(np.diff(counts)) + 1
        if len(cuts) < MOST_RUNS:  # several times as fast, with the gradient
            runs = [(len(run), int(run[0])) for run in np.split(counts, cuts)]
            parts = scores.split([count * keys for count, keys in runs], dim=1)
            by_run = zip(parts, runs, strict=True)
            return self.torch.cat([part.unflatten(1, run).amax(2) for part, run in by_run], dim=1)
        owner = self.torch.from_numpy(np.repeat(np.arange(len(documents)), counts))
        best = self.torch.full((len(scores), len(documents)), -math.inf)
        return best.scatter_reduce(1, owner.expand(len(scores), -1), scores, "amax")

    def fitted(self) -> Fitted:
        """Return the parameters in numpy."""
        with self.torch.no_grad():
            w_q, w_k = ((self.start + delta).numpy() for delta in (self.delta_q, self.delta_k))
            scale = float(self.log_scale.exp())
            return Fitted(w_q, w_k, scale, self.offset_keys, self.offsets.detach().numpy())
