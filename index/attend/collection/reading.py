"""Reading a collection: the parts of a search, what lets searches go together, and pages."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from attend.core.coalesce import Coalescer, collecting, tell
from attend.core.deadline import check_deadline, limits
from attend.core.settings import Settings
from attend.core.types import Json
from attend.encoder import Encoder
from attend.engines.engine import Consistent, SnapshotSource
from attend.recommend.history import Histories
from attend.recommend.next_items import Recommender
from attend.recommend.predict import Predictor
from attend.search.answer import Answered
from attend.search.hits import cursor as cursor_of
from attend.search.hits import fingerprint
from attend.search.hits import place as place_of
from attend.search.queries import FeedbackReader, QueryEncoder, Search
from attend.search.tokens import TokenReader
from attend.search.values import ValueTypes, filter_hints
from attend.store import CollectionStore, StoredDocument, compile_filter
from attend.store.selection import whole_number

CHARACTERS = 100
"""Characters of text that cost about what searching for one more query does."""


MOST_TOGETHER = 64
"""Queries of different callers that are searched at once, or text that costs the same."""


class Parts:
    """The parts of a collection that read it by its settings; each is made when it is needed."""

    def __init__(
        self,
        store: CollectionStore,
        views: SnapshotSource,
        settings: Settings,
        encoder: Callable[[], Encoder],
    ) -> None:
        self._store, self._views = store, views
        self._settings, self._encoder = settings, encoder

    @cached_property
    def queries(self) -> QueryEncoder:
        return QueryEncoder(self._store, self._settings, self._encoder)

    @cached_property
    def feedback(self) -> FeedbackReader:
        return FeedbackReader(self._store)

    @cached_property
    def tokens(self) -> TokenReader:
        return TokenReader(self._settings, self._encoder)

    @cached_property
    def types(self) -> ValueTypes:
        return ValueTypes(self._store, self._settings)

    @cached_property
    def _histories(self) -> Histories:
        return Histories(self._store, self.queries, self._settings.value_name)

    @cached_property
    def recommender(self) -> Recommender:
        return Recommender(self._store, self._settings, self._views, self._histories)

    @cached_property
    def predictor(self) -> Predictor:
        return Predictor(self._store, self._views, self._histories)


def answers_together(
    searches: Sequence[Search],
    coalescer: Coalescer[Sequence[Search], list[Answered]],
    queries: QueryEncoder,
    consistent: Consistent,
) -> list[Answered]:
    """Answer searches, those of the same options in one call with those of other callers."""
    groups: dict[Hashable, list[int]] = {}
    for place, search in enumerate(searches):
        groups.setdefault(_common_options(search), []).append(place)
    answers: dict[int, Answered] = {}
    with collecting() as spent:
        if len(groups) > 1:  # one call of the encoder for all
            strict = any(search.request.consistency == "strong" for search in searches)
            with consistent("strong" if strict else None):
                queries.encode_searches(searches)
        for key, places in groups.items():
            check_deadline()
            results = coalescer.join(key, [searches[place] for place in places])
            answers.update(zip(places, results, strict=True))
    tell(spent)
    timings = {stage: round(seconds * 1000, 3) for stage, seconds in spent.items()}
    return [
        answers[place]._replace(answer=replace(answers[place].answer, timings=timings))
        if search.request.explain
        else answers[place]
        for place, search in enumerate(searches)
    ]


def _common_options(search: Search) -> Hashable:
    """Return what searches that are answered together have in common."""
    request, worded, masked = search.request, False, []
    for part in search.parts:
        # Without text there are no words, and what was fitted with them does not fit.
        worded = worded or bool(part.text and part.weight > 0)
        if part.id and request.exclude_self:
            masked.append(part.id)
    # A mixture has heads of its own: nothing is answered together with it.
    alone = None if request.query.mixture is None else object()
    names = sorted(request.model_fields_set - {"query"})
    options = repr([getattr(request, name) for name in names])
    # One of several callers reads for all of them, within its own limit.
    return worded, tuple(masked), alone, limits.most, tuple(names), options


def cost(searches: Sequence[Search]) -> int:
    """Return the cost of searches, as a number of queries by vector."""
    texts = [part.text for search in searches for part in search.parts if part.text]
    return len(searches) + sum(map(len, texts)) // CHARACTERS


class Page(NamedTuple):
    """Some documents; `next` is the cursor of the following page, None at the end.

    `hints` names fields of a filter that no document has, where no document passes it."""

    documents: Sequence[StoredDocument]
    next: str | None
    total: int
    hints: Sequence[str] | None = None


def page_of(
    store: CollectionStore, filter: Mapping[str, Json] | None, cursor: str | None, limit: int
) -> Page:
    """Return documents that pass a filter; see `Collection.page`."""
    predicate = compile_filter(filter or {})
    listing = fingerprint("documents", predicate.key)
    after = 0 if cursor is None else int(place_of(cursor, listing, 1)[0])
    limit = whole_number(limit, "limit", 0, 2**31)
    with store.reading():
        total = store.count(predicate) if filter else store.counts()[0]
        documents = store.scroll(after, limit + 1, predicate)
        hints = None if total else filter_hints(store, filter)
    more = len(documents) > limit > 0
    end = cursor_of(listing, [documents[limit - 1].row]) if more else None
    return Page(documents[:limit], end, total, hints)
