"""Engines: where the collections of a library live.

A folder (SQLite and FAISS) is the default and needs nothing else. `milvus://HOST:PORT/LIBRARY` is a
Milvus server or cluster, which needs `requirements-milvus.txt`. Both open collections by one
protocol (`attend.engines.engine`); an engine lists its features in its `Capabilities` and raises
`Unsupported` for the others.
"""

from __future__ import annotations

import re
from pathlib import Path

from attend.core.errors import InvalidRequest
from attend.engines.engine import Engine
from attend.engines.local import Folder

__all__ = ["SCHEME", "engine_of"]

SCHEME = "milvus://"
"""The scheme of a Milvus server's address."""

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
"""One slash: a path has lost the second."""


def engine_of(where: str | Path, *, read_only: bool = False) -> Engine:
    """Return the engine at an address: `milvus://HOST:PORT/LIBRARY`, or a folder.

    Raises:
        InvalidRequest: another address or a wrong one, or pymilvus is not installed.
        Unavailable: no server answers there.
    """
    if str(where).startswith(SCHEME):
        # Needs requirements that a folder does not.
        from attend.engines.milvus.engine import Milvus
        from attend.engines.milvus.server import Address

        return Milvus(Address.of(str(where)))
    if _ADDRESS.match(str(where)):
        raise InvalidRequest(
            f"{str(where)!r} is an address, but a data folder is expected, or "
            f"{SCHEME}HOST:PORT/LIBRARY. There is no client for an Attend server: send it HTTP "
            f"requests, which its page /docs describes."
        )
    return Folder(Path(where), read_only=read_only)
