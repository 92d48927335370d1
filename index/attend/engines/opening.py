"""Which engine an address names."""

from __future__ import annotations

from pathlib import Path

from attend.engines.local import Folder
from attend.engines.parts import Engine

SCHEME = "milvus://"
"""What the address of a Milvus server begins with."""


def engine_of(where: str | Path, *, read_only: bool = False) -> Engine:
    """The engine at an address: `milvus://HOST:PORT/LIBRARY`, or a folder.

    Raises:
        InvalidRequest: an address of Milvus that is none, or pymilvus is not installed.
        Unavailable: nothing answers there.
    """
    if str(where).startswith(SCHEME):
        from attend.engines.milvus import Milvus  # needs requirements that a folder does not

        return Milvus.at(str(where), read_only=read_only)
    return Folder(Path(where), read_only=read_only)
