"""Records that go into a store and come out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, get_args

import numpy as np

from attend.api.base import Reply
from attend.core.arrays import KeyTable
from attend.core.errors import Conflict
from attend.core.types import Bool, Document, Float32, Float64, Int64, Json


class KeyRow(NamedTuple):
    """One key of a document: the part `[start, stop)` of a field's text, in characters."""

    field: str
    start: int
    stop: int
    embedding: Float32  # (d,)


class Hashes(NamedTuple):
    """Hashes of a document's texts and vectors, and of its value and payload."""

    keys: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """A document to be written, with its keys.

    `keys=None` keeps the stored keys: only value and payload are new. The write checks that the
    stored key hash is still the same.
    """

    document: Document
    hashes: Hashes
    keys: Sequence[KeyRow] | None


class StaleEntries(Conflict):
    """Documents whose keys the writer keeps have changed in the meantime; plan them again."""


class TooFarBehind(Exception):
    """The removals since the reader's state are no longer stored: it must read all keys again."""


class StoredDocument(NamedTuple):
    """A document as stored. `row` is its id inside, `id` the caller's."""

    row: int
    id: str
    fields: Mapping[str, str]
    value: Json
    payload: Mapping[str, Json]


class StoredKey(NamedTuple):
    """The source of a key: a part of a field, or the question of an example.

    `question` is the question's text; None for a question without text and for keys of documents.
    """

    id: int
    document: int
    field: str
    start: int
    stop: int
    question: str | None = None

    def within(self, fields: Mapping[str, str]) -> StoredKey:
        """Return the key with the part of a document's texts that it stands for.

        An own vector stands for the whole text of its field; one of the whole document, which has
        no such field, for the longest text.
        """
        if self.stop or self.field == EXAMPLE or not fields:
            return self
        field = max(fields, key=lambda name: (name == self.field, len(fields[name])))
        return self._replace(field=field, stop=len(fields[field]))


EXAMPLE = "@example"
"""The field of keys that are queries of examples."""


Role: TypeAlias = Literal["search", "recommend", "predict"]
"""The task of a version: searches, recommendations, or predicted ratings.

One version is active in each role; before one is trained it is number 0, the untrained one.
"""

ROLES: tuple[Role, ...] = get_args(Role)


class Terms(NamedTuple):
    """Learned vectors of some documents under one name."""

    rows: Int64  # (n,) ascending
    vectors: Float32  # (n, width)


class Offsets(NamedTuple):
    """Learned key offsets: added to the embeddings of some keys before these are projected."""

    keys: Int64  # (m,) ids, ascending
    deltas: Float32  # (m, d)


NO_OFFSETS = Offsets(np.empty(0, dtype=np.int64), np.empty((0, 0), dtype=np.float32))


class VersionDetails(TypedDict, total=False):
    """Optional parts of a new version, beside its matrices."""

    tuning: Mapping[str, Json] | None
    report: Mapping[str, Json] | None
    offsets: Offsets | None
    terms: Mapping[str, Terms] | None
    last_key: int | None
    """The last key at the time of training; terms of documents whose text changed since then are
    left out."""
    role: Role
    activate: bool


class StoredProjection(Reply):
    """A row of the table of projections, without its weights.

    `parent` is the version that was active before the last activation of this one: a rollback
    returns to it. 0 is the untrained version, in roles other than search.
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
    """A version with its matrices, tuning, offsets and terms.

    `fingerprint` is that of `weights` at the time of storing. `terms` belong to documents whose
    keys are not above `last_key`: later keys are of another text.
    """

    weights: bytes
    tuning: Mapping[str, Any]
    offsets: Offsets
    fingerprint: str
    role: Role
    terms: Mapping[str, Terms]
    last_key: int


class State(NamedTuple):
    """The progress of the database. `change` counts transactions that changed an answer.

    `projection`, `recommend` and `predict` are the active versions of the three roles; `settings`
    counts the changes of settings and the indexes that were published on request.
    """

    change: int
    last_key: int
    last_removal: int
    projection: int
    recommend: int
    predict: int
    settings: int = 0

    def active(self, role: Role) -> int:
        """Return the active version of a role; 0 for the untrained one."""
        versions = {"search": self.projection, "recommend": self.recommend, "predict": self.predict}
        return versions[role]


class KeyChanges(NamedTuple):
    """Keys that were added and removed since an earlier state, read at one moment."""

    state: State
    added: KeyTable
    removed: Int64  # (r,) key ids, also such as the reader never had


class Question(NamedTuple):
    """A query that examples are about, and its raw embedding."""

    text: str | None
    embedding: Float32  # (d,)


class NewExample(NamedTuple):
    """A label: how well a document answers a question.

    Attributes:
        question: its position in the list of questions beside it.
        document: the caller's id.
        weight: above 0 relevant, by degree; 0 judged and not relevant; below 0 a negative label.
        position: the position at which the document was shown, from 1; None if unknown.
    """

    question: int
    document: str
    weight: float
    position: int | None = None
    source: str = "given"


class StoredExample(Reply):
    """An example as it was added; `query` is None for a vector."""

    id: int
    query: str | None
    document: str
    label: float
    position: int | None
    source: str
    created: str


class ExampleSet(NamedTuple):
    """All examples, read at one moment. Questions and examples are in the order of their ids."""

    texts: list[str | None]  # n questions
    embeddings: Float32  # (n, d)
    questions: Int64  # (e,) positions in `texts`
    rows: Int64  # (e,) rows of documents
    weights: Float64  # (e,)
    positions: Int64  # (e,) 0 for unknown
    ids: Int64  # (e,)


class Interaction(NamedTuple):
    """An interaction of a user with a document, by the callers' ids.

    Attributes:
        value: a rating, a label, …; None if there is no value.
        time: seconds since 1970; None if unknown.
    """

    user: str
    document: str
    value: Json = None
    time: float | None = None


class InteractionSet(NamedTuple):
    """All interactions of one moment, ordered by user and then by row."""

    ids: Int64  # (n,) in the order of the first interaction of user and document
    users: list[str]  # u ids
    user_indices: Int64  # (n,) positions in `users`
    rows: Int64  # (n,) rows of documents
    values: Float64  # (n,) NaN for no value, or one that is no number
    times: Float64  # (n,) seconds since 1970, NaN if unknown
    liked: Bool  # (n,) whose value is a like (`attend.core.liking`)


class UserHistory(NamedTuple):
    """The interactions of one user, the latest last; those without a time come first."""

    rows: Int64  # (n,)
    documents: list[str]  # n ids
    values: list[Json]
    times: Float64  # (n,) NaN if unknown


class InteractionPage(NamedTuple):
    """A page of interactions; `next` is the place of the following page, None at the end."""

    interactions: list[Interaction]
    next: tuple[int, int] | None
