"""Reading a collection: the parts that work by its settings, its pages, its figures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from attend.api.documents import CollectionInfo
from attend.attention import default_scale
from attend.collection.drift import alarms, noticed
from attend.core.frames import Page
from attend.core.types import Json
from attend.engines.engine import StoredCollection
from attend.recommend.history import Histories
from attend.recommend.next_items import Recommender
from attend.recommend.predict import Predictor
from attend.search.foreign import ForeignTests
from attend.search.hits import cursor as cursor_of
from attend.search.hits import fingerprint, place
from attend.search.queries import FeedbackReader, QueryEncoder
from attend.search.texts import TextScorer
from attend.search.values import ValueTypes, filter_hints
from attend.store import CollectionStore, compile_filter
from attend.store.mapped import figures
from attend.store.searches import SearchLog
from attend.store.selection import whole_number

NO_HELP = (
    "Feedback moves no query: stored questions, each asked without itself, say that it gains "
    "hardly anything. Check their labels, search with memory, or train."
)


class Readers:
    """The parts of a collection that read it by its settings; each is made when it is needed."""

    def __init__(self, collection: StoredCollection) -> None:
        self._collection = collection

    @cached_property
    def queries(self) -> QueryEncoder:
        here = self._collection
        return QueryEncoder(here.store, here.settings, here.encoder)

    @cached_property
    def feedback(self) -> FeedbackReader:
        return FeedbackReader(self._collection.store, self._collection.encoder)

    @cached_property
    def texts(self) -> TextScorer:
        return TextScorer(self._collection, self.queries, self.feedback)

    @cached_property
    def types(self) -> ValueTypes:
        return ValueTypes(self._collection.store, self._collection.settings)

    @cached_property
    def histories(self) -> Histories:
        return Histories(self._collection, self.queries)

    @cached_property
    def recommender(self) -> Recommender:
        return Recommender(self._collection, self.histories)

    @cached_property
    def predictor(self) -> Predictor:
        return Predictor(self._collection, self.histories)


def page_of(
    store: CollectionStore, filter: Mapping[str, Json] | None, cursor: str | None, limit: int
) -> Page:
    """Return documents that pass a filter; see `Collection.page`."""
    predicate = compile_filter(filter or {})
    listing = fingerprint("documents", predicate.key)
    after = 0 if cursor is None else int(place(cursor, listing, 1)[0])
    limit = whole_number(limit, "limit", 0, 2**31)
    with store.reading():
        total = store.count(predicate) if filter else store.counts()[0]
        documents = store.scroll(after, limit + 1, predicate)
        hints = None if total else filter_hints(store, filter)
    more = len(documents) > limit > 0
    end = cursor_of(listing, [documents[limit - 1].row]) if more else None
    return Page(documents[:limit], end, total, hints)


def info_of(
    collection: StoredCollection,
    foreign: ForeignTests,
    feedback: FeedbackReader,
    log: SearchLog | None,
) -> CollectionInfo:
    """Return the figures of a collection."""
    store, view, now = collection.store, collection.views.current(), collection.settings
    with store.reading():
        (documents, keys), (interactions, users) = store.counts(), store.interaction_counts()
        examples, questions = store.example_count(), store.question_count()
        formats = store.formats()
        moves = view.version.memory if collection.capabilities.memory else 0.0
        memory = moves and feedback.strength(view.version, view.change)
    searches, used = (None, None) if log is None else log.counts()
    hints = [*(foreign.missing(view) or ()), *([NO_HELP] if memory < moves else ())]
    hints += alarms(noticed(collection))
    return CollectionInfo(
        name=collection.name,
        documents=documents,
        keys=keys,
        examples=examples,
        questions=questions,
        interactions=interactions,
        users=users,
        searches=searches,
        used=used,
        dimension=now.dimension,
        encoder=now.encoder,
        formats=formats,
        scale=now.scale or default_scale(now.scorer, now.unit_embeddings, now.dimension),
        projection=view.version.number,
        memory=memory,
        generation=view.change,
        index=view.index_stats,
        foreign=foreign.figures(),
        hints=hints or None,
        bridge=figures(store),
        settings=now.stored(),
        capabilities=collection.capabilities.json(),
    )
