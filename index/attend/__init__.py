"""Attend: a database as an attention layer.

Documents are keys with values; a query attends to them, and the answer is the best of
them (hard) or the blend of their values (soft). `open` opens a library of collections;
`Collection` takes documents and answers queries.

```
import attend

library = attend.open("library")
books = library.ensure("books")
books.upsert([{"id": "moby-dick", "text": "A whale, hunted.", "value": 4.2}])
print(books.search("a story of the sea").hits[0].id)
```
"""

from __future__ import annotations

import os

# Before any library that reads them is imported; a user's own setting stays.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from pathlib import Path
from typing import TYPE_CHECKING, Any

import lazy_loader

if TYPE_CHECKING:
    from attend.api.answers import Answer, Hit
    from attend.api.base import DEFAULT_COLLECTION
    from attend.collection.collection import Collection
    from attend.collection.data import Data
    from attend.connect.aio import AsyncLibrary
    from attend.connect.client import RemoteLibrary
    from attend.core.errors import AttendError
    from attend.core.types import Document

__version__ = "0.1.0"  # the only place: the distribution and `attend --version` read it

__all__ = [
    "DEFAULT_COLLECTION",
    "Answer",
    "AttendError",
    "Collection",
    "Data",
    "Document",
    "Hit",
    "__version__",
    "open",
    "open_async",
]

# Imported when they are used: a command line that only prints its help waits for none of them.
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "api.answers": ["Answer", "Hit"],
        "api.base": ["DEFAULT_COLLECTION"],
        "collection.collection": ["Collection"],
        "collection.data": ["Data"],
        "core.errors": ["AttendError"],
        "core.types": ["Document"],
    },
)


def open(
    where: str | Path,
    *,
    read_only: bool = False,
    cache_bytes: int = 0,
    api_key: str | None = None,
    timeout: float = 120.0,
) -> Data | RemoteLibrary:
    """Open the library in a folder, or at an address.

    The folder need not exist: the first collection creates it. A server's library has the same
    methods, results and errors; it is read and written over HTTP.

    Args:
        where: the data folder; `http://HOST:PORT` of an Attend server; or the address of another
            engine, `milvus://HOST:PORT/LIBRARY`.
        read_only: write nothing; what other processes write is seen all the same.
        cache_bytes: memory for the embeddings of repeated queries.
        api_key: the key of a server that asks for one.
        timeout: seconds to wait for a server's answer.

    Raises:
        InvalidRequest: a wrong address, or an option that is not for it.

    >>> import tempfile
    >>> library = open(tempfile.mkdtemp())
    >>> points = library.create("points", dimension=2)
    >>> points.upsert([{"id": "north", "vector": [0, 1]}, {"id": "east", "vector": [1, 0]}]).added
    2
    >>> points.search([0.1, 0.9]).hits[0].id
    'north'
    >>> library.close()
    """
    if isinstance(where, str) and where.lower().startswith(("http:", "https:")):
        from attend.connect.client import RemoteLibrary

        if read_only or cache_bytes:
            from attend.core.errors import InvalidRequest

            raise InvalidRequest(
                f"read_only and cache_bytes are for a library that this process opens itself, and "
                f"{where} is a server's. Leave them out; a key of the scope read writes nothing.",
                field="read_only" if read_only else "cache_bytes",
            )
        return RemoteLibrary(where, api_key=api_key, timeout=timeout)
    from attend.collection.data import Data

    return Data(where, read_only=read_only, cache_bytes=cache_bytes)


async def open_async(where: str | Path, **options: Any) -> AsyncLibrary:
    """Open a library as `open` does, for asyncio: its methods are awaited.

    >>> import asyncio, tempfile
    >>> async def names():
    ...     async with await open_async(tempfile.mkdtemp()) as library:
    ...         await library.create("points", dimension=2)
    ...         return await library.names()
    >>> asyncio.run(names())
    ['points']
    """
    from attend.connect.aio import AsyncLibrary

    return AsyncLibrary(open(where, **options))
