"""The model of ratings that is active, with what it learned of each document."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from attend.errors import Damaged, InvalidRequest
from attend.ratings import Items, Own, RatingModel
from attend.store import CollectionStore
from attend.types import Float32, Int64

TERMS = "ratings"
"""Under which the store keeps what was learned of documents."""


@dataclass(frozen=True)
class Trained:
    """A version that predicts.

    Attributes:
        rows: (n,) documents of which something was learned, ascending; `own`: what.
    """

    version: int
    model: RatingModel
    rows: Int64
    own: Own

    def items(self, rows: Int64, embeddings: Float32) -> Items:
        """Documents by row (n,) and embedding (n, d); by their texts alone where nothing was
        learned of them."""
        at = np.minimum(np.searchsorted(self.rows, rows), max(0, len(self.rows) - 1))
        known = self.rows[at] == rows if len(self.rows) else np.zeros(len(rows), dtype=bool)
        return self.model.items(embeddings, self.own.at(np.where(known, at, -1)))


class Models:
    """The models of a collection, of which the one asked for last is kept in memory."""

    def __init__(self, store: CollectionStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._read = (0, 0)
        self._trained: Trained | None = None

    def current(self, version: int | None = None) -> Trained | None:
        """The version that predicts now, or another; None where none was trained.

        Raises:
            UnknownProjection: there is no such version.
            InvalidRequest: there is, but it predicts nothing.
            Damaged: it is not what was stored.
        """
        state = self._store.state()
        # A document whose text changes loses what was learned of it, and keys with that.
        wanted = version or state.active("predict"), state.last_removal
        with self._lock:
            if wanted == self._read:
                return self._trained
        # Under no lock: who asks for the version that is at hand waits for nobody.
        trained = read(self._store, wanted[0]) if wanted[0] else None
        with self._lock:
            self._read, self._trained = wanted, trained
        return trained


def read(store: CollectionStore, number: int) -> Trained:
    """A stored version.

    Raises:
        UnknownProjection: there is no such version.
        InvalidRequest: there is, but it predicts nothing.
        Damaged: it is not what was stored.
    """
    stored = store.version(number)
    if stored.role != "predict":
        raise InvalidRequest(
            f"Version {number} was made to {stored.role}, and predicts nothing that users would "
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
    return Trained(number, model, rows, Own.unpacked(vectors.reshape(-1, model.width), model.heads))
