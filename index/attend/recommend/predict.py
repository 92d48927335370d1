"""Predict what a user would think of some items: attention with the target as the query.

The user's history is the keys, and the numbers or labels that they gave are the values. Numbers go
through the model of ratings where one was trained; without a model, and for labels, vectors and
all other values, the centred texts attend, and the values are blended by their type as in a soft
answer. Where nothing in the history is like an item the null key has the weight, and a number is
the baseline.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from attend.api.answers import Predicted
from attend.api.recommend import MAX_HISTORY, RecommendRequest
from attend.collection.versions import UNTRAINED, Vanished, until_stable
from attend.core.arrays import locate
from attend.core.errors import Damaged, InvalidRequest, LimitExceeded
from attend.core.types import Bool, Float32, Float64, Int64, Json
from attend.engines.engine import StoredCollection
from attend.recommend.history import NO_ROW, Histories, History, example_name, missing_error
from attend.recommend.ratings import (
    Items,
    Own,
    Rated,
    RatingModel,
    attended,
    deviations,
    predict,
    shrunk,
)
from attend.search.hits import MAX_SHARES
from attend.store import CollectionStore
from attend.values.blends import blend_for
from attend.values.kinds import ValueType, as_number, infer

TERMS = "ratings"
"""The name of the terms of documents in the store."""

MOST_USED = 10_000
"""Documents of a history that a prediction attends to."""

SHOWN = 50
"""Documents of the history shown with a prediction, unless `explain` asks for all."""

LARGEST = 1e100
"""The largest size of a number, whose square must still be a number."""


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


class Predictor:
    """Answers the predictions of one collection; any thread may call it."""

    def __init__(self, collection: StoredCollection, histories: Histories) -> None:
        self._store, self._views = collection.store, collection.views
        self._histories = histories
        self._lock = threading.Lock()
        # The model that was asked for last, by its version and the state of the collection.
        self._key = (0, 0)
        self._model: ActiveModel | None = None

    # Again from the start if a document is deleted meanwhile: no history has it then.
    @until_stable
    def predict(self, request: RecommendRequest) -> Predicted:
        """Predict what the user of a request would think of its targets.

        Raises:
            InvalidRequest: a history without values, or with some that are out of range.
            UnknownDocument: an id that no document has, unless those are skipped.
        """
        started = time.perf_counter()
        ids = [item.id for item in request.target or [] if item.id is not None]
        rows = self._store.rows_of(ids)
        missing = [{"id": id} for id in dict.fromkeys(ids) if id not in rows]
        items = [item for item in request.target or [] if item.id is None or item.id in rows]
        if missing and (request.on_missing == "error" or not items):
            raise missing_error(missing, "target")
        history = self._histories.of(request, MOST_USED)
        active = self.model(request.projection)
        valued = usable_history(history)
        valued = replace(valued, embeddings=self._means(valued.rows))
        used = len(valued.parts)
        if request.explain and len(items) * used > MAX_SHARES:
            raise LimitExceeded(
                f"Explaining {len(items)} predictions takes {len(items) * used} shares, and at "
                f"most {MAX_SHARES} are sent at once; ask for fewer targets, or do not ask to "
                f"explain.",
                field="explain",
            )
        numbers = np.array([NO_ROW if item.id is None else rows[item.id] for item in items])
        stored = numbers != NO_ROW
        means = self._means(numbers[stored])
        embeddings = np.empty((len(items), means.shape[1]), dtype=np.float32)
        embeddings[stored] = means
        if not stored.all():
            others = [item for item in items if item.id is None]
            embeddings[~stored] = self._histories.embeddings(others)
        most = MAX_HISTORY if request.explain else SHOWN
        center = self._views.mean()
        predictions = predict_values(active, center, numbers, embeddings, valued, most)
        return Predicted(
            predictions=[
                example_name(item) | prediction
                for item, prediction in zip(items, predictions, strict=True)
            ],
            history={"given": history.total, "used": used},
            missing=[*history.missing, *missing],
            generation=self._store.state().change,
            projection=UNTRAINED if active is None else active.version,
            took_ms=round((time.perf_counter() - started) * 1000, 3),
        )

    def model(self, version: int | None = None) -> ActiveModel | None:
        """Return the active model, or that of a version; None where none was trained.

        Raises:
            UnknownProjection: the version does not exist.
            InvalidRequest: the version does not predict.
            Damaged: it is not what was stored.
        """
        state = self._store.state()
        # A document whose text changes loses what was learned of it, and keys with that.
        key = version or state.active("predict"), state.last_removal
        with self._lock:
            if key == self._key:
                return self._model
        # Without the lock: a request for the model in memory waits for no other.
        model = read_model(self._store, key[0]) if key[0] else None
        with self._lock:
            self._key, self._model = key, model
        return model

    def _means(self, rows: Int64) -> Float32:
        """Return documents (n, d) as ratings are learned of them: the means of their keys."""
        keys = self._store.own_keys(np.unique(rows))
        if not np.isin(rows, keys.rows).all():
            raise Vanished
        if not len(rows):
            return np.empty((0, self._views.mean().shape[0]), dtype=np.float32)
        return np.asarray(keys.means()[np.searchsorted(keys.rows, rows)], dtype=np.float32)


def read_model(store: CollectionStore, number: int) -> ActiveModel:
    """Read a stored version.

    Raises:
        UnknownProjection: the version does not exist.
        InvalidRequest: the version does not predict.
        Damaged: it is not what was stored.
    """
    stored = store.version(number)
    if stored.role != "predict":
        raise InvalidRequest(
            f"Version {number} has the role {stored.role!r} and predicts nothing that users would "
            f"give; name one of the role predict, or none for the active one.",
            field="projection",
        )
    model = RatingModel.from_bytes(stored.weights)
    if model.fingerprint != stored.fingerprint:
        raise Damaged(
            f"Version {number} has other weights than were stored; activate another, train again, "
            f"or restore the collection from a copy."
        )
    none = np.empty(0, dtype=np.int64), np.empty((0, model.width), dtype=np.float32)
    rows, vectors = stored.terms.get(TERMS, none)
    if vectors.shape[1] != model.width and len(rows):
        raise Damaged(
            f"Version {number} has {vectors.shape[1]} numbers for each document where its model "
            f"takes {model.width}; train again."
        )
    terms = Own.unpacked(vectors.reshape(-1, model.width), model.heads)
    return ActiveModel(number, model, rows, terms)


# -- predictions ----------------------------------------------------------------------------

Predictions: TypeAlias = (
    "tuple[Sequence[Mapping[str, Json]], Float64, Float64, Float64 | None, bool]"
)
"""Answers (t); the weights of the null key (t,) and of the history (t, h), which sum to one; what
each document adds to the baseline (t, h), for numbers; true if the std was fitted to held-out
ratings."""


def predict_values(
    active: ActiveModel | None,
    center: Float32,
    rows: Int64,
    embeddings: Float32,
    history: History,
    most: int,
) -> list[dict[str, Json]]:
    """Predict what the user with this history would give each of the targets.

    Args:
        active: the model of ratings that is active, if any.
        center: (d,) the mean embedding of all documents.
        rows: (t,) rows of the targets that are documents, `NO_ROW` for others.
        embeddings: (t, d) of the targets, the mean of a document's keys.
        history: one that is usable.
        most: documents of the history that each prediction shows.

    Returns: each as a soft answer by the type of the values; numbers have the `baseline` to which
        they are shrunk. `known` is what the user gave this very document, which took no part.

    Raises:
        InvalidRequest: values of several types, or a number that is out of the range that the
            model was learned from.
    """
    same = (rows[:, None] == history.rows) & (rows[:, None] != NO_ROW)  # (t, h)
    values = history.values
    kind = _type_of(values)
    if kind.kind == "number" and active is not None:
        predictions = _by_model(active, rows, embeddings, history, same)
    else:
        predictions = _by_texts(kind, center.astype(np.float64), embeddings, history, same)
    answers, null, weights, adds, calibrated = predictions
    replies: list[dict[str, Json]] = []
    for target, (answer, nothing) in enumerate(zip(answers, null.tolist(), strict=True)):
        places = np.flatnonzero(same[target])
        order = np.argsort(-weights[target], kind="stable")[:most]
        because = [
            {
                **history.parts[place].name,
                "value": values[place],
                "weight": float(weights[target, place]),
                **({} if adds is None else {"adds": float(adds[target, place])}),
            }
            for place in order[weights[target, order] > 0].tolist()
        ]
        replies.append(
            {
                **answer,
                "confidence": 1 - nothing,
                "null": nothing,
                "calibrated": calibrated,
                "known": values[places[-1]] if len(places) else None,
                "because": because,
            }
        )
    return replies


def usable_history(history: History) -> History:
    """Return the documents with a value and a weight; their weights have a mean of one."""
    documents = history.select(np.array([part.item is None for part in history.parts]))
    if (documents.weights < 0).any():
        raise InvalidRequest(
            "A weight of the history is negative, and a prediction is a mean; send weights from "
            "zero up.",
            field="history",
        )
    has_value = np.array([value is not None for value in documents.values], dtype=bool)
    usable = documents.select(has_value & (documents.weights > 0))
    if not usable.parts:
        raise InvalidRequest(
            f"None of the {len(documents.parts)} documents of the history has a value and a "
            f'weight; send what the user gave them, as in {{"id": …, "value": 4}}.',
            field="history",
        )
    return replace(usable, weights=usable.weights / usable.weights.mean())


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
    active: ActiveModel, rows: Int64, embeddings: Float32, history: History, same: Bool
) -> Predictions:
    """Predict numbers by the model of ratings."""
    model = active.model
    values = np.array(history.values, dtype=np.float64)
    # What was stored after the training cannot be corrected by whoever sends the request.
    stored = [part.stored for part in history.parts]
    values = np.where(stored, np.clip(values, model.low, model.high), values)
    outside = np.flatnonzero((values < model.low) | (values > model.high))
    if len(outside):
        first = int(outside[0])
        raise InvalidRequest(
            f"{history.parts[first].name['id']!r} has the value {values[first]:g}, but version "
            f"{active.version} was learned from ratings of {model.low:g} to {model.high:g}; send "
            f"values within these.",
            field="history",
        )
    rated = Rated(active.items(history.rows, history.embeddings), values, history.weights)
    result = predict(model, active.items(rows, embeddings), rated, same)
    sigmas = deviations(model.spread, result.features)
    answers = _numbers(result.mean, sigmas, result.baseline, result.weights)
    fitted = bool(model.spread.any())
    return answers, result.null, result.weights, result.shares, fitted


def _by_texts(
    kind: ValueType, center: Float64, embeddings: Float32, history: History, same: Bool
) -> Predictions:
    """Predict without a model: numbers shrunk to a baseline, others by the blend of their type."""
    attention = attended(embeddings, history.embeddings, center, history.weights, same)
    if kind.kind == "number":
        values = np.array(history.values, dtype=np.float64)
        mean, std, baseline = shrunk(attention, values, history.weights, same)
        numbers = _numbers(mean, std, baseline, attention.weights)
        adds = attention.weights * (values - baseline[:, None])
        return numbers, attention.null_weight, attention.weights, adds, False
    answers = []
    ids = [str(part.name["id"]) for part in history.parts]
    for weights in attention.weights:
        values_blend = blend_for(kind)
        values_blend.add(ids, history.values, weights)
        answers.append(values_blend.answer())
    return answers, attention.null_weight, attention.weights, None, False


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
