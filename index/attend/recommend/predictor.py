"""Answer requests with a target: read the history and the targets, then predict."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from attend.api.answers import Predicted
from attend.api.recommend import MAX_HISTORY, ExampleItem, RecommendRequest
from attend.collection.versions import UNTRAINED, Vanished, until_stable
from attend.core.errors import Damaged, InvalidRequest, LimitExceeded
from attend.core.types import Float32, Int64
from attend.engines.engine import SnapshotSource
from attend.recommend.history import Histories, History, example_name, missing_error
from attend.recommend.predict import (
    NO_ROW,
    ActiveModel,
    PredictionTargets,
    ValuedHistory,
    predict_values,
)
from attend.recommend.rating_model import Own, RatingModel
from attend.search.listing import MAX_SHARES
from attend.store import CollectionStore

TERMS = "ratings"
"""The name of the terms of documents in the store."""

MOST_USED = 10_000
"""Documents of a history that a prediction attends to."""

SHOWN = 50
"""Documents of the history shown with a prediction, unless `explain` asks for all."""


class Predictor:
    """Answers the predictions of one collection; any thread may call it."""

    def __init__(self, store: CollectionStore, views: SnapshotSource, histories: Histories) -> None:
        self._store = store
        self._views = views
        self._histories = histories
        self._models = RatingModels(store)

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
        active = self._models.current(request.projection)
        targets, valued = self._targets(items, rows), self._valued(history)
        predictions = predict_values(active, self._views.mean(), targets, valued)
        used = len(predictions[0].history.rows)
        if request.explain and len(predictions) * used > MAX_SHARES:
            raise LimitExceeded(
                f"Explaining {len(predictions)} predictions takes {len(predictions) * used} "
                f"shares, and at most {MAX_SHARES} are sent at once; ask for fewer targets, or do "
                f"not ask to explain.",
                field="explain",
            )
        most = MAX_HISTORY if request.explain else SHOWN
        return Predicted(
            predictions=[
                example_name(item) | prediction.json(most)
                for item, prediction in zip(items, predictions, strict=True)
            ],
            history={"given": history.total, "used": used},
            missing=[*history.missing, *missing],
            generation=self._store.state().change,
            projection=UNTRAINED if active is None else active.version,
            took_ms=round((time.perf_counter() - started) * 1000, 3),
        )

    def _targets(self, items: Sequence[ExampleItem], rows: Mapping[str, int]) -> PredictionTargets:
        """Return the targets that exist with their embeddings: means of keys, and encoded texts."""
        numbers = [NO_ROW if item.id is None else rows[item.id] for item in items]
        documents = np.array([number for number in numbers if number != NO_ROW], dtype=np.int64)
        means = self._means(documents)
        embeddings = np.empty((len(items), means.shape[1]), dtype=np.float32)
        others = np.array(numbers) == NO_ROW
        embeddings[~others] = means
        if others.any():
            embeddings[others] = self._histories.embeddings(
                [item for item in items if item.id is None]
            )
        return PredictionTargets(np.array(numbers, dtype=np.int64), embeddings)

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
