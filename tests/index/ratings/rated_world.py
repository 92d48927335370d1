"""Random models and histories, and the formula of the model of ratings as a loop in float64."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from attend.recommend.ratings import FEATURES, Items, Own, Rated, RatingModel

HEADS, WIDTH, DIMENSION, FACTORS = 3, 4, 6, 2


def model(seed: int = 0, **changed: Any) -> RatingModel:
    rng = np.random.default_rng(seed)
    given = {
        "mean": 3.4,
        "low": 1.0,
        "high": 5.0,
        "shrink": 7.0,
        "center": rng.normal(size=DIMENSION),
        "text_queries": rng.normal(size=(HEADS, WIDTH, DIMENSION)),
        "text_keys": rng.normal(size=(HEADS, WIDTH, DIMENSION)),
        "own_queries": rng.normal(size=(HEADS, WIDTH, FACTORS)),
        "own_keys": rng.normal(size=(HEADS, WIDTH, FACTORS)),
        "knots": np.array([1.0, 2.0, 5.0]),
        "levels": rng.normal(size=(3, HEADS)),
        "null": rng.normal(size=HEADS),
        "gates": rng.normal(size=HEADS),
        "trust": np.array([0.4, 0.9]),
        "spread": rng.normal(size=FEATURES) / 10,
    }
    return RatingModel(**given | changed)


def own(count: int, rng: np.random.Generator) -> Own:
    return Own(
        bias=rng.normal(size=count),
        key_bias=rng.normal(size=(count, HEADS)),
        votes=rng.normal(size=(count, HEADS)) / 10,
        factors=rng.normal(size=(count, FACTORS)),
        support=rng.integers(0, 3, count).astype(float),
    )


class Asked(NamedTuple):
    """What a prediction is made from; documents are places in `embeddings`."""

    embeddings: np.ndarray
    own: Own
    targets: np.ndarray
    history: np.ndarray
    values: np.ndarray
    weights: np.ndarray

    def items(self, model: RatingModel, which: np.ndarray) -> Items:
        return model.items(self.embeddings[which].astype(np.float32), self.own.at(which))

    def rated(self, model: RatingModel) -> Rated:
        return Rated(self.items(model, self.history), self.values, self.weights)

    @property
    def same(self) -> np.ndarray:
        return self.targets[:, None] == self.history[None, :]


def asked(seed: int = 0, targets: int = 5, history: int = 9) -> Asked:
    """Random items, of which the first target was rated."""
    rng = np.random.default_rng(seed)
    count = targets + history
    embeddings = rng.normal(size=(count, DIMENSION)).astype(np.float32)
    rated = rng.permutation(count)[:history]
    others = np.setdiff1d(np.arange(count), rated)
    weights = rng.random(history) + 0.1
    return Asked(
        embeddings,
        own(count, rng),
        np.append(rated[:1], others)[:targets],
        rated,
        rng.integers(1, 6, history).astype(float),
        weights / weights.mean(),
    )


def _position(model: RatingModel, asked: Asked, item: int, side: str, head: int) -> list[float]:
    moved = [float(x) - float(c) for x, c in zip(asked.embeddings[item], model.center, strict=True)]
    length = math.sqrt(math.fsum(x * x for x in moved))
    text = getattr(model, f"text_{side}")[head]
    factors = getattr(model, f"own_{side}")[head]
    return [
        math.fsum(text[at][d] * moved[d] / length for d in range(DIMENSION))
        + math.fsum(factors[at][p] * asked.own.factors[item][p] for p in range(FACTORS))
        for at in range(WIDTH)
    ]


def _level(model: RatingModel, value: float, head: int) -> float:
    for left in range(len(model.knots) - 1):
        low, high = model.knots[left], model.knots[left + 1]
        if low <= value <= high:
            part = (value - low) / (high - low)
            return float(
                (1 - part) * model.levels[left][head] + part * model.levels[left + 1][head]
            )
    raise AssertionError(value)


def looped(model: RatingModel, asked: Asked) -> list[dict[str, Any]]:
    """The formula, one target, one head and one rating after the other."""
    return [_one(model, asked, int(target)) for target in asked.targets]


def _one(model: RatingModel, asked: Asked, target: int) -> dict[str, Any]:
    others = [at for at, item in enumerate(asked.history.tolist()) if item != target]
    own, bias = asked.own, asked.own.bias
    deviation = {at: asked.values[at] - model.mean - bias[asked.history[at]] for at in others}
    user = math.fsum(asked.weights[at] * deviation[at] for at in others) / (
        math.fsum(asked.weights[at] for at in others) + model.shrink
    )
    baseline = model.mean + bias[target] + user
    trust = model.trust[1 if own.support[target] > 0 else 0]
    total = baseline
    size = math.fsum(abs(gate) for gate in model.gates)
    weights = dict.fromkeys(others, 0.0)
    null = 0.0
    for head in range(HEADS):
        query = _position(model, asked, target, "queries", head)
        e = {}
        for at in others:
            item = int(asked.history[at])
            key = _position(model, asked, item, "keys", head)
            logit = math.fsum(q * k for q, k in zip(query, key, strict=True))
            logit += own.key_bias[item][head] + _level(model, asked.values[at], head)
            e[at] = asked.weights[at] * math.exp(logit)
        nothing = math.exp(model.null[head])
        whole = math.fsum(e.values()) + nothing
        null += abs(model.gates[head]) / size * nothing / whole
        for at in others:
            a = e[at] / whole
            weights[at] += abs(model.gates[head]) / size * a
            vote = own.votes[int(asked.history[at])][head]
            total += trust * a * (model.gates[head] * (deviation[at] - user) + vote)
    return {"raw": total, "baseline": baseline, "weights": weights, "null": null}
