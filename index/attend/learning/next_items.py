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
import re
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy import linalg, sparse

from attend.core.arrays import top
from attend.core.errors import InvalidRequest
from attend.core.types import Bool, Float32, Float64, Floats, Int64
from attend.engines.engine import StoredCollection
from attend.learning.data import Memory, Sparse, lengths
from attend.learning.fit import Fitted, Recipe, Residual, Watch, descend, unlearned
from attend.store.words import TOKENIZER

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

Pairs: TypeAlias = tuple[Int64, Int64, Int64]
"""Of each user, every document as a target beside every one as a source, itself included: the
documents (t,), user after user; and target and source (p,), places in these."""


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
    return documents, target, np.repeat(begins, partners) + within


def shuffled_ranks(
    user: Int64, counts: Int64, random: np.random.Generator, keys: Float64 | None = None
) -> Int64:
    """Return the place of each interaction (t,) in a random order of its user's; by keys (t,)
    where there are any, and at random among equals."""
    chance = random.random(len(user))
    order = np.lexsort((chance, user) if keys is None else (chance, keys, user))
    rank = np.empty(len(user), dtype=np.int64)
    rank[order] = np.arange(len(user)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rank


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
        # Keys of documents in any history have offsets.
        counts = np.bincount(histories.indices, minlength=len(memory))
        most = self.known[np.argsort(-counts[self.known], kind="stable")]
        movable = most[np.cumsum(memory.counts[most]) <= MOST_OFFSETS]
        self.maps = Residual(
            memory,
            np.eye(len(self.center), dtype=np.float32),
            scale=SCALE * memory.scale * self.squared,
            offset_keys=memory.positions(np.sort(movable)),
            seed=seed,
        )
        torch = self.maps.torch
        queries = memory.document_embeddings() - self.center
        self.queries = torch.from_numpy(queries / self.length)  # (n, d)
        self.keys = torch.from_numpy(centred / self.length)  # (m, d)
        self.log_gates = torch.zeros(len(memory), requires_grad=True)
        maps = [self.maps.delta_q, self.maps.delta_k, self.maps.log_scale]
        gates = [self.log_gates]
        self.parameters = {"maps": maps, "offsets": [self.maps.offsets], "gates": gates}

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
        documents, row = np.unique(pairs[0], return_inverse=True)  # (i,), (t,)
        candidates, log_counts = self.candidates(documents)
        z = self.logits(documents, candidates)  # (i, c)
        if log_counts.any():  # zeros where all documents take part
            z = z + torch.from_numpy(log_counts)
        peaks = z.detach().amax(dim=1, keepdim=True)
        shares = (z - peaks).exp_()  # (i, c), of each source's sum below
        column = torch.from_numpy(np.searchsorted(candidates, pairs[0]))  # (t,)
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
        gates = self.log_gates.exp()[pairs[0]][source] * others
        attended = gates * to_target / (outside[source] + to_target).clamp_min(TINY)
        weight = self._summed(attended, target, len(row))
        total = self._summed(gates, target, len(row))
        return -(weight / total).clamp_min(TINY).log().mean()

    def _summed(self, values: Any, place: Any, count: int) -> Any:
        return self.maps.torch.zeros(count).index_add(0, place, values)


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


# -- the closed form -------------------------------------------------------------------------------


ENTRIES = 100
"""Documents with interactions that each row names at least, and documents without that it names at
most. (nDCG@10 on a validation part of goodbooks: .1962 with 50, .1972 with 100, .1959 with 200,
.1973 with all.)"""

COVERED = 0.95
"""The share of the sum of its squared weights that a row names on average: long histories add up
many small ones. (nDCG@10 of EASE on simulated users with 70 documents each: .367 with 100
entries, .387 with the 712 of this share, .388 with all.)"""

MOST_ENTRIES = 4_000_000
"""Weights of all rows together, 48 MB as they are stored; `ENTRIES` in each are possible anyway."""

MOST_ITEMS = 30_000
"""Documents that have a row, those with most interactions first."""

MOST_EXACT = 4000
"""Documents with interactions whose matrix is inverted as it is: 128 MB, and some ten seconds."""

RANK = 512
"""Directions of more documents that are used."""

PASSES = 3
"""Passes over the data that find those directions."""

WORD_RIDGE = 1.0
"""The ridge of the regression on words, whose rows have length one."""

UNSHRUNK = 2.0
"""The factor on weights for documents without interactions, which the ridge on words makes small.
(nDCG@10 on validation parts of goodbooks, beside learned attention: of withheld books .282 with 1,
.287 with 2, .290 with 3; of all .2064, .2062, and .2061.)"""

LIKENESS = 0.03
"""The weight of likeness by words for documents without interactions."""

BLOCK_ROWS = 512
"""Rows of the result that are made at once."""


class ClosedForm(NamedTuple):
    """The numbers of a closed form.

    Attributes:
        ridge: λ, as a multiple of the mean number of interactions of a document.
        words: α, as such a multiple; 0 leaves words out.
        dropout: the share p of all interactions that a regression does without: λ is larger by
            p / (1 − p) of the interactions of each document (Steck 2020, "Autoencoders that don't
            overfit towards the identity").
        slack: ξ, the largest weight of a document for itself, which takes part in the regression
            but not in the result (Moon, Kim and Lee 2023, "It's enough: relaxing diagonal
            constraints in linear autoencoders").
    """

    ridge: float
    words: float = 0.0
    dropout: float = 0.0
    slack: float = 0.0


FORMS: Mapping[str, ClosedForm] = {
    "items": ClosedForm(2.0),
    "items and words": ClosedForm(2.0, 0.5),
    "items and more words": ClosedForm(4.0, 1.0),
    "shrunk items": ClosedForm(8.0),
    "regularised items": ClosedForm(16.0),
    "more regularised items": ClosedForm(32.0),
    "regularised items and words": ClosedForm(16.0, 0.5),
    "regularised items and more words": ClosedForm(32.0, 2.0),
    "items and more words with dropout": ClosedForm(32.0, 2.0, 0.5),
    "more regularised items and words with dropout": ClosedForm(64.0, 2.0, 0.5),
    "items with dropout and slack": ClosedForm(4.0, 0.0, 0.33, 0.3),
}
"""How much a model is to be shrunk depends on the data. (nDCG@10 on validation parts. Items alone:
of books .175 with ridge 2 and .170 with 8; of films withheld at random .200 with 2, .218 with 8,
.223 with 16. With words: of books .194 with ridge 2 and words .5, and .186 with 2 and 2; of films
.236 with 32 and 2. Dropout: of films that users liked .213 beside .205, with ridge 8. Dropout and
slack: of books .179 beside .175, without words. EASE tuned on films withheld at random has a ridge
of 27 times the mean.)"""


STRENGTHS = (5.0, 20.0)
"""Factors from the weights of a closed form to logits, by choice: those of a large ridge are small.
(nDCG@10 of attention beside them on validation parts: of goodbooks, beside a ridge of 2, .206 with
5, .206 with 10 and .202 with 20; of films, beside one of 32, .234, .237 and .239.)"""

SOFTENED = 0.4
"""The factor on the scale of a learned attention beside a closed form, for both speak of the same.
(nDCG@10 on validation parts of goodbooks: new books .278 with 0.7, .280 with 0.4; all .204.)"""

FAINT = 0.01
"""The scale of texts beside a closed form alone: they order what it has no weight for."""

TEXTS, STRONG = (0.25, 0.4), 60.0
"""How much of their scale texts keep beside a closed form alone, by choice, and the factor on its
weights then. (nDCG@10 on validation parts, of known and of new items: of films that users liked
.184 and .086 with faint texts, .191 and .146 with 0.25, .178 and .156 with 0.4; of books .235 and
.349, .220 and .357, .215 and .355.)"""


def mean_count(histories: Sparse) -> float:
    """Return the mean number of interactions of a document that has any."""
    return float(histories.nnz / max(1, len(np.unique(histories.indices))))


def item_weights(
    histories: Sparse, words: Sparse, form: ClosedForm, mean: float | None = None
) -> Sparse:
    """Return the weight of each document (row) for each document (column), sparse (n, n).

    Each row has its largest weights by size, `COVERED` of their squares; all others are zero.

    Args:
        histories: sparse ones (u, n).
        words: sparse (n, t), rows of length one or zero.
        mean: the interactions of a document that the form counts in; the `mean_count` of these
            histories if None.

    >>> histories = sparse.csr_array(np.array([[1, 1, 0], [1, 1, 0], [0, 1, 1]]))
    >>> weights = item_weights(histories, sparse.csr_array((3, 0)), ClosedForm(1.0, 0.0))
    >>> weights.toarray()[0].round(2).tolist()
    [0.0, 0.5, -0.12]
    """
    return ItemModel(histories, words, mean).fitted(form).weights()


def _precision(stacked: Sparse, ridge: Float64) -> tuple[Float64, Callable[[Any], Floats]]:
    """Return the diagonal of P (k,), and a function that multiplies rows (b, k), which may be
    sparse, by P. What is multiplied is of float32, what is inverted is not.

    P is the inverse of a Gram matrix with a ridge (k,); √ridge P √ridge = I − V Vᵀ, and where
    there are few users, V is exact (Woodbury). Else it is of the directions of most variance
    (Halko, Martinsson and Tropp 2011), each by the root of σ² / (σ² + 1).
    """
    users, size = stacked.shape
    if size <= min(users, MOST_EXACT):
        gram = (stacked.T @ stacked).toarray().astype(np.float64)
        gram[np.diag_indices_from(gram)] += ridge
        factor = linalg.cho_factor(gram, overwrite_a=True)
        inverse: Float64 = linalg.cho_solve(factor, np.eye(size), overwrite_b=True)
        single = inverse.astype(np.float32)
        return np.diag(inverse).copy(), lambda rows: np.asarray(rows @ single)
    root = 1 / np.sqrt(ridge)
    scaled = (stacked @ sparse.diags_array(root)).tocsr()
    if users * size <= MOST_EXACT**2:
        kernel = (scaled @ scaled.T).toarray() + np.eye(users)
        lower = linalg.cholesky(kernel, lower=True, overwrite_a=True)
        directions = linalg.solve_triangular(lower, scaled.toarray(), lower=True)  # (r, k)
    else:
        from sklearn.utils.extmath import randomized_svd  # here: a second to import

        rank = min(RANK, users, size)
        _, values, right = randomized_svd(scaled, rank, n_iter=PASSES, random_state=0)
        directions = (values / np.sqrt(values**2 + 1))[:, None] * right

    diagonal = (1 - (directions**2).sum(axis=0)) * root**2
    scale, single = sparse.diags_array(root.astype(np.float32)), directions.astype(np.float32)

    def times(rows: Any) -> Floats:
        inside = rows @ scale
        return np.asarray((inside - (inside @ single.T) @ single) @ scale)

    return diagonal, times


class ItemModel:
    """A closed form of some histories: the item–item matrix, whose rows are made block by block.

    The regression on words is the same for all forms, and is made once.
    """

    _inverted: Callable[[Any], Floats]
    _scale: Floats
    _rest: Floats
    _level = 1.0

    def __init__(self, histories: Sparse, words: Sparse, mean: float | None = None) -> None:
        """Args: as those of `item_weights`."""
        self._size = histories.shape[1]
        counts = np.bincount(histories.indices, minlength=self._size)
        order = np.argsort(-counts, kind="stable")[:MOST_ITEMS]
        warm, others = (np.sort(order[part]) for part in (counts[order] > 0, counts[order] == 0))
        self._mean = mean_count(histories) if mean is None else mean
        self._warm, self._others, self._histories = warm, others, histories[:, warm]
        words = words.astype(np.float32)
        self._words, self._new_words = words[warm], words[others]
        # S (SᵀS + ρI)⁻¹ = (SSᵀ + ρI)⁻¹ S: the smaller one of both is inverted.
        self._by_kernel = len(warm) < words.shape[1]
        side = self._words if self._by_kernel else self._words.T.tocsr()  # (k, t) or (t, k)
        gram = (side @ side.T).toarray().astype(np.float64)
        gram[np.diag_indices_from(gram)] += WORD_RIDGE
        self._regression = linalg.cho_factor(gram) if gram.size and len(others) else None
        self._lift = np.empty((0, 0))
        if self._regression is not None:
            # The regression's weights for what others have, or for all words if these are fewer.
            new = (side if self._by_kernel else sparse.eye_array(len(gram))) @ self._new_words.T
            self._to_new = new.tocsr()
            self._direct = len(others) <= len(gram)
            target = self._to_new.toarray() if self._direct else np.eye(len(gram))
            self._lift = linalg.cho_solve(self._regression, target, overwrite_b=True)
            self._lift = self._lift.astype(np.float32)

    def fitted(self, form: ClosedForm) -> ItemModel:
        """Return the model with the numbers of a form."""
        model = copy(self)
        stacked, counts = self._histories, np.asarray(self._histories.sum(axis=0), np.float64)
        if form.words and self._words.shape[1]:
            side = np.sqrt(form.words * self._mean) * self._words.T
            stacked = sparse.vstack([stacked, side]).tocsr()
        ridge = form.ridge * self._mean + form.dropout / (1 - form.dropout) * counts
        diagonal, model._inverted = _precision(stacked, ridge)
        scale = np.maximum(ridge, (1 - form.slack) / diagonal)
        model._scale = scale.astype(np.float32)
        # One less what a document says of itself, which is left out.
        model._rest = (diagonal * scale).astype(np.float32)
        if self._regression is not None:
            model._level = model._level_of(counts)
        return model

    def weights(self) -> Sparse:
        """Return the largest weights of all rows, sparse (n, n)."""
        rows, columns, values = zip(*self._entries(), strict=True)
        cells = np.concatenate(rows), np.concatenate(columns)
        weights = sparse.csr_array((np.concatenate(values), cells), shape=(self._size, self._size))
        weights.sort_indices()
        return weights

    def added(self, histories: Sparse, ranked: Bool) -> Floats:
        """Return what all weights add up to over histories, sparse (h, n), for the ranked
        documents (n,): (h, r); -inf for what is in a history."""
        sums = np.zeros((histories.shape[0], self._size), dtype=np.float32)
        sources = histories[:, self._warm].astype(np.float32)
        sums[:, self._warm] = to_known = self._times(sources)
        if self._regression is not None:
            sums[:, self._others] = self._to_others(to_known, (sources @ self._words).toarray())
        sums[histories.nonzero()] = -np.inf
        return sums[:, ranked]

    def _entries(self) -> Iterator[tuple[Int64, Int64, Floats]]:
        """Yield rows, columns and values of a block's largest weights."""
        count = self._count()
        for members, is_known in ((self._warm, True), (self._others, False)):
            for start in range(0, len(members), BLOCK_ROWS):
                places = np.arange(start, min(start + BLOCK_ROWS, len(members)))
                to_known, to_others = self._block(places, is_known)
                rows = members[places]
                (to_known if is_known else to_others)[np.arange(len(places)), places] = 0
                yield _largest(to_known, rows, self._warm, count)
                yield _largest(to_others, rows, self._others, ENTRIES)

    def _count(self) -> int:
        """Return how many weights for documents with interactions a row names."""
        size = len(self._warm)
        sample = np.unique(np.linspace(0, size - 1, min(size, BLOCK_ROWS)).astype(np.int64))
        squares = -np.sort(-(self._block(sample, True)[0] ** 2), axis=1)  # (b, k)
        shares = np.cumsum(squares, axis=1) / np.maximum(squares.sum(axis=1), 1e-30)[:, None]
        covering = int(np.ceil(1 + (shares < COVERED).sum(axis=1).mean())) if size else 0
        return max(ENTRIES, min(covering, MOST_ENTRIES // max(1, size)))

    def _level_of(self, counts: Float64) -> float:
        """Return the factor that brings documents without interactions down to the level of others.

        A document of the closed form is expected about as often as it was met. Likeness adds up
        over a long history, and would have all of it where nobody met a document. (nDCG@10 on
        validation parts, before and after: of simulated users with 70 films each .149, .247; of
        readers of goodbooks .215, .216.)

        Args:
            counts: (k,) interactions of each document.
        """
        histories = counts[None]  # the sum over all users, as weights add up
        to_known = self._times(histories)
        to_others = self._to_others(to_known, np.asarray(histories @ self._words))
        expected, level = float(to_known.mean()), float(to_others.mean())
        return min(1.0, max(0.0, expected) / level) if level > 0 else 1.0

    def _block(self, places: Int64, is_known: bool) -> tuple[Floats, Floats]:
        """Return the weights of some documents for those with interactions, and for the others."""
        size = len(self._warm)
        words = (self._words if is_known else self._new_words)[places]  # (b, t)
        if is_known:
            to_known = self._times(sparse.eye_array(size, dtype=np.float32, format="csr")[places])
        elif self._regression is None:
            to_known = np.zeros((len(places), size))
        else:
            likeness = (words @ self._words.T).toarray()  # (b, k)
            to_known = self._times(self._shares(words, likeness)) + LIKENESS * likeness
        if self._regression is None:
            return to_known, np.zeros((len(places), len(self._others)))
        return to_known, self._to_others(to_known, words.toarray())

    def _to_others(self, to_known: Floats, words: Floats) -> Floats:
        """Return the weights for documents without interactions, by those for others (b, k) and by
        words (b, t)."""
        regressed = (to_known if self._by_kernel else to_known @ self._words) @ self._lift
        if not self._direct:
            regressed = regressed @ self._to_new
        by_word = LIKENESS * (words @ self._new_words.T)
        return np.asarray(self._level * UNSHRUNK * (regressed + by_word))

    def _times(self, rows: Any) -> Floats:
        """Return rows @ B; rows may be sparse."""
        outside = rows @ sparse.diags_array(self._rest)
        return np.asarray(outside - self._inverted(rows) * self._scale)

    def _shares(self, words: Sparse, likeness: Floats) -> Floats:
        """Return the documents (b, k) that words (b, t) regress to: words (SᵀS + ρI)⁻¹ Sᵀ."""
        if self._by_kernel:
            return np.asarray(linalg.cho_solve(self._regression, likeness.T).T)
        return np.asarray(linalg.cho_solve(self._regression, words.toarray().T).T @ self._words.T)


def _largest(
    weights: Floats, rows: Int64, columns: Int64, count: int
) -> tuple[Int64, Int64, Floats]:
    """Return the entries of each row (b, c) that are largest by size, without zeros."""
    if not weights.size:
        return rows[:0], columns[:0], np.empty(0)
    places = top(np.abs(weights), count)  # (b, e)
    values = np.take_along_axis(weights, places, axis=1)
    present = np.abs(values) > 1e-12
    owners = np.broadcast_to(rows[:, None], places.shape)
    return owners[present], columns[places][present], values[present]


# -- words ----------------------------------------------------------------------------------------

MOST_WORDS = 4096
"""Words by which documents are alike, those first that tell most documents apart."""

SEPARATORS = re.compile(r"[,;|\n]")

MOST_IN_NAME = 4
"""Words of what is a term by itself between separators, such as an author or a tag. (nDCG@10 of
withheld books on a validation part of goodbooks: .285 with stems alone, .287 with names.)"""

READ_DOCUMENTS = 1000
"""Documents whose texts are read at once."""


def words_of(collection: StoredCollection, rows: Int64) -> Sparse:
    """Return the terms in the texts of documents by inverse document frequency, sparse (n, t).

    Rows have length one; a document without text, or with terms of its own only, has zeros. How
    often a text has a term counts little beside that it has it, and is left out.
    """
    numbers: dict[str, int] = {}
    columns, counts = [np.empty(0, np.int64)], np.zeros(len(rows), np.int64)
    for start in range(0, len(rows), READ_DOCUMENTS):
        part = rows[start : start + READ_DOCUMENTS]
        documents = collection.store.documents(part)
        for place, row in enumerate(part.tolist(), start):
            fields = documents[row].fields if row in documents else {}
            terms = terms_of("\n".join(fields.values()))
            columns.append(np.array([numbers.setdefault(t, len(numbers)) for t in terms], int))
            counts[place] = len(terms)
    column = np.concatenate(columns)
    frequency = np.bincount(column, minlength=len(numbers))
    rarity = np.log((len(rows) + 1) / (frequency + 1))
    # What one document alone has connects it with none; what nearly all have says nothing.
    worth = np.where(frequency > 1, frequency * rarity**2, 0.0)
    used = np.flatnonzero(worth > 0)
    used = np.sort(used[np.argsort(-worth[used], kind="stable")[:MOST_WORDS]])
    pointers = np.concatenate([[0], np.cumsum(counts)])
    shape = len(rows), len(numbers)
    present = sparse.csr_array((rarity[column], column, pointers), shape=shape)[:, used].tocsr()
    lengths = np.sqrt(present.power(2).sum(axis=1))
    return (sparse.diags_array(1 / np.where(lengths > 0, lengths, 1)) @ present).tocsr()


def terms_of(text: str) -> list[str]:
    """Return the stems of a text, and the short names that stand between its separators.

    >>> terms_of("Stephen King, horror")
    ['stephen', 'king', 'horror', ',stephen king', ',horror']
    """
    names = (part.casefold().split() for part in SEPARATORS.split(text))
    listed = ("," + " ".join(name) for name in names if 0 < len(name) <= MOST_IN_NAME)
    return [*TOKENIZER.words(text), *dict.fromkeys(listed)]
