"""Fitting a mixture over histories (see `mixture`) by gradient descent on frozen embeddings.

Every document of a history is a target, with itself left out of the sources. Offsets are left out
at random, on either side by itself: so W_Q and W_K learn to do without, which is what documents
need that nobody has met yet. Those take no part in the softmaxes: that nobody met them says nothing
of what their texts are about. In large catalogues softmaxes are over a sample (Jean et al. 2015).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from attend.errors import Conflict, InvalidRequest
from attend.learn.data import Memory, Sparse
from attend.learn.fit import Watch
from attend.learn.mixture.histories import Pairs, lengths, pairs_of
from attend.learn.mixture.model import Mixture, as_queries, untrained
from attend.types import Float32, Int64

MOST_MET = 50
"""Documents of one user in one step, drawn anew each time: pairs grow with the square."""

MOST_WHOLE = 4096
"""Documents that all take part in every step; of more, those met and a sample."""

SAMPLED = 2048
"""Documents drawn for a step beside those met, where not all take part."""

MOST_OFFSETS = 50_000
"""Keys that may be moved, those met most: 300 MB while learning. Text carries the others."""

TINY = 1e-9
"""Below this a probability says nothing more, and its logarithm no longer counts."""


@dataclass(frozen=True)
class MixtureRecipe:
    """How to fit; the numbers were chosen on held-out parts of a training set.

    Attributes:
        offsets: whether keys have offsets.
        gates: whether documents have gates.
        drop_offsets: the share of offsets left out at each step.
        drop: dropout on the embeddings of queries.
        scale: where the scale begins, of what it is untrained: taste is wider than likeness.
        steps: bounds of the number of steps; `epochs` says how many there are between them.
        met: interactions in a step: (where all documents take part, where they are sampled).
    """

    name: str = "mixture"
    offsets: bool = True
    gates: bool = True
    drop_offsets: float = 0.5
    drop: float = 0.5
    scale: float = 0.5
    epochs: int = 12
    steps: tuple[int, int] = (60, 400)
    met: tuple[int, int] = (6000, 2000)
    rate: float = 3e-3
    offset_rate: float = 2e-3
    gate_rate: float = 1e-2


def fit(
    memory: Memory,
    met: Sparse,
    recipe: MixtureRecipe,
    *,
    seed: int = 0,
    watch: Watch | None = None,
) -> Mixture:
    """Learn from histories.

    Args:
        met: sparse ones (u, n); only users that met two documents or more teach anything.

    Raises:
        InvalidRequest: nobody met two documents.
        Conflict: the loss is no longer a number.
    """
    taught = met[np.flatnonzero(lengths(met) >= 2)]
    if taught.shape[0] == 0:
        raise InvalidRequest("Nobody met two documents: there is no history to learn from.")
    return _Fit(memory, taught, recipe, seed).run(watch or (lambda _: None))


class _Fit:
    """One run: its parameters, and the draws of its steps."""

    def __init__(self, memory: Memory, met: Sparse, recipe: MixtureRecipe, seed: int) -> None:
        import torch  # here: seconds to import, and a search needs none of it

        self.torch = torch
        self.memory, self.met, self.recipe = memory, met, recipe
        self.random = np.random.default_rng(seed)
        self.draw = torch.Generator().manual_seed(seed)
        self.begin = untrained(memory)
        self.unit = self._length()
        queries = as_queries(memory) - self.begin.center
        self.queries = torch.from_numpy(queries / self.unit)  # (n, d)
        self.keys = torch.from_numpy((memory.embeddings - self.begin.center) / self.unit)  # (m, d)
        self.start = torch.eye(queries.shape[1])
        self.delta_q = torch.zeros_like(self.start, requires_grad=True)
        self.delta_k = torch.zeros_like(self.start, requires_grad=True)
        scale = recipe.scale * memory.scale * self._squared()
        self.log_scale = torch.tensor(math.log(scale), requires_grad=True)
        self.log_gates = torch.zeros(memory.documents, requires_grad=recipe.gates)
        self.known = np.unique(met.indices).astype(np.int64)
        self.offset_keys = self._movable()
        self.offset_at = np.full(len(memory.embeddings), -1, dtype=np.int64)
        self.offset_at[self.offset_keys] = np.arange(len(self.offset_keys))
        self.offsets = torch.zeros(len(self.offset_keys), queries.shape[1], requires_grad=True)

    def run(self, watch: Watch) -> Mixture:
        torch, recipe = self.torch, self.recipe
        batches = self._batches()
        groups = [
            {"params": [self.delta_q, self.delta_k, self.log_scale], "lr": recipe.rate},
            {"params": [self.offsets], "lr": recipe.offset_rate},
        ]
        if recipe.gates:
            groups.append({"params": [self.log_gates], "lr": recipe.gate_rate})
        optimiser = torch.optim.Adam(groups)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda at: 1 - at / len(batches))
        for at, users in enumerate(batches):
            watch(at / len(batches))
            optimiser.zero_grad()
            loss = self._loss(users)
            if not bool(torch.isfinite(loss)):
                raise Conflict(
                    "Training came to numbers that are not finite; look for vectors of extreme "
                    "length among the documents."
                )
            loss.backward()
            optimiser.step()
            schedule.step()
        return self._fitted()

    def _length(self) -> float:
        """Of a centred embedding, on average: rates of learning are for length one."""
        some = self.memory.embeddings[:: max(1, len(self.memory.embeddings) // 10_000)]
        lengths = np.linalg.norm(some - self.begin.center, axis=1)
        return max(float(lengths.mean()), 1e-12)

    def _squared(self) -> float:
        """What a product loses by that, where it is not of directions alone."""
        return 1.0 if self.memory.unit else self.unit**2

    def _movable(self) -> Int64:
        """Positions of the keys that have offsets: of documents that somebody met."""
        if not self.recipe.offsets:
            return np.empty(0, dtype=np.int64)
        counts = np.bincount(self.met.indices, minlength=self.memory.documents)
        known = np.flatnonzero(counts)
        most = known[np.argsort(-counts[known], kind="stable")]
        kept = most[np.cumsum(self.memory.counts[most]) <= MOST_OFFSETS]
        return self.memory.positions(np.sort(kept))

    def _batches(self) -> list[Int64]:
        """Users of each step, about equally many interactions in each."""
        users, whole = self.met.shape[0], len(self.known) <= MOST_WHOLE
        size = self.recipe.met[0 if whole else 1]
        mean = float(np.minimum(lengths(self.met), MOST_MET).mean())
        each = max(1, min(users, round(size / mean)))
        fewest, most = self.recipe.steps
        steps = min(max(self.recipe.epochs * max(1, users // each), fewest), most)
        rounds = -(-steps * each // users)
        order = np.concatenate([self.random.permutation(users) for _ in range(rounds)])
        return [order[at * each : (at + 1) * each] for at in range(steps)]

    def _loss(self, users: Int64) -> Any:
        """The mean of −log w(target) over all that the users of a step met."""
        torch = self.torch
        pairs = pairs_of(self.met[users], MOST_MET, self.random)
        documents, at = np.unique(pairs.met, return_inverse=True)  # (i,), (t,)
        candidates, log_counts = self._candidates(documents)
        z = self._logits(documents, candidates) + torch.from_numpy(log_counts)  # (i, c)
        peaks = z.detach().amax(dim=1, keepdim=True)
        shares = (z - peaks).exp()  # (i, c), of each source's sum below
        places = torch.from_numpy(np.searchsorted(candidates, pairs.met))  # (t,)
        return self._mixed(pairs, torch.from_numpy(at), places, shares)

    def _mixed(self, pairs: Pairs, at: Any, places: Any, shares: Any) -> Any:
        """Args: at (t,), the row of what was met in `shares` (i, c), and places (t,) its column."""
        torch = self.torch
        target, source = torch.from_numpy(pairs.target), torch.from_numpy(pairs.source)
        others = (target != source).float()  # (p,)
        given = shares[at[source], places[target]]  # (p,) from a source to a target
        history = self._summed(given, source, len(at))  # (t,) to its user's whole history
        outside = shares.sum(dim=1)[at] - history  # (t,) to all that is not in it
        gates = self.log_gates.exp()[torch.from_numpy(pairs.met)][source] * others
        attended = gates * given / (outside[source] + given).clamp_min(TINY)
        weight = self._summed(attended, target, len(at))
        total = self._summed(gates, target, len(at))
        return -(weight / total).clamp_min(TINY).log().mean()

    def _summed(self, values: Any, at: Any, count: int) -> Any:
        return self.torch.zeros(count).index_add(0, at, values)

    def _candidates(self, documents: Int64) -> tuple[Int64, Float32]:
        """Documents of one step, ascending, and the log of how many each stands for."""
        if len(self.known) <= MOST_WHOLE:
            return self.known, np.zeros(len(self.known), dtype=np.float32)
        rest = np.setdiff1d(self.known, documents, assume_unique=True)
        drawn = self.random.choice(rest, min(SAMPLED, len(rest)), replace=False)
        stands = np.zeros(self.memory.documents, dtype=np.float32)
        stands[drawn] = math.log(max(1, len(rest)) / max(1, len(drawn)))
        candidates = np.sort(np.concatenate([documents, drawn]))
        return candidates, stands[candidates]

    def _logits(self, documents: Int64, candidates: Int64) -> Any:
        """(i, c): each source's best key in each candidate."""
        torch = self.torch
        embeddings = self._thinned(self.queries[torch.from_numpy(documents)])
        embeddings = embeddings + self._moves(documents)
        queries = self._normal(embeddings @ (self.start + self.delta_q).T)  # (i, d_k)
        positions = self.memory.positions(candidates)
        keys = self._normal(self._embedded(positions) @ (self.start + self.delta_k).T)
        scores = self.log_scale.exp() * queries @ keys.T  # (i, m')
        if self.memory.single:
            return scores
        counts = self.memory.counts[candidates]
        if (counts == counts[0]).all():  # as where texts have the same fields: far faster
            return scores.view(len(documents), len(candidates), int(counts[0])).amax(dim=2)
        owner = torch.from_numpy(np.repeat(np.arange(len(candidates)), counts))
        best = torch.full((len(documents), len(candidates)), -math.inf)
        return best.scatter_reduce(1, owner.expand(len(documents), -1), scores, "amax")

    def _thinned(self, embeddings: Any) -> Any:
        """Dropout, drawn from this fit's own generator so that a seed gives the same fit."""
        share = self.recipe.drop
        if share == 0:
            return embeddings
        kept = self.torch.rand(embeddings.shape, generator=self.draw) >= share
        return embeddings * kept / (1 - share)

    def _moves(self, documents: Int64) -> Any:
        """(i, d) by how much documents are moved as queries: the mean of their keys' offsets."""
        positions = self.memory.positions(documents)
        owner = np.repeat(np.arange(len(documents)), self.memory.counts[documents])
        share = (1 / self.memory.counts[documents]).astype(np.float32)[:, None]
        moves = self._moved(positions, owner, len(documents))
        return moves * self.torch.from_numpy(share)

    def _embedded(self, positions: Int64) -> Any:
        """Centred embeddings of keys, with their offsets."""
        moves = self._moved(positions, np.arange(len(positions)), len(positions))
        return self.keys[self.torch.from_numpy(positions)] + moves

    def _moved(self, positions: Int64, owner: Int64, count: int) -> Any:
        """(count, d): the sum of each owner's offsets, less those left out this time."""
        torch = self.torch
        at = self.offset_at[positions]
        some = np.flatnonzero(at >= 0)
        kept = torch.rand(len(some), 1, generator=self.draw) >= self.recipe.drop_offsets
        deltas = self.offsets[torch.from_numpy(at[some])] * kept
        moves = torch.zeros(count, self.keys.shape[1])
        return moves.index_add(0, torch.from_numpy(owner[some]), deltas)

    def _normal(self, vectors: Any) -> Any:
        return self.torch.nn.functional.normalize(vectors, dim=1) if self.memory.unit else vectors

    def _fitted(self) -> Mixture:
        with self.torch.no_grad():
            w_q, w_k = ((self.start + each).numpy() for each in (self.delta_q, self.delta_k))
            return Mixture(
                self.begin.center,
                w_q,
                w_k,
                float(self.log_scale.exp()) / self._squared(),
                self.offset_keys,
                (self.offsets * self.unit).numpy(),
                self.log_gates.exp().numpy(),
            )
