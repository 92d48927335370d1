"""What goes into the store and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from attend.errors import Conflict
from attend.types import Bool, Document, Float32, Int64, Json


class KeyRow(NamedTuple):
    """One key of a document: the part `[start, stop)` of a field's text, in characters."""

    field: str
    start: int
    stop: int
    embedding: Float32  # (d,)


class Hashes(NamedTuple):
    """What a document's keys were made of, and what it returns."""

    keys: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """A document to be written, with its keys.

    `keys=None` keeps the keys that are stored: only value and payload are new. That is
    right only while the stored key hash is still the same, which the write checks.
    """

    document: Document
    hashes: Hashes
    keys: Sequence[KeyRow] | None


class StaleEntries(Conflict):
    """Documents whose keys were to be kept have changed in the meantime; plan them again."""


class Forgotten(Exception):
    """A reader is so far behind that it is no longer known what it must let go of."""


class StoredDocument(NamedTuple):
    """A document as stored. `row` is its id inside, `id` the caller's."""

    row: int
    id: str
    fields: Mapping[str, str]
    value: Json
    payload: Mapping[str, Json]


class StoredKey(NamedTuple):
    """Where a key comes from: a part of a field, or the question of an example.

    `question` is that question's text; None where it has none, and for keys of documents.
    """

    id: int
    document: int
    field: str
    start: int
    stop: int
    question: str | None = None


Role: TypeAlias = Literal["search", "recommend", "predict"]
"""What a version answers: searches, what comes next for a user, or what a user thinks of an item.

In each role one version is active; where none was made yet, it is number 0, the untrained one.
"""

ROLES: tuple[Role, ...] = get_args(Role)

Terms: TypeAlias = Mapping[str, tuple[Int64, Float32]]
"""By name: rows of documents (n,), ascending, and a vector for each (n, width)."""


class StoredProjection(NamedTuple):
    """A row of the table of projections, without its weights.

    `parent` is the version that answered before this one was last activated: a rollback of it
    leads there. 0 is the untrained one, in roles other than search.
    """

    version: int
    kind: str
    fingerprint: str
    created: str
    note: Mapping[str, Any]
    tuning: Mapping[str, Any]
    report: Mapping[str, Any]
    parent: int | None
    active: bool
    role: Role = "search"


class StoredVersion(NamedTuple):
    """All that a version consists of. Offsets are key ids (m,), ascending, and deltas (m, d).

    `fingerprint` is what `weights` had when they were stored. `terms` are of documents whose keys
    are not above `last_key`: later ones are of another text.
    """

    weights: bytes
    tuning: Mapping[str, Any]
    offsets: tuple[Int64, Float32]
    fingerprint: str
    role: Role
    terms: Terms
    last_key: int


class State(NamedTuple):
    """How far the database has come. `change` counts transactions that changed an answer.

    `projection`, `recommend` and `predict` are the active versions of the three roles.
    """

    change: int
    last_key: int
    last_removal: int
    projection: int
    recommend: int
    predict: int

    def active(self, role: Role) -> int:
        """The version that answers in a role; 0 for the untrained one."""
        return {"search": self.projection, "recommend": self.recommend, "predict": self.predict}[
            role
        ]


class Changes(NamedTuple):
    """What happened to the keys since an earlier state, seen at one moment."""

    state: State
    added: KeyBatch
    removed: Int64  # (r,) key ids


class KeyBatch(NamedTuple):
    """Keys in the order (document row, key id)."""

    ids: Int64  # (m,)
    documents: Int64  # (m,)
    embeddings: Float32  # (m, d); of an example key, its question's
    examples: Bool  # (m,) which are example keys

    def means(self) -> tuple[Int64, Float32]:
        """Rows of the documents (n,), ascending, and the mean of each one's keys (n, d)."""
        rows, starts, counts = np.unique(self.documents, return_index=True, return_counts=True)
        if not len(rows):
            return rows, self.embeddings[:0]
        sums = np.add.reduceat(self.embeddings, starts, axis=0)
        return rows, np.asarray(sums / counts[:, None], dtype=np.float32)
