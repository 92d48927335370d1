"""What is stored of a collection, as any engine offers it to whoever reads and writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from attend.ingest import Entries
from attend.recommend.history import Interacted
from attend.recommend.next_items import Items
from attend.recommend.predicting import Rated
from attend.recommend.trained import Versions
from attend.search.answering import Contents
from attend.search.searching import Searched
from attend.store import (
    Interaction,
    InteractionPage,
    Interactions,
    KeyBatch,
    Learned,
    Lexical,
    NewExample,
    Predicate,
    Question,
    Role,
    State,
    StoredDocument,
    StoredProjection,
    Terms,
)
from attend.store.examples import StoredExample
from attend.types import Float32, Int64, Json


class Reads(Protocol):
    """How reads go together."""

    def reading(self) -> AbstractContextManager[object]:
        """Reads within it are of one moment, or as near to that as the engine comes."""


class Versioned(Versions, Protocol):
    """The versions of a projection."""

    def add_projection(
        self,
        kind: str,
        weights: bytes,
        fingerprint: str,
        note: Mapping[str, Json],
        *,
        tuning: Mapping[str, Json] | None = None,
        report: Mapping[str, Json] | None = None,
        offsets: tuple[Int64, Float32] | None = None,
        terms: Terms | None = None,
        last_key: int | None = None,
        role: Role = "search",
        activate: bool = False,
    ) -> int: ...

    def activate_projection(self, version: int, expected: int | None = None) -> None: ...
    def rollback(self, role: Role = "search") -> int: ...
    def projections(self) -> list[StoredProjection]: ...
    def active(self, role: Role = "search") -> StoredProjection | None: ...
    def role_of(self, version: int) -> Role: ...
    def projection_weights(self, version: int) -> bytes: ...


class Taught(Protocol):
    """Examples and interactions."""

    def add_examples(
        self,
        questions: Sequence[Question],
        examples: Sequence[NewExample],
        *,
        forget: bool = False,
    ) -> tuple[int, int]: ...

    def delete_examples(
        self, ids: Sequence[int] | None = None, documents: Sequence[str] | None = None
    ) -> int: ...

    def learned(self) -> Learned: ...
    def example_count(self) -> int: ...
    def question_count(self) -> int: ...

    def latest_examples(self, limit: int, before: int | None = None) -> list[StoredExample]: ...

    def add_interactions(
        self, given: Sequence[Interaction], *, forget: bool = False
    ) -> tuple[int, int]: ...

    def delete_interactions(
        self, user: str | None = None, documents: Sequence[str] | None = None
    ) -> int: ...

    def interactions(self) -> Interactions: ...

    def interaction_page(
        self, after: tuple[int, int], limit: int, user: str | None = None
    ) -> InteractionPage: ...

    def interaction_counts(self) -> tuple[int, int]: ...


class Stored(Searched, Contents, Entries, Items, Interacted, Rated, Versioned, Taught, Protocol):
    """What is stored of one collection, as those who read and write it see it."""

    @property
    def connections(self) -> Reads: ...

    def close(self) -> None: ...
    def put_settings(self, changes: Mapping[str, Json]) -> None: ...
    def counts(self) -> tuple[int, int]: ...
    def count(self, predicate: Predicate) -> int: ...
    def all_ids(self) -> Iterator[str]: ...

    def scroll(
        self, after: int, limit: int, predicate: Predicate | None = None
    ) -> list[StoredDocument]: ...

    def all_keys(
        self, *, examples: bool = False
    ) -> AbstractContextManager[tuple[State, Iterator[KeyBatch]]]: ...

    def lexical(self, text: str, limit: int | None = None) -> Lexical: ...

    def revise(
        self,
        id: str,
        change: Callable[[StoredDocument], StoredDocument],
        hash: Callable[[Json, Mapping[str, Json]], bytes],
    ) -> StoredDocument | None: ...

    def delete(self, ids: Sequence[str]) -> int: ...
    def delete_matching(self, predicate: Predicate) -> int: ...
