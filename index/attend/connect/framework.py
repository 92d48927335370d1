"""Parts that the connectors of LlamaIndex and Haystack share: filters, listings, threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypeVar

from attend.api.answers import Answer, Hit
from attend.connect.client import listed as listed
from attend.core.types import StoredDocument

if TYPE_CHECKING:
    from attend.collection.collection import Collection
    from attend.connect.client import RemoteCollection

AnyCollection: TypeAlias = "Collection | RemoteCollection"
"""A collection of a local or a remote library."""

Filter = dict[str, Any]

EVERY: Filter = {"@id": {"exists": True}}
"""Lets every document pass, where an empty filter is refused."""

P = ParamSpec("P")
T = TypeVar("T")


def joined(sign: Literal["$and", "$or"], filters: Sequence[Filter]) -> Filter:
    """Return filters as one: without any, all documents pass `$and` and none passes `$or`.

    >>> joined("$or", [{"year": 1851}, {"year": 1815}])
    {'$or': [{'year': 1851}, {'year': 1815}]}
    >>> joined("$and", [])
    {}
    """
    if filters:
        return {sign: list(filters)}
    return {} if sign == "$and" else {"@id": {"in": []}}


def searched(
    collection: AnyCollection, query: Any, k: int, filter: Filter | None, options: Mapping[str, Any]
) -> Answer:
    """Return the answer to a query with the texts of its `k` hits.

    >>> [hit.id for hit in searched(books, [1.0, 0.1], 1, None, {}).hits]
    ['whale']
    """
    request: dict[str, Any] = {"include": ["text"], "attend": max(100, k), **options}
    return collection.search(query, k=k, filter=filter or None, **request)


def similarities(collection: AnyCollection, hits: Sequence[Hit]) -> list[float]:
    """Return the scores of hits over the collection's scale.

    They are the cosines of a query and documents until words, feedback or a training add to them.

    >>> [round(number, 3) for number in similarities(books, books.search([1.0, 0.1], k=1).hits)]
    [0.995]
    """
    if not hits:
        return []
    scale = collection.info().scale
    return [hit.score / scale for hit in hits]


def metadata(document: Hit | StoredDocument) -> dict[str, Any]:
    """Return the payload and the value of a document by the names that filters have for them.

    >>> metadata(books.document("whale"))
    {'year': 1851, 'stars': 4.0}
    """
    value = document.value
    if isinstance(value, Mapping):
        return {**document.payload, **value}
    return {**document.payload} if value is None else {**document.payload, "@value": value}


def text_of(document: Hit | StoredDocument) -> str:
    """Return the texts of a document, one after the other.

    >>> text_of(books.document("whale"))
    ''
    """
    if isinstance(document, Hit):
        return document.text or ""
    return "\n\n".join(document.fields.values())


def in_thread(method: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return the async form of a method, which runs it in a thread.

    >>> import asyncio
    >>> asyncio.run(in_thread(len)("abc"))
    3
    """

    @wraps(method)
    async def call(*args: P.args, **options: P.kwargs) -> T:
        return await asyncio.to_thread(method, *args, **options)

    return call
