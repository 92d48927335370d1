"""A collection: documents in, attended answers out. Here the stations meet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, overload

from attend.api.base import MAX_DOCUMENTS, parse
from attend.api.documents import CollectionSettings, DocumentRequest, UpdateRequest
from attend.api.recommend import RecommendRequest
from attend.api.search import SearchRequest
from attend.consistency import reading
from attend.encoder import Encoder
from attend.engines.parts import Parts
from attend.errors import AttendError, EncoderMismatch, InvalidRequest, UnknownDocument
from attend.ingest import Ingest, Written, value_hash
from attend.keys import Wanted
from attend.projection import Projection, lsi, pca
from attend.recommend.answers import Predicted, Recommended
from attend.recommend.history import Histories
from attend.recommend.next_items import Recommender
from attend.recommend.predicting import Predictor
from attend.revising import revised
from attend.search.answer import Answering, attention_options, facets_of
from attend.search.answers import Answer, Facets, Matrix
from attend.search.attend import attend
from attend.search.encode import QueryEncoder
from attend.search.matrix import attention_matrix, searches_of
from attend.search.paging import cursor as cursor_of
from attend.search.paging import fingerprint, place
from attend.search.schedule import (
    Answered,
    Scheduler,
    Search,
    by_caller,
    encode_searches,
    made_of,
    queries_of,
    texts_of,
)
from attend.search.stable import until_stable
from attend.search.values import ValueTypes
from attend.search.words import score_words, word_weight
from attend.store import Role, StoredDocument, StoredProjection, compile_filter
from attend.timings import timed
from attend.types import Document, Json, OnStage

log = logging.getLogger("attend")


@dataclass(frozen=True)
class Info:
    """A collection in figures; `questions` are those that the `examples` are about, and `users`
    those of whom there are `interactions`. `capabilities` is what the engine can do
    (`attend.engines.Capabilities`)."""

    name: str
    documents: int
    keys: int
    examples: int
    questions: int
    interactions: int
    users: int
    dimension: int
    encoder: str | None
    projection: int
    generation: int
    index: Mapping[str, Json]
    settings: Mapping[str, Json]
    capabilities: Mapping[str, Json]


class Page(NamedTuple):
    """Some of the documents; `next` is the cursor of the following page, None at the end."""

    documents: Sequence[StoredDocument]
    next: str | None
    total: int


class Collection:
    """Documents, their keys, and the attention over them.

    Any number of threads may use one collection; any number of processes one folder.

    >>> answer = collection.search("compress a file", k=3, mode="soft")  # doctest: +SKIP
    >>> answer.answer["distribution"]  # doctest: +SKIP
    {'gzip': 0.61, 'zipfile': 0.24, ...}
    """

    def __init__(self, name: str, parts: Parts, encoders: Callable[[str], Encoder]) -> None:
        self.name = name
        self.folder, self.settings, self.store, self.views = parts[:4]
        self.capabilities = parts.capabilities
        self.checks = parts.checks
        self._select = parts.select
        self._encoders = encoders
        self._ingest = Ingest(self.store, self.settings, self.encoder)
        self._queries = QueryEncoder(self.store, self.settings, self.encoder)
        self._types = ValueTypes(self.store, self.settings)
        self._scheduler = Scheduler(self._answer, self._queries)
        histories = Histories(self.store, self._queries)
        self._recommender = Recommender(self.store, self.settings, self.views, histories)
        self._predictor = Predictor(self.store, self.views, histories)

    def close(self) -> None:
        self.store.close()

    # -- searches ---------------------------------------------------------------------------

    def search(self, query: str | Sequence[float] | Mapping[str, Any], **options: Any) -> Answer:
        """Attend to the documents that a query speaks to.

        Args:
            query: text, a vector (d,), or one of `{"text": …}`, `{"vector": …}`, `{"id": …}`,
                `{"ids": […]}` and `{"blend": [{"text": …, "weight": 2}, …]}`.
            options: the fields of `SearchOptions`, such as k, mode, filter, value.

        Raises:
            InvalidRequest: an option that is unknown or out of range.
        """
        return self.search_many([parse(SearchRequest, {"query": query, **options})])[0]

    def search_many(self, requests: Sequence[SearchRequest]) -> list[Answer]:
        """Answer requests together: one encoder call, and one search per set of options."""
        return [answered.answer for answered in self._scheduler.answer(requests)]

    def answer(self, requests: Sequence[SearchRequest]) -> list[Answered]:
        """Answer requests, and give the attention behind each answer too."""
        return self._scheduler.answer(requests)

    @until_stable
    def _answer(self, groups: Sequence[Sequence[Search]]) -> list[list[Answered]]:
        """Answer searches of one set of options, of any number of callers, over one snapshot."""
        searches = [search for group in groups for search in group]
        options = searches[0].request
        with reading(options.consistency):
            encode_searches(searches, self._queries)
            with timed("search"):
                view, rows, contents = self._select(options, made_of(searches))
                weight = word_weight(options.lexical, view.made.tuning)
                words = score_words(self.store, texts_of(searches), weight)
            with timed("attend"):
                queries = queries_of(searches, view.made, words)
                attention = attend(view, self.settings, queries, attention_options(options), rows)
            with timed("fetch"):
                answering = Answering(searches, attention, rows, contents, self._types)
                answers = answering.answers(facets_of(self.store, options))
        return by_caller(answers, groups)

    def matrix(self, requests: Sequence[SearchRequest]) -> Matrix:
        """Return logits and weights of every query over every document that may be attended to.

        With documents as queries (`{"id": …}`) this is self-attention: `exclude_self` does not
        apply.

        Raises:
            InvalidRequest: the requests differ in more than their queries.
            LimitExceeded: the matrix has more cells than are sent at once.
        """
        searches = searches_of(requests, self._queries)
        return attention_matrix(searches, self.settings, self._select, self.store)

    @overload
    def recommend(self, *, target: None = None, **fields: Any) -> Recommended: ...

    @overload
    def recommend(self, *, target: Any, **fields: Any) -> Predicted: ...

    def recommend(self, **fields: Any) -> Recommended | Predicted:
        """What may come next for a user, by attention from their history; or with `target` what
        they would think of some documents, by attention over it.

        Args:
            fields: those of `RecommendRequest`: history, user, positive, negative, facts, k, …

        Raises:
            InvalidRequest: a field that is unknown or out of range, or nothing is known of the
                user. UnknownDocument: an id that no document has.

        >>> collection.recommend(history=["dune", "emma"], k=3)  # doctest: +SKIP
        """
        return self.recommended(parse(RecommendRequest, fields))

    def recommended(self, request: RecommendRequest) -> Recommended | Predicted:
        """The same for a request that is checked already."""
        if request.target is not None:
            return self._predictor.predict(request)
        return self._recommender.next_items(request)

    # -- documents --------------------------------------------------------------------------

    def upsert(self, documents: Iterable[Document | Mapping[str, Any]]) -> Written:
        """Insert or replace documents, all or none; the next search finds them.

        A document whose texts are as stored is not encoded again.
        """
        given = [
            each if isinstance(each, Document) else parse(DocumentRequest, each).document()
            for each in documents
        ]
        if len(given) > MAX_DOCUMENTS:
            raise InvalidRequest(
                f"{len(given)} documents were sent at once; at most {MAX_DOCUMENTS} are taken.",
                field="documents",
            )
        self.views.current()  # what cannot be searched must not be written to
        written = self.write(given)
        self.merge_if_due()
        return written

    def write(self, documents: Sequence[Document]) -> Written:
        """As `upsert`, but without a merge: for a build, which publishes at its end."""
        return self._ingest.write(documents)

    def revise(self, id: str, revision: UpdateRequest | Mapping[str, Any]) -> StoredDocument:
        """Change a document's value, its payload or both; nothing is encoded.

        A value is replaced, a payload merged as RFC 7396 has it. The source stays the truth:
        a build from it, even unchanged, finds the document revised and puts back what it says.

        Raises:
            UnknownDocument: no document has this id.
            InvalidRequest: neither is given, or what is given holds NaN or infinity.
        """
        if not isinstance(revision, UpdateRequest):
            revision = parse(UpdateRequest, revision)
        found = self.store.revise(id, lambda stored: revised(stored, revision), value_hash)
        if found is None:
            raise self._unknown(id)
        return found

    def check(self, document: Document) -> None:
        """Raises InvalidRequest for a document that this collection cannot take."""
        self._ingest.check(document)

    def page(
        self,
        filter: Mapping[str, Json] | None = None,
        *,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page:
        """Documents that a filter lets pass, in the order in which they first came.

        What is written between two pages moves nothing: no document comes twice, and none that
        stays is passed over.

        Args:
            cursor: `next` of the page before, with the same filter.
            limit: 0 only counts.

        Raises:
            InvalidRequest: the cursor belongs to another filter, or is none.
        """
        predicate = compile_filter(filter or {})
        asked = fingerprint("documents", predicate.key)
        after = 0 if cursor is None else int(place(cursor, asked, 1)[0])
        total = self.store.count(predicate) if filter else self.store.counts()[0]
        found = self.store.scroll(after, limit + 1, predicate)
        more = len(found) > limit > 0
        end = cursor_of(asked, [found[limit - 1].row]) if more else None
        return Page(found[:limit], end, total)

    def facets(
        self, fields: Sequence[str], filter: Mapping[str, Json] | None = None, *, limit: int = 10
    ) -> Facets:
        """How many documents that a filter lets pass have which values of value or payload.

        Args:
            limit: how many values of a field are listed, the most frequent first.

        Raises:
            InvalidRequest: no field name, too many of them, or a limit that is none.
        """
        return self.store.facets(fields, compile_filter(filter) if filter else None, limit)

    def ids(self) -> set[str]:
        """The ids of all documents."""
        return set(self.store.all_ids())

    def delete_matching(self, filter: Mapping[str, Json]) -> int:
        """Delete what a filter lets pass, all or none. Returns how many documents went.

        Raises:
            InvalidRequest: the filter lets everything pass, which is more often a slip than meant.
        """
        if not filter:
            raise InvalidRequest(
                "An empty filter would delete every document; name a condition, or delete the "
                "collection.",
                field="filter",
            )
        gone = self.store.delete_matching(compile_filter(filter))
        self.merge_if_due()
        return gone

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents; unknown ids are passed over. Returns how many were there."""
        gone = self.store.delete(ids)
        self.merge_if_due()
        return gone

    def document(self, id: str) -> StoredDocument:
        """One document as stored.

        Raises:
            UnknownDocument: no document has this id.
        """
        found = self.store.find([id])
        if id not in found:
            raise self._unknown(id)
        return found[id]

    # -- projections ------------------------------------------------------------------------

    def projections(self) -> list[StoredProjection]:
        return self.store.projections()

    def add_projection(self, projection: Projection, note: Mapping[str, Json] | None = None) -> int:
        """Store a projection and return its version; `activate` makes it answer.

        Raises:
            InvalidRequest: it takes embeddings of another width than the collection's.
        """
        if projection.d_in != self.settings.dimension:
            raise InvalidRequest(
                f"The projection takes embeddings of {projection.d_in} dimensions, but this "
                f"collection's have {self.settings.dimension}."
            )
        weights = projection.to_bytes()
        return self.store.add_projection(
            projection.kind, weights, projection.fingerprint, note or {}
        )

    def fit_projection(
        self, kind: Literal["pca", "lsi", "lsi-scaled"], dimensions: int
    ) -> Projection:
        """An untrained projection onto the directions in which the stored embeddings vary.

        Keys and queries of length one keep it, so that their scores stay cosines.
        """
        normalize = self.settings.unit_embeddings
        with self.store.all_keys() as (_, batches):
            embeddings = (batch.embeddings for batch in batches)
            if kind == "pca":
                return pca(embeddings, dimensions, normalize=normalize)
            return lsi(embeddings, dimensions, scaled=kind == "lsi-scaled", normalize=normalize)

    def activate(self, version: int, expected: int | None = None) -> None:
        """Answer with this projection, in its role, from the next search on.

        Args:
            expected: only while this one answers (0: the untrained one): what was found better
                than it need not be better than another.

        Raises:
            UnknownProjection: there is no such version.
            Conflict: another than the expected one answers by then; nothing was changed.
        """
        if self.store.role_of(version) != "predict":
            self.views.current(version)  # its keys are ready before anyone asks for them
        self.store.activate_projection(version, expected)

    def rollback(self, role: Role = "search") -> int:
        """Answer as before the last activation in a role.

        Returns: the version that answers now; 0 is the untrained one, of roles other than search.

        Raises:
            Conflict: nothing was active before.
        """
        active = self.store.active(role)
        if active is not None and active.parent and role != "predict":
            self.views.current(active.parent)
        return self.store.rollback(role)

    # -- the collection itself --------------------------------------------------------------

    def publish(self, on_stage: OnStage = lambda stage, done: None) -> None:
        """Write the index of all keys to disk, so that the next start need not.

        Where keys are quantised, `on_stage` is told how far that is: it may take a minute for a
        million.
        """
        self.views.publish(on_stage)

    def publish_fresh(self, on_stage: OnStage = lambda stage, done: None) -> None:
        """The same, unless nothing was written since the last time."""
        if self.views.has_fresh():
            self.publish(on_stage)

    def tune(self, recall: float | None = None, exact_below: int | None = None) -> bool:
        """Ask more or less of the index from its next publication on.

        Args: as the collection's settings; None leaves what was set.

        Returns: whether anything is other than before.
        """
        given = {"recall": recall, "exact_below": exact_below}
        asked: dict[str, Any] = {name: each for name, each in given.items() if each is not None}
        parse(CollectionSettings, {"dimension": self.settings.dimension, **asked})
        changed = replace(self.settings, **asked)
        if changed == self.settings:
            return False
        self.store.put_settings(asked)
        self.settings = changed
        self.views.wanted = Wanted(changed.recall, changed.exact_below)
        return True

    def merge_if_due(self) -> None:
        """Publish if so much was written that it no longer is to be searched as it is.

        What was written is stored by now: what goes wrong here is no error of it, and logged.
        """
        try:
            self.views.merge_if_due()
        except (AttendError, OSError) as error:
            log.warning("The index was not merged, and will be at the next write: %s", error)

    def encoder(self) -> Encoder:
        """What makes this collection's texts embeddings; it is loaded when first asked for.

        Raises:
            EncoderError: it cannot be loaded.
            EncoderMismatch: it gives embeddings of another width than the collection's.
        """
        encoder = self._encoders(self.settings.encoder or "")
        if encoder.dimension != self.settings.dimension:
            raise EncoderMismatch(
                f"The encoder {encoder.name!r} gives {encoder.dimension} dimensions, but the "
                f"collection {self.name!r} was built with {self.settings.dimension}: the model "
                f"has changed. Put the old one back, or build another collection."
            )
        return encoder

    def info(self) -> Info:
        documents, keys = self.store.counts()
        view = self.views.current()
        interactions, users = self.store.interaction_counts()
        return Info(
            name=self.name,
            documents=documents,
            keys=keys,
            examples=self.store.example_count(),
            questions=self.store.question_count(),
            interactions=interactions,
            users=users,
            dimension=self.settings.dimension,
            encoder=self.settings.encoder,
            projection=view.version,
            generation=view.change,
            index=self.views.told(view),
            settings=self.settings.stored(),
            capabilities=self.capabilities.json(),
        )

    def _unknown(self, id: str) -> UnknownDocument:
        return UnknownDocument(f"The collection {self.name!r} has no document {id!r}.", field="id")
