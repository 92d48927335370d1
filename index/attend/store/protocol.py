"""The protocol of a store of one collection, which every engine implements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, Unpack

from attend.api.answers import Facet
from attend.core.arrays import KeyTable
from attend.core.errors import Unsupported
from attend.core.liking import Liking
from attend.core.types import Consistency, Float32, Int64, Json
from attend.store.filters import Predicate
from attend.store.records import (
    Entry,
    ExampleSet,
    Hashes,
    Interaction,
    InteractionPage,
    InteractionSet,
    NewExample,
    Question,
    Role,
    State,
    StoredDocument,
    StoredExample,
    StoredKey,
    StoredProjection,
    StoredVersion,
    UserHistory,
    VersionDetails,
)
from attend.store.words import Lexical


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

    def put_settings(self, changes: Mapping[str, Json]) -> None:
        """Change settings that may change while the collection holds documents."""

    def count_up(self, name: str) -> int:
        """Add one to a number among the settings, 0 where it is absent, and return it."""

    def record(self, name: str, value: Json) -> None:
        """Store a value beside the settings, which other processes need not look at soon."""
        raise self.unsupported("foreign")

    def state(self) -> State: ...

    def reading(self) -> AbstractContextManager[object]:
        """Let the reads within the block see one moment, or as nearly as the engine can."""

    def consistent(self, consistency: Consistency | None) -> AbstractContextManager[object]:
        """Let the reads of this thread within the block have a consistency; None changes nothing.

        An engine with one consistency ignores it.
        """

    # -- documents --------------------------------------------------------------------------

    def counts(self) -> tuple[int, int]:
        """Return the number of documents, and of their keys without those of examples."""

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

    def embeddings(self, ids: Sequence[int]) -> list[Float32]:
        """Return the raw embeddings of keys, in the order of `ids`, without gone ones."""

    def all_keys(
        self, *, examples: bool = False
    ) -> AbstractContextManager[tuple[State, Iterator[KeyTable]]]:
        """Read all keys by document, in tables, with the state in which they are read."""

    def lexical(self, text: str, limit: int | None = None) -> Lexical:
        """Find the documents that share words with a text, by BM25: all, or the `limit` best."""
        return self.lexical_many([text], limit)[0]

    def lexical_many(self, texts: Sequence[str], limit: int | None = None) -> list[Lexical]:
        """Do the same for many texts, in one state of the collection."""
        raise self.unsupported("lexical")

    def lexical_without(self, text: str, rows: Int64, limit: int | None = None) -> Lexical:
        """Find the documents that share words with a text, as if those of some rows were gone."""
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
    ) -> tuple[int, int]:
        """Store which documents answer which questions, all or none.

        An example of the same question and document is replaced. Questions are the same by
        their text, or without one by their embedding; a new embedding of a text gives its
        examples other keys.

        Args:
            forget: delete the examples stored before, in the same step.

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

    def question_embeddings(self, texts: Sequence[str]) -> dict[str, Float32]:
        """Return the embeddings of those texts that are stored questions."""
        learned = self.examples()
        stored = dict(zip(learned.texts, learned.embeddings, strict=True))
        return {text: stored[text] for text in texts if text in stored}

    def latest_examples(self, limit: int, before: int | None = None) -> list[StoredExample]:
        """Return the newest examples first, or those older than the one of that id."""

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
    ) -> InteractionPage:
        """Return the next interactions after a place (0, 0 first), of one user or of all."""
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
        self,
        version: int,
        expected: int | None = None,
        report: Mapping[str, Json] | None = None,
    ) -> None:
        """Let a version answer in its role; `rollback` undoes it.

        Args:
            expected: activate only while this one is active in that role; 0 is the untrained.
            report: takes the place of the version's own, in the same step.

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
