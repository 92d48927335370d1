"""Snapshots: one version over one state of a collection; searches take one, which never changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from attend.api.search import SearchOptions
from attend.errors import Conflict
from attend.keys import SearchableKeys, Wanted
from attend.projection import Projection
from attend.store import CollectionStore, Role
from attend.tuning import Tuning
from attend.types import Float32, Int64, Json, OnStage
from attend.versions import Version

ATTEMPTS = 5
"""Attempts at a reading, each over a newer snapshot."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Vanished(Exception):
    """A document was deleted between the search and the reading of its value."""


def until_stable(read: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a reading begin again, over a newer snapshot, while it raises Vanished."""

    @wraps(read)
    def reading(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        for _ in range(ATTEMPTS):
            try:
                return read(*args, **kwargs)
            except Vanished:
                continue
        raise Conflict("The documents change faster than they can be read; try again.")

    return reading


@dataclass(frozen=True)
class View:
    """One version over one state of the collection.

    Attributes:
        made: the version that made the keys.
        keys: keys of width Hk * d.
        change: the number of this state.
    """

    made: Version
    keys: SearchableKeys
    change: int

    @property
    def version(self) -> int:
        """The version's number in the store."""
        return self.made.number

    @property
    def projection(self) -> Projection:
        """The projection in the form (folded or materialised) of `keys`."""
        return self.made.projection

    @property
    def tuning(self) -> Tuning:
        return self.made.tuning

    @property
    def index_stats(self) -> dict[str, Json]:
        """Statistics of the index."""
        return {
            **{name: value for name, value in self.keys.index.items() if name != "points"},
            "exact": self.keys.promises() == 1,
            "published": self.keys.generation,
            "keys": self.keys.indexed,
            "fresh": self.keys.fresh,
        }


class SnapshotSource(Protocol):
    """Opens and publishes the keys of a collection's versions, in any engine."""

    wanted: Wanted

    def current(self, version: int | None = None, role: Role = "search") -> View:
        """Return a version's view, or that of the active version of a role."""

    def mean(self) -> Float32:
        """Return the mean of all keys' embeddings (d,)."""

    def publish(self, on_stage: OnStage = lambda stage, done: None) -> View:
        """Write the keys so that the next process need not make them."""

    def merge_if_due(self) -> None:
        """Publish if too many keys were written since the last time."""

    def has_fresh(self) -> bool:
        """Return whether keys were written since the last publication."""


class Selected(NamedTuple):
    """A view, and the documents of it that a search may attend to.

    Attributes:
        rows: the documents that filter and mask let pass, ascending; None for all of the view.
        store: where the contents of these documents are read.
    """

    view: View
    rows: Int64 | None
    store: CollectionStore


Selects: TypeAlias = Callable[[SearchOptions, tuple[int, ...]], Selected]
"""Selects for the options of a search, and the rows of documents that its queries are made of,
which are masked."""
