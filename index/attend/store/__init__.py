"""The protocol of a store of one collection, which every engine implements, and its records."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack

import numpy as np

from attend.api.answers import Facet
from attend.api.feedback import StoredExample as StoredExample
from attend.api.learning import StoredProjection as StoredProjection
from attend.core.arrays import KeyTable
from attend.core.errors import Conflict, UnknownDocument, Unsupported
from attend.core.liking import Liking
from attend.core.types import ROLES as ROLES
from attend.core.types import Bool, Document, Float32, Float64, Int64, Json
from attend.core.types import Interaction as Interaction
from attend.core.types import Role as Role
from attend.core.types import StoredDocument as StoredDocument
from attend.store.filters import Predicate as Predicate
from attend.store.filters import compile_filter as compile_filter
from attend.store.words import Lexical
from attend.values.select import select

PAGE = 1000
"""Documents read at once where an engine reads its columns by the page."""


class KeyRow(NamedTuple):
    """One key of a document: the part `[start, stop)` of a field's text, in characters.

    `format` is the number format that its text was encoded in; None where it is not known.
    """

    field: str
    start: int
    stop: int
    embedding: Float32  # (d,)
    format: str | None = None


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


class Column(NamedTuple):
    """Documents by row, ascending, with the value of one field each."""

    rows: Int64
    ids: list[str]
    values: list[Json] | None


class StaleEntries(Conflict):
    """Documents whose keys the writer keeps have changed in the meantime; plan them again."""


class TooFarBehind(Exception):
    """The removals since the reader's state are no longer stored: it must read all keys again."""


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
    settings: Mapping[str, Json]
    """Stored with the version."""
    replaces: int | None
    """A version that goes with this step, unless it has ever been activated."""


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


SAME = 0.1
"""Share of an embedding's length within which two embeddings of a text are the same: bfloat16
moves MiniLM's by 0.012, int8 by 0.06; a model whose sample texts it moves by 0.1 has no int8."""


def moved(stored: Float32, new: Float32) -> bool:
    """Return whether a text has another embedding (d,), and not the same in other rounding."""
    difference = np.linalg.norm(stored.astype(np.float64) - new)
    return bool(difference > SAME * np.linalg.norm(stored.astype(np.float64)))


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


USED = "used"
"""The source of examples that are made from the log of searches."""


class ExampleSet(NamedTuple):
    """All examples, read at one moment. Questions and examples are in the order of their ids."""

    texts: list[str | None]  # n questions
    embeddings: Float32  # (n, d)
    questions: Int64  # (e,) positions in `texts`
    rows: Int64  # (e,) rows of documents
    weights: Float64  # (e,)
    positions: Int64  # (e,) 0 for unknown
    used: Bool  # (e,) whether the log of searches says so, and nobody else
    ids: Int64  # (e,)


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


NAMED = 10
"""Unknown documents that an error names."""


def check_known(known: Container[str], ids: Sequence[str], subject: str) -> None:
    """Raise UnknownDocument, which names some of the ids that no document has.

    Args:
        known: the ids that documents have.
        subject: what names the documents ("examples"), for the error and as its field.
    """
    unknown = [id for id in dict.fromkeys(ids) if id not in known]
    if unknown:
        more = f" and {len(unknown) - NAMED} others" if len(unknown) > NAMED else ""
        raise UnknownDocument(
            f"The {subject} name {', '.join(map(repr, unknown[:NAMED]))}{more}, and no document "
            f"has such an id; store the documents first, or leave these {subject} out.",
            field=subject,
        )


def check_active(active: int, expected: int | None, version: int) -> None:
    """Raise Conflict where another version is active than the caller expected."""
    if expected is not None and active != expected:
        raise Conflict(
            f"Projection {active} is active by now, where {expected} was expected, so that "
            f"{version} was not activated; look at both, then activate one by its number.",
            field="projection",
        )


class StoredUser(NamedTuple):
    """A user whose interactions are stored.

    Attributes:
        interactions: their number.
        latest: the ids of the documents of the latest ones, the latest first.
    """

    name: str
    interactions: int
    latest: Sequence[str]


class CollectionStore(Protocol):
    """Documents, keys, feedback and versions of one collection, in any engine.

    Any thread may use it. An engine raises Unsupported for what its `Capabilities` leave out; so
    do the methods here that an engine without such a capability inherits.
    """

    def unsupported(self, capability: str) -> Unsupported:
        """Return the error for a capability that the engine lacks."""
        return Unsupported(f"This engine has no capability {capability!r}; use a data folder.")

    def close(self) -> None: ...

    def settings(self) -> dict[str, Any]: ...

    def put_settings(self, changes: Mapping[str, Json], *, soon: bool = True) -> None:
        """Change settings that may change while the collection holds documents.

        Args:
            soon: let other processes look at them at once; an engine may do that for all.
        """

    def state(self) -> State: ...

    def reading(self) -> AbstractContextManager[object]:
        """Let the reads within the block see one moment, or as nearly as the engine can."""

    # -- documents --------------------------------------------------------------------------

    def counts(self) -> tuple[int, int]:
        """Return the number of documents, and of their keys without those of examples."""

    def formats(self) -> dict[str, int] | None:
        """Return the number of keys of texts by the number format that these were encoded in.

        Returns: None in an engine that does not store it; "unknown" counts keys of before.
        """
        return None

    def documents(self, rows: Int64, *, texts: bool = True) -> dict[int, StoredDocument]:
        """Return documents by row; rows that are gone are absent.

        Args:
            texts: read texts, which may be long and which blending does not need.
        """

    def find(self, ids: Sequence[str]) -> dict[str, StoredDocument]:
        """Return documents by the caller's ids; unknown ids are absent."""

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Return rows by the caller's ids; unknown ids are absent."""

    def scroll(
        self, after: int, limit: int, predicate: Predicate | None = None
    ) -> list[StoredDocument]:
        """Return the next `limit` documents after a row, in the order of rows."""

    def sample(self, size: int) -> list[StoredDocument]:
        """Return documents from all over the collection: the first ones may be all of a kind."""

    def column(self, field: str | None, most: int) -> Column:
        """Return the ids of documents and their values of one field, in the order of rows.

        Args:
            field: a path of payload or value, or `@value`; None for no values.
            most: of more documents every second, third, … is returned.
        """
        columns: list[tuple[int, str, Json]] = []
        after: int | None = 0
        step = max(1, -(-self.counts()[0] // most))
        while after is not None:
            page = self.scroll(after, PAGE)
            after = page[-1].row if page else None
            columns += [
                (
                    document.row,
                    document.id,
                    select(field, document.id, document.value, document.payload, {}),
                )
                for document in page
                if document.row % step == 0
            ]
        return Column(
            np.array([row for row, _, _ in columns], dtype=np.int64),
            [id for _, id, _ in columns],
            None if field is None else [value for _, _, value in columns],
        )

    def all_ids(self) -> Iterator[str]: ...

    def matching(self, predicate: Predicate) -> Int64:
        """Return the rows that pass a filter, ascending; not to be written to."""
        raise self.unsupported("train")

    def count(self, predicate: Predicate) -> int: ...

    def facets(
        self, fields: Sequence[str], predicate: Predicate | None = None, limit: int = 10
    ) -> dict[str, Facet]:
        """Return the `limit` most frequent values of each field over the documents that pass.

        A list counts once for each of its different values.

        Raises:
            InvalidRequest: a wrong field name, too many of them, or a wrong limit.
        """
        raise self.unsupported("facets")

    def times(self, field: str) -> tuple[Int64, Float64]:
        """Return the rows of the documents that have a time in a field, ascending, and these.

        A time is a number, or an ISO date as seconds since 1970; of a list the latest. Neither
        array is to be written to.
        """
        raise self.unsupported("recency")

    def hashes(self, ids: Sequence[str]) -> dict[str, Hashes]:
        """Return the stored hashes of documents; unknown ids are absent."""

    def write(self, entries: Sequence[Entry], decided: Mapping[str, Json] | None = None) -> None:
        """Insert or replace documents with their keys, all or none.

        Args:
            decided: settings that were null before, stored in the same step.

        Raises:
            StaleEntries: the stored keys of an entry without keys are not those of its hash, or a
                setting is decided otherwise already.
        """

    def revise(
        self,
        id: str,
        change: Callable[[StoredDocument], StoredDocument],
        hash: Callable[[Json, Mapping[str, Json]], bytes],
    ) -> StoredDocument | None:
        """Replace value and payload of one document by the result of `change` on the stored ones.

        Read and written under one lock: of two revisions at once, the later sees the earlier.

        Args:
            hash: the value hash of (value, payload), as writing compares it.

        Returns: the new document; None if no document has this id.
        """

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents with their keys; skip unknown ids. Return the number of deletions."""

    def delete_matching(self, predicate: Predicate) -> int:
        """Delete the documents that pass a filter, all or none. Return the number."""

    # -- keys and words ---------------------------------------------------------------------

    def keys_of(self, ids: Int64) -> dict[int, StoredKey]:
        """Return the sources of keys, by key id."""

    def own_keys(self, rows: Int64) -> KeyTable:
        """Return the documents' keys without those of examples, in the order (row, key id)."""

    def example_keys(self) -> Int64:
        """Return the ids of all keys of example queries."""
        raise self.unsupported("examples")

    def embeddings(self, ids: Sequence[int]) -> list[Float32]:
        """Return the raw embeddings of keys, in the order of `ids`, without gone ones."""

    def all_keys(
        self, *, examples: bool = False
    ) -> AbstractContextManager[tuple[State, Iterator[KeyTable]]]:
        """Read all keys by document, in tables, with the state in which they are read."""

    def lexical(self, text: str, limit: int | None = None) -> Lexical:
        """Find the documents that share words with a text, by BM25: all, or the `limit` best."""
        return self.lexical_many([text], limit)[0]

    def lexical_many(
        self, texts: Sequence[str], limit: int | None = None, *, without: Int64 | None = None
    ) -> list[Lexical]:
        """Do the same for many texts, in one state of the collection.

        Args:
            without: rows of documents that count as gone, ascending.
        """
        raise self.unsupported("lexical")

    def lexical_texts(self, query: str, texts: Sequence[str]) -> Lexical:
        """Score texts that are no documents by BM25; positions take the place of rows."""
        raise self.unsupported("lexical")

    def common_words(self, texts: Sequence[str]) -> set[str]:
        """Return the stems of texts that so many documents have that they tell nothing."""
        return set()

    # -- examples ---------------------------------------------------------------------------

    def add_examples(
        self,
        questions: Sequence[Question],
        examples: Sequence[NewExample],
        *,
        forget: bool = False,
        only: str | None = None,
    ) -> tuple[int, int]:
        """Store which documents answer which questions, all or none.

        An example of the same question and document is replaced. Questions are the same by
        their text, or without one by their embedding; a new embedding of a text gives its
        examples other keys.

        Args:
            forget: delete the examples stored before, in the same step.
            only: the source of all examples, which are to be all of it: its others are deleted in
                the same step, and examples of other sources stay as they are.

        Returns: (added, replaced).

        Raises:
            UnknownDocument: names the ids that no document has.
            InvalidRequest: a wrong weight or position, or an embedding that does not fit.
        """

    def examples(self) -> ExampleSet: ...
    def example_state(self) -> tuple[int, ...] | None:
        """Return numbers that change with every change of examples, their count first.

        Returns: None in an engine that cannot tell it without reading them.
        """
        return None

    def example_count(self) -> int: ...
    def question_count(self) -> int: ...

    def relevant_question_count(self) -> int:
        """Return the number of questions with a relevant document."""
        learned = self.examples()
        return len(np.unique(learned.questions[learned.weights > 0]))

    def question_embeddings(self, texts: Sequence[str]) -> dict[str, Float32]:
        """Return the embeddings of those texts that are stored questions."""
        learned = self.examples()
        stored = dict(zip(learned.texts, learned.embeddings, strict=True))
        return {text: stored[text] for text in texts if text in stored}

    def latest_examples(
        self, limit: int, before: int | None = None, document: str | None = None
    ) -> list[StoredExample]:
        """Return the newest examples first: all or older than the one of an id, of all documents
        or of one."""

    def delete_examples(
        self,
        ids: Sequence[int] | None = None,
        documents: Sequence[str] | None = None,
        queries: Sequence[str] | None = None,
    ) -> int:
        """Delete examples by ids, and those of documents and of texts; all of them without any.

        Returns: the number of deletions.
        """

    # -- interactions -----------------------------------------------------------------------

    def add_interactions(
        self,
        interactions: Sequence[Interaction],
        *,
        forget: bool = False,
        liking: Liking | None = None,
    ) -> tuple[int, int]:
        """Store interactions, all or none; the latest of a user and document counts.

        One that is earlier than the stored one is left out; of equal times, or where one has none,
        the last one sent counts.

        Args:
            forget: delete the interactions stored before, in the same step.
            liking: set the threshold of likes in the same step; one of None is chosen from the data
                again.

        Returns: (added, replaced).

        Raises:
            UnknownDocument: names the ids that no document has.
            InvalidRequest: a wrong user, value, time or threshold.
        """
        raise self.unsupported("recommend")

    def delete_interactions(
        self, user: str | None = None, documents: Sequence[str] | None = None
    ) -> int:
        """Delete the interactions of a user, with documents, or both; all of them without either.

        Returns: the number of deletions.
        """
        raise self.unsupported("recommend")

    def interactions(self) -> InteractionSet:
        raise self.unsupported("recommend")

    def interactions_of(self, user: str) -> UserHistory:
        """Return the interactions of a user; none for an unknown user."""
        raise self.unsupported("recommend")

    def interaction_page(
        self, after: tuple[int, int], limit: int, user: str | None = None
    ) -> tuple[list[Interaction], tuple[int, int] | None]:
        """Return the next interactions after a place (0, 0 first), of one user or of all.

        Returns: a page of them, and the place that the following one is after; None at the end.
        """
        raise self.unsupported("recommend")

    def user_page(
        self, after: tuple[int, int], limit: int, contains: str | None = None
    ) -> tuple[list[StoredUser], tuple[int, int] | None]:
        """Return users, those with most interactions first, after a place (0, 0 first).

        Returns: a page of them, and the place that the following one is after; None at the end.
        """
        raise self.unsupported("recommend")

    def interaction_counts(self) -> tuple[int, int]:
        """Return the number of interactions, and of users."""
        return 0, 0

    def liking(self) -> Liking:
        """Return the threshold of likes: as it was set, or as the stored numbers suggest."""
        return Liking()

    def popularity(self) -> tuple[Int64, Int64]:
        """Return the rows of documents with interactions, ascending, and their users."""
        raise self.unsupported("recommend")

    # -- versions ---------------------------------------------------------------------------

    def add_projection(
        self,
        kind: str,
        weights: bytes,
        fingerprint: str,
        note: Mapping[str, Json],
        **details: Unpack[VersionDetails],
    ) -> int:
        """Store a projection and all that belongs to it, in one step. Return its version.

        It answers only after its activation. Offsets of keys and terms of documents that are gone
        are left out.
        """

    def activate_projection(
        self, version: int, expected: int | None = None, **details: Unpack[VersionDetails]
    ) -> None:
        """Let a version answer in its role; `rollback` undoes it.

        Args:
            expected: activate only while this one is active in that role; 0 is the untrained.
            details: a report that takes the place of the version's own, and settings, which are
                stored in the same step.

        Raises:
            Conflict: another version is active by now; nothing was changed.
        """

    def rollback(self, role: Role = "search") -> int:
        """Undo the last activation in a role.

        Returns: the version that answers now; 0 is the untrained.

        Raises:
            Conflict: no activation is left to undo.
        """

    def projections(self) -> list[StoredProjection]: ...

    def active(self, role: Role = "search") -> StoredProjection | None:
        """Return the active version of a role; None for the untrained one."""
        versions = self.projections()
        return next((one for one in versions if one.active and one.role == role), None)

    def version(self, version: int) -> StoredVersion:
        """Return a version's matrices, tuning, offsets and terms, of one moment.

        Raises:
            UnknownProjection: no such version exists.
        """
