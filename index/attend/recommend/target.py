"""What would this user think of these items: attention with the target as the query.

The user's history is the keys, and what they gave each item the values. Numbers go through the
model of ratings where one was trained; before, and for labels, vectors and all other values, the
centred texts attend, and the values are blended by their type as in a soft answer. Where nothing in
the history speaks to an item the null key has the weight, and a number is the baseline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attend.api.recommend import MAX_TARGETS
from attend.errors import InvalidRequest
from attend.ratings import Items, Rated, attended, deviations, predict, shrunk
from attend.recommend.trained import Trained
from attend.types import Bool, Float32, Float64, Int64, Json
from attend.values import ValueType, as_number, blend_for, infer

LARGEST = 1e100
"""Of the size of numbers: their squares must still be numbers."""

NONE = 0
"""The row of a target that is a text or a vector; those of documents begin at 1."""


class Targets(NamedTuple):
    """What is asked about.

    Attributes:
        rows: (t,) rows of documents, `NONE` for others.
        embeddings: (t, d), a document's being the mean of its keys'.
    """

    rows: Int64
    embeddings: Float32


class Valued(NamedTuple):
    """A history with what the user gave each document.

    Attributes:
        rows, ids, values: h of each; a value of None says nothing, and is left out.
        embeddings: (h, d), as of targets.
        weights: (h,) how much each counts, relative to the others.
        stored: (h,) whether it was read from the store, and not sent with the request.
    """

    rows: Int64
    ids: Sequence[str]
    values: Sequence[Json]
    embeddings: Float32
    weights: Float64
    stored: Bool | None = None


class Because(NamedTuple):
    """What one document of the history had to do with a prediction.

    Attributes:
        weight: its share of the attention; with the null key's all sum to one.
        adds: what it adds to the baseline, where values are numbers.
    """

    id: str
    value: Json
    weight: float
    adds: float | None


@dataclass(frozen=True)
class Prediction:
    """What the user would think of one target.

    Attributes:
        answer: as a soft answer has it, by the type of the values; of numbers the `mean`, its
            `std`, and the `baseline` to which it is shrunk.
        null: the weight of the null key.
        calibrated: whether the std was fitted to held-out ratings.
        history: what was attended to; weights: (h,), which sum to one with `null`.
        adds: (h,) what each adds to the baseline, where values are numbers.
        known: what the user gave this very document, which had no part in the prediction.
    """

    answer: Mapping[str, Json]
    null: float
    calibrated: bool
    history: Valued
    weights: Float64
    adds: Float64 | None
    known: Json = None

    @property
    def confidence(self) -> float:
        """One less the weight of the null key."""
        return 1 - self.null

    def because(self, most: int) -> list[Because]:
        """What has the most weight, the heaviest first."""
        order = np.argsort(-self.weights, kind="stable")[:most]
        return [
            Because(
                self.history.ids[at],
                self.history.values[at],
                float(self.weights[at]),
                None if self.adds is None else float(self.adds[at]),
            )
            for at in order[self.weights[order] > 0].tolist()
        ]


def predicted(
    trained: Trained | None, center: Float32, targets: Targets, history: Valued
) -> list[Prediction]:
    """Predict what the user with this history would give each of the targets.

    Args:
        trained: the model of ratings that is active, if any.
        center: (d,) the mean embedding of all documents.

    Raises:
        InvalidRequest: no or too many targets, a history without a value, or a number that is out
            of the range of what was learned from.
    """
    if not 1 <= len(targets.rows) <= MAX_TARGETS:
        raise InvalidRequest(
            f"{len(targets.rows)} targets were sent; send 1 to {MAX_TARGETS}.", field="target"
        )
    usable = _usable(history)
    same = (targets.rows[:, None] == usable.rows[None, :]) & (targets.rows[:, None] != NONE)
    type = _type_of(usable.values)
    if type.kind != "number":
        return _blended(type, center.astype(np.float64), targets, usable, same)
    if trained is None:
        return _shrunk(center.astype(np.float64), targets, usable, same)
    return _learned(trained, targets, usable, same)


def _usable(history: Valued) -> Valued:
    """The part that has a value and a weight; weights then have a mean of one."""
    if not len(history.rows):
        raise InvalidRequest(
            "The history is empty, and a prediction is attention over it; send what the user gave "
            'some documents, as in {"id": …, "value": 4}.',
            field="history",
        )
    weights = np.asarray(history.weights, dtype=np.float64)
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise InvalidRequest(
            "A weight of the history is negative or not finite; send weights from zero up.",
            field="history",
        )
    kept = np.array(
        [at for at, value in enumerate(history.values) if value is not None and weights[at] > 0],
        dtype=np.int64,
    )
    if not len(kept):
        raise InvalidRequest(
            f"None of the {len(history.rows)} documents of the history has a value and a weight; "
            f'send what the user gave them, as in {{"id": …, "value": 4}}.',
            field="history",
        )
    weights = weights[kept]
    return Valued(
        history.rows[kept],
        [history.ids[at] for at in kept],
        [history.values[at] for at in kept],
        history.embeddings[kept],
        weights / weights.mean(),
        None if history.stored is None else history.stored[kept],
    )


def _type_of(values: Sequence[Json]) -> ValueType:
    """The type of what a user gave.

    Raises InvalidRequest for numbers among other values, and for numbers that are not finite.
    """
    numbers = [
        each for each in values if isinstance(each, int | float) and not isinstance(each, bool)
    ]
    if any(not abs(as_number(each)) <= LARGEST for each in numbers):
        raise InvalidRequest(
            f"A value of the history is NaN or beyond {LARGEST:g}; send numbers within that.",
            field="history",
        )
    if numbers and len(numbers) < len(values):
        other = next(each for each in values if isinstance(each, bool | str | list | dict))
        raise InvalidRequest(
            f"The history has numbers ({numbers[0]!r}) beside other values ({other!r}); send "
            f"values of one type.",
            field="history",
        )
    found = infer(values)
    # Of few names none may repeat, and they are labels all the same.
    if found.kind == "text" and infer([*values, *values]).kind == "category":
        return ValueType("category")
    return found


def _learned(trained: Trained, targets: Targets, history: Valued, same: Bool) -> list[Prediction]:
    """By the model of ratings."""
    model = trained.model
    values = np.array(history.values, dtype=np.float64)
    if history.stored is not None:
        # Stored since, by whoever it was: who asks can do nothing about it.
        values = np.where(history.stored, np.clip(values, model.low, model.high), values)
    wrong = np.flatnonzero((values < model.low) | (values > model.high))
    if len(wrong):
        at = int(wrong[0])
        raise InvalidRequest(
            f"{history.ids[at]!r} has the value {values[at]:g}, but version {trained.version} was "
            f"learned from ratings of {model.low:g} to {model.high:g}; send values within these.",
            field="history",
        )
    rated = Rated(trained.items(history.rows, history.embeddings), values, history.weights)
    asked: Items = trained.items(targets.rows, targets.embeddings)
    found = predict(model, asked, rated, same)
    sigmas = deviations(model.spread, found.features)
    return [
        Prediction(
            answer=_number(found.mean[at], sigmas[at], found.baseline[at], found.weights[at]),
            null=float(found.null[at]),
            calibrated=bool(model.spread.any()),
            history=history,
            weights=found.weights[at],
            adds=found.shares[at],
            known=_known(history, same[at]),
        )
        for at in range(len(targets.rows))
    ]


def _shrunk(center: Float64, targets: Targets, history: Valued, same: Bool) -> list[Prediction]:
    """Numbers, before any model was trained."""
    values = np.array(history.values, dtype=np.float64)
    found = attended(targets.embeddings, history.embeddings, center, history.weights, same)
    blend = shrunk(found, values, history.weights, same)
    adds = found.weights * (values - blend.baseline[:, None])
    return [
        Prediction(
            answer=_number(blend.mean[at], blend.std[at], blend.baseline[at], found.weights[at]),
            null=float(found.null_weight[at]),
            calibrated=False,
            history=history,
            weights=found.weights[at],
            adds=adds[at],
            known=_known(history, same[at]),
        )
        for at in range(len(targets.rows))
    ]


def _blended(
    type: ValueType, center: Float64, targets: Targets, history: Valued, same: Bool
) -> list[Prediction]:
    """Labels, vectors and all that is no number, by the type's own blend."""
    found = attended(targets.embeddings, history.embeddings, center, history.weights, same)
    made = []
    for at in range(len(targets.rows)):
        blend = blend_for(type)
        blend.add(history.ids, history.values, found.weights[at])
        made.append(
            Prediction(
                answer=blend.answer(),
                null=float(found.null_weight[at]),
                calibrated=False,
                history=history,
                weights=found.weights[at],
                adds=None,
                known=_known(history, same[at]),
            )
        )
    return made


def _number(mean: float, std: float, baseline: float, weights: Float64) -> dict[str, Json]:
    total = float(weights.sum())
    effective = total**2 / float((weights**2).sum()) if total > 0 else 0.0
    return {
        "type": "number",
        "mean": float(mean),
        "std": float(std),
        "baseline": float(baseline),
        "effective_sample_size": effective,
    }


def _known(history: Valued, same: Bool) -> Json:
    at = np.flatnonzero(same)
    return history.values[int(at[-1])] if len(at) else None
