"""A collection: documents in, attended answers out. Here the stations meet."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from attend.api.answers import Answer, Facets, Matrix, Predicted, Recommended
from attend.api.base import MAX_DOCUMENTS, keywords_of, parse
from attend.api.documents import CollectionInfo, Documents, SettingsChange, UpdateRequest, Written
from attend.api.learning import TrainRequest
from attend.api.recommend import RecommendRequest
from attend.api.search import MAX_BATCH, SearchRequest
from attend.collection.feedback import INTERLEAVED, TakesFeedback
from attend.collection.reading import Readers, info_of, page_of
from attend.collection.versions import by_hand, until_stable
from attend.core.coalesce import Coalescer, collecting, span, tell, timed
from attend.core.deadline import check_deadline
from attend.core.errors import AttendError, EncoderMismatch, InvalidRequest, UnknownDocument
from attend.core.frames import Page
from attend.core.progress import Progress, reported
from attend.core.settings import Settings
from attend.core.types import Document, Json, OnStage
from attend.encoder import Encoder
from attend.engines.engine import OpenedCollection
from attend.learning import train
from attend.learning.evidence import with_evidence
from attend.projection import Projection, lsi, pca
from attend.search.answer import Answered, answers_of, check_cells, matrix_of, matrix_options
from attend.search.attend import attend, attend_twice
from attend.search.foreign import BLOCK, ForeignTests
from attend.search.hits import timed_scores
from attend.search.queries import Queries, Search, score_words
from attend.search.scoring import AttentionOptions
from attend.search.tokens import rerank
from attend.search.values import facets_by_name, with_value
from attend.store import Entry, Role, StoredDocument, StoredProjection, VersionDetails
from attend.store.filters import by_value, compile_filter
from attend.store.selection import whole_number
from attend.values.kinds import parse_type
from attend.values.select import merged
from attend.write.ingest import Ingest, parse_documents, value_hash

if TYPE_CHECKING:
    from attend.api.keywords import RecommendKeywords, SearchKeywords, TrainKeywords

log = logging.getLogger("attend")
TOGETHER = 64  # queries of different callers that are searched at once, or as much text
MANY = 500  # documents, whose encoding takes seconds


class Collection(TakesFeedback):
    """Documents, their keys, and the attention over them.

    Any number of threads may use one collection; any number of processes one folder.

    >>> answer = books.search([1.0, 0.1], k=1)
    >>> answer.hits[0].id, answer.hits[0].value["stars"]
    ('whale', 4.0)
    """

    def __init__(
        self, name: str, opened: OpenedCollection, encoders: Callable[[str], Encoder]
    ) -> None:
        super().__init__()
        self.name, self.folder, self.read_only = name, opened.folder, opened.read_only
        self.settings, self.store, self.views = opened.settings, opened.store, opened.views
        self.capabilities, self.checks = opened.capabilities, opened.checks
        self.consistent, self._encoders = opened.consistent, encoders
        self._ingest = Ingest(self.store, self.settings, self.encoder, self._adopt)
        self.foreign = ForeignTests(self)
        self._coalescer = Coalescer(self._answer, Search.cost, TOGETHER)
        self.readers = Readers(self)
        self.views.on_settings = self._adopt

    def _adopt(self, settings: Settings) -> None:
        """Work by settings as they are stored by now; called once they were changed anywhere."""
        self.settings = self._ingest.settings = settings
        self.readers = Readers(self)

    @keywords_of(SearchRequest)
    def search(
        self,
        query: str | Sequence[float] | Mapping[str, Any],
        **options: Unpack[SearchKeywords],
    ) -> Answer:
        """Search documents: the `k` best, with weights, and the answer that they give.

        Args:
            query: text, a vector (d,), or one of `{"text": …}`, `{"vector": …}`, `{"id": …}`,
                `{"ids": […]}` and `{"blend": [{"text": …, "weight": 2}, …]}`. A text with
                `vector=` is for words alone, and the vector is compared with the keys.
            options: the fields of `attend.api.search.SearchOptions`, which describes them: `k`
                hits; `filter` by payload and value; `mode` hard or soft, of the field `value`;
                `include=["text"]` for texts and passages; `lexical` for BM25.

        Raises:
            InvalidRequest: an option that is unknown or out of range.

        >>> [hit.id for hit in books.search([1.0, 0.1], k=2).hits]
        ['whale', 'ship']
        >>> answer = books.search([1.0, 0.1], mode="soft", value="stars", filter={"year": 1851})
        >>> answer.answer["mean"]
        4.0
        """
        return self.search_many([parse(SearchRequest, {"query": query, **options})])[0]

    def search_many(self, requests: Sequence[SearchRequest | Mapping[str, Any]]) -> list[Answer]:
        """Answer several searches together: one call of the encoder for all.

        Args:
            requests: each with its `query` and its options, as `search` takes them.

        >>> answers = books.search_many([{"query": [1.0, 0.1]}, {"query": {"id": "emma"}, "k": 1}])
        >>> [answer.hits[0].id for answer in answers]
        ['whale', 'ship']
        """
        searches = [
            request if isinstance(request, SearchRequest) else parse(SearchRequest, request)
            for request in requests
        ]
        return [result.answer for result in self.answered(searches)]

    def answered(self, requests: Sequence[SearchRequest], *, live: bool = True) -> list[Answered]:
        """Answer requests, and return the attention behind each answer too.

        Requests of other callers with the same options are answered in the same call.

        Args:
            live: False for what is measured or merged: neither logged, nor changed for the log.

        >>> from attend.api.search import SearchRequest
        >>> [result] = books.answered([SearchRequest(query={"id": "emma"}, k=1)])
        >>> result.answer.hits[0].id
        'ship'
        """
        if len(requests) > MAX_BATCH:
            sentence = f"{len(requests)} searches were sent at once; at most {MAX_BATCH} are taken."
            raise InvalidRequest(sentence, field="searches")
        started = time.perf_counter()
        named = any(request.filter or request.group_by or request.value for request in requests)
        if named or self.settings.normalize is None:
            self.views.refresh()  # another process may have built it meanwhile
        if named:
            requests = [with_value(request, self.settings.value_name) for request in requests]
        rivals = self.rivals(requests) if live and self.settings.interleave else {}
        every = [*requests, *rivals.values()]
        searches = [Search(request, request.query.parts(), started) for request in every]
        groups: dict[Hashable, list[int]] = {}
        for place, search in enumerate(searches):
            groups.setdefault(search.common_options(), []).append(place)
        answers: dict[int, Answered] = {}
        with span("retrieve", collection=self.name, searches=len(every)):
            with collecting() as spent:
                if len(groups) > 1:  # one call of the encoder for all
                    strict = any(request.consistency == "strong" for request in requests)
                    with self.consistent("strong" if strict else None):
                        self.readers.queries.encode_searches(searches)
                for key, places in groups.items():
                    check_deadline()
                    results = self._coalescer.join(key, [searches[place] for place in places])
                    answers.update(zip(places, results, strict=True))
            tell(spent)
        timings = {stage: round(seconds * 1000, 3) for stage, seconds in spent.items()}
        for place, request in enumerate(requests):
            if request.explain:
                answer = replace(answers[place].answer, timings=timings)
                answers[place] = answers[place]._replace(answer=answer)
        results = [answers[place] for place in range(len(requests))]
        if not live or not self.settings.log:
            return results
        others = {place: answers[len(requests) + i] for i, place in enumerate(rivals)}
        return self.logged(requests, results, others)

    @until_stable
    def _answer(self, groups: Sequence[Sequence[Search]]) -> list[list[Answered]]:
        """Answer searches of one set of options, of any number of callers, over one snapshot."""
        searches = list(chain.from_iterable(groups))
        options = searches[0].request
        with self.consistent(options.consistency):
            query = self.readers.queries.encode_searches(searches)
            with timed("search"):
                left_out = query.made_of if options.exclude_self else ()
                view, rows, without = self.views.select(options, left_out)
                words = score_words(self.store, query.texts, options.lexical, view.version.tuning)
                if options.recency or view.version.tuning.recency:
                    query = query._replace(recency=timed_scores(self.store, options, view))
            with timed("attend"):
                queries = self.readers.feedback.queries(query, words, view, options.memory)
                attended = attend_twice(view, self.settings, queries, options, rows, without)
            with timed("fetch"):
                parts = self.readers
                if options.rerank:
                    attended = rerank(attended, searches, self.store, parts.queries)
                answers = answers_of(
                    searches, attended, rows, self.store, parts.types, parts.queries, self.foreign
                )
        ordered = iter(answers)
        return [list(islice(ordered, len(group))) for group in groups]

    @until_stable
    def matrix(self, requests: Sequence[SearchRequest | Mapping[str, Any]]) -> Matrix:
        """Return logits and weights of every query over every document that may be attended to.

        With documents as queries (`{"id": …}`) this is self-attention, `exclude_self` or not.

        Raises:
            InvalidRequest: the requests differ in more than their queries.
            LimitExceeded: the matrix has more cells than are sent at once.

        >>> matrix = books.matrix([{"query": {"id": "whale"}}, {"query": {"id": "emma"}}])
        >>> matrix.documents, len(matrix.weights[0])
        (['whale', 'emma', 'ship'], 3)
        """
        self.views.refresh()
        name = self.settings.value_name
        searches = [with_value(parse(SearchRequest, request), name) for request in requests]
        options = matrix_options(searches)
        encoded = self.readers.queries.encode([search.query for search in searches])
        query = Queries.joined(encoded)
        view, rows, _ = self.views.select(options, ())
        check_cells(len(searches), view.keys.documents if rows is None else len(rows))
        words = score_words(self.store, query.texts, options.lexical, view.version.tuning)
        every = AttentionOptions.of(options)._replace(best=None)
        query = query._replace(recency=timed_scores(self.store, options, view))
        queries = self.readers.feedback.queries(query, words, view, options.memory)
        return matrix_of(attend(view, self.settings, queries, every, rows), self.store)

    @overload
    def recommend(
        self, request: None = None, /, *, target: None = None, **fields: Unpack[RecommendKeywords]
    ) -> Recommended: ...

    @overload
    def recommend(
        self, request: None = None, /, *, target: Any, **fields: Unpack[RecommendKeywords]
    ) -> Predicted: ...

    @overload
    def recommend(self, request: RecommendRequest, /) -> Recommended | Predicted: ...

    @keywords_of(RecommendRequest)
    def recommend(
        self, request: RecommendRequest | None = None, /, **fields: Any
    ) -> Recommended | Predicted:
        """Recommend what may come next for a user, by attention from their history; or with
        `target` predict what they would think of some documents, by attention over it.

        Args:
            request: the whole request, validated already; instead of fields.
            fields: those of `attend.api.recommend.RecommendRequest`, which describes them: a
                `history` of ids, a `user` with stored interactions, `positive` and `negative`
                examples, `k`, `filter`, `explain`.

        Raises:
            InvalidRequest: a field that is unknown or out of range, or a user without a history.
            UnknownDocument: an id that no document has.

        >>> [hit.id for hit in books.recommend(history=["whale"], k=1).hits]
        ['ship']
        >>> rated = [{"id": "whale", "value": 5}]
        >>> round(books.recommend(history=rated, target="ship").predictions[0]["mean"], 3)
        5.0
        """
        if request is None:
            request = parse(RecommendRequest, fields)
        self.views.refresh()
        if request.target is not None:
            return self.readers.predictor.predict(request)
        return self.readers.recommender.next_items(request)

    @keywords_of(TrainRequest)
    def train(
        self,
        *,
        progress: Progress = None,
        cancelled: Callable[[], bool] | None = None,
        **fields: Unpack[TrainKeywords],
    ) -> dict[str, Any]:
        """Learn from what is stored, and answer by it from now on if it is significantly better.

        Nothing is changed before the end: a training that stops leaves everything as it was.

        Args:
            progress: True shows a bar, False none; by default one is shown in a terminal and in a
                notebook. A function receives the stage and the fraction done, 0 to 1.
            cancelled: called often; true stops the training.
            fields: those of `attend.api.learning.TrainRequest`, which describes them: the
                `objective` (ranking, answers, interactions or ratings), `parts`, `promote`.

        Returns: promoted, reason, version, before, after, and figures of what was learned from.

        Raises:
            InvalidRequest: a field out of range, or a collection that cannot be learned.
            Cancelled: `cancelled` returned true.

        >>> report = books.train(objective="ranking")
        >>> report["promoted"], report["reason"].split(",")[0]
        (False, '0 questions with a relevant document are stored')
        """
        with reported(progress) as report:
            return train(self, progress=report, cancelled=cancelled, **fields)

    # -- documents --------------------------------------------------------------------------

    def upsert(self, documents: Documents, *, progress: Progress = None) -> Written:
        """Insert or replace documents, all or none; the next search finds them.

        A document whose texts are as stored is not encoded again.

        Args:
            documents: each with the fields of `DocumentRequest`, or a table with such columns
                (pandas, Polars, Arrow), whose other columns are the payload.
            progress: as for `train`; by default a bar is shown for many documents only.

        >>> books.upsert([{"id": "dune", "vector": [0.2, 0.9], "payload": {"year": 1965}}]).added
        1
        """
        parsed = parse_documents(documents)
        if len(parsed) > MAX_DOCUMENTS:
            raise InvalidRequest(
                f"{len(parsed)} documents were sent at once; at most {MAX_DOCUMENTS} are taken.",
                field="documents",
            )
        self.views.current()  # what cannot be searched must not be written to
        with reported(progress if len(parsed) >= MANY else progress or False) as report:
            written = self._ingest.write(parsed, report)
        self.merge_if_due()
        return written

    def write(self, documents: Sequence[Document | Entry]) -> Written:
        """Write documents as `upsert` does, but merge nothing: a build publishes at its end.

        >>> books.write([Document("dune", vectors={"vector": [0.2, 0.9]})]).added
        1
        >>> books.publish()
        """
        return self.begin_write(documents)()

    def begin_write(self, documents: Sequence[Document | Entry]) -> Callable[[], Written]:
        """Encode documents, and return the function that stores them, as `write` does both.

        A build encodes the next documents while another thread stores these.

        >>> store = books.begin_write([Document("dune", vectors={"vector": [0.2, 0.9]})])
        >>> store().added
        1
        """
        return self._ingest.begin(documents)

    def revise(self, id: str, revision: UpdateRequest | Mapping[str, Any]) -> StoredDocument:
        """Change a document's value, its payload or both; nothing is encoded.

        A value is replaced, a payload merged by RFC 7396. The source stays the truth: a build from
        it, even an unchanged one, puts back the document of the source.

        Raises:
            UnknownDocument: no document has this id.
            InvalidRequest: neither value nor payload, or one with NaN or infinity.

        >>> books.revise("emma", {"payload": {"lent": True}}).payload
        {'year': 1815, 'lent': True}
        """
        revision = parse(UpdateRequest, revision)

        def revised(stored: StoredDocument) -> StoredDocument:
            value = revision.value if "value" in revision.model_fields_set else stored.value
            return stored._replace(value=value, payload=merged(stored.payload, revision.payload))

        document = self.store.revise(id, revised, value_hash)
        if document is None:
            raise self._unknown(id)
        return document

    def prepare(self, document: Document) -> Entry:
        """Check a document before it is written; raise InvalidRequest if it cannot be taken.

        >>> books.prepare(Document("dune", vectors={"vector": [0.2, 0.9]})).document.id
        'dune'
        """
        return self._ingest.prepare(document)

    def page(
        self,
        filter: Mapping[str, Json] | None = None,
        *,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page:
        """Return documents that pass a filter, in the order in which they first came.

        Writes between two pages move nothing: no document comes twice, and none that stays is
        passed over.

        Args:
            cursor: `next` of the page before, with the same filter.
            limit: 0 only counts.

        Raises:
            InvalidRequest: the cursor belongs to another filter, or is not a cursor.

        >>> page = books.page({"year": {"lt": 1900}}, limit=1)
        >>> page.documents[0].id, page.total
        ('whale', 2)
        >>> books.page({"year": {"lt": 1900}}, limit=1, cursor=page.next).documents[0].id
        'emma'
        """
        return page_of(self.store, by_value(filter, self._value_name()), cursor, limit)

    def facets(
        self, fields: Sequence[str], filter: Mapping[str, Json] | None = None, *, limit: int = 10
    ) -> Facets:
        """Count the documents that pass a filter by the values of fields of value or payload.

        Args:
            limit: the number of values listed for each field, the most frequent first.

        Raises:
            InvalidRequest: a wrong field name, too many of them, or a wrong limit.

        >>> books.facets(["year"])["year"].distinct
        3
        """
        filter = by_value(filter, self._value_name())
        predicate = compile_filter(filter) if filter else None
        return facets_by_name(self.store, fields, predicate, self.settings.value_name, limit)

    def ids(self) -> set[str]:
        """Return the ids of all documents.

        >>> sorted(books.ids())
        ['emma', 'ship', 'whale']
        """
        return set(self.store.all_ids())

    def delete_matching(self, filter: Mapping[str, Json]) -> int:
        """Delete what passes a filter, all or none, and return the number of deleted documents.

        Raises:
            InvalidRequest: the filter lets everything pass, which is more often a slip than meant.

        >>> books.delete_matching({"year": {"gte": 1900}})
        1
        """
        if not filter:
            raise InvalidRequest(
                "An empty filter would delete every document; name a condition, or delete the "
                "collection.",
                field="filter",
            )
        filter = by_value(filter, self._value_name())
        deleted = self.store.delete_matching(compile_filter(filter))
        self.merge_if_due()
        return deleted

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents, and return how many existed; unknown ids are passed over.

        >>> books.delete(["emma", "nobody"])
        1
        """
        deleted = self.store.delete(ids)
        self.merge_if_due()
        return deleted

    def document(self, id: str) -> StoredDocument:
        """Return one document as stored.

        Raises:
            UnknownDocument: no document has this id.

        >>> books.document("whale").payload
        {'year': 1851}
        """
        document = self.store.find([id]).get(id)
        if document is None:
            raise self._unknown(id)
        return document

    # -- versions -----------------------------------------------------------------------------

    def projections(self) -> list[StoredProjection]:
        """Return all versions, the first one first, with what is proved of each.

        >>> [(version.version, version.kind) for version in books.projections()]
        [(1, 'identity')]
        """
        return with_evidence(self.store.projections(), self.store.settings())

    def add_projection(self, projection: Projection, note: Mapping[str, Json] | None = None) -> int:
        """Store a projection and return its version; `activate` makes it answer.

        Raises:
            InvalidRequest: it takes embeddings of another width than the collection's.

        >>> books.add_projection(books.fit_projection("pca", 1))
        2
        """
        if projection.d_in != self.settings.dimension:
            raise InvalidRequest(
                f"The projection takes embeddings of {projection.d_in} dimensions, but this "
                f"collection's have {self.settings.dimension}."
            )
        kind, weights = projection.kind, projection.to_bytes()
        return self.store.add_projection(kind, weights, projection.fingerprint, note or {})

    def fit_projection(
        self, kind: Literal["pca", "lsi", "lsi-scaled"], dimensions: int
    ) -> Projection:
        """Fit an untrained projection onto the directions in which the stored embeddings vary.

        Keys and queries of length one keep it, so that their scores stay cosines.

        >>> books.fit_projection("pca", 1).kind
        'pca'
        """
        normalize = self.settings.unit_embeddings
        with self.store.all_keys() as (_, tables):
            embeddings = (table.vectors for table in tables)
            if kind == "pca":
                return pca(embeddings, dimensions, normalize=normalize)
            return lsi(embeddings, dimensions, scaled=kind == "lsi-scaled", normalize=normalize)

    def activate(
        self,
        version: int,
        expected: int | None = None,
        *,
        force: bool = False,
        **details: Unpack[VersionDetails],
    ) -> None:
        """Answer with this projection, in its role, from the next search on.

        Args:
            expected: activate only while this one answers (0: the untrained one).
            force: also one that was not promoted.
            details: a report in place of the version's own, and settings, stored in the same step.

        Raises:
            UnknownProjection: no such version exists.
            InvalidRequest: not promoted, and not forced.
            Conflict: another version than the expected one answers; nothing was changed.

        >>> books.activate(books.add_projection(books.fit_projection("pca", 1)))
        >>> books.info().projection
        2
        """
        version = whole_number(version, "version", 0, 2**53)
        details["report"] = details.get("report") or by_hand(self.projections(), version, force)
        if self.store.version(version).role != "predict":
            self.views.current(version)  # its keys are ready before anyone asks for them
        self.store.activate_projection(version, expected, **details)
        self.foreign.refresh(BLOCK)

    def rollback(self, role: Role = "search") -> int:
        """Answer as before the last activation in a role; 0 is the untrained version.

        Raises:
            Conflict: nothing was active before.

        >>> books.activate(books.add_projection(books.fit_projection("pca", 1)))
        >>> books.rollback()
        1
        """
        active = self.store.active(role)
        if active is not None and active.parent and role != "predict":
            self.views.current(active.parent)
        version = self.store.rollback(role)
        self.foreign.refresh(BLOCK)
        return version

    # -- the collection itself --------------------------------------------------------------

    def close(self) -> None:
        """Close the files of the collection; it opens again when its library is asked for it.

        >>> books.close()
        """
        self.close_log()
        self.store.close()

    def publish(
        self, on_stage: OnStage = lambda stage, done: None, *, only_fresh: bool = False
    ) -> None:
        """Write the index of all keys to disk, and the test of foreign queries.

        Quantising may take a minute for a million keys; `on_stage` receives the progress.

        Args:
            only_fresh: write no index unless something was written since the last time.

        >>> books.publish()
        """
        if not only_fresh or self.views.has_fresh():
            self.views.publish(on_stage)
        # Also where nothing is fresh: the first look at many new keys has written the index.
        self.foreign.refresh()

    def merge_if_due(self) -> None:
        """Publish if too much was written to be searched as it is.

        The documents are stored already: a failure of the merge is logged, and does not fail them.

        >>> books.merge_if_due()
        """
        try:
            self.views.merge_if_due()
        except (AttendError, OSError) as error:
            log.warning("The index was not merged, and will be at the next write: %s", error)

    def configure(self, **changes: Any) -> bool:
        """Change settings; other processes see them at their next request.

        Args:
            changes: fields of `SettingsChange`. The index has another recall or exact_below from
                its next publication on.

        Returns: whether anything changed.

        Raises:
            InvalidRequest: no setting, one that cannot change, or a wrong value.

        >>> books.configure(recall=0.99)
        True
        """
        change = parse(SettingsChange, changes).model_dump(exclude_unset=True)
        if change.get("log"):
            self.capabilities.check("log", field="log")
        self.check_interleaving(change)
        if change.get("values") is not None:
            parse_type(change["values"], field="values")
        self.views.refresh()
        if replace(self.settings, **change) == self.settings:
            return False
        since = {INTERLEAVED: time.time()} if change.get("interleave") else {}
        self.store.put_settings({**change, **since})
        self.views.refresh()
        return True

    def encoder(self) -> Encoder:
        """Return the encoder of this collection's texts; it is loaded at the first call.

        Raises:
            EncoderError: it cannot be loaded.
            EncoderMismatch: its embeddings have another width than the collection's.

        >>> collection.encoder().encode_queries(["a whale"]).shape  # doctest: +SKIP
        (1, 384)
        """
        encoder = self._encoders(self.settings.encoder or "")
        if encoder.dimension != self.settings.dimension:
            raise EncoderMismatch(
                f"The encoder {encoder.name!r} gives {encoder.dimension} dimensions, but the "
                f"collection {self.name!r} was built with {self.settings.dimension}: the model "
                f"has changed. Put the old one back, or build another collection."
            )
        return encoder

    def info(self) -> CollectionInfo:
        """Return the figures of the collection.

        >>> info = books.info()
        >>> info.documents, info.dimension, info.projection
        (3, 2, 1)
        """
        self.views.refresh()
        return info_of(self, self.foreign, self.readers.feedback, self.log)

    def _unknown(self, id: str) -> UnknownDocument:
        return UnknownDocument(f"The collection {self.name!r} has no document {id!r}.", field="id")

    def _value_name(self) -> str | None:
        """Return the name that stands for the value in filters."""
        self.views.refresh()  # another process may have built it meanwhile
        return self.settings.value_name
