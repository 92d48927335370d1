"""Libraries and collections for asyncio: each method runs in a thread, and is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from attend.api.base import DEFAULT_COLLECTION
from attend.connect.client import RemoteCollection, RemoteLibrary

if TYPE_CHECKING:
    from attend.collection.collection import Collection
    from attend.collection.data import Data

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _awaited(
    method: Callable[Concatenate[Any, Arguments], Result],
) -> Callable[Concatenate[Any, Arguments], Awaitable[Result]]:
    """Return a method for asyncio, of what `self.waits_for` holds."""

    async def awaited(
        self: Any, /, *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        blocking: Callable[..., Result] = getattr(self.waits_for, method.__name__)
        return await asyncio.to_thread(blocking, *arguments, **options)

    update_wrapper(awaited, method)
    return awaited


class AsyncCollection:
    """A collection whose methods are awaited, local or on a server.

    >>> import asyncio
    >>> asyncio.run(AsyncCollection(books).search([1.0, 0.1], k=1)).hits[0].id
    'whale'
    """

    def __init__(self, collection: Collection | RemoteCollection) -> None:
        self.waits_for, self.name = collection, collection.name

    search = _awaited(RemoteCollection.search)
    search_many = _awaited(RemoteCollection.search_many)
    matrix = _awaited(RemoteCollection.matrix)
    recommend = _awaited(RemoteCollection.recommend)
    teach = _awaited(RemoteCollection.teach)
    add_interactions = _awaited(RemoteCollection.add_interactions)
    train = _awaited(RemoteCollection.train)
    upsert = _awaited(RemoteCollection.upsert)
    revise = _awaited(RemoteCollection.revise)
    page = _awaited(RemoteCollection.page)
    facets = _awaited(RemoteCollection.facets)
    ids = _awaited(RemoteCollection.ids)
    delete_matching = _awaited(RemoteCollection.delete_matching)
    delete = _awaited(RemoteCollection.delete)
    document = _awaited(RemoteCollection.document)
    projections = _awaited(RemoteCollection.projections)
    activate = _awaited(RemoteCollection.activate)
    rollback = _awaited(RemoteCollection.rollback)
    info = _awaited(RemoteCollection.info)

    async def configure(self, **changes: Any) -> bool:
        """Change settings, and return whether anything changed."""
        return await asyncio.to_thread(self.waits_for.configure, **changes)


class AsyncLibrary:
    """A library whose methods are awaited; `attend.open_async` returns one."""

    def __init__(self, library: Data | RemoteLibrary) -> None:
        self.waits_for = library

    async def __aenter__(self) -> AsyncLibrary:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    names = _awaited(RemoteLibrary.names)
    aliases = _awaited(RemoteLibrary.aliases)
    resolve = _awaited(RemoteLibrary.resolve)
    set_alias = _awaited(RemoteLibrary.set_alias)
    drop_alias = _awaited(RemoteLibrary.drop_alias)
    drop = _awaited(RemoteLibrary.drop)
    search = _awaited(RemoteLibrary.search)
    close = _awaited(RemoteLibrary.close)

    async def collection(self, name: str = DEFAULT_COLLECTION) -> AsyncCollection:
        """Return an existing collection, by its name or an alias."""
        return AsyncCollection(await asyncio.to_thread(lambda: self.waits_for.collection(name)))

    async def create(self, name: str = DEFAULT_COLLECTION, **settings: Any) -> AsyncCollection:
        """Create a collection, or return an existing one of the same settings."""
        return AsyncCollection(
            await asyncio.to_thread(lambda: self.waits_for.create(name, **settings))
        )

    async def ensure(self, name: str = DEFAULT_COLLECTION, **settings: Any) -> AsyncCollection:
        """Return an existing collection, which must have the settings named, or create one."""
        return AsyncCollection(
            await asyncio.to_thread(lambda: self.waits_for.ensure(name, **settings))
        )
