"""The interactions objective: a mixture over a history, its loss, and how well it ranks.

Each document j of a history attends to the catalogue by itself:

    w(d) = Σ_j π_j · softmax_j(s · q_j · k_d)
    q_j = W_Q (e_j + δ_j − c),  k_d = W_K (e_d + δ_d − c)

is the probability of the next one, with gates π_j = g_j / Σ g over the history and softmaxes over
all that is not in it, as they are served. An offset δ moves a document alike as a query and as a
key. (Softmaxes that are mixed, and not their scores: Yang et al. 2018, "Breaking the softmax
bottleneck"; documents of a history as queries of their own: Kabbur et al. 2013, FISM, which adds
scores.)

Every document of a history is a target, with itself left out of the sources. Offsets are left out
at random, on either side by itself: so W_Q and W_K learn to do without, which is what documents
need that nobody has interacted with yet. Those take no part in the softmaxes: a lack of
interactions says nothing of what their texts are about. In large catalogues softmaxes are over a
sample (Jean et al. 2015).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attend.core.errors import InvalidRequest
from attend.core.types import Float32, Int64
from attend.learning.data import Memory, Sparse, lengths
from attend.learning.fit import Fitted, Recipe, Residual, Watch, descend, unlearned
from attend.learning.held_out import shuffled_ranks

_RATES = {"maps": 3e-3, "offsets": 2e-3, "gates": 1e-2}

RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("near the text", _RATES, epochs=12, steps=(60, 400), drop=0.5),
        Recipe(
            "far from the text",
            {**_RATES, "offsets": 8e-3},
            epochs=12,
            steps=(60, 400),
            drop=0.3,
            drop_offsets=0.3,
        ),
    )
}
"""With offsets that stay small, and with offsets that many interactions can carry."""

SCALE = 0.5
"""Where the scale begins, of what it is untrained: taste is wider than likeness."""

STEP_INTERACTIONS = 6000, 2000
"""Interactions in a step where all documents take part, and where they are sampled."""

MOST_IN_HISTORY = 50
"""Documents of one user in one step, drawn again each time: pairs grow with the square."""

MOST_WHOLE = 4096
"""Documents that all take part in every step; of more, those in histories and a sample."""

SAMPLED = 2048
"""Documents drawn for a step beside those in histories, where not all take part."""

MOST_OFFSETS = 50_000
"""Keys that may be moved, those with most interactions: 300 MB while learning."""

TINY = 1e-9
"""Below this a probability says nothing more, and its logarithm no longer counts."""


class Pairs(NamedTuple):
    """Of each user, every document as a target beside every one as a source, itself included.

    Attributes:
        documents: (t,) user after user.
        target, source: (p,) places in `documents`.
    """

    documents: Int64
    target: Int64
    source: Int64


def pairs_of(histories: Sparse, most: int, random: np.random.Generator) -> Pairs:
    """Return all pairs within each user's history, of which `most` documents are drawn."""
    documents, counts = histories.indices.astype(np.int64), lengths(histories)
    if counts.max(initial=0) > most:
        user = np.repeat(np.arange(len(counts)), counts)
        documents = documents[shuffled_ranks(user, counts, random) < most]
        counts = np.minimum(counts, most)
    partners = np.repeat(counts, counts)  # (t,)
    target = np.repeat(np.arange(len(documents)), partners)
    begins = np.repeat(np.cumsum(counts) - counts, counts)
    within = np.arange(len(target)) - np.repeat(np.cumsum(partners) - partners, partners)
    return Pairs(documents, target, np.repeat(begins, partners) + within)


def center_of(memory: Memory) -> Float32:
    """(d,) the mean embedding."""
    center: Float32 = memory.vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    return center


def untrained(memory: Memory) -> Fitted:
    """Return embeddings as they are, but centred: what they share says nothing of taste."""
    center = center_of(memory)
    start = unlearned(memory, np.eye(len(center), dtype=np.float32))
    return start._replace(center=center, gates=np.ones(len(memory), dtype=np.float32))


class NextItemsModel:
    """Parameters, and the loss of a batch of users."""

    def __init__(self, memory: Memory, histories: Sparse, recipe: Recipe, seed: int) -> None:
        self.memory, self.histories, self.recipe = memory, histories, recipe
        self.center = center_of(memory)
        # Rates of learning are for length one: so are the embeddings, on average.
        centred = memory.vectors - self.center
        sample = centred[:: max(1, len(centred) // 10_000)]
        self.length = max(float(np.linalg.norm(sample, axis=1).mean()), 1e-12)
        self.squared = 1.0 if memory.unit else self.length**2
        self.known = np.unique(histories.indices).astype(np.int64)
        self.maps = Residual(
            memory,
            np.eye(len(self.center), dtype=np.float32),
            scale=SCALE * memory.scale * self.squared,
            offset_keys=self._movable(),
            seed=seed,
        )
        torch = self.maps.torch
        queries = memory.document_embeddings() - self.center
        self.queries = torch.from_numpy(queries / self.length)  # (n, d)
        self.keys = torch.from_numpy(centred / self.length)  # (m, d)
        self.log_gates = torch.zeros(len(memory), requires_grad=True)

    @property
    def parameters(self) -> dict[str, list[Any]]:
        maps = self.maps
        return {
            "maps": [maps.delta_q, maps.delta_k, maps.log_scale],
            "offsets": [maps.offsets],
            "gates": [self.log_gates],
        }

    def batches(self) -> list[Int64]:
        """Return the users of each step, about equally many interactions in each."""
        users, complete = self.histories.shape[0], len(self.known) <= MOST_WHOLE
        mean = float(np.minimum(lengths(self.histories), MOST_IN_HISTORY).mean())
        size = max(1, min(users, round(STEP_INTERACTIONS[0 if complete else 1] / mean)))
        steps = self.recipe.count_steps(max(1, users // size))
        rounds = -(-steps * size // users)
        order = np.concatenate([self.maps.random.permutation(users) for _ in range(rounds)])
        return [order[step * size : (step + 1) * size] for step in range(steps)]

    def loss(self, batch: Int64) -> Any:
        """Return the mean of −log w(target) over all documents of some users' histories."""
        torch = self.maps.torch
        pairs = pairs_of(self.histories[batch], MOST_IN_HISTORY, self.maps.random)
        documents, row = np.unique(pairs.documents, return_inverse=True)  # (i,), (t,)
        candidates, log_counts = self.candidates(documents)
        z = self.logits(documents, candidates)  # (i, c)
        if log_counts.any():  # zeros where all documents take part
            z = z + torch.from_numpy(log_counts)
        peaks = z.detach().amax(dim=1, keepdim=True)
        shares = (z - peaks).exp_()  # (i, c), of each source's sum below
        column = torch.from_numpy(np.searchsorted(candidates, pairs.documents))  # (t,)
        return self._mixed(pairs, torch.from_numpy(row), column, shares)

    def candidates(self, documents: Int64) -> tuple[Int64, Float32]:
        """Return the documents of one step, ascending, and the log of how many each stands for."""
        if len(self.known) <= MOST_WHOLE:
            return self.known, np.zeros(len(self.known), dtype=np.float32)
        rest = np.setdiff1d(self.known, documents, assume_unique=True)
        sample = self.maps.random.choice(rest, min(SAMPLED, len(rest)), replace=False)
        stands = np.zeros(len(self.memory), dtype=np.float32)
        stands[sample] = math.log(max(1, len(rest)) / max(1, len(sample)))
        candidates = np.sort(np.concatenate([documents, sample]))
        return candidates, stands[candidates]

    def logits(self, documents: Int64, candidates: Int64) -> Any:
        """(i, c): each source's best key in each candidate."""
        maps, share = self.maps, self.recipe.drop_offsets
        embeddings = maps.thinned(self.queries[maps.torch.from_numpy(documents)], self.recipe.drop)
        positions, counts = self.memory.positions(documents), self.memory.counts[documents]
        owner = np.repeat(np.arange(len(documents)), counts)
        # As a query a document is moved by the mean of its keys' offsets.
        mean = maps.torch.from_numpy((1 / counts).astype(np.float32)[:, None])
        embeddings = embeddings + maps.moves(positions, owner, len(documents), share) * mean
        queries = maps.project(embeddings, maps.delta_q)  # (i, d_k)
        positions = self.memory.positions(candidates)
        moves = maps.moves(positions, np.arange(len(positions)), len(positions), share)
        keys = maps.project(self.keys[maps.torch.from_numpy(positions)] + moves, maps.delta_k)
        return maps.best(maps.log_scale.exp() * queries @ keys.T, candidates)

    def fitted(self) -> Fitted:
        fitted = self.maps.fitted()
        return fitted._replace(
            scale=fitted.scale / self.squared,
            offsets=fitted.offsets * np.float32(self.length),
            center=self.center,
            gates=self.log_gates.detach().exp().numpy(),
        )

    def _mixed(self, pairs: Pairs, row: Any, column: Any, shares: Any) -> Any:
        """Args: row, column (t,), the place of each document in `shares` (i, c)."""
        target, source = (self.maps.torch.from_numpy(part) for part in pairs[1:])
        others = (target != source).float()  # (p,)
        to_target = shares[row[source], column[target]]  # (p,) from a source to a target
        history = self._summed(to_target, source, len(row))  # (t,) to its user's whole history
        outside = shares.sum(dim=1)[row] - history  # (t,) to all that is not in it
        gates = self.log_gates.exp()[pairs.documents][source] * others
        attended = gates * to_target / (outside[source] + to_target).clamp_min(TINY)
        weight = self._summed(attended, target, len(row))
        total = self._summed(gates, target, len(row))
        return -(weight / total).clamp_min(TINY).log().mean()

    def _summed(self, values: Any, place: Any, count: int) -> Any:
        return self.maps.torch.zeros(count).index_add(0, place, values)

    def _movable(self) -> Int64:
        """Return positions of the keys that have offsets: of documents in any history."""
        counts = np.bincount(self.histories.indices, minlength=len(self.memory))
        most = self.known[np.argsort(-counts[self.known], kind="stable")]
        movable = most[np.cumsum(self.memory.counts[most]) <= MOST_OFFSETS]
        return self.memory.positions(np.sort(movable))


def fit_next_items(
    memory: Memory,
    histories: Sparse,
    recipe: Recipe,
    *,
    seed: int = 0,
    watch: Watch = lambda done: None,
) -> Fitted:
    """Learn from histories.

    Args:
        histories: sparse ones (u, n); only users with two documents or more teach anything.

    Raises:
        InvalidRequest: nobody has two documents.
        Conflict: the loss is not finite.
    """
    several = histories[np.flatnonzero(lengths(histories) >= 2)]
    if several.shape[0] == 0:
        raise InvalidRequest("No user has two documents, and one predicts nothing; store more.")
    model = NextItemsModel(memory, several, recipe, seed)
    batches = model.batches()
    descend(model, recipe, batches, len(batches), watch)
    return model.fitted()
