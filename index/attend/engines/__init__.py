"""Engines: where the collections of a library live.

A folder (SQLite and FAISS) is the default and needs nothing else. The scheme of any other address
names an engine that an installed distribution brings, as an entry point of the group
`attend.engines`: a function of the address. With `pip install 'attend-retrieval[milvus]'`,
`milvus://HOST:PORT/LIBRARY` is a Milvus server or cluster. All open collections by one protocol
(`attend.engines.engine`); an engine lists its features in its `Capabilities` and raises
`Unsupported` for the others.
"""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

from attend.core.errors import InvalidRequest
from attend.engines.engine import Engine
from attend.engines.local import Folder

__all__ = ["engine_of", "is_address"]

GROUP = "attend.engines"
"""The group of entry points that name engines."""

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/", re.IGNORECASE)
"""One slash: a path has lost the second."""


def is_address(where: str | Path) -> bool:
    """Return whether collections live elsewhere than in a folder."""
    return _ADDRESS.match(str(where)) is not None


def engine_of(where: str | Path, *, read_only: bool = False) -> Engine:
    """Return the engine at an address, such as `milvus://HOST:PORT/LIBRARY`, or in a folder.

    Raises:
        InvalidRequest: a wrong address, or no engine is installed for its scheme.
        Unavailable: no server answers there.
    """
    address = _ADDRESS.match(str(where))
    if address is None:
        return Folder(Path(where), read_only=read_only)
    scheme = address[1].lower()
    for engine in entry_points(group=GROUP, name=scheme):
        opened: Engine = engine.load()(str(where))
        return opened
    raise InvalidRequest(
        f"{str(where)!r} is an address, but a data folder is expected: no engine {scheme!r} is "
        f"installed. For milvus://HOST:PORT/LIBRARY run 'pip install attend-retrieval[milvus]'. "
        f"There is no client for an Attend server: send it HTTP requests, which its page /docs "
        f"describes.",
        field="engine",
    )
