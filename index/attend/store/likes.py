"""The threshold of likes: a setting, or chosen from a sample of the interactions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from sqlite_utils import Database

from attend.errors import InvalidRequest
from attend.liking import Liking, chosen_liking
from attend.store.connections import DatabasePart, put_settings, read_state

SAMPLE = 1000
"""Interactions that the threshold is chosen from."""

LIKED_FROM = "liked_from"


class StoredLikes(DatabasePart):
    """Reads and writes the threshold of likes."""

    _chosen: tuple[int, Liking] = (-1, Liking())

    def liking(self) -> Liking:
        db = self._read()
        change = read_state(db).change
        if self._chosen[0] != change:
            self._chosen = change, self._liking(db)
        return self._chosen[1]

    def _set_liking(self, db: Database, liking: Liking | None) -> None:
        """Store a threshold, if one is given."""
        if liking is None:
            return
        liked_from = liking.liked_from
        if liked_from is not None and not np.isfinite(liked_from):
            raise InvalidRequest(
                f"liked_from is {liked_from}; send a finite number, or null to choose it from the "
                f"data.",
                field=LIKED_FROM,
            )
        put_settings(db, {LIKED_FROM: liked_from})

    def _liking(self, db: Any) -> Liking:
        row = db.execute("SELECT value FROM settings WHERE name = ?", [LIKED_FROM]).fetchone()
        if row is not None and json.loads(row[0]) is not None:
            return Liking(float(json.loads(row[0])), "set")
        last = db.execute("SELECT coalesce(max(id), 0) FROM interactions").fetchone()[0]
        points = np.unique(np.linspace(1, max(last, 1), SAMPLE, dtype=np.int64))
        # By key, one by one, as documents are sampled.
        rows = db.execute(
            "SELECT value FROM interactions WHERE typeof(value) IN ('integer', 'real') AND id IN "
            "(SELECT (SELECT id FROM interactions WHERE id >= point.value ORDER BY id LIMIT 1) "
            "FROM json_each(?) AS point)",
            [json.dumps(points.tolist())],
        )
        return chosen_liking([float(value) for (value,) in rows])
