"""Requests that are answered together: those of one set of options, of as many callers."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attend.api.queries import Query
from attend.api.search import SearchOptions, SearchRequest
from attend.consistency import Consistency
from attend.search.asking import Asked
from attend.search.paging import fingerprint
from attend.types import Float32, Float64, Json
from attend.versions import Version

PAGE = {"k", "offset", "cursor", "fields", "facets", "title", "highlight", "explain"}
"""Which page is asked for, and what besides."""

CHARACTERS = 100
"""Of text that cost about what searching for one more query does."""


class Batch(NamedTuple):
    """Queries of one set of options on their way to a view.

    Attributes:
        fingerprints: of what was asked, without the page.
        began: when each was asked.
        parts: what the parts of each mixture are, as `explain` names them: by place, and id or
            text.
        asked: the queries' embeddings and what else is known of them; none yet if empty.
    """

    queries: Sequence[Query]
    options: SearchOptions
    fingerprints: Sequence[str]
    began: Sequence[float]
    parts: Sequence[Sequence[Mapping[str, Json]]]
    asked: Sequence[Asked] = ()

    @classmethod
    def of(cls, requests: Sequence[SearchRequest], began: float, asked: Sequence[Asked]) -> Batch:
        """Requests with the same key."""
        return cls(
            [request.query for request in requests],
            requests[0],
            [_fingerprint(request) for request in requests],
            [began] * len(requests),
            [_named(request.query) for request in requests],
            asked,
        )

    @property
    def cost(self) -> int:
        """As a number of queries by vector."""
        texts = [part.text for query in self.queries for part in query.parts() if part.text]
        return len(self.queries) + sum(map(len, texts)) // CHARACTERS

    @property
    def own(self) -> tuple[int, ...]:
        """Rows of the documents that the queries are made of, where these are masked."""
        if not self.options.exclude_self:
            return ()
        return tuple(sorted({row for asked in self.asked for row in asked.own}))

    def embeddings(self, made: Version) -> Float32:
        """(q, d), of a mixture (p, d); documents as a version has learned that they ask."""
        rows = np.concatenate([np.array(each.rows, dtype=np.int64) for each in self.asked])
        return made.asking(np.concatenate([each.embeddings for each in self.asked]), rows)

    @property
    def weights(self) -> Float64 | None:
        """Of the parts of the mixture, which is in a batch of its own."""
        return self.asked[0].weights


def joined(batches: Sequence[Batch]) -> Batch:
    """Batches with the same key as one, not yet asked."""
    return Batch(
        [query for batch in batches for query in batch.queries],
        batches[0].options,
        [each for batch in batches for each in batch.fingerprints],
        [began for batch in batches for began in batch.began],
        [each for batch in batches for each in batch.parts],
    )


def grouped(requests: Sequence[SearchRequest]) -> Mapping[Hashable, list[int]]:
    """Places of the requests that may be answered together, by a key that says so of others."""
    groups = defaultdict(list)
    for at, request in enumerate(requests):
        groups[_key(request)].append(at)
    return groups


def options_of(request: SearchRequest) -> str:
    """What is to be the same for requests to be answered together."""
    return request.model_dump_json(exclude={"query"})


def strictest(requests: Sequence[SearchRequest]) -> Consistency | None:
    """What suits all of them, as their queries are read together."""
    said = {request.consistency for request in requests}
    return "strong" if "strong" in said else None if None in said else "bounded"


def _key(request: SearchRequest) -> Hashable:
    query = request.query
    parts = query.parts()
    # Without text there are no words, and what was fitted with them does not fit.
    worded = any(part.text and part.weight > 0 for part in parts)
    masked = tuple(part.id for part in parts if part.id) if request.exclude_self else ()
    # A mixture has heads of its own: nothing is answered together with it.
    alone = None if query.mixture is None else object()
    return worded, masked, alone, options_of(request)


def _fingerprint(request: SearchRequest) -> str:
    vector = request.query.vector
    if vector is None:
        return fingerprint(request.model_dump_json(exclude=PAGE))
    # As JSON a vector takes more time than most searches for it.
    options = request.model_dump_json(exclude=PAGE | {"query"})
    return fingerprint(options, array("d", vector).tobytes())


def _named(query: Query) -> list[Mapping[str, Json]]:
    return [
        {"part": at, **part.model_dump(include={"id", "text"}, exclude_none=True)}
        for at, part in enumerate(query.mixture or ())
    ]
