"""Predict what a user would think of some items: attention with the target as the query.

The user's history is the keys, and the numbers or labels that they gave are the values. Numbers go
through the model of ratings where one was trained; without a model, and for labels, vectors and
all other values, the centred texts attend, and the values are blended by their type as in a soft
answer. Where nothing in the history is like an item the null key has the weight, and a number is
the baseline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attend.core.arrays import locate
from attend.core.errors import InvalidRequest
from attend.core.types import Bool, Float32, Float64, Int64, Json
from attend.recommend.rating_model import Items, Own, RatingModel
from attend.recommend.rating_prediction import Rated, attended, deviations, predict, shrunk
from attend.values import ValueType, as_number, blend_for, infer

LARGEST = 1e100
"""The largest size of a number, whose square must still be a number."""

NO_ROW = 0
"""The row of a text or a vector; those of documents begin at 1."""


@dataclass(frozen=True)
class ActiveModel:
    """A version that predicts ratings.

    Attributes:
        rows: (n,) documents of which something was learned, ascending; `terms`: theirs.
    """

    version: int
    model: RatingModel
    rows: Int64
    terms: Own

    def items(self, rows: Int64, embeddings: Float32) -> Items:
        """Return documents by row (n,) and embedding (n, d).

        Documents of which nothing was learned are described by their texts alone.
        """
        places, present = locate(self.rows, rows)
        return self.model.items(embeddings, self.terms.at(np.where(present, places, -1)))


class PredictionTargets(NamedTuple):
    """The items to predict.

    Attributes:
        rows: (t,) rows of documents, `NO_ROW` for others.
        embeddings: (t, d), the mean of a document's keys.
    """

    rows: Int64
    embeddings: Float32


class ValuedHistory(NamedTuple):
    """A history with what the user gave each document.

    Attributes:
        rows, ids, values: h of each; a document with the value None is left out.
        embeddings: (h, d), as of targets.
        weights: (h,) the weight of each, relative to the others.
        stored: (h,) true where it was read from the store and not sent with the request.
    """

    rows: Int64
    ids: Sequence[str]
    values: Sequence[Json]
    embeddings: Float32
    weights: Float64
    stored: Bool | None = None


@dataclass
class Prediction:
    """The prediction for one target.

    Attributes:
        answer: as in a soft answer, by the type of the values; of numbers the `mean`, its
            `std`, and the `baseline` to which it is shrunk.
        null: the weight of the null key.
        calibrated: true if the std was fitted to held-out ratings.
        history: the documents attended to; weights: (h,), which sum to one with `null`.
        adds: (h,) what each adds to the baseline, where values are numbers.
        actual: the value that the user gave this very document, which took no part.
    """

    answer: Mapping[str, Json]
    null: float
    calibrated: bool
    history: ValuedHistory
    weights: Float64
    adds: Float64 | None = None
    actual: Json = None

    def json(self, most: int) -> dict[str, Json]:
        """Return plain data, with at most so many documents of the history."""
        return {
            **self.answer,
            "confidence": 1 - self.null,
            "null": self.null,
            "calibrated": self.calibrated,
            "known": self.actual,
            "because": self.because(most),
        }

    def because(self, most: int) -> list[dict[str, Json]]:
        """Return the documents with the most weight, the heaviest first."""
        order = np.argsort(-self.weights, kind="stable")[:most]
        parts: list[dict[str, Json]] = []
        for place in order[self.weights[order] > 0].tolist():
            part = {
                "id": self.history.ids[place],
                "value": self.history.values[place],
                "weight": float(self.weights[place]),
            }
            adds = {} if self.adds is None else {"adds": float(self.adds[place])}
            parts.append(part | adds)
        return parts


def predict_values(
    active: ActiveModel | None,
    center: Float32,
    targets: PredictionTargets,
    history: ValuedHistory,
) -> list[Prediction]:
    """Predict what the user with this history would give each of the targets.

    Args:
        active: the model of ratings that is active, if any.
        center: (d,) the mean embedding of all documents.

    Raises:
        InvalidRequest: a history without a value, or a number that is out of the range that the
            model was learned from.
    """
    usable = _usable(history)
    same = (targets.rows[:, None] == usable.rows) & (targets.rows[:, None] != NO_ROW)  # (t, h)
    kind = _type_of(usable.values)
    if kind.kind == "number" and active is not None:
        predictions = _by_model(active, targets, usable, same)
    else:
        predictions = _by_texts(kind, center.astype(np.float64), targets, usable, same)
    for prediction, places in zip(predictions, map(np.flatnonzero, same), strict=True):
        prediction.actual = usable.values[places[-1]] if len(places) else None
    return predictions


def _usable(history: ValuedHistory) -> ValuedHistory:
    """Return the part with a value and a weight; its weights have a mean of one."""
    weights = history.weights
    if (weights < 0).any():
        raise InvalidRequest(
            "A weight of the history is negative, and a prediction is a mean; send weights from "
            "zero up.",
            field="history",
        )
    places = [
        place
        for place, value in enumerate(history.values)
        if value is not None and weights[place] > 0
    ]
    if not places:
        raise InvalidRequest(
            f"None of the {len(history.rows)} documents of the history has a value and a weight; "
            f'send what the user gave them, as in {{"id": …, "value": 4}}.',
            field="history",
        )
    weights = weights[places]
    return ValuedHistory(
        history.rows[places],
        [history.ids[place] for place in places],
        [history.values[place] for place in places],
        history.embeddings[places],
        weights / weights.mean(),
        None if history.stored is None else history.stored[places],
    )


def _type_of(values: Sequence[Json]) -> ValueType:
    """Return the type of the values of a history.

    Raise InvalidRequest for numbers among other values, and for numbers that are not finite.
    """
    numbers = [
        value for value in values if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if any(not abs(as_number(number)) <= LARGEST for number in numbers):
        raise InvalidRequest(
            f"A value of the history is NaN or beyond {LARGEST:g}; send numbers within that.",
            field="history",
        )
    if numbers and len(numbers) < len(values):
        other = next(value for value in values if isinstance(value, bool | str | list | dict))
        raise InvalidRequest(
            f"The history has numbers ({numbers[0]!r}) beside other values ({other!r}); send "
            f"values of one type.",
            field="history",
        )
    inferred = infer(values)
    # Few labels may all differ, and look like texts; twice each they do not.
    if inferred.kind == "text" and infer([*values, *values]).kind == "category":
        return ValueType("category")
    return inferred


def _by_model(
    active: ActiveModel, targets: PredictionTargets, history: ValuedHistory, same: Bool
) -> list[Prediction]:
    """Predict numbers by the model of ratings."""
    model = active.model
    values = np.array(history.values, dtype=np.float64)
    if history.stored is not None:
        # They were stored after the training: whoever sends the request cannot correct them.
        values = np.where(history.stored, np.clip(values, model.low, model.high), values)
    outside = np.flatnonzero((values < model.low) | (values > model.high))
    if len(outside):
        first = int(outside[0])
        raise InvalidRequest(
            f"{history.ids[first]!r} has the value {values[first]:g}, but version "
            f"{active.version} was learned from ratings of {model.low:g} to {model.high:g}; send "
            f"values within these.",
            field="history",
        )
    rated = Rated(active.items(history.rows, history.embeddings), values, history.weights)
    result = predict(model, active.items(targets.rows, targets.embeddings), rated, same)
    sigmas = deviations(model.spread, result.features)
    answers = _numbers(result.mean, sigmas, result.baseline, result.weights)
    fitted = bool(model.spread.any())
    return _predictions(history, answers, result.null, result.weights, result.shares, fitted)


def _by_texts(
    kind: ValueType,
    center: Float64,
    targets: PredictionTargets,
    history: ValuedHistory,
    same: Bool,
) -> list[Prediction]:
    """Predict without a model: numbers shrunk to a baseline, others by the blend of their type."""
    attention = attended(targets.embeddings, history.embeddings, center, history.weights, same)
    if kind.kind == "number":
        values = np.array(history.values, dtype=np.float64)
        blend = shrunk(attention, values, history.weights, same)
        answers = _numbers(blend.mean, blend.std, blend.baseline, attention.weights)
        adds = attention.weights * (values - blend.baseline[:, None])
        return _predictions(history, answers, attention.null_weight, attention.weights, adds)
    answers = []
    for weights in attention.weights:
        values_blend = blend_for(kind)
        values_blend.add(history.ids, history.values, weights)
        answers.append(values_blend.answer())
    return _predictions(history, answers, attention.null_weight, attention.weights)


def _predictions(
    history: ValuedHistory,
    answers: Sequence[Mapping[str, Json]],
    null: Float64,
    weights: Float64,
    adds: Float64 | None = None,
    calibrated: bool = False,
) -> list[Prediction]:
    """Return answers (t) with their weights (t, h) and what each document adds to them (t, h)."""
    return [
        Prediction(
            answer,
            float(null[target]),
            calibrated,
            history,
            weights[target],
            None if adds is None else adds[target],
        )
        for target, answer in enumerate(answers)
    ]


def _numbers(
    means: Float64, stds: Float64, baselines: Float64, weights: Float64
) -> list[dict[str, Json]]:
    """Return (t,) predicted numbers as a soft answer has them; weights: (t, h)."""
    totals, squares = weights.sum(axis=1), (weights**2).sum(axis=1)
    sizes = np.divide(totals**2, squares, out=np.zeros(len(totals)), where=totals > 0)
    return [
        {
            "type": "number",
            "mean": float(mean),
            "std": float(std),
            "baseline": float(baseline),
            "effective_sample_size": float(size),
        }
        for mean, std, baseline, size in zip(means, stds, baselines, sizes, strict=True)
    ]
