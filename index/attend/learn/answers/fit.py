"""Fitting W_Q and W_K to stored values: what is attended to should make the answer right.

Every document is a query about itself, with itself and its near-duplicates taken out of the
memory (leave-one-out, as in neighbourhood components analysis: Goldberger et al. 2004). The loss
is that of the blended answer: the cross-entropy of the share that right labels get, or the
squared error of the mean. Beside it a null key learns to win where a query's own labels are taken
out too, so that confidence tells queries apart that nothing stored answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from attend.errors import Conflict
from attend.learn.answers.targets import Answers
from attend.learn.fit import Watch
from attend.types import Float32, Int64

HIDDEN = -1e4
"""The logit of what is taken out of the memory: no weight, and no NaN where all is."""


@dataclass(frozen=True)
class Recipe:
    """How to fit; the numbers were chosen on held-out parts of a training set.

    Attributes:
        null: how much the null key's part counts in the loss, of labels.
        drop: dropout on the embeddings of queries and of keys.
        documents: those drawn for each step as the memory.
        steps: bounds of the number of steps; `epochs` says how many there are between them.
    """

    name: str
    null: float = 0.3
    drop: float = 0.3
    epochs: int = 6
    steps: tuple[int, int] = (40, 400)
    batch: int = 256
    documents: int = 1000
    rate: float = 2e-3
    scale_rate: float = 5e-3
    null_rate: float = 5e-2


class Matrices(NamedTuple):
    """W_Q and W_K, (d_k, d) each."""

    w_q: Float32
    w_k: Float32

    def mixed(self, start: Float32, share: float) -> Matrices:
        """On the straight line from where they started to what was learned."""
        part = np.float32(share)
        return Matrices(*(start + part * (each - start) for each in self))


def fit(
    answers: Answers,
    members: Int64,
    recipe: Recipe,
    *,
    start: Float32,
    seed: int = 0,
    watch: Watch | None = None,
) -> Matrices:
    """Learn from the documents `members`, of which at least two share an answer.

    W_Q and W_K are one matrix: queries and keys are documents alike here, and with one for both
    what is learned holds better for values that training never saw.

    Args:
        start: (d_k, d), where the matrix begins.

    Raises:
        Conflict: the loss is no longer a number.
    """
    return _Fit(answers, members, recipe, start, seed).run(watch or (lambda _: None))


class _Fit:
    """One run: its parameters, and the draws of its steps."""

    def __init__(
        self, answers: Answers, members: Int64, recipe: Recipe, start: Float32, seed: int
    ) -> None:
        import torch  # here: seconds to import, and a search needs none of it

        self.torch = torch
        self.answers, self.members, self.recipe = answers, members, recipe
        self.random = np.random.default_rng(seed)
        self.draw = torch.Generator().manual_seed(seed)
        self.start = torch.from_numpy(start)
        self.delta = torch.zeros_like(self.start, requires_grad=True)
        scale = answers.memory.scale
        self.log_scale = torch.tensor(math.log(scale), requires_grad=True)
        self.null = torch.tensor(self._first_null(), requires_grad=True)

    def run(self, watch: Watch) -> Matrices:
        torch, recipe = self.torch, self.recipe
        steps = self._steps()
        optimiser = torch.optim.Adam(
            [
                {"params": [self.delta], "lr": recipe.rate},
                {"params": [self.log_scale], "lr": recipe.scale_rate},
                {"params": [self.null], "lr": recipe.null_rate},
            ]
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda at: 1 - at / max(1, steps))
        for at, asked in enumerate(self._batches(steps)):
            watch(at / steps)
            optimiser.zero_grad()
            loss = self.loss(asked, self._drawn())
            if loss is None:
                continue
            if not bool(torch.isfinite(loss)):
                raise Conflict(
                    "Training came to numbers that are not finite; look for documents with "
                    "vectors or values of extreme size."
                )
            loss.backward()
            optimiser.step()
            schedule.step()
        with torch.no_grad():
            learned = (self.start + self.delta).numpy()
        return Matrices(learned, learned)

    def loss(self, asked: Int64, documents: Int64) -> Any:
        """The mean loss of queries (b,) over a memory of documents (k,); None without any."""
        z = self.logits(asked, documents)  # (b, k)
        if self.answers.targets.numbers is not None:
            return self._squared(z, asked, documents)
        return self._crossed(z, asked, documents)

    def logits(self, asked: Int64, documents: Int64) -> Any:
        """(b, k), as if the drawn documents were all: each stands for as many."""
        torch, groups = self.torch, self.answers.groups
        weight = self.start + self.delta  # (d_k, d)
        queries = self._projected(self.answers.queries[asked], weight)
        positions = self.answers.memory.positions(documents)
        keys = self._projected(self.answers.memory.embeddings[positions], weight)
        scores = self._by_document(queries @ keys.T, documents)
        z = self.log_scale.exp() * scores + math.log(len(self.members) / len(documents))
        own = torch.from_numpy(groups[asked][:, None] == groups[documents][None])
        return z.masked_fill(own, HIDDEN)

    def _crossed(self, z: Any, asked: Int64, documents: Int64) -> Any:
        """Cross-entropy of the share of what is right; and the null key against the rest."""
        torch, part = self.torch, self.recipe.null
        agreement = torch.from_numpy(self.answers.targets.agreement(asked, documents))
        right = agreement > 0
        votes = torch.where(right, z + agreement.clamp(min=1e-9).log(), HIDDEN)
        others = torch.logsumexp(z.masked_fill(right, HIDDEN), dim=1)  # (b,)
        known = (right & (z > HIDDEN / 2)).any(dim=1)
        if not bool(known.any()):
            return None
        whole = torch.logsumexp(z, dim=1)
        crossed = whole - torch.logsumexp(votes, dim=1)
        softplus = torch.nn.functional.softplus
        null = softplus(self.null - whole) + softplus(others - self.null)
        return ((1 - part) * crossed + part * null)[known].mean()

    def _squared(self, z: Any, asked: Int64, documents: Int64) -> Any:
        """Mean squared error of the blend, in units of the variance."""
        numbers = self.torch.from_numpy(self.answers.targets.given)
        known = z.amax(dim=1) > HIDDEN / 2
        if not bool(known.any()):
            return None
        blended = self.torch.softmax(z, dim=1) @ numbers[documents]  # (b, k) @ (k, v) -> (b, v)
        return ((blended - numbers[asked]) ** 2).mean(dim=1)[known].mean()

    def _projected(self, embeddings: Float32, weight: Any) -> Any:
        torch, share = self.torch, self.recipe.drop
        given = torch.from_numpy(embeddings)
        if share > 0:
            # Drawn from this fit's own generator, so that a seed gives the same fit.
            given = given * (torch.rand(given.shape, generator=self.draw) >= share) / (1 - share)
        vectors = given @ weight.T
        unit = self.answers.memory.unit
        return torch.nn.functional.normalize(vectors, dim=1) if unit else vectors

    def _by_document(self, scores: Any, documents: Int64) -> Any:
        """(b, m') -> (b, k): each document's best key."""
        torch, memory = self.torch, self.answers.memory
        if memory.single:
            return scores
        owner = torch.from_numpy(np.repeat(np.arange(len(documents)), memory.counts[documents]))
        best = torch.full((len(scores), len(documents)), -math.inf)
        return best.scatter_reduce(1, owner.expand(len(scores), -1), scores, "amax")

    def _steps(self) -> int:
        wanted = self.recipe.epochs * math.ceil(len(self.members) / self.recipe.batch)
        fewest, most = self.recipe.steps
        return min(max(wanted, fewest), most)

    def _batches(self, steps: int) -> Iterator[Int64]:
        size = min(self.recipe.batch, len(self.members))
        order = np.empty(0, dtype=np.int64)
        for _ in range(steps):
            if len(order) < size:
                order = np.append(order, self.random.permutation(self.members))
            yield order[:size]
            order = order[size:]

    def _drawn(self) -> Int64:
        """The memory of one step, ascending."""
        if len(self.members) <= self.recipe.documents:
            return np.sort(self.members)
        drawn = self.random.choice(self.members, self.recipe.documents, replace=False)
        return np.sort(drawn)

    def _first_null(self) -> float:
        """Amid what the first queries see: from afar it would take all steps to come near."""
        asked, documents = self.members[: self.recipe.batch], self._drawn()
        with self.torch.no_grad():
            return float(self.torch.logsumexp(self.logits(asked, documents), dim=1).median())
