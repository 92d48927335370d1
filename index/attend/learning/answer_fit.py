"""The answer objective's loss: W_Q and W_K that make the blend of stored values right.

Every document is a query about itself, with itself and its near-duplicates taken out of the
memory (leave-one-out, as in neighbourhood components analysis: Goldberger et al. 2004). The loss
is that of the blended answer: the cross-entropy of the share that right labels get, or the
squared error of the mean. Beside it a no-answer key learns to win where a query's own labels are
taken out too, so that confidence tells queries apart that nothing stored answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from attend.attention import log_shares, log_total
from attend.core.types import Float32, Float64, Int64
from attend.learning.data import Memory, Sparse
from attend.learning.fit import Fitted, Recipe, Residual, Watch, descend, shuffled_batches

RECIPE = Recipe(
    "leave one out",
    rates={"maps": 2e-3, "scale": 5e-3, "null": 5e-2},
    epochs=6,
    steps=(40, 400),
    batch=256,
    drop=0.3,
)

NULL_SHARE = 0.3
"""The weight of the no-answer key's part in the loss of labels."""

DOCUMENTS = 1000
"""Documents drawn for each step as the memory."""

NEAR = 0.5
"""In standard deviations: a number this close to a query's own can answer it."""

HIDDEN = -1e4
"""The logit of what is taken out of the memory: no weight, and no NaN where all is."""


@dataclass(frozen=True)
class AnswerTargets:
    """The values of n documents; one of the two is None.

    Attributes:
        shares: sparse (n, c), the share of each label in a document's value; rows sum to one.
        numbers: (n, v), about their mean and in units of their standard deviation.
        center, spread: that mean (v,), and that standard deviation.
    """

    shares: Sparse | None = None
    numbers: Float32 | None = None
    center: Float64 | None = None
    spread: float = 1.0

    def agreement(self, queries: Int64, documents: Int64) -> Float32:
        """(b, k): the share of a document's value that answers a query as its own value would."""
        if self.shares is not None:
            right = (self.shares[queries] > 0).astype(np.float32)
            agreement: Float32 = (right @ self.shares[documents].T).toarray()
            return agreement
        numbers = self.columns
        squares = (numbers[queries] ** 2).sum(axis=1)[:, None] + (numbers[documents] ** 2).sum(
            axis=1
        )
        distance = (squares - 2 * numbers[queries] @ numbers[documents].T) / numbers.shape[1]
        near: Float32 = (distance <= NEAR**2).astype(np.float32)
        return near

    @property
    def columns(self) -> Float32:
        """The numbers (n, v); of labels their shares (n, c)."""
        if self.numbers is not None:
            return self.numbers
        assert self.shares is not None  # one of the two is there
        dense: Float32 = self.shares.toarray()
        return dense


@dataclass(frozen=True)
class Answers:
    """Documents with their values.

    Attributes:
        queries: (n, d), each document as a query.
        groups: (n,), near-duplicates have one number.
    """

    memory: Memory
    queries: Float32
    groups: Int64
    targets: AnswerTargets


@dataclass(frozen=True)
class ValueMap:
    """W_V: an affine map of blended vectors, so that answers come nearer to what is right.

    Fitted by ridge regression from the identity (Hoerl and Kennard 1970): the blend of noisy
    neighbours is too bold where values say little of each other, and too timid at the edge.
    """

    w: Float64  # (v, v)
    b: Float64  # (v,)

    def of(self, blends: Float64) -> Float64:
        """(q, v) to (q, v)."""
        mapped: Float64 = blends @ self.w.T + self.b
        return mapped

    def unscaled(self, center: Float64, spread: float) -> ValueMap:
        """Return the same map for what was centred and divided by the spread, before it was."""
        return ValueMap(self.w, self.b * spread + center - self.w @ center)

    def scaled(self, center: Float64, spread: float) -> ValueMap:
        """Return the inverse of `unscaled`."""
        return ValueMap(self.w, (self.w @ center + self.b - center) / spread)


def fit_output(blends: Float64, truth: Float64, ridge: float) -> ValueMap:
    """Return the map of least squared error from blends (q, v) to the truth (q, v).

    Args:
        ridge: above 0, how much staying at the identity counts, beside blends of the same spread.
    """
    mean, target = blends.mean(axis=0), truth.mean(axis=0)
    x = blends - mean
    rest = truth - target - x  # what the identity leaves
    moments = x.T @ x
    # Where all blends are the same, they say nothing but where to move them.
    penalty = ridge * (float(np.trace(moments)) / len(moments) or 1.0)
    change = np.linalg.solve(moments + penalty * np.eye(len(moments)), x.T @ rest).T
    w = np.eye(len(moments)) + change
    return ValueMap(w, target - w @ mean)


class AnswerBatch(NamedTuple):
    """The queries (b,) and the documents of the memory (k,) of one step."""

    queries: Int64
    documents: Int64


class AnswerModel:
    """Parameters, and the loss of a batch of queries over a drawn memory.

    W_Q and W_K are one matrix: queries and keys are documents alike here, and with one for both
    what is learned holds better for values that training never saw.
    """

    def __init__(
        self, answers: Answers, members: Int64, recipe: Recipe, start: Float32, seed: int
    ) -> None:
        self.answers, self.members, self.recipe = answers, members, recipe
        memory = answers.memory
        self.maps = Residual(memory, start, scale=memory.scale, offset_keys=members[:0], seed=seed)
        # Amid what the first queries see: from afar it would take all steps to come near.
        batch = AnswerBatch(members[: recipe.batch], self._drawn())
        with self.maps.torch.no_grad():
            first = float(log_total(self.logits(batch)).median())
        self.null = self.maps.torch.tensor(first, requires_grad=True)

    @property
    def parameters(self) -> dict[str, list[Any]]:
        return {
            "maps": [self.maps.delta_q],
            "scale": [self.maps.log_scale],
            "null": [self.null],
        }

    def batches(self, steps: int) -> Iterator[AnswerBatch]:
        for queries in shuffled_batches(self.members, self.recipe.batch, steps, self.maps.random):
            yield AnswerBatch(queries, self._drawn())

    def loss(self, batch: AnswerBatch) -> Any:
        """Return the mean loss of the queries that the memory answers; None without any."""
        z = self.logits(batch)  # (b, k)
        if self.answers.targets.numbers is not None:
            return self._squared(z, batch)
        return self._crossed(z, batch)

    def logits(self, batch: AnswerBatch) -> Any:
        """(b, k), as if the drawn documents were all: each stands for as many."""
        maps, groups = self.maps, self.answers.groups
        queries, documents = batch
        projected = self._projected(self.answers.queries[queries])
        keys = self._projected(self.answers.memory.vectors[maps.memory.positions(documents)])
        scores = maps.best(projected @ keys.T, documents)
        z = maps.log_scale.exp() * scores + math.log(len(self.members) / len(documents))
        same_group = maps.torch.from_numpy(groups[queries][:, None] == groups[documents][None])
        return z.masked_fill(same_group, HIDDEN)

    def _crossed(self, z: Any, batch: AnswerBatch) -> Any:
        """Cross-entropy of the share of what is right; and no answer against the rest."""
        torch = self.maps.torch
        agreement = torch.from_numpy(self.answers.targets.agreement(*batch))
        right = agreement > 0
        votes = torch.where(right, z + agreement.clamp(min=1e-9).log(), HIDDEN)
        others = log_total(z.masked_fill(right, HIDDEN))  # (b,)
        answered = (right & (z > HIDDEN / 2)).any(dim=1)
        if not bool(answered.any()):
            return None
        total = log_total(z)
        crossed = total - log_total(votes)
        softplus = torch.nn.functional.softplus
        null = softplus(self.null - total) + softplus(others - self.null)
        return ((1 - NULL_SHARE) * crossed + NULL_SHARE * null)[answered].mean()

    def _squared(self, z: Any, batch: AnswerBatch) -> Any:
        """Mean squared error of the blend, in units of the variance."""
        torch = self.maps.torch
        numbers = torch.from_numpy(self.answers.targets.columns)
        answered = z.amax(dim=1) > HIDDEN / 2
        if not bool(answered.any()):
            return None
        blended = log_shares(z).exp() @ numbers[batch.documents]  # (b, k) @ (k, v) -> (b, v)
        return ((blended - numbers[batch.queries]) ** 2).mean(dim=1)[answered].mean()

    def _projected(self, embeddings: Float32) -> Any:
        maps = self.maps
        thinned = maps.thinned(maps.torch.from_numpy(embeddings), self.recipe.drop)
        return maps.project(thinned, maps.delta_q)

    def _drawn(self) -> Int64:
        """Draw the memory of one step, ascending."""
        if len(self.members) <= DOCUMENTS:
            return np.sort(self.members)
        return np.sort(self.maps.random.choice(self.members, DOCUMENTS, replace=False))


def fit_answers(
    answers: Answers,
    members: Int64,
    *,
    start: Float32,
    recipe: Recipe = RECIPE,
    seed: int = 0,
    watch: Watch = lambda done: None,
) -> Fitted:
    """Learn from the documents `members`, of which at least two share an answer.

    Args:
        start: (d_k, d), where the matrix begins.

    Raises:
        Conflict: the loss is not finite.
    """
    model = AnswerModel(answers, members, recipe, start, seed)
    steps = recipe.count_steps(math.ceil(len(members) / recipe.batch))
    descend(model, recipe, model.batches(steps), steps, watch)
    fitted = model.maps.fitted()
    return fitted._replace(w_k=fitted.w_q)
