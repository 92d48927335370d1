"""Fitting W_Q, W_K and key offsets by gradient descent on frozen embeddings.

The loss is the cross-entropy of a softmax over documents against the grades of each question
(the listwise loss of Cao et al. 2007 with its softmax over candidates sampled, as in sampled
softmax, Jean et al. 2015). Matrices start at the identity, so that nothing learned is nothing
changed. Several heads (Vaswani et al. 2017) are a mixture of softmaxes (Yang et al. 2018), as in
a search: each begins as the one head would, and dropout, drawn for each, leads them apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from attend.errors import Conflict, InvalidRequest
from attend.learn.data import Memory, Questions
from attend.types import Float32, Float64, Int64

LABELLED = 800
"""Documents that examples speak of, drawn for each step beside those of its own questions."""

UNLABELLED = 500
"""Others drawn for each step, where the recipe counts them."""


@dataclass(frozen=True)
class Recipe:
    """How to fit; the numbers were chosen on held-out parts of training sets.

    Attributes:
        unlabelled: how much a document counts in the softmax of which no example speaks. At 0
            nothing pushes it away: best where the documents asked for in use are mostly ones
            that examples do not know. At 1 it counts as any other: best where they are known.
        offsets: whether documents that examples speak of get key offsets.
        drop_offsets: the share of offsets left out at each step, so that W learns to do without.
        drop: dropout on the queries' embeddings, for each head another.
        heads: H.
        steps: bounds of the number of steps; `epochs` says how many there are between them.
    """

    name: str
    unlabelled: float
    offsets: bool = True
    drop_offsets: float = 0.5
    drop: float = 0.2
    heads: int = 1
    epochs: int = 14
    steps: tuple[int, int] = (40, 450)
    batch: int = 128
    rate: float = 1.5e-3
    offset_rate: float = 4e-3


class Fitted(NamedTuple):
    """What was learned."""

    w_q: Float32  # (H, d_k, d)
    w_k: Float32  # (H, d_k, d)
    offset_keys: Int64  # (o,) positions in the memory, ascending
    offsets: Float32  # (o, d)
    scales: Float64  # (H,)

    def mixed(self, start: Float32, share: float) -> Fitted:
        """On the straight line from where it started, (d_k, d), to what was learned.

        Part of the way often keeps what the start knew and training forgot (Wortsman et al.
        2022, "Robust fine-tuning of zero-shot models").
        """
        if share == 1:
            return self
        return self._replace(
            w_q=start + np.float32(share) * (self.w_q - start),
            w_k=start + np.float32(share) * (self.w_k - start),
            offsets=np.float32(share) * self.offsets,
        )


Watch = Callable[[float], None]
"""Told how far a fit is, 0 to 1; may raise to stop it."""


def unlearned(memory: Memory, start: Float32) -> Fitted:
    """The start itself, as one head."""
    d = memory.embeddings.shape[1]
    none = np.empty(0, dtype=np.int64), np.empty((0, d), dtype=np.float32)
    return Fitted(start[None], start[None], *none, np.array([memory.scale]))


def fit(
    memory: Memory,
    questions: Questions,
    recipe: Recipe,
    *,
    start: Float32 | None = None,
    seed: int = 0,
    watch: Watch | None = None,
) -> Fitted:
    """Learn from questions, each with at least one relevant document.

    Args:
        start: (d_k, d), where W_Q and W_K begin; the identity if None.

    Raises:
        Conflict: the loss is no longer a number.
    """
    d = memory.embeddings.shape[1]
    begin = np.eye(d, dtype=np.float32) if start is None else start
    if questions.count == 0:
        raise InvalidRequest("There is no question with a relevant document to learn from.")
    return _Fit(memory, questions, recipe, begin, seed).run(watch or (lambda _: None))


class _Fit:
    """One run: its parameters, and the draws of its steps."""

    def __init__(
        self, memory: Memory, questions: Questions, recipe: Recipe, start: Float32, seed: int
    ) -> None:
        import torch  # here: seconds to import, and a search needs none of it

        self.torch = torch
        self.memory, self.questions, self.recipe = memory, questions, recipe
        self.random = np.random.default_rng(seed)
        self.draw = torch.Generator().manual_seed(seed)
        labelled = np.zeros(memory.documents, dtype=bool)
        labelled[questions.judged.indices] = True
        self.labelled = np.flatnonzero(labelled)
        self.others = np.flatnonzero(~labelled)
        self.offset_keys = memory.positions(self.labelled)
        self.offset_at = np.full(len(memory.embeddings), -1, dtype=np.int64)
        self.offset_at[self.offset_keys] = np.arange(len(self.offset_keys))
        self.start = torch.from_numpy(start)
        shape = recipe.heads, *start.shape
        self.delta_q = torch.zeros(shape, requires_grad=True)
        self.delta_k = torch.zeros(shape, requires_grad=True)
        self.log_scale = torch.full((recipe.heads,), math.log(memory.scale), requires_grad=True)
        offsets = len(self.offset_keys) if recipe.offsets else 0
        self.offsets = torch.zeros(offsets, memory.embeddings.shape[1], requires_grad=True)

    def run(self, watch: Watch) -> Fitted:
        torch, recipe = self.torch, self.recipe
        steps = self._steps()
        optimiser = torch.optim.Adam(
            [
                {"params": [self.delta_q, self.delta_k], "lr": recipe.rate},
                {"params": [self.log_scale], "lr": 5 * recipe.rate},
                {"params": [self.offsets], "lr": recipe.offset_rate},
            ]
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda at: 1 - at / max(1, steps))
        for at, chosen in enumerate(self._batches(steps)):
            watch(at / steps)
            optimiser.zero_grad()
            loss = self._loss(chosen)
            if not bool(torch.isfinite(loss)):
                raise Conflict(
                    "Training came to numbers that are not finite; look for vectors of extreme "
                    "length among the documents and the examples."
                )
            loss.backward()
            optimiser.step()
            schedule.step()
        return self._fitted()

    def _steps(self) -> int:
        wanted = self.recipe.epochs * math.ceil(self.questions.count / self.recipe.batch)
        fewest, most = self.recipe.steps
        return min(max(wanted, fewest), most)

    def _batches(self, steps: int) -> Any:
        size = min(self.recipe.batch, self.questions.count)
        order = np.empty(0, dtype=np.int64)
        for _ in range(steps):
            if len(order) < size:
                order = np.append(order, self.random.permutation(self.questions.count))
            yield order[:size]
            order = order[size:]

    def _loss(self, chosen: Int64) -> Any:
        torch = self.torch
        relevant, judged = (
            each[chosen] for each in (self.questions.relevant, self.questions.judged)
        )
        documents, log_counts = self._candidates(judged)
        grades = torch.from_numpy(relevant[:, documents].toarray().astype(np.float32))
        target = grades / grades.sum(dim=1, keepdim=True)
        scales = self.log_scale.exp()[:, None, None]
        logits = scales * self._scores(chosen, documents)  # (H, b, c)
        # A document that counts twice in the softmax is as hard to stay above as two.
        competing = np.log(np.maximum(judged[:, documents].toarray(), 1)).astype(np.float32)
        logits = logits + torch.from_numpy(log_counts + competing)
        by_head = torch.log_softmax(logits, dim=2)
        mixed = torch.logsumexp(by_head, dim=0) - math.log(len(by_head))  # (b, c)
        return -(target * mixed).sum(dim=1).mean()

    def _candidates(self, judged: Any) -> tuple[Int64, Float32]:
        """Documents of one step, ascending, and the log of how many each stands for."""
        own = np.unique(judged.indices)
        rest = np.setdiff1d(self.labelled, own, assume_unique=True)
        parts = [(own, 1.0), self._drawn(rest, LABELLED, 1.0)]
        if self.recipe.unlabelled > 0:
            parts.append(self._drawn(self.others, UNLABELLED, self.recipe.unlabelled))
        documents = np.concatenate([part for part, _ in parts])
        counts = np.concatenate([np.full(len(part), count) for part, count in parts])
        order = np.argsort(documents)
        return documents[order], np.log(counts[order]).astype(np.float32)

    def _drawn(self, documents: Int64, size: int, each: float) -> tuple[Int64, float]:
        if len(documents) <= size:
            return documents, each
        drawn = self.random.choice(documents, size, replace=False)
        return drawn, each * len(documents) / size

    def _scores(self, chosen: Int64, documents: Int64) -> Any:
        """(H, b, c): each question's best key in each document."""
        torch = self.torch
        positions = self.memory.positions(documents)
        queries = self._thinned(torch.from_numpy(self.questions.embeddings[chosen]))
        asked = self._unit(queries @ (self.start + self.delta_q).mT)  # (H, b, d_k)
        keys = self._unit(self._embedded(positions) @ (self.start + self.delta_k).mT)
        scores = asked @ keys.mT  # (H, b, m')
        if self.memory.single:
            return scores
        owner = torch.from_numpy(
            np.repeat(np.arange(len(documents)), self.memory.counts[documents])
        )
        best = torch.full((*scores.shape[:2], len(documents)), -math.inf)
        return best.scatter_reduce(2, owner.expand(scores.shape), scores, "amax")

    def _thinned(self, queries: Any) -> Any:
        """(b, d) -> (H, b, d): dropout, drawn from this fit's own generator so that a seed gives
        the same fit."""
        share, heads = self.recipe.drop, self.recipe.heads
        if share == 0:
            return queries.expand(heads, *queries.shape)
        kept = self.torch.rand(heads, *queries.shape, generator=self.draw) >= share
        return queries * kept / (1 - share)

    def _embedded(self, positions: Int64) -> Any:
        """Raw embeddings of keys, moved by the offsets that are not left out this time."""
        torch = self.torch
        embeddings = torch.from_numpy(self.memory.embeddings[positions])
        if not self.recipe.offsets:
            return embeddings
        at = self.offset_at[positions]
        moved = np.flatnonzero(at >= 0)
        kept = torch.rand(len(moved), 1, generator=self.draw) >= self.recipe.drop_offsets
        deltas = self.offsets[torch.from_numpy(at[moved])] * kept
        return embeddings.index_add(0, torch.from_numpy(moved), deltas)

    def _unit(self, vectors: Any) -> Any:
        return self.torch.nn.functional.normalize(vectors, dim=-1) if self.memory.unit else vectors

    def _fitted(self) -> Fitted:
        with self.torch.no_grad():
            w_q, w_k = ((self.start + each).numpy() for each in (self.delta_q, self.delta_k))
            keys = self.offset_keys if self.recipe.offsets else self.offset_keys[:0]
            scales = self.log_scale.exp().numpy().astype(np.float64)
            return Fitted(w_q, w_k, keys, self.offsets.detach().numpy(), scales)
