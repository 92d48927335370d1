"""Answers: the attended documents that are listed, and what their values give together."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attend.api.answers import Answer, Calibrated, Facets, Hit, MemoryShare, Weighing
from attend.api.search import SearchOptions
from attend.attention import Attended
from attend.collection.versions import Vanished
from attend.core.deadline import checked, forgetting
from attend.core.errors import InvalidRequest
from attend.core.types import Float64, Int64, Json
from attend.search.attend import Attention
from attend.search.estimate import WHOLE, attended_share
from attend.search.foreign import ERROR_RATE, LEAST, NOTHING_DUE, ForeignTests, best_score
from attend.search.hits import shown_columns
from attend.search.listing import Listing, best_keys, listed
from attend.search.queries import Search
from attend.search.rerank import rerank
from attend.search.tokens import TokenReader
from attend.search.values import (
    HINT_SAMPLE,
    KEY,
    HeadBlend,
    ValueTypes,
    check_path,
    decode_value,
    facets_by_name,
    field_hints,
    filter_hints,
    values_of,
)
from attend.store import CollectionStore, StoredDocument, compile_filter
from attend.values import ValueType, blend_for, infer, only, with_all_keys

AHEAD = 10_000
"""Documents read at once for all queries of a batch; beyond, each reads its own, and forgets."""

NO_ANSWER = "nothing here answers that"
NO_DOCUMENTS = "nothing attended"
"""Reasons why a search has no answer."""


class Answered(NamedTuple):
    """An answer, and the attention behind it: that of the query at `place`."""

    answer: Answer
    attention: Attention
    place: int


def facets_of(
    store: CollectionStore, options: SearchOptions, value_name: str | None
) -> Facets | None:
    """Count values over what filter and mask let pass: a mask is a filter on ids."""
    if options.facets is None:
        return None
    parts: list[dict[str, Any]] = [options.filter or {}]
    if options.mask is not None:
        parts.append({"@id": {"nin": options.mask.exclude}})
        if options.mask.only is not None:
            parts.append({"@id": {"in": options.mask.only}})
    predicate = compile_filter({"$and": parts}) if any(parts) else None
    return facets_by_name(store, options.facets, predicate, value_name)


class Answering:
    """Answers of searches that share one attention; their documents are read together.

    Args:
        passing: documents that filter and mask let pass; None for all.
    """

    def __init__(
        self,
        searches: Sequence[Search],
        attention: Attention,
        passing: Int64 | None,
        store: CollectionStore,
        readers: tuple[ValueTypes, TokenReader],
        foreign: ForeignTests,
    ) -> None:
        self.searches = searches
        self.options = searches[0].request
        self.types, self.tokens = readers
        if self.options.rerank:
            attention = rerank(attention, searches, store, self.tokens)
        self.attention = attention
        self.passing = passing
        self.store = store
        self.foreign = foreign
        self._inferred: ValueType | None = None
        every = self.options.mode == "soft" and attention.all_weights is None
        plain = not (self.options.title or self.options.highlight or self.options.explain)
        self.shows_texts = not plain or bool(self.options.include or self.options.fields)
        # A value may be a text; and where the page is all that is read, one query reads its texts.
        self.with_texts = self.options.value not in (None, KEY) or (self.shows_texts and not every)
        grouped = self.options.group_by is not None
        version = attention.scoring.view.version.number
        self.listings = [
            listed(attended, search.request, version, self._labels(attended) if grouped else None)
            for search, attended in zip(searches, attention.attended, strict=True)
        ]
        # What pages and answers of all queries need is read in one statement.
        needed = [
            attended.documents if every else attended.documents[np.append(listing.ranks, 0)]
            for attended, listing in zip(attention.attended, self.listings, strict=True)
            if len(attended.documents)
        ]
        self.documents: Mapping[int, StoredDocument] = {}
        if 0 < sum(map(len, needed)) <= AHEAD:
            rows = np.unique(np.concatenate(needed))
            self.documents = store.documents(rows, texts=self.with_texts)

    def answers(self, facets: Facets | None) -> list[Answered]:
        """Return the answer to each query.

        Raises:
            Vanished: a document was deleted meanwhile.
            UnknownField: no document has such a value, whether or not any answers.
        """
        scoring, foreign, least = self.attention.scoring, self.foreign, self.options.min_confidence
        view, plan, test = scoring.view, scoring.plan, foreign.test
        null, threshold = plan.mechanism.null_logit, view.version.tuning.threshold
        calibrated: Calibrated = "examples" if plan.calibrated else None
        unknown: Sequence[str] | None = None
        if null is None:  # all searches come by before a training: what it takes is written out
            number, mechanism = view.version.number, scoring.mechanism
            low, high = foreign.settled.get(number, NOTHING_DUE)
            if not low <= view.keys.documents <= high:
                foreign.follow(number)
                test = foreign.test
            fits = scoring.parts is None and len(mechanism.gates) == 1 and mechanism.pool == "max"
            if test and fits and (test.version, test.scorer) == (number, mechanism.scorer):
                calibrated, threshold = "collection", ERROR_RATE
            if test is None or test.version != number:
                unknown = foreign.missing(view)
        if least is None:
            least = threshold or 0.0 if calibrated else 0.0
        elif least and calibrated is None:
            raise no_confidence(least)
        if facets or self.options.group_by is not None:
            unknown = [*(unknown or ()), *self._unknown_fields(facets)] or None
        answers = []
        for query, attended in enumerate(checked(self.attention.attended)):
            confidence = attended.confidence
            if test and calibrated == "collection" and len(attended.documents):
                score = attended.logits[0].max() / scoring.mechanism.scale[0]
                if scoring.words is not None or scoring.moved is not None:
                    score = best_score(self.attention, query)
                confidence = conformal_share(test.scores, score)
            answered = attended.total_documents > 0 and confidence >= least
            answer = Answer(
                hits=self._hits(query, self.listings[query]),
                answer=self._value(query, attended, answered),
                attended=attended.total_documents,
                answered=answered,
                confidence=None if null is None and calibrated is None else confidence,
                calibrated=calibrated,
                exact=self.attention.exact,
                recall=self.attention.recall,
                generation=view.change,
                projection=view.version.number,
                next=self.listings[query].next,
                facets=facets,
                hints=unknown if len(attended.documents) else self._hints,
                weighing=self._weighing(query) if self.options.explain else None,
                memory=self._memory(query) if self.options.explain else None,
                took_ms=round((time.perf_counter() - self.searches[query].started) * 1000, 3),
            )
            answers.append(Answered(answer, self.attention, query))
        return answers

    @property
    def _hints(self) -> Sequence[str] | None:
        """Say which fields of the filter no document has."""
        return filter_hints(self.store, self.options.filter)

    def _unknown_fields(self, facets: Facets | None) -> list[str]:
        """Say which fields of facets and of group_by no document has, where they give nothing."""
        empty = [name for name, facet in (facets or {}).items() if not facet.distinct]
        group = self.options.group_by
        hits = [hit for listing in self.listings for hit in listing.extras if group is not None]
        is_ungrouped = bool(hits) and all(hit["group"] is None for hit in hits)
        if not empty and not is_ungrouped:
            return []
        sample = self.store.sample(HINT_SAMPLE)
        grouped = field_hints(sample, [str(group)] if is_ungrouped else [], "group_by")
        return [*field_hints(sample, empty, "facets"), *grouped]

    def _hits(self, query: int, listing: Listing) -> list[Hit]:
        attended, options = self.attention.attended[query], self.options
        rows = attended.documents[listing.ranks]
        texts = self.shows_texts and not self.with_texts
        documents = self._with_texts(rows) if texts else self._documents(rows)
        if self.shows_texts:
            search = self.searches[query]
            columns = shown_columns(
                self.store, self.attention, query, search, documents, listing, self.tokens
            )
            for extra, *values in zip(listing.extras, *columns.values(), strict=True):
                extra |= zip(columns, values, strict=True)
        return [
            Hit(
                id=document.id,
                score=score,
                weight=weight,
                value=value,
                payload=document.payload
                if options.fields is None
                else only(document.payload, options.fields, document.fields),
                **extra,
            )
            for document, value, score, weight, extra in zip(
                documents,
                self._values(query, rows, documents),
                attended.scores[listing.ranks].tolist(),
                attended.weights[listing.ranks].tolist(),
                listing.extras,
                strict=True,
            )
        ]

    def _weighing(self, query: int) -> Weighing:
        """Return the numbers that turned logits into weights."""
        scoring, attended = self.attention.scoring, self.attention.attended[query]
        share = WHOLE
        if self.attention.all_weights is None:
            share = attended_share(scoring, attended, self.passing, query)
        null, temperature = attended.null, scoring.mechanism.temperature
        return Weighing(
            temperature,
            scoring.mechanism.gates.tolist(),
            None if null is None else (null * temperature).tolist(),
            scoring.view.version.tuning.threshold,
            share,
        )

    def _memory(self, query: int) -> list[MemoryShare]:
        """Return the stored questions that moved a query; of a mixture, that moved its parts."""
        scoring = self.attention.scoring
        if scoring.moved is None:
            return []
        return scoring.moved.explained(self.store, None if scoring.parts is not None else query)

    def _value(self, query: int, attended: Attended, answered: bool) -> dict[str, Json]:
        """Return the blend of all attended (soft), or of a one-hot weight on the best (hard)."""
        type = self._type
        if not answered:
            reason = NO_ANSWER if attended.total_documents else NO_DOCUMENTS
            return with_all_keys({**blend_for(type).answer(), "type": "nothing", "reason": reason})
        scoring = self.attention.scoring
        projection, gates = scoring.view.version.projection, scoring.plan.mechanism.gates
        through = (
            type.kind == "vector"
            and scoring.view.version.tuning.takes(self.options.value)
            and (projection.w_v is not None or projection.w_o is not None)
        )
        blend = HeadBlend(projection, gates) if through else blend_for(type)
        blocks: Iterable[tuple[Int64, Float64]]
        hard = self.options.mode == "hard"
        if hard:
            blocks = [(attended.documents[:1], np.ones((len(attended.head_weights), 1)))]
        elif self.attention.all_weights is None:
            blocks = [(attended.documents, attended.head_weights)]
        else:
            every = self.attention.all_weights(slice(query, query + 1))
            blocks = ((block.documents, block.heads[0]) for block in every)
        for rows, weights in blocks:
            documents = self._documents(rows)
            ids = [document.id for document in documents]
            by_head = weights if scoring.parts is None else scoring.over_parts(weights)
            by_head = by_head if through else gates @ by_head
            blend.add(ids, self._values(query, rows, documents), by_head)
        answer = blend.answer()
        if self.options.decode and answer.get("vector") is not None:
            vector = np.array(answer["vector"])
            answer["decoded"] = decode_value(self.store, self.options.value, vector)
        return with_all_keys(answer, float(attended.weights[0]) if hard else None)

    @property
    def _type(self) -> ValueType:
        """The type of the values that `value` names, of all queries together.

        No `cached_property`: in Python 3.11 its lock is one for all searches, and other searches
        would wait while a large one reads its values.
        """
        if self._inferred is None:
            self._inferred = self._infer_type()
        return self._inferred

    def _infer_type(self) -> ValueType:
        path, best = self.options.value, 1 if self.options.mode == "hard" else None
        values = [
            value
            for attended in checked(self.attention.attended)
            for value in values_of(self._documents(attended.documents[:best]), path)
        ]
        type = self.types.of(path, self.attention.scoring.view, values)
        if type is not None:
            return type
        # A hard answer without a path is the best document's value, whatever the others' are.
        if path is None and best is not None:
            return infer(values)
        every = [attended.documents for attended in self.attention.attended]
        documents = self._documents(np.unique(np.concatenate(every)))
        check_path(path, documents)
        return infer(values_of(documents, path))

    def _documents(self, rows: Int64) -> list[StoredDocument]:
        numbers, documents = rows.tolist(), self.documents
        if not documents.keys() >= set(numbers):
            with forgetting():  # one block is read after another
                documents = self.store.documents(rows, texts=self.with_texts)
        try:
            return [documents[row] for row in numbers]
        except KeyError:
            raise Vanished from None

    def _with_texts(self, rows: Int64) -> list[StoredDocument]:
        documents = self.store.documents(rows)
        if len(documents) < len(rows):
            raise Vanished
        return [documents[row] for row in rows.tolist()]

    def _labels(self, attended: Attended) -> list[Json]:
        """Return each attended document's value of the field that groups."""
        with forgetting():
            return values_of(self._with_texts(attended.documents), self.options.group_by)

    def _values(self, query: int, rows: Int64, documents: Sequence[StoredDocument]) -> list[Json]:
        path = self.options.value
        if path != KEY:
            return values_of(documents, path)
        best = best_keys(self.attention.scoring, query, rows)
        if len(best) < len(rows):
            raise Vanished
        keys = self.store.embeddings([best[row] for row in rows.tolist()])
        if len(keys) < len(rows):
            raise Vanished
        return [key.tolist() for key in keys]


def conformal_share(scores: Sequence[float], score: float) -> float:
    """Return the share of ascending scores that are as low or lower, the new one included.

    If the new one is exchangeable with the others, the share is p or less with a chance of p at
    most (a conformal p-value).

    >>> conformal_share([0.2, 0.4, 0.6, 0.8], 0.5), conformal_share([0.2, 0.4, 0.6, 0.8], 0.1)
    (0.6, 0.2)
    """
    return (1 + bisect_right(scores, score)) / (len(scores) + 1)


def no_confidence(least: float) -> InvalidRequest:
    """Return the error for a `min_confidence` with nothing to compare it with."""
    return InvalidRequest(
        f"min_confidence is {least:g}, but no confidence was fitted for this search: a "
        f"training fits it, for the defaults of attend, pool, scorer, temperature and lexical, "
        f"and a collection of {LEAST} texts or more has one of its own once it was built or "
        f"published, for the default scorer and pool. Train first (attend train), publish the "
        f"collection, leave these options out, or leave out min_confidence.",
        field="min_confidence",
    )
