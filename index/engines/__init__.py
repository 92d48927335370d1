"""Engines: where the collections of a library live.

A folder (SQLite and FAISS) is the default and needs nothing else. `milvus://HOST:PORT/LIBRARY` is a
Milvus server or cluster, which needs `requirements-milvus.txt`. Both give `Data` the same `Parts`;
what one cannot do it declares in its `Capabilities` and refuses with `Unsupported`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from index.engines.capabilities import Capabilities, unsupported
from index.search.selecting import Selects
from index.settings import Settings
from index.store import Store
from index.views import Views

__all__ = ["SCHEME", "Capabilities", "Engine", "Names", "Parts", "engine_of", "unsupported"]

SCHEME = "milvus://"
"""What the address of a Milvus server begins with."""


class Parts(NamedTuple):
    """One collection, opened.

    Attributes:
        folder: of its files; of an engine without any, a name that is the collection's alone.
        select: what one search looks at.
    """

    folder: Path
    settings: Settings
    store: Store
    views: Views
    select: Selects
    capabilities: Capabilities


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


def engine_of(where: str | Path, *, read_only: bool = False) -> Engine:
    """The engine at an address: `milvus://HOST:PORT/LIBRARY`, or a folder.

    Raises:
        InvalidRequest: an address of Milvus that is none, or pymilvus is not installed.
        Unavailable: nothing answers there.
    """
    if str(where).startswith(SCHEME):
        from index.engines.milvus import Milvus  # needs requirements that a folder does not

        return Milvus.at(str(where), read_only=read_only)
    from index.engines.local import Folder  # which imports this

    return Folder(Path(where), read_only=read_only)
