"""Scheduling: searches of one set of options are answered together, of any number of callers."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import islice
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np

from attend.api.answers import Answer
from attend.api.queries import QueryPart
from attend.api.search import MAX_BATCH, SearchRequest
from attend.coalesce import Coalescer
from attend.errors import Conflict, InvalidRequest
from attend.search.attend import Attention
from attend.search.encode import EncodedQuery, QueryEncoder
from attend.search.scoring import Queries
from attend.search.words import WordScores
from attend.store import CollectionStore
from attend.timings import collecting, tell
from attend.types import Consistency
from attend.versions import Version

CHARACTERS = 100
"""Characters of text that cost about what searching for one more query does."""

TOGETHER = 64
"""Queries of different callers that are searched at once, or text that costs the same."""

ATTEMPTS = 5
"""Attempts at a reading, each over a newer snapshot."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Vanished(Exception):
    """A document was deleted between the search and the reading of its value."""


def until_stable(read: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a reading begin again, over a newer snapshot, while it raises Vanished."""

    @wraps(read)
    def reading(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        for _ in range(ATTEMPTS):
            try:
                return read(*args, **kwargs)
            except Vanished:
                continue
        raise Conflict("The documents change faster than they can be read; try again.")

    return reading


@dataclass(slots=True)
class Search:
    """A request on its way to its answer.

    Attributes:
        parts: what the query is made of.
        started: by `time.perf_counter`.
        query: its embeddings, once they are known.
    """

    request: SearchRequest
    parts: Sequence[QueryPart]
    started: float
    query: EncodedQuery | None = None


class Answered(NamedTuple):
    """An answer, and the attention behind it: that of the query at `place`."""

    answer: Answer
    attention: Attention
    place: int


class Scheduler:
    """Answers requests of many threads in few calls: one for each set of options."""

    def __init__(
        self,
        answer: Callable[[Sequence[Sequence[Search]]], list[list[Answered]]],
        encoder: QueryEncoder,
        store: CollectionStore,
    ) -> None:
        """
        Args:
            answer: answers searches of one set of options, by caller.
        """
        self._encoder = encoder
        self._store = store
        self._coalescer = Coalescer(answer, _cost, TOGETHER)

    def answer(self, requests: Sequence[SearchRequest]) -> list[Answered]:
        """Answer requests together: one encoder call, and one search per set of options."""
        if len(requests) > MAX_BATCH:
            raise InvalidRequest(
                f"{len(requests)} searches were sent at once; at most {MAX_BATCH} are taken.",
                field="searches",
            )
        started = time.perf_counter()
        searches = [Search(request, request.query.parts(), started) for request in requests]
        groups: dict[Hashable, list[int]] = {}
        for place, search in enumerate(searches):
            groups.setdefault(_key(search), []).append(place)
        answers: dict[int, Answered] = {}
        with collecting() as spent:
            if len(groups) > 1:  # one call of the encoder for all
                with self._store.consistent(_strictest(requests)):
                    encode_searches(searches, self._encoder)
            for key, places in groups.items():
                results = self._coalescer.join(key, [searches[place] for place in places])
                answers.update(zip(places, results, strict=True))
        tell(spent)
        timings = {stage: round(seconds * 1000, 3) for stage, seconds in spent.items()}
        for place, request in enumerate(requests):
            if request.explain:
                answer = replace(answers[place].answer, timings=timings)
                answers[place] = answers[place]._replace(answer=answer)
        return [answers[place] for place in range(len(requests))]


def encode_searches(searches: Sequence[Search], encoder: QueryEncoder) -> None:
    """Encode the queries that are not encoded yet, in one call of the encoder."""
    pending = [search for search in searches if search.query is None]
    if pending:
        queries = [search.request.query for search in pending]
        encoded = encoder.encode_parts(queries, [search.parts for search in pending])
        for search, query in zip(pending, encoded, strict=True):
            search.query = query


def by_caller(
    answers: Sequence[Answered], groups: Sequence[Sequence[Search]]
) -> list[list[Answered]]:
    """Return the answers to the searches of each caller."""
    rest = iter(answers)
    return [list(islice(rest, len(group))) for group in groups]


def made_of(searches: Sequence[Search]) -> tuple[int, ...]:
    """Return the rows of the documents that the queries are made of, where these are masked."""
    if not searches[0].request.exclude_self:
        return ()
    queries = [search.query for search in searches if search.query is not None]
    return tuple(sorted({row for query in queries for row in query.made_of}))


def queries_of(
    searches: Sequence[Search], version: Version, words: Sequence[WordScores] | None
) -> Queries:
    """Return the queries of searches as a version has learned that documents ask."""
    queries = [search.query for search in searches if search.query is not None]
    embeddings = queries[0].embeddings
    if len(queries) > 1:
        embeddings = np.concatenate([query.embeddings for query in queries])
    if version.terms:
        rows = np.array([row for query in queries for row in query.rows], dtype=np.int64)
        embeddings = version.asking(embeddings, rows)
    # A mixture is in a batch of its own.
    return Queries(embeddings, words, queries[0].weights)


def texts_of(searches: Sequence[Search]) -> list[tuple[tuple[str, float], ...]]:
    """Return for each embedding the texts behind it, with their shares."""
    queries = [search.query for search in searches if search.query is not None]
    return [texts for query in queries for texts in query.texts]


def _key(search: Search) -> Hashable:
    request, parts = search.request, search.parts
    # Without text there are no words, and what was fitted with them does not fit.
    worded = any(part.text and part.weight > 0 for part in parts)
    masked = tuple([part.id for part in parts if part.id]) if request.exclude_self else ()
    # A mixture has heads of its own: nothing is answered together with it.
    alone = None if request.query.mixture is None else object()
    return worded, masked, alone, request.model_dump_json(exclude={"query"})


def _cost(searches: Sequence[Search]) -> int:
    """Return the cost of searches, as a number of queries by vector."""
    texts = [part.text for search in searches for part in search.parts if part.text]
    return len(searches) + sum(map(len, texts)) // CHARACTERS


def _strictest(requests: Sequence[SearchRequest]) -> Consistency | None:
    """Return the consistency that suits all requests, as their queries are read together."""
    levels = {request.consistency for request in requests}
    return "strong" if "strong" in levels else None if None in levels else "bounded"
