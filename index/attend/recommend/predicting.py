"""What a user would think of some documents: the request resolved, and answered by `target`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attend.api.answers import Predicted
from attend.api.recommend import MAX_HISTORY, ExampleItem, RecommendRequest
from attend.errors import LimitExceeded
from attend.recommend.history import NO_ROW, Histories, History, Missing, name_of, not_there
from attend.recommend.target import NONE, Prediction, Targets, Valued, predicted
from attend.recommend.trained import Models, Trained
from attend.search.explain import MAX_SHARES
from attend.search.schedule import Vanished, until_stable
from attend.store import CollectionStore
from attend.types import Float32, Int64, Json
from attend.view import SnapshotSource
from attend.views import UNTRAINED

MOST_USED = 10_000
"""Documents of a history that a prediction attends to."""

TOLD = 50
"""Documents of the history named with a prediction, where not all are asked for."""


class _Chosen(NamedTuple):
    """Targets that are there, and the ids of those that are not."""

    given: Sequence[ExampleItem]
    rows: Int64  # (t,) NO_ROW for texts and vectors
    missing: Sequence[str]


class _Resolved(NamedTuple):
    """A request with what was named in it, and its predictions."""

    trained: Trained | None
    chosen: _Chosen
    history: History
    made: Sequence[Prediction]


class Predictor:
    """Answers the predictions of one collection; any thread may call it."""

    def __init__(self, store: CollectionStore, views: SnapshotSource, histories: Histories) -> None:
        self._store = store
        self._views = views
        self._histories = histories
        self._models = Models(store)

    def predict(self, request: RecommendRequest) -> Predicted:
        """What the user of a request would think of its targets.

        Raises:
            InvalidRequest: a history without values, or with some that are out of range.
            UnknownDocument: an id that no document has, unless those are skipped.
        """
        started = time.perf_counter()
        # From the start again, if a document goes meanwhile: it is in no history then.
        trained, chosen, history, made = self._resolved(request)
        missing = Missing([*history.missing.ids, *chosen.missing], history.missing.user)
        _check_size(request, made)
        return Predicted(
            predictions=[
                _told(name_of(each), prediction, MAX_HISTORY if request.explain else TOLD)
                for each, prediction in zip(chosen.given, made, strict=True)
            ],
            history={"given": history.given, "used": len(made[0].history.rows) if made else 0},
            missing=missing.json(),
            generation=self._store.state().change,
            projection=UNTRAINED if trained is None else trained.version,
            took_ms=round((time.perf_counter() - started) * 1000, 3),
        )

    @until_stable
    def _resolved(self, request: RecommendRequest) -> _Resolved:
        chosen = self._chosen(request)
        history = self._histories.of(request, MOST_USED)
        trained = self._models.current(request.projection)
        return _Resolved(trained, chosen, history, self._predicted(trained, chosen, history))

    def _chosen(self, request: RecommendRequest) -> _Chosen:
        given = request.target or []
        ids = [each.id for each in given if each.id is not None]
        rows = self._store.rows_of(ids)
        missing = [id for id in dict.fromkeys(ids) if id not in rows]
        kept = [each for each in given if each.id is None or each.id in rows]
        if missing and (request.on_missing == "error" or not kept):
            raise not_there(Missing(missing), "target")
        known = [NO_ROW if each.id is None else rows[each.id] for each in kept]
        return _Chosen(kept, np.array(known, dtype=np.int64), missing)

    def _predicted(
        self, trained: Trained | None, chosen: _Chosen, history: History
    ) -> list[Prediction]:
        rows = chosen.rows
        asked = np.empty((len(rows), history.embeddings.shape[1]), dtype=np.float32)
        others = np.flatnonzero(rows == NO_ROW)
        if len(others):
            asked[others] = self._histories.embeddings([chosen.given[at] for at in others.tolist()])
        asked[rows != NO_ROW] = self._means(rows[rows != NO_ROW])
        # Examples and facts have no values, and nothing to say here.
        met = history.chosen(np.array([part.given is None for part in history.parts]))
        valued = Valued(
            met.rows,
            [str(part.name["id"]) for part in met.parts],
            [part.value for part in met.parts],
            self._means(met.rows),
            met.weights,
            np.array([part.stored for part in met.parts], dtype=bool),
        )
        targets = Targets(np.where(rows == NO_ROW, NONE, rows), asked)
        return predicted(trained, self._views.mean(), targets, valued)

    def _means(self, rows: Int64) -> Float32:
        """Documents (n, d) as ratings are learned of them."""
        known, found = self._store.own_keys(np.unique(rows)).means()
        if not np.isin(rows, known).all():
            raise Vanished
        width = self._views.mean().shape[0]
        vectors: Float32 = found[np.searchsorted(known, rows)] if len(rows) else found
        return vectors.reshape(len(rows), width)


def _check_size(request: RecommendRequest, made: Sequence[Prediction]) -> None:
    shares = sum(len(each.history.rows) for each in made)
    if request.explain and shares > MAX_SHARES:
        raise LimitExceeded(
            f"To explain {len(made)} predictions whole takes {shares} shares, and at most "
            f"{MAX_SHARES} are sent at once; ask for fewer targets, or do not ask to explain.",
            field="explain",
        )


def _told(name: dict[str, Json], made: Prediction, most: int) -> dict[str, Json]:
    """A prediction as plain data."""
    return {
        **name,
        **made.answer,
        "confidence": made.confidence,
        "null": made.null,
        "calibrated": made.calibrated,
        "known": made.known,
        "because": [
            {name: each for name, each in because._asdict().items() if each is not None}
            for because in made.because(most)
        ],
    }
