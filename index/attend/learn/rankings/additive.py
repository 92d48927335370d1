"""The additive scorer, v·tanh(W q + U k + b) (Bahdanau et al. 2014), fitted to re-rank candidates.

It starts as the inner product, so that what is learned is what that cannot tell. In a direction r
two units, tanh(β + ε r·(q + k)) and tanh(β - ε r·(q + k)), sum to a constant and a square of
r·(q + k), but for a fourth order: odd orders cancel. Over an orthonormal set of directions those
squares sum to |q|² + |k|² + 2 q·k, which for queries and keys of length one is an inner product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from attend.errors import Conflict
from attend.learn.data import BLOCK, Memory, Questions
from attend.learn.fit import Watch
from attend.learn.space import Space
from attend.types import Float32, Int64

BEND = -math.atanh(1 / math.sqrt(3))
"""β, where tanh bends most: its second derivative is largest there."""

REACH = 0.1
"""ε over the root of the width, about what a unit sees of vectors of length one: small enough
for the fourth order not to matter, large enough to learn by."""


class Additive(NamedTuple):
    """Parameters for queries and keys of width d_k."""

    w: Float32  # (a, d_k)
    u: Float32  # (a, d_k)
    v: Float32  # (a,)
    b: Float32  # (a,)

    def mixed(self, share: float) -> Additive:
        """On the straight line from the inner product to what was learned."""
        start, part = inner_product(self.w.shape[1]), np.float32(share)
        return Additive(*(a + part * (z - a) for a, z in zip(start, self, strict=True)))


@dataclass(frozen=True)
class Recipe:
    """How to fit; the numbers were chosen on held-out parts of training sets.

    Attributes:
        near, far: documents that compete with a question's own: its best candidates, and others.
        epochs, steps: how many steps there are, and within which bounds.
    """

    near: int = 40
    far: int = 20
    batch: int = 32
    epochs: int = 4
    steps: tuple[int, int] = (40, 150)
    rate: float = 3e-4
    decay: float = 1e-2


RECIPE = Recipe()


def inner_product(width: int) -> Additive:
    """The parameters that score vectors of length one by about q·k, and a constant: a = 2 width."""
    eye = np.eye(width, dtype=np.float32)
    reach = REACH * math.sqrt(width)
    directions = np.float32(reach) * np.concatenate([eye, -eye])
    curve = -math.tanh(BEND) * (1 - math.tanh(BEND) ** 2)  # half of the second derivative
    each = 1 / (4 * curve * reach**2)
    ones = np.ones(2 * width, dtype=np.float32)
    return Additive(directions, directions.copy(), np.float32(each) * ones, np.float32(BEND) * ones)


def scored(additive: Additive, queries: Float32, keys: Float32) -> Float32:
    """Each query (q, d_k) against its own keys (q, c, d_k): (q, c)."""
    asked = queries @ additive.w.T + additive.b  # (q, a)
    found: Float32 = np.tanh(asked[:, None] + keys @ additive.u.T) @ additive.v
    return found


def fit(
    memory: Memory,
    questions: Questions,
    space: Space,
    recipe: Recipe,
    *,
    seed: int = 0,
    watch: Watch | None = None,
) -> Additive:
    """Learn from questions, each with at least one relevant document, in a space of one head.

    The loss is the listwise one of `attend.learn.fit`, over each question's relevant documents,
    its best candidates by inner product and some others.

    Raises:
        Conflict: the loss is no longer a number.
    """
    return _Fit(memory, questions, space, recipe, seed).run(watch or (lambda _: None))


class _Fit:
    """One run: its parameters, and the draws of its steps."""

    def __init__(
        self, memory: Memory, questions: Questions, space: Space, recipe: Recipe, seed: int
    ) -> None:
        import torch  # here: seconds to import, and a search needs none of it

        self.torch = torch
        self.memory, self.questions, self.recipe = memory, questions, recipe
        self.random = np.random.default_rng(seed)
        self.queries, self.keys = space.queries(questions.embeddings)[0], space.keys[0]
        self.near = self._nearest()
        start = inner_product(self.keys.shape[1])
        self.learned = [torch.from_numpy(each.copy()).requires_grad_() for each in start]
        self.start = [torch.from_numpy(each) for each in start]
        self.log_scale = torch.tensor(math.log(memory.scale), requires_grad=True)

    def run(self, watch: Watch) -> Additive:
        torch, steps = self.torch, self._steps()
        optimiser = torch.optim.Adam([*self.learned, self.log_scale], lr=self.recipe.rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda at: 1 - at / max(1, steps))
        for at, chosen in enumerate(self._batches(steps)):
            watch(at / steps)
            optimiser.zero_grad()
            loss = self.loss(chosen) + self._away()
            if not bool(torch.isfinite(loss)):
                raise Conflict(
                    "Training the additive scorer came to numbers that are not finite; look for "
                    "vectors of extreme length among the documents and the examples."
                )
            loss.backward()
            optimiser.step()
            schedule.step()
        return Additive(*(each.detach().numpy() for each in self.learned))

    def loss(self, chosen: Int64) -> Any:
        """The mean cross-entropy of some questions against their grades."""
        torch = self.torch
        documents, grades = self._candidates(chosen)  # (b, c), -1 where padded
        there = torch.from_numpy(documents >= 0)
        scores = self._scores(chosen, np.maximum(documents, 0))
        logits = (self.log_scale.exp() * scores).masked_fill(~there, -math.inf)
        target = torch.from_numpy(grades / grades.sum(axis=1, keepdims=True))
        log_shares = torch.log_softmax(logits, dim=1).masked_fill(~there, 0.0)
        return -(target * log_shares).sum(dim=1).mean()

    def _scores(self, chosen: Int64, documents: Int64) -> Any:
        """(b, c): each question's best key in each of its own documents."""
        torch, (w, u, v, b) = self.torch, self.learned
        flat, owner = np.unique(documents, return_inverse=True)
        positions = self.memory.positions(flat)
        asked = torch.from_numpy(self.queries[chosen]) @ w.T + b  # (b, a)
        offered = torch.from_numpy(self.keys[positions]) @ u.T  # (m', a)
        counts = self.memory.counts[flat]
        first, own = np.cumsum(counts) - counts, owner.reshape(documents.shape)
        best = torch.full(documents.shape, -math.inf)
        for key in range(int(counts.max())):
            # The key of that number of every document, its last one where it has fewer.
            at = torch.from_numpy((first + np.minimum(key, counts - 1))[own])
            scores = torch.tanh(asked[:, None] + offered[at]) @ v  # (b, c, a) @ (a,)
            best = torch.maximum(best, scores)
        return best

    def _away(self) -> Any:
        """What keeps parameters near the inner product, where questions say nothing of them."""
        away = zip(self.learned, self.start, strict=True)
        return self.recipe.decay * sum(((now - then) ** 2).sum() for now, then in away)

    def _candidates(self, chosen: Int64) -> tuple[Int64, Float32]:
        """Documents of each question (b, c), its own first, and their grades."""
        relevant = self.questions.relevant[chosen].toarray()
        judged = self.questions.judged[chosen]
        rows = []
        for at, question in enumerate(chosen.tolist()):
            own = judged.indices[judged.indptr[at] : judged.indptr[at + 1]]
            drawn = self.random.integers(self.memory.documents, size=self.recipe.far)
            others = np.concatenate([self.near[question], drawn])
            rows.append(np.concatenate([own, np.setdiff1d(others, own)]))
        width = max(map(len, rows))
        documents = np.full((len(rows), width), -1, dtype=np.int64)
        for at, row in enumerate(rows):
            documents[at, : len(row)] = row
        grades = np.take_along_axis(relevant, np.maximum(documents, 0), axis=1)
        return documents, np.where(documents < 0, 0, grades).astype(np.float32)

    def _nearest(self) -> Int64:
        """(q, near) documents by inner product."""
        count = min(self.recipe.near, self.memory.documents)
        step = max(1, BLOCK // max(1, len(self.keys)))
        found = [np.empty((0, count), dtype=np.int64)]
        for at in range(0, len(self.queries), step):
            by_key = self.queries[at : at + step] @ self.keys.T
            scores = np.maximum.reduceat(by_key, self.memory.starts, axis=1)
            found.append(np.argpartition(-scores, count - 1, axis=1)[:, :count])
        return np.concatenate(found)

    def _steps(self) -> int:
        wanted = self.recipe.epochs * math.ceil(self.questions.count / self.recipe.batch)
        fewest, most = self.recipe.steps
        return min(max(wanted, fewest), most)

    def _batches(self, steps: int) -> Iterator[Int64]:
        size = min(self.recipe.batch, self.questions.count)
        order = np.empty(0, dtype=np.int64)
        for _ in range(steps):
            if len(order) < size:
                order = np.append(order, self.random.permutation(self.questions.count))
            yield order[:size]
            order = order[size:]
