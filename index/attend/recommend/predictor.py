"""Answer requests with a target: read the history and the targets, then predict."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attend.api.answers import Predicted
from attend.api.recommend import MAX_HISTORY, ExampleItem, RecommendRequest
from attend.errors import Damaged, InvalidRequest, LimitExceeded
from attend.ratings.model import Own, RatingModel
from attend.recommend.history import Histories, History, MissingNames, example_name, missing_error
from attend.recommend.predict import (
    NO_ROW,
    ActiveModel,
    Prediction,
    PredictionTargets,
    ValuedHistory,
    predict_values,
)
from attend.search.listing import MAX_SHARES
from attend.store import CollectionStore
from attend.types import Float32, Int64, Json
from attend.versions import SnapshotSource, Vanished, until_stable
from attend.views import UNTRAINED

TERMS = "ratings"
"""The name of the terms of documents in the store."""

MOST_USED = 10_000
"""Documents of a history that a prediction attends to."""

SHOWN = 50
"""Documents of the history shown with a prediction, unless `explain` asks for all."""


class _NamedTargets(NamedTuple):
    """The targets that exist, and the ids of those that do not."""

    items: Sequence[ExampleItem]
    rows: Int64  # (t,) NO_ROW for texts and vectors
    missing: Sequence[str]


class Predictor:
    """Answers the predictions of one collection; any thread may call it."""

    def __init__(self, store: CollectionStore, views: SnapshotSource, histories: Histories) -> None:
        self._store = store
        self._views = views
        self._histories = histories
        self._models = RatingModels(store)

    def predict(self, request: RecommendRequest) -> Predicted:
        """Predict what the user of a request would think of its targets.

        Raises:
            InvalidRequest: a history without values, or with some that are out of range.
            UnknownDocument: an id that no document has, unless those are skipped.
        """
        started = time.perf_counter()
        # Again from the start if a document is deleted meanwhile: no history has it then.
        return self._predict(request, started)

    @until_stable
    def _predict(self, request: RecommendRequest, started: float) -> Predicted:
        targets = self._targets(request)
        history = self._histories.of(request, MOST_USED)
        active = self._models.current(request.projection)
        embeddings = self._embeddings(targets, history.embeddings.shape[1])
        predictions = predict_values(
            active,
            self._views.mean(),
            PredictionTargets(targets.rows, embeddings),
            self._valued(history),
        )
        _check_size(request, predictions)
        missing = MissingNames([*history.missing.ids, *targets.missing], history.missing.user)
        most = MAX_HISTORY if request.explain else SHOWN
        return Predicted(
            predictions=[
                example_name(item) | _plain(prediction, most)
                for item, prediction in zip(targets.items, predictions, strict=True)
            ],
            history={"given": history.total, "used": len(predictions[0].history.rows)},
            missing=missing.json(),
            generation=self._store.state().change,
            projection=UNTRAINED if active is None else active.version,
            took_ms=round((time.perf_counter() - started) * 1000, 3),
        )

    def _targets(self, request: RecommendRequest) -> _NamedTargets:
        targets = request.target or []
        ids = [item.id for item in targets if item.id is not None]
        rows = self._store.rows_of(ids)
        missing = [id for id in dict.fromkeys(ids) if id not in rows]
        present = [item for item in targets if item.id is None or item.id in rows]
        if missing and (request.on_missing == "error" or not present):
            raise missing_error(MissingNames(missing), "target")
        numbers = [NO_ROW if item.id is None else rows[item.id] for item in present]
        return _NamedTargets(present, np.array(numbers, dtype=np.int64), missing)

    def _embeddings(self, targets: _NamedTargets, dimension: int) -> Float32:
        """Return the embeddings (t, d) of targets: means of keys, and encoded texts."""
        embeddings = np.empty((len(targets.rows), dimension), dtype=np.float32)
        others = targets.rows == NO_ROW
        if others.any():
            items = [targets.items[place] for place in np.flatnonzero(others).tolist()]
            embeddings[others] = self._histories.embeddings(items)
        embeddings[~others] = self._means(targets.rows[~others])
        return embeddings

    def _valued(self, history: History) -> ValuedHistory:
        """Return the documents of a history; examples and profile have no values."""
        documents = history.select(np.array([part.item is None for part in history.parts]))
        return ValuedHistory(
            documents.rows,
            [str(part.name["id"]) for part in documents.parts],
            [part.value for part in documents.parts],
            self._means(documents.rows),
            documents.weights,
            np.array([part.stored for part in documents.parts], dtype=bool),
        )

    def _means(self, rows: Int64) -> Float32:
        """Return documents (n, d) as ratings are learned of them: the means of their keys."""
        keys = self._store.own_keys(np.unique(rows))
        if not np.isin(rows, keys.rows).all():
            raise Vanished
        if not len(rows):
            return np.empty((0, self._views.mean().shape[0]), dtype=np.float32)
        return np.asarray(keys.means()[np.searchsorted(keys.rows, rows)], dtype=np.float32)


def _check_size(request: RecommendRequest, predictions: Sequence[Prediction]) -> None:
    shares = sum(len(prediction.history.rows) for prediction in predictions)
    if request.explain and shares > MAX_SHARES:
        raise LimitExceeded(
            f"Explaining {len(predictions)} predictions takes {shares} shares, and at most "
            f"{MAX_SHARES} are sent at once; ask for fewer targets, or do not ask to explain.",
            field="explain",
        )


def _plain(prediction: Prediction, most: int) -> dict[str, Json]:
    """Return a prediction as plain data."""
    return {
        **prediction.answer,
        "confidence": 1 - prediction.null,
        "null": prediction.null,
        "calibrated": prediction.calibrated,
        "known": prediction.actual,
        "because": prediction.because(most),
    }


# -- the model ------------------------------------------------------------------------------


class RatingModels:
    """The models of a collection; the last one asked for stays in memory."""

    def __init__(self, store: CollectionStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._key = (0, 0)
        self._model: ActiveModel | None = None

    def current(self, version: int | None = None) -> ActiveModel | None:
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
