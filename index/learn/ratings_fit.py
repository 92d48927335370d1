"""Fitting the model of ratings: every rating is a query to its user's others.

The recipe is that of the table in README.md: attention with heads over the user's ratings, queries
and keys from the centred text through learned maps beside factors that begin with a singular value
decomposition of what the baseline leaves. A part of each history is left out at each step, so that
short histories are as usual as long ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from index.errors import Conflict
from index.learn.fit import Watch
from index.learn.ratings import USER_SHRINK, Baseline, Ratings, baseline, residual_factors
from index.ratings import FEATURES, Own, RatingModel, centred
from index.types import Bool, Float32, Float64, Int64

MASKED = -1e4
"""The logit of what is left out: no weight, and no NaN."""

MOST_KNOTS = 10
"""Ratings between which the bias of a rating is interpolated."""


@dataclass(frozen=True)
class Recipe:
    """How to fit; the numbers were chosen on held-out parts of simulated ratings.

    Attributes:
        heads, width: H and d_h. factors: p. directions: of texts, those in which they vary most.
        drop: dropout on texts and factors. forget: up to which share of a history is left out.
        unknown: the share of items that have nothing but their text, at each step.
        epochs: over all users; `steps` bounds the steps.
        users: in a step. cap: ratings of one user in a step.
        rate, factor_rate, term_rate, bias_rate, scale_rate: of learning W; factors; votes and key
            biases; item biases; scale, levels, null and gates.
    """

    name: str
    heads: int = 8
    width: int = 16
    factors: int = 8
    directions: int = 96
    drop: float = 0.3
    forget: float = 0.7
    unknown: float = 0.05
    epochs: int = 10
    steps: tuple[int, int] = (150, 1500)
    users: int = 16
    cap: int = 128
    rate: float = 5e-3
    factor_rate: float = 1e-2
    term_rate: float = 5e-3
    bias_rate: float = 1e-3
    scale_rate: float = 5e-3
    decay: float = 1e-2
    factor_decay: float = 0.1
    scale: float = 2.0


class FittedRatings(NamedTuple):
    """What a fit gives: the model, and what it learned of each item."""

    model: RatingModel
    own: Own


def fit_ratings(
    ratings: Ratings,
    embeddings: Float32,
    recipe: Recipe,
    *,
    seed: int = 0,
    watch: Watch | None = None,
) -> FittedRatings:
    """Learn from ratings of items with these embeddings (n, d).

    Raises:
        Conflict: the loss is no longer a number.
    """
    return _Fit(ratings, embeddings, recipe, seed).run(watch or (lambda _: None))


def knots_of(values: Float64) -> Float64:
    """Ratings to interpolate between: each of them if they are few, else evenly many on either
    side of each."""
    found = np.unique(values)
    if len(found) > MOST_KNOTS:
        found = np.unique(np.quantile(values, np.linspace(0, 1, MOST_KNOTS)))
    return found


class _Batch(NamedTuple):
    """Some users, padded: (b, t) items to rate and (b, l) those rated, with their ratings.

    Attributes:
        items: (m,) the items that occur; the others are places in it.
        asked: which of (b, t) are there; out: (b, t, l) which ratings are not to be looked at.
    """

    items: Int64
    targets: Any
    truth: Any
    asked: Any
    history: Any
    values: Any
    there: Any
    out: Any


class _Fit:
    """One run: its parameters, and the draws of its steps."""

    def __init__(self, ratings: Ratings, embeddings: Float32, recipe: Recipe, seed: int) -> None:
        import torch  # here: seconds to import, and a search needs none of it

        self.torch = torch
        self.ratings, self.recipe = ratings, recipe
        self.random = np.random.default_rng(seed)
        self.draw = torch.Generator().manual_seed(seed)
        self.base: Baseline = baseline(ratings)
        self.center = embeddings.mean(axis=0, dtype=np.float64)
        texts, self.directions = _leading(centred(embeddings, self.center), recipe.directions)
        self.texts = torch.from_numpy(texts.astype(np.float32))  # (n, k)
        self.knots = knots_of(ratings.values)
        self.parameters = self._start()

    def _start(self) -> dict[str, Any]:
        recipe, count, heads = self.recipe, self.ratings.item_count, self.recipe.heads
        maps = {}
        # Queries and keys begin alike: what is like an item is attended to.
        for name, rows in (("text", self.texts.shape[1]), ("own", recipe.factors)):
            drawn = self.random.normal(size=(rows, heads * recipe.width))
            drawn *= (0.7 if name == "text" else 1.0) / math.sqrt(recipe.width)
            maps |= {f"{name}_queries": drawn, f"{name}_keys": drawn}
        few = math.log1p(len(self.ratings) / max(1, len(np.unique(self.ratings.users))) / 4)
        start = maps | {
            "factors": residual_factors(self.ratings, self.base, recipe.factors),
            "bias": self.base.items[:, None],
            "votes": np.zeros((count, heads)),
            "key_bias": np.zeros((count, heads)),
            "levels": np.zeros((len(self.knots), heads)),
            "null": np.full(heads, few),
            "gates": np.full(heads, 1 / heads),
            "log_scale": np.full(heads, math.log(recipe.scale)),
        }
        tensor = self.torch.tensor
        return {
            name: tensor(each, dtype=self.torch.float32, requires_grad=True)
            for name, each in start.items()
        }

    def run(self, watch: Watch) -> FittedRatings:
        torch = self.torch
        steps = self._steps()
        optimiser = self._optimiser()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda at: 1 - at / max(1, steps))
        for at, users in enumerate(self._users(steps)):
            watch(at / steps)
            batch = self._batch(users)
            optimiser.zero_grad()
            loss = ((self.predicted(batch) - batch.truth)[batch.asked] ** 2).mean()
            if not bool(torch.isfinite(loss)):
                raise Conflict(
                    "Training came to numbers that are not finite; look for documents with "
                    "vectors or ratings of extreme size."
                )
            loss.backward()
            optimiser.step()
            schedule.step()
        return self._fitted()

    def predicted(self, batch: _Batch) -> Any:
        """(b, t): the ratings of the targets, each without itself in the history."""
        torch, given = self.torch, self.parameters
        known = self._kept((len(batch.items), 1), self.recipe.unknown)
        items = torch.from_numpy(batch.items)
        own = {name: given[name][items] * known for name in _OWN}
        queries, keys = self._queries_and_keys(items, own["factors"])  # (m, H, d_h) each
        bias = own["bias"][:, 0]
        deviations = (batch.values - self.base.mean - bias[batch.history]) * batch.there  # (b, l)
        found = self._attended(batch, queries, keys, own, deviations)  # (b, H, t, 3)
        counted = (~batch.out).float()  # (b, t, l)
        user = torch.einsum("btl,bl->bt", counted, deviations) / (counted.sum(2) + USER_SHRINK)
        moved = found[..., 0] - found[..., 2] * user[:, None]  # (b, H, t)
        moved = torch.einsum("h,bht->bt", given["gates"], moved)
        return self.base.mean + bias[batch.targets] + user + moved + found[..., 1].sum(1)

    def _attended(
        self, batch: _Batch, queries: Any, keys: Any, own: dict[str, Any], deviations: Any
    ) -> Any:
        """(b, H, t, 3): deviations, votes and ones of the history, blended.

        Biases ride as one more number of each key, against a 1 in the query: the library's own
        attention then takes everything at once, several times as fast as step by step.
        """
        torch, given, recipe = self.torch, self.parameters, self.recipe
        size, heads, width = len(batch.targets), recipe.heads, recipe.width
        one = torch.ones(*batch.targets.shape, heads, 1)
        asked = torch.cat([queries[batch.targets], one], dim=3).transpose(1, 2)
        bias = own["key_bias"][batch.history] + self._level_bias(batch.values)  # (b, l, H)
        rated = torch.cat([keys[batch.history], bias[..., None]], dim=3).transpose(1, 2)
        null = torch.cat([torch.zeros(heads, width), given["null"][:, None]], dim=1)
        rated = torch.cat([rated, null[None, :, None].expand(size, -1, 1, -1)], dim=2)
        votes = own["votes"][batch.history].transpose(1, 2)  # (b, H, l)
        parts = (deviations[:, None].expand_as(votes), votes, batch.there[:, None].expand_as(votes))
        values = torch.nn.functional.pad(torch.stack(parts, dim=3), (0, width - 2, 0, 1))
        mask = torch.nn.functional.pad(batch.out.float() * MASKED, (0, 1))[:, None]
        blended = torch.nn.functional.scaled_dot_product_attention(
            asked, rated, values, attn_mask=mask, scale=1.0
        )
        return blended[..., :3]

    def _queries_and_keys(self, items: Any, factors: Any) -> tuple[Any, Any]:
        given, recipe = self.parameters, self.recipe
        shape = (len(items), recipe.heads, recipe.width)
        made = []
        for side in ("queries", "keys"):
            texts = self._dropped(self.texts[items])
            made.append(
                (texts @ given[f"text_{side}"] + self._dropped(factors) @ given[f"own_{side}"])
                .view(shape)
            )
        return made[0] * self._scale()[:, None], made[1]

    def _scale(self) -> Any:
        """(H,)"""
        return self.parameters["log_scale"].exp() / math.sqrt(self.recipe.width)

    def _level_bias(self, values: Any) -> Any:
        """(b, l, H): interpolated between the knots, as `RatingModel.level_bias` does."""
        torch, levels = self.torch, self.parameters["levels"]
        if len(self.knots) < 2:
            return levels[0].expand(*values.shape, -1)
        knots = torch.from_numpy(self.knots.astype(np.float32))
        right = torch.searchsorted(knots, values.contiguous()).clamp(1, len(knots) - 1)
        low, high = knots[right - 1], knots[right]
        part = ((values - low) / (high - low)).clamp(0, 1)[..., None]
        return levels[right - 1] * (1 - part) + levels[right] * part

    def _dropped(self, given: Any) -> Any:
        share = self.recipe.drop
        return given * self._kept(given.shape, share) / (1 - share)

    def _kept(self, shape: Any, share: float) -> Any:
        # Drawn from this fit's own generator, so that a seed gives the same fit.
        return (self.torch.rand(shape, generator=self.draw) >= share).float()

    def _optimiser(self) -> Any:
        recipe = self.recipe
        groups = (
            (("text_queries", "text_keys", "own_queries", "own_keys"), recipe.rate, recipe.decay),
            (("factors",), recipe.factor_rate, recipe.factor_decay),
            (("votes", "key_bias"), recipe.term_rate, recipe.decay),
            (("bias",), recipe.bias_rate, recipe.decay),
            (("levels", "null", "gates", "log_scale"), recipe.scale_rate, 0.0),
        )
        return self.torch.optim.AdamW(
            [
                {"params": [self.parameters[n] for n in names], "lr": rate, "weight_decay": decay}
                for names, rate, decay in groups
            ],
            betas=(0.9, 0.99),
        )

    def _steps(self) -> int:
        users = len(np.unique(self.ratings.users))
        wanted = self.recipe.epochs * math.ceil(users / self.recipe.users)
        fewest, most = self.recipe.steps
        return min(max(wanted, fewest), most)

    def _users(self, steps: int) -> Iterator[Int64]:
        """Users for each step, of histories about as long as each other: less is padded."""
        _, starts = self.ratings.by_user
        lengths = np.diff(starts)
        users = np.flatnonzero(lengths > 1)  # of one alone nothing is left to attend to
        done = 0
        while True:
            about = np.minimum(lengths[users], self.recipe.cap)
            order = users[np.argsort(about * np.exp(self.random.normal(0, 0.2, len(users))))]
            parts = np.array_split(order, math.ceil(len(order) / self.recipe.users))
            for at in self.random.permutation(len(parts)):
                if done == steps:
                    return
                done += 1
                yield parts[at]

    def _batch(self, users: Int64) -> _Batch:
        torch, ratings = self.torch, self.ratings
        drawn = [self._drawn(ratings.of(int(user))) for user in users]
        targets, asked = _padded([each for each, _ in drawn])
        history, there = _padded([each for _, each in drawn])
        items, places = np.unique(
            np.concatenate([ratings.items[targets].ravel(), ratings.items[history].ravel()]),
            return_inverse=True,
        )
        of_targets, of_history = (
            torch.from_numpy(part.reshape(shape))
            for part, shape in zip(
                np.split(places, [targets.size]), (targets.shape, history.shape), strict=True
            )
        )
        present = torch.from_numpy(there)
        same = of_targets[:, :, None] == of_history[:, None, :]
        values = ratings.values.astype(np.float32)
        return _Batch(
            items=items,
            targets=of_targets,
            truth=torch.from_numpy(values[targets]),
            asked=torch.from_numpy(asked),
            history=of_history,
            values=torch.from_numpy(values[history]),
            there=present.float(),
            out=same | ~present[:, None, :],
        )

    def _drawn(self, places: Int64) -> tuple[Int64, Int64]:
        """Of one user's ratings those to be guessed, and those that are known meanwhile."""
        cap, random = self.recipe.cap, self.random
        targets = places if len(places) <= cap else random.choice(places, cap, replace=False)
        kept = places[random.random(len(places)) >= self.recipe.forget * random.random()]
        kept = kept if len(kept) else places
        return targets, kept if len(kept) <= cap else random.choice(kept, cap, replace=False)

    def _fitted(self) -> FittedRatings:
        recipe = self.recipe
        with self.torch.no_grad():
            found = {name: each.numpy().astype(np.float64) for name, each in self.parameters.items()}
            scale = self._scale().numpy().astype(np.float64)
        made = {}
        for name in ("text_queries", "text_keys", "own_queries", "own_keys"):
            by_head = found[name].reshape(-1, recipe.heads, recipe.width).transpose(1, 2, 0)
            by_head = by_head @ self.directions if name.startswith("text") else by_head
            made[name] = by_head * scale[:, None, None] if name.endswith("queries") else by_head
        model = RatingModel(
            mean=self.base.mean,
            low=float(self.ratings.values.min()),
            high=float(self.ratings.values.max()),
            shrink=USER_SHRINK,
            center=self.center,
            knots=self.knots,
            levels=found["levels"],
            null=found["null"],
            gates=found["gates"],
            trust=np.ones(2),
            spread=np.zeros(FEATURES),
            **made,
        )
        counts = np.bincount(self.ratings.items, minlength=self.ratings.item_count)
        own = Own(
            found["bias"][:, 0], found["key_bias"], found["votes"], found["factors"], counts * 1.0
        )
        return FittedRatings(model, own)


_OWN = ("bias", "key_bias", "votes", "factors")


def _leading(texts: Float64, width: int) -> tuple[Float64, Float64]:
    """(n, k) texts along the directions in which they vary most, of unit mean square length; and
    (k, d) what takes a text there."""
    rank = min(width, *texts.shape)
    moments = texts.T @ texts
    _, found = np.linalg.eigh(moments)
    directions = found[:, ::-1][:, :rank].T  # (k, d)
    reduced = texts @ directions.T
    size = np.sqrt((reduced**2).sum(axis=1).mean())
    size = size if size > 0 else 1.0
    return reduced / size, directions / size


def _padded(places: list[Int64]) -> tuple[Int64, Bool]:
    """(b, longest) with zeros after each, and which are there."""
    longest = max(len(each) for each in places)
    there = np.arange(longest) < np.array([len(each) for each in places])[:, None]
    padded = np.zeros(there.shape, dtype=np.int64)
    padded[there] = np.concatenate(places)
    return padded, there
