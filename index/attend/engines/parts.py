"""What an engine gives, and what is asked of one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from attend.engines.capabilities import Capabilities
from attend.engines.checks import Checks
from attend.search.selecting import Selects
from attend.settings import Settings
from attend.store import CollectionStore
from attend.views import Views


class Parts(NamedTuple):
    """One collection, opened.

    Attributes:
        folder: of its files; of an engine without any, a name that is the collection's alone.
        select: what one search looks at.
        checks: what verification looks at; None where it is the files.
    """

    folder: Path
    settings: Settings
    store: CollectionStore
    views: Views
    select: Selects
    capabilities: Capabilities
    checks: Checks | None = None


class Names(Protocol):
    """The aliases of a library: names that stand for collections."""

    def all(self) -> dict[str, str]: ...
    def target(self, name: str) -> str | None: ...
    def put(self, name: str, collection: str) -> bool: ...
    def remove(self, name: str) -> None: ...


class Engine(Protocol):
    """Keeps collections by name. Names that it is given have been checked."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def aliases(self) -> Names: ...

    def names(self) -> list[str]:
        """The collections, without aliases, in alphabetical order."""

    def identity(self, name: str) -> object | None:
        """Another for a collection that was dropped and made anew; None where there is none."""

    def open(self, name: str) -> Parts: ...

    def make(self, name: str, settings: Settings) -> None:
        """Make a collection, unless somebody has meanwhile; a killed one leaves none."""

    def drop(self, name: str) -> None: ...

    def close(self) -> None: ...
