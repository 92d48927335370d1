"""The model of ratings as torch has it: parameters, and the predictions of a batch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attend.learn.ratings.batches import Batch
from attend.learn.ratings.data import USER_SHRINK, Ratings, baseline, residual_factors
from attend.ratings import FEATURES, Own, RatingModel, centred
from attend.types import Float32, Float64

MASKED = -1e4
"""The logit of what is left out: no weight, and no NaN."""

MOST_KNOTS = 10
"""Ratings between which the bias of a rating is interpolated."""

OWN = ("bias", "key_bias", "votes", "factors")
"""Parameters with a row for each item."""

MAPS = ("text_queries", "text_keys", "own_queries", "own_keys")


class Shape(NamedTuple):
    """H, d_h, p, and the directions of texts that are seen, those in which they vary most.

    Attributes:
        scale: of logits, to begin with.
    """

    heads: int
    width: int
    factors: int
    directions: int
    scale: float


class Drops(NamedTuple):
    """What is left out at random: numbers of texts and factors; all but the text of some items."""

    inputs: float
    unknown: float


class FittedRatings(NamedTuple):
    """What a fit gives: the model, and what it learned of each item."""

    model: RatingModel
    own: Own

    def times(self, size: float) -> FittedRatings:
        """The same for ratings so many times as large."""
        model, own = self.model, self.own
        model = replace(
            model,
            mean=model.mean * size,
            low=model.low * size,
            high=model.high * size,
            knots=model.knots * size,
        )
        own = own._replace(bias=own.bias * size, votes=own.votes * size)
        return FittedRatings(model, own)


class Net:
    """Parameters by name, and what they predict.

    Everything of an item itself begins with what the baseline and a singular value decomposition
    of its residuals say; queries and keys begin alike, so that what is like an item is attended to.
    """

    def __init__(self, ratings: Ratings, embeddings: Float32, shape: Shape, seed: int) -> None:
        import torch  # here: seconds to import, and a search needs none of it

        self.torch = torch
        self.shape = shape
        self.ratings = ratings
        self.draw = torch.Generator().manual_seed(seed)
        self.base = baseline(ratings)
        self.center = embeddings.mean(axis=0, dtype=np.float64)
        texts, self.directions = leading(centred(embeddings, self.center), shape.directions)
        self.texts = torch.from_numpy(texts.astype(np.float32))  # (n, k)
        self.knots = knots_of(ratings.values)
        start = self._maps(np.random.default_rng(seed)) | self._items() | self._heads()
        self.parameters = {
            name: torch.tensor(each, dtype=torch.float32, requires_grad=True)
            for name, each in start.items()
        }

    def _maps(self, random: np.random.Generator) -> dict[str, Float64]:
        shape = self.shape
        made: dict[str, Float64] = {}
        for name, rows, size in (
            ("text", self.texts.shape[1], 0.7),
            ("own", shape.factors, 1.0),
        ):
            drawn = random.normal(size=(rows, shape.heads * shape.width))
            drawn *= size / math.sqrt(shape.width)
            made |= {f"{name}_queries": drawn, f"{name}_keys": drawn}
        return made

    def _items(self) -> dict[str, Float64]:
        count, heads = self.ratings.item_count, self.shape.heads
        return {
            "factors": residual_factors(self.ratings, self.base, self.shape.factors),
            "bias": self.base.items[:, None],
            "votes": np.zeros((count, heads)),
            "key_bias": np.zeros((count, heads)),
        }

    def _heads(self) -> dict[str, Float64]:
        heads = self.shape.heads
        usual = len(self.ratings) / max(1, len(np.unique(self.ratings.users)))
        return {
            "levels": np.zeros((len(self.knots), heads)),
            # As heavy as a quarter of a history that says nothing.
            "null": np.full(heads, math.log1p(usual / 4)),
            "gates": np.full(heads, 1 / heads),
            "log_scale": np.full(heads, math.log(self.shape.scale)),
        }

    def predicted(self, batch: Batch, drops: Drops) -> Any:
        """(b, t): the ratings of the targets, each without itself in the history."""
        torch, given = self.torch, self.parameters
        items = torch.from_numpy(batch.items)
        known = self._kept((len(batch.items), 1), drops.unknown)
        own = {name: given[name][items] * known for name in OWN}
        targets, history = torch.from_numpy(batch.targets), torch.from_numpy(batch.history)
        there = torch.from_numpy(batch.there)
        bias = own["bias"][:, 0]  # (m,)
        values = torch.from_numpy(batch.values)
        deviations = (values - self.base.mean - bias[history]) * there  # (b, l)
        counted = (~torch.from_numpy(batch.out)).float()  # (b, t, l)
        user = torch.einsum("btl,bl->bt", counted, deviations) / (counted.sum(2) + USER_SHRINK)
        queries, keys = self._queries_and_keys(items, own["factors"], drops.inputs)
        key_bias = own["key_bias"][history] + self._level_bias(values)  # (b, l, H)
        blended = self._attended(
            queries[targets],
            torch.cat([keys[history], key_bias[..., None]], dim=3),
            (deviations, own["votes"][history], there),
            counted,
        )  # (b, H, t, 3)
        moved = blended[..., 0] - blended[..., 2] * user[:, None]  # (b, H, t)
        moved = torch.einsum("h,bht->bt", given["gates"], moved)
        return self.base.mean + bias[targets] + user + moved + blended[..., 1].sum(1)

    def _attended(self, queries: Any, keys: Any, parts: tuple[Any, Any, Any], counted: Any) -> Any:
        """(b, H, t, 3): deviations, votes and ones of the history, blended.

        Biases ride as one more number of each key (b, l, H, d_h + 1), against a 1 in the query
        (b, t, H, d_h): torch's own attention then takes it all at once, several times as fast as
        step by step.
        """
        torch, pad = self.torch, self.torch.nn.functional.pad
        width = self.shape.width
        asked = pad(queries, (0, 1), value=1.0).transpose(1, 2)
        null = pad(self.parameters["null"][None, :, None, None], (width, 0))  # (1, H, 1, d_h + 1)
        rated = torch.cat([keys.transpose(1, 2), null.expand(len(keys), -1, -1, -1)], dim=2)
        deviations, votes, there = parts
        votes = votes.transpose(1, 2)  # (b, H, l)
        columns = (deviations[:, None].expand_as(votes), votes, there[:, None].expand_as(votes))
        values = pad(torch.stack(columns, dim=3), (0, width - 2, 0, 1))  # as wide as keys
        mask = pad((1 - counted) * MASKED, (0, 1))[:, None]
        return torch.nn.functional.scaled_dot_product_attention(
            asked, rated, values, attn_mask=mask, scale=1.0
        )[..., :3]

    def _queries_and_keys(self, items: Any, factors: Any, drop: float) -> tuple[Any, Any]:
        """(m, H, d_h) each."""
        given, shape = self.parameters, (len(items), self.shape.heads, self.shape.width)
        queries, keys = (
            (
                self._dropped(self.texts[items], drop) @ given[f"text_{side}"]
                + self._dropped(factors, drop) @ given[f"own_{side}"]
            ).view(shape)
            for side in ("queries", "keys")
        )
        return queries * self._scale()[:, None], keys

    def _scale(self) -> Any:
        """(H,)"""
        return self.parameters["log_scale"].exp() / math.sqrt(self.shape.width)

    def _level_bias(self, values: Any) -> Any:
        """(b, l, H): interpolated between the knots, as `RatingModel.level_bias` does."""
        torch, levels = self.torch, self.parameters["levels"]
        if len(self.knots) < 2:
            return levels[0].expand(*values.shape, -1)
        knots = torch.from_numpy(self.knots.astype(np.float32))
        right = torch.searchsorted(knots, values).clamp(1, len(knots) - 1)
        low, high = knots[right - 1], knots[right]
        part = ((values - low) / (high - low)).clamp(0, 1)[..., None]
        return levels[right - 1] * (1 - part) + levels[right] * part

    def _dropped(self, given: Any, share: float) -> Any:
        return given * self._kept(given.shape, share) / (1 - share)

    def _kept(self, shape: Any, share: float) -> Any:
        # Drawn from this net's own generator, so that a seed gives the same fit.
        return (self.torch.rand(shape, generator=self.draw) >= share).float()

    def fitted(self) -> FittedRatings:
        """What was learned, in numpy."""
        with self.torch.no_grad():
            given = {name: each.numpy() for name, each in self.parameters.items()}
            scale = self._scale().numpy().astype(np.float64)[:, None, None]
        found = {name: each.astype(np.float64) for name, each in given.items()}
        maps = {name: self._by_head(name, found[name]) for name in MAPS}
        maps |= {name: maps[name] * scale for name in ("text_queries", "own_queries")}
        values = self.ratings.values
        model = RatingModel(
            mean=self.base.mean,
            low=float(values.min()),
            high=float(values.max()),
            shrink=USER_SHRINK,
            center=self.center,
            knots=self.knots,
            levels=found["levels"],
            null=found["null"],
            gates=found["gates"],
            trust=np.ones(2),
            spread=np.zeros(FEATURES),
            **maps,
        )
        counts = np.bincount(self.ratings.items, minlength=self.ratings.item_count)
        own = {**{name: found[name] for name in OWN}, "bias": found["bias"][:, 0]}
        return FittedRatings(model, Own(**own, support=counts.astype(np.float64)))

    def _by_head(self, name: str, weights: Float64) -> Float64:
        """(k, H d_h) -> (H, d_h, d) of texts, (H, d_h, p) of factors."""
        by_head = weights.reshape(-1, self.shape.heads, self.shape.width).transpose(1, 2, 0)
        return by_head @ self.directions if name.startswith("text") else by_head


def knots_of(values: Float64) -> Float64:
    """Ratings to interpolate between: each of them if they are few, else their quantiles."""
    found = np.unique(values)
    if len(found) > MOST_KNOTS:
        found = np.unique(np.quantile(values, np.linspace(0, 1, MOST_KNOTS)))
    return np.asarray(found, dtype=np.float64)


def leading(texts: Float64, width: int) -> tuple[Float64, Float64]:
    """(n, k) texts along the directions in which they vary most, of unit mean square length; and
    (k, d) what takes a text there."""
    _, found = np.linalg.eigh(texts.T @ texts)
    directions = found[:, ::-1][:, : min(width, *texts.shape)].T  # (k, d)
    reduced = texts @ directions.T
    size = float(np.sqrt((reduced**2).sum(axis=1).mean())) or 1.0
    return reduced / size, directions / size
