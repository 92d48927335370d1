"""The ratings objective's loss: every rating is a query to its user's others.

Queries and keys come from the centred text through learned maps, beside factors that begin with a
singular value decomposition of what the baseline leaves. A part of each history is left out at each
step, so that short histories are as usual as long ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from attend.core.types import Bool, Float32, Float64, Int64
from attend.learning.data import Ratings
from attend.learning.fit import Recipe, Watch, descend
from attend.recommend.ratings import FEATURES, Own, RatingModel, centred

USER_SHRINK, ITEM_SHRINK = 10.0, 5.0
"""Ratings of the mean one that each user's and each item's own are averaged with."""

ROUNDS = 10
"""Rounds of alternating between users and items; after a few, nothing moves any more."""

UNEVEN = 0.2
"""How much longer (as a log) one history may be than another beside which it is padded."""


class Baseline:
    """μ + b_i + b_u, each shrunk to zero by how few ratings there are.

    It is fitted by alternating between users and items (Koren 2010, section 2.1).

    Attributes:
        items: (n,). users: (u,).
    """

    def __init__(self, ratings: Ratings) -> None:
        self.mean = float(ratings.values.mean()) if len(ratings) else 0.0
        self.items, self.users = np.zeros(ratings.item_count), np.zeros(ratings.user_count)
        by_item = np.bincount(ratings.items, minlength=ratings.item_count) + ITEM_SHRINK
        by_user = np.bincount(ratings.users, minlength=ratings.user_count) + USER_SHRINK
        for _ in range(ROUNDS):
            left = ratings.values - self.mean - self.users[ratings.users]
            self.items = np.bincount(ratings.items, left, ratings.item_count) / by_item
            left = ratings.values - self.mean - self.items[ratings.items]
            self.users = np.bincount(ratings.users, left, ratings.user_count) / by_user

    def __call__(self, users: Int64, items: Int64) -> Float64:
        """(r,) predictions of some users' ratings of some items."""
        return np.asarray(self.mean + self.users[users] + self.items[items])


def residual_factors(ratings: Ratings, base: Baseline, width: int) -> Float64:
    """(n, width) of items: the leading right singular vectors of what the baseline leaves.

    Items are like each other as far as the same users rated both above, or below, what was
    expected; those with few ratings are drawn to zero. Of unit mean square length. Columns that
    few users or items cannot fill are zero.
    """
    left = ratings.values - base(ratings.users, ratings.items)
    shape = ratings.user_count, ratings.item_count
    residuals = sparse.csr_array((left, (ratings.users, ratings.items)), shape=shape)
    factors = np.zeros((ratings.item_count, width))
    rank = min(width, min(shape) - 1)
    if rank > 0 and np.any(left):
        start = np.random.default_rng(0).normal(size=min(shape))  # the same each time
        _, sizes, right = sparse.linalg.svds(residuals, k=rank, v0=start)
        factors[:, :rank] = (right * sizes[:, None])[::-1].T
    counts = np.bincount(ratings.items, minlength=ratings.item_count)
    factors /= np.sqrt(counts + 2 * ITEM_SHRINK)[:, None]
    size = np.sqrt((factors**2).sum(axis=1).mean())
    return factors / size if size > 0 else factors


class RatingBatch(NamedTuple):
    """b users with t ratings to guess and l known ones at most, padded to these.

    Attributes:
        items: (m,) those that occur; `targets` (b, t) and `history` (b, l) are places in it.
        truth: (b, t) ratings; values: (b, l).
        guessed: (b, t) which targets are there; there: (b, l) which of the history.
        out: (b, t, l) which known ratings are masked: the target's own, and padding.
    """

    items: Int64
    targets: Int64
    truth: Float32
    guessed: Bool
    history: Int64
    values: Float32
    there: Bool
    out: Bool


class RatingBatches:
    """Draws batches, each user as often as the others.

    Args:
        users: in a batch.
        cap: ratings of a user, to guess and to know.
        forget: up to which share of a history is left out, a share drawn for each user.
    """

    def __init__(
        self, ratings: Ratings, users: int, cap: int, forget: float, random: np.random.Generator
    ) -> None:
        self.ratings, self.users, self.cap, self.forget = ratings, users, cap, forget
        self.random = random
        self.lengths = np.diff(ratings.by_user[1])
        # Of one rating alone nothing is left to attend to.
        self.usable = np.flatnonzero(self.lengths > 1)
        if not len(self.usable):
            raise ValueError("Nobody has two ratings, of which one could be guessed by the other.")

    @property
    def in_epoch(self) -> int:
        """The number of batches until every user was there."""
        return math.ceil(len(self.usable) / self.users)

    def drawn(self, count: int) -> Iterator[RatingBatch]:
        """Yield batches of users whose histories are about as long as each other."""
        users, lengths = self.usable, np.minimum(self.lengths, self.cap)
        while count > 0:
            about = lengths[users] * np.exp(self.random.normal(0, UNEVEN, len(users)))
            parts = np.array_split(users[np.argsort(about)], self.in_epoch)
            for place in self.random.permutation(len(parts))[:count].tolist():
                yield self.of(parts[place])
            count -= len(parts)

    def of(self, users: Int64) -> RatingBatch:
        """Return the batch of some users."""
        samples = [self._drawn(self.ratings.of_user(user)) for user in users.tolist()]
        targets, guessed = _padded([places for places, _ in samples])
        history, there = _padded([places for _, places in samples])
        ids, values = self.ratings.items, self.ratings.values.astype(np.float32)
        both = np.concatenate([ids[targets].ravel(), ids[history].ravel()])
        items, places = np.unique(both, return_inverse=True)
        target_places = places[: targets.size].reshape(targets.shape)
        history_places = places[targets.size :].reshape(history.shape)
        same = target_places[:, :, None] == history_places[:, None, :]
        return RatingBatch(
            items=items,
            targets=target_places,
            truth=values[targets],
            guessed=guessed,
            history=history_places,
            values=values[history],
            there=there,
            out=same | ~there[:, None, :],
        )

    def _drawn(self, places: Int64) -> tuple[Int64, Int64]:
        """Return one user's ratings to guess, and those that are known meanwhile."""
        targets = self._capped(places)
        left = places[self.random.random(len(places)) >= self.forget * self.random.random()]
        return targets, self._capped(left if len(left) else places)

    def _capped(self, places: Int64) -> Int64:
        if len(places) <= self.cap:
            return places
        return self.random.choice(places, self.cap, replace=False)


def _padded(places: list[Int64]) -> tuple[Int64, Bool]:
    """(b, longest) with zeros after each, and which are there."""
    there = np.arange(max(map(len, places))) < np.array([len(part) for part in places])[:, None]
    padded = np.zeros(there.shape, dtype=np.int64)
    padded[there] = np.concatenate(places)
    return padded, there


# -- the net ---------------------------------------------------------------------------------------


MASKED = -1e4
"""The logit of what is left out: no weight, and no NaN."""

MOST_KNOTS = 10
"""Ratings between which the bias of a rating is interpolated."""

OWN = ("bias", "key_bias", "votes", "factors")
"""Parameters with a row for each item."""

MAPS = ("text_queries", "text_keys", "own_queries", "own_keys")

GROUPS: Mapping[str, tuple[str, ...]] = {
    "maps": MAPS,
    "factors": ("factors",),
    "terms": ("votes", "key_bias"),
    "bias": ("bias",),
    "heads": ("levels", "null", "gates", "log_scale"),
}
"""Parameters by the rate that they have."""


def _recipe(name: str, drop: float, factor_decay: float) -> Recipe:
    return Recipe(
        name,
        rates={"maps": 5e-3, "factors": 1e-2, "terms": 5e-3, "bias": 1e-3, "heads": 5e-3},
        decay={"maps": 1e-2, "factors": factor_decay, "terms": 1e-2, "bias": 1e-2},
        betas=(0.9, 0.99),
        epochs=10,
        steps=(150, 1500),
        batch=16,
        drop=drop,
    )


# On simulated ratings the first is the better one where items have dozens of ratings (RMSE 0.921
# against 0.929 with 60 each), the second where they have few (0.936 against 0.947 with 30 each).
RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe for recipe in (_recipe("usual", 0.3, 0.1), _recipe("careful", 0.5, 1.0))
}

FORGET = 0.5
"""Up to which share of a history is left out."""

UNKNOWN = 0.05
"""The share of items of which all but the text is left out."""

CAP = 128
"""Ratings of one user in a step."""


class Shape(NamedTuple):
    """H, d_h, p, and the directions of texts that are seen, those in which they vary most.

    Attributes:
        scale: of logits, to begin with.
    """

    heads: int = 8
    width: int = 16
    factors: int = 8
    directions: int = 96
    scale: float = 2.0


class RatingNet:
    """Parameters by name, and their predictions.

    Everything of an item itself begins with what the baseline and a singular value decomposition
    of its residuals say; queries and keys begin alike, so that what is like an item is attended to.

    Attributes:
        ratings: in units of their deviation, `size`: rates of learning are then right for stars and
            for percents.
    """

    def __init__(
        self, ratings: Ratings, embeddings: Float32, shape: Shape, drop: float, seed: int
    ) -> None:
        import torch  # here: seconds to import, and a search needs none of it

        self.torch = torch
        self.shape, self.drop = shape, drop
        self.ends = float(ratings.values.min()), float(ratings.values.max())
        self.size = float(ratings.values.std()) or 1.0
        self.ratings = replace(ratings, values=ratings.values / self.size)
        self.draw = torch.Generator().manual_seed(seed)
        self.base = Baseline(self.ratings)
        self.center = embeddings.mean(axis=0, dtype=np.float64)
        texts, self.directions = leading(centred(embeddings, self.center), shape.directions)
        self.texts = torch.from_numpy(texts.astype(np.float32))  # (n, k)
        self.knots = knots_of(self.ratings.values)
        start = self._start(np.random.default_rng(seed))
        self.tensors = {
            name: torch.tensor(array, dtype=torch.float32, requires_grad=True)
            for name, array in start.items()
        }
        self.parameters = {
            group: [self.tensors[name] for name in names] for group, names in GROUPS.items()
        }

    def loss(self, batch: RatingBatch) -> Any:
        """Return the mean squared error of the ratings to guess."""
        errors = self.predicted(batch) - self.torch.from_numpy(batch.truth)
        return (errors[self.torch.from_numpy(batch.guessed)] ** 2).mean()

    def _start(self, random: np.random.Generator) -> dict[str, Float64]:
        """Return where parameters begin."""
        shape, heads, count = self.shape, self.shape.heads, self.ratings.item_count
        usual = len(self.ratings) / max(1, len(np.unique(self.ratings.users)))
        start = {
            "factors": residual_factors(self.ratings, self.base, shape.factors),
            "bias": self.base.items[:, None],
            "votes": np.zeros((count, heads)),
            "key_bias": np.zeros((count, heads)),
            "levels": np.zeros((len(self.knots), heads)),
            # As heavy as a quarter of a history that says nothing.
            "null": np.full(heads, math.log1p(usual / 4)),
            "gates": np.full(heads, 1 / heads),
            "log_scale": np.full(heads, math.log(shape.scale)),
        }
        for name, rows, size in (("text", self.texts.shape[1], 0.7), ("own", shape.factors, 1.0)):
            both = random.normal(size=(rows, heads * shape.width))
            both *= size / math.sqrt(shape.width)
            start |= {f"{name}_queries": both, f"{name}_keys": both}
        return start

    def predicted(self, batch: RatingBatch) -> Any:
        """(b, t): the ratings of the targets, each without itself in the history."""
        torch, tensors = self.torch, self.tensors
        items = torch.from_numpy(batch.items)
        rated = self._left((len(batch.items), 1), UNKNOWN if self.drop else 0.0)
        terms = {name: tensors[name][items] * rated for name in OWN}
        targets, history = torch.from_numpy(batch.targets), torch.from_numpy(batch.history)
        there = torch.from_numpy(batch.there)
        bias = terms["bias"][:, 0]  # (m,)
        values = torch.from_numpy(batch.values)
        deviations = (values - self.base.mean - bias[history]) * there  # (b, l)
        counted = (~torch.from_numpy(batch.out)).float()  # (b, t, l)
        user = torch.einsum("btl,bl->bt", counted, deviations) / (counted.sum(2) + USER_SHRINK)
        queries, keys = self._queries_and_keys(items, terms["factors"])
        key_bias = terms["key_bias"][history] + self._level_bias(values)  # (b, l, H)
        blended = self._attended(
            queries[targets],
            torch.cat([keys[history], key_bias[..., None]], dim=3),
            (deviations, terms["votes"][history], there),
            counted,
        )  # (b, H, t, 3)
        moved = blended[..., 0] - blended[..., 2] * user[:, None]  # (b, H, t)
        moved = torch.einsum("h,bht->bt", tensors["gates"], moved)
        return self.base.mean + bias[targets] + user + moved + blended[..., 1].sum(1)

    def _attended(self, queries: Any, keys: Any, parts: tuple[Any, Any, Any], counted: Any) -> Any:
        """(b, H, t, 3): deviations, votes and ones of the history, blended.

        Biases ride as one more number of each key (b, l, H, d_h + 1), against a 1 in the query
        (b, t, H, d_h): torch's own attention then takes it all at once, several times as fast as
        step by step.
        """
        torch, pad = self.torch, self.torch.nn.functional.pad
        width = self.shape.width
        widened = pad(queries, (0, 1), value=1.0).transpose(1, 2)
        null = pad(self.tensors["null"][None, :, None, None], (width, 0))  # (1, H, 1, d_h + 1)
        rated = torch.cat([keys.transpose(1, 2), null.expand(len(keys), -1, -1, -1)], dim=2)
        deviations, votes, there = parts
        votes = votes.transpose(1, 2)  # (b, H, l)
        columns = (deviations[:, None].expand_as(votes), votes, there[:, None].expand_as(votes))
        values = pad(torch.stack(columns, dim=3), (0, width - 2, 0, 1))  # as wide as keys
        mask = pad((1 - counted) * MASKED, (0, 1))[:, None]
        return torch.nn.functional.scaled_dot_product_attention(
            widened, rated, values, attn_mask=mask, scale=1.0
        )[..., :3]

    def _queries_and_keys(self, items: Any, factors: Any) -> tuple[Any, Any]:
        """(m, H, d_h) each."""
        tensors, shape = self.tensors, (len(items), self.shape.heads, self.shape.width)
        queries, keys = (
            (
                self._dropped(self.texts[items]) @ tensors[f"text_{side}"]
                + self._dropped(factors) @ tensors[f"own_{side}"]
            ).view(shape)
            for side in ("queries", "keys")
        )
        return queries * self._scale()[:, None], keys

    def _scale(self) -> Any:
        """(H,)"""
        return self.tensors["log_scale"].exp() / math.sqrt(self.shape.width)

    def _level_bias(self, values: Any) -> Any:
        """(b, l, H): interpolated between the knots, as `RatingModel.level_bias` does."""
        torch, levels = self.torch, self.tensors["levels"]
        if len(self.knots) < 2:
            return levels[0].expand(*values.shape, -1)
        knots = torch.from_numpy(self.knots.astype(np.float32))
        right = torch.searchsorted(knots, values).clamp(1, len(knots) - 1)
        low, high = knots[right - 1], knots[right]
        part = ((values - low) / (high - low)).clamp(0, 1)[..., None]
        return levels[right - 1] * (1 - part) + levels[right] * part

    def _dropped(self, numbers: Any) -> Any:
        return numbers * self._left(numbers.shape, self.drop) / (1 - self.drop)

    def _left(self, shape: Any, share: float) -> Any:
        # Drawn from this net's own generator, so that a seed gives the same fit.
        return (self.torch.rand(shape, generator=self.draw) >= share).float()

    def fitted(self) -> tuple[RatingModel, Own]:
        """Return the parameters in numpy: the model, and what it learned of each item."""
        with self.torch.no_grad():
            scale = self._scale().numpy().astype(np.float64)[:, None, None]
            arrays = {
                name: tensor.numpy().astype(np.float64) for name, tensor in self.tensors.items()
            }
        maps = {name: self._by_head(name, arrays[name]) for name in MAPS}
        maps |= {name: maps[name] * scale for name in ("text_queries", "own_queries")}
        model = RatingModel(
            mean=self.base.mean * self.size,
            low=self.ends[0],
            high=self.ends[1],
            shrink=USER_SHRINK,
            center=self.center,
            knots=self.knots * self.size,
            levels=arrays["levels"],
            null=arrays["null"],
            gates=arrays["gates"],
            trust=np.ones(2),
            spread=np.zeros(FEATURES),
            **maps,
        )
        counts = np.bincount(self.ratings.items, minlength=self.ratings.item_count)
        terms = Own(
            bias=arrays["bias"][:, 0] * self.size,
            key_bias=arrays["key_bias"],
            votes=arrays["votes"] * self.size,
            factors=arrays["factors"],
            support=counts.astype(np.float64),
        )
        return model, terms

    def _by_head(self, name: str, weights: Float64) -> Float64:
        """(k, H d_h) -> (H, d_h, d) of texts, (H, d_h, p) of factors."""
        by_head = weights.reshape(-1, self.shape.heads, self.shape.width).transpose(1, 2, 0)
        return by_head @ self.directions if name.startswith("text") else by_head


def knots_of(values: Float64) -> Float64:
    """Return ratings to interpolate between: each of them if they are few, else quantiles."""
    knots = np.unique(values)
    if len(knots) > MOST_KNOTS:
        knots = np.unique(np.quantile(values, np.linspace(0, 1, MOST_KNOTS)))
    return np.asarray(knots, dtype=np.float64)


def leading(texts: Float64, width: int) -> tuple[Float64, Float64]:
    """Reduce texts (n, d) to the directions in which they vary most, of unit mean square length.

    Returns: (n, k), and (k, d) by which a text is reduced.
    """
    _, vectors = np.linalg.eigh(texts.T @ texts)
    directions = vectors[:, ::-1][:, : min(width, *texts.shape)].T  # (k, d)
    reduced = texts @ directions.T
    size = float(np.sqrt((reduced**2).sum(axis=1).mean())) or 1.0
    return reduced / size, directions / size


def fit_ratings(
    ratings: Ratings,
    embeddings: Float32,
    recipe: Recipe,
    *,
    shape: Shape = Shape(),  # noqa: B008 # frozen
    seed: int = 0,
    watch: Watch = lambda done: None,
) -> tuple[RatingModel, Own]:
    """Learn from ratings of items with these embeddings (n, d).

    Raises:
        Conflict: the loss is not finite.
    """
    net = RatingNet(ratings, embeddings, shape, recipe.drop, seed)
    random = np.random.default_rng(seed)
    batches = RatingBatches(net.ratings, recipe.batch, CAP, FORGET, random)
    steps = recipe.count_steps(batches.in_epoch)
    descend(net, recipe, batches.drawn(steps), steps, watch)
    return net.fitted()
