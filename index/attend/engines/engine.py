"""The seam to engines: what an engine gives for a library and for an opened collection.

A distribution adds an engine by an entry point of the group `attend.engines`, whose name is the
scheme of its addresses: a function that takes an address and returns an `Engine`. Its collections
are an `OpenedCollection` each: a store of documents (`attend.store.CollectionStore`) and a source
of snapshots. A search selects one snapshot (`SnapshotSource.select`) and asks it in batches:
`search(queries, rows, attend) -> candidates` (`attend.keys.SearchableKeys`), with the filter
applied by the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias, Unpack

from attend.api.base import Consistency
from attend.api.search import Mask, SearchOptions
from attend.collection.versions import View
from attend.core.errors import CollectionExists, Unsupported
from attend.core.settings import Settings
from attend.core.types import Float32, Int64, Json, OnStage
from attend.encoder import Encoder
from attend.search.queries import rows_by_id
from attend.store import CollectionStore, Role, VersionDetails
from attend.store.searches import SearchLog


@dataclass(frozen=True)
class Capabilities:
    """The features of one engine; it refuses the others with a sentence.

    Attributes:
        engine: its name.
        atomic_batches: a batch of documents is written whole or not at all; else document by
            document.
        lexical: words that a query and a document share can count.
        recency: the times of documents can count in searches.
        match: filters can ask for words and parts of a text.
        attend_all: weights over all documents, matrices, mixtures and decoding, which read all.
        attend_most: the largest `attend`; None without a limit of the engine's own.
        any_scorer: scorers that an index does not support see all keys; else candidates only, and
            the answer says that it is not exact.
        facets: values of fields can be counted.
        insertion_order: documents are listed in the order in which they came; else in another
            order that stays.
        recommend: histories and interactions.
        examples: questions and their answers can be stored.
        memory: stored examples move the queries of searches, before any training.
        train: the parts of a version that can be trained from examples in place.
        jobs: trainings can be started over HTTP.
        snapshots: a collection can be written to a file while it serves.
        reindex: the encoder of a collection can be changed while it serves.
        foreign: queries that are foreign to a collection are told before any training.
        log: searches can be logged.
        text_bytes, content_bytes: the largest size of a document's texts, and of its value and
            payload together, as JSON; None if only requests are limited.
        window: documents that a build encodes and stores together; None for any number.
        consistency: reads can be `bounded` or `strong`.
        refusals: by capability that is lacking: the subject of the sentence that refuses it, in
            the plural, and what to do instead.
    """

    engine: str
    atomic_batches: bool = True
    lexical: bool = True
    recency: bool = True
    match: bool = True
    attend_all: bool = True
    attend_most: int | None = None
    any_scorer: bool = True
    facets: bool = True
    insertion_order: bool = True
    recommend: bool = True
    examples: bool = True
    memory: bool = True
    train: tuple[str, ...] = ("matrices", "offsets", "examples", "words", "recency")
    jobs: bool = True
    snapshots: bool = True
    reindex: bool = True
    foreign: bool = True
    log: bool = True
    text_bytes: int | None = None
    content_bytes: int | None = None
    consistency: bool = False
    window: int | None = None
    refusals: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)

    def check(self, name: str, *, field: str | None = None) -> None:
        """Raise Unsupported if the engine lacks a capability.

        Args:
            field: the field of the request that needs it.
        """
        if not getattr(self, name):
            raise self.lacking(name, field=field)

    def lacking(self, name: str, *, field: str | None = None) -> Unsupported:
        """Return the error for a capability that the engine lacks."""
        return self.unsupported(*self.refusals[name], field=field)

    def unsupported(self, subject: str, advice: str, *, field: str | None = None) -> Unsupported:
        """Return the error for something that the engine cannot do.

        Args:
            subject: the subject of the sentence, in the plural.
            advice: what to do instead, as the rest of the sentence.
        """
        return Unsupported(
            f"{subject} are not supported by the engine {self.engine}; {advice}.", field=field
        )

    def json(self) -> Mapping[str, Json]:
        return {name: item for name, item in asdict(self).items() if name != "refusals"}


class Finding(NamedTuple):
    """One problem.

    Attributes:
        check: the invariant that it breaks.
        problem: a sentence.
        remedy: the result of a repair, or what the user can do if `can_mend` is false.
    """

    check: str
    problem: str
    can_mend: bool
    remedy: str


class Checks(Protocol):
    """The invariants of one collection."""

    def find(self) -> list[Finding]:
        """Return the problems; reads everything, while others may write."""

    def repair(self, names: set[str]) -> None:
        """Repair the problems of the checks of these names, if they can be repaired."""


Selected: TypeAlias = "tuple[View, Int64 | None, Int64]"
"""The snapshot of one search; see `SnapshotSource.select`."""

OnSettings: TypeAlias = Callable[[Settings], None]
"""Called with the settings of a collection after they have changed."""


class SnapshotSource(Protocol):
    """Opens and publishes the keys of a collection's versions.

    Attributes:
        on_settings: called once another process, or this one, changed the settings.
        damage: the last damage of an index that was found since it was opened, and repaired.
    """

    on_settings: OnSettings

    @property
    def damage(self) -> str | None: ...

    def refresh(self) -> None:
        """Look whether the settings were changed; `current` and each search look, too."""

    def current(self, version: int | None = None, role: Role = "search") -> View:
        """Return a version's view, or that of the active version of a role."""

    def select(self, options: SearchOptions, query_rows: tuple[int, ...]) -> Selected:
        """Return the snapshot of one search.

        Args:
            query_rows: documents that its queries are made of, which are masked, unless a mask
                names those that stay.

        Returns: a view; the documents of it that filter and mask let pass, ascending, None for
            all; a few, ascending, that are masked besides.
        """

    def mean(self) -> Float32:
        """Return the mean of keys' embeddings (d,) that queries are centred by."""

    def publish(self, on_stage: OnStage = lambda stage, done: None) -> View:
        """Write the keys so that the next process need not make them."""

    def merge_if_due(self) -> None:
        """Publish if too many keys were written since the last time."""

    def has_fresh(self) -> bool:
        """Return whether keys were written since the last publication."""


def masked(
    store: CollectionStore, options: SearchOptions, query_rows: tuple[int, ...]
) -> tuple[set[int], list[int] | None]:
    """Return the rows that the mask of a search leaves out, and those that it leaves; None: all.

    Documents that the query is made of are left out, unless the mask names those that stay.
    """
    mask = options.mask or Mask()
    named = rows_by_id(store, [*mask.exclude, *(mask.only or [])], "mask")
    excluded = {named[id] for id in mask.exclude}
    if mask.only is None:
        return excluded | set(query_rows), None
    return excluded, [named[id] for id in mask.only]


@dataclass(frozen=True)
class OpenedCollection:
    """One collection as its engine opens it.

    Attributes:
        folder: of its files; for an engine without files, a unique name.
        consistent: lets the reads of this thread within a block have the `consistency` of a
            request; None leaves it to the engine, and one with a single consistency ignores it.
        read_only: nothing is written, searches are not logged.
    """

    folder: Path
    settings: Settings
    store: CollectionStore
    views: SnapshotSource
    capabilities: Capabilities
    checks: Checks
    consistent: Callable[[Consistency | None], AbstractContextManager[object]] = nullcontext
    read_only: bool = False


class StoredCollection(Protocol):
    """A collection as its parts, feedback and trainings see it, which `Collection` itself uses.

    Attributes:
        settings: as they are stored by now.
    """

    name: str
    settings: Settings
    store: CollectionStore
    views: SnapshotSource
    capabilities: Capabilities

    @property
    def log(self) -> SearchLog | None: ...

    def encoder(self) -> Encoder: ...

    def merge_if_due(self) -> None: ...

    def activate(self, version: int, expected: int, **details: Unpack[VersionDetails]) -> None: ...


class AliasNames(Protocol):
    """The aliases of a library: names that stand for collections."""

    def all(self) -> dict[str, str]:
        """Return the collection of each alias, in alphabetical order."""

    def target(self, name: str) -> str | None:
        """Return the collection that an alias leads to, there or not; None for no alias."""

    def put(self, name: str, collection: str) -> None:
        """Let an alias lead to a collection. Raise CollectionExists where one has its name."""

    def remove(self, name: str) -> bool:
        """Delete an alias, and return whether there was one; its collection stays."""


class Engine(Protocol):
    """Stores collections by name. Its caller has checked the names."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def aliases(self) -> AliasNames: ...

    def names(self) -> list[str]:
        """Return the collections, without aliases, in alphabetical order."""

    def identity(self, name: str) -> object | None:
        """Return an identity that changes when a collection is made again; None if it is gone."""

    def open(self, name: str) -> OpenedCollection: ...

    def make(self, name: str, settings: Settings) -> None:
        """Make a collection unless it exists; an interrupted call leaves none."""

    def drop(self, name: str) -> None: ...

    def exchange(self, name: str, other: str) -> None:
        """Let two collections change their names, in one step and in every process."""

    def close(self) -> None: ...


def name_taken(name: str) -> CollectionExists:
    """Return the error for a name that a collection has."""
    return CollectionExists(
        f"There is a collection {name!r}, and an alias cannot have its name; choose another.",
        field="alias",
    )
