"""Engines: where the collections of a library live.

A folder (SQLite and FAISS) is the default and needs nothing else. `milvus://HOST:PORT/LIBRARY` is a
Milvus server or cluster, which needs `requirements-milvus.txt`. Both open collections by one
protocol (`attend.engines.engine`); an engine lists its features in its `Capabilities` and raises
`Unsupported` for the others.
"""

from __future__ import annotations

from pathlib import Path

from attend.engines.engine import Engine
from attend.engines.local import Folder

__all__ = ["SCHEME", "engine_of"]

SCHEME = "milvus://"
"""The scheme of a Milvus server's address."""


def engine_of(where: str | Path, *, read_only: bool = False) -> Engine:
    """Return the engine at an address: `milvus://HOST:PORT/LIBRARY`, or a folder.

    Raises:
        InvalidRequest: a wrong address of Milvus, or pymilvus is not installed.
        Unavailable: no server answers there.
    """
    if str(where).startswith(SCHEME):
        # Needs requirements that a folder does not.
        from attend.engines.milvus.engine import Milvus
        from attend.engines.milvus.server import Address

        return Milvus(Address.of(str(where)))
    return Folder(Path(where), read_only=read_only)
