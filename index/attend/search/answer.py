"""Answers: which of the attended documents are listed, and what their values say together."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from attend.api.answers import Answer, Facets, Hit, Weighing
from attend.api.search import SearchOptions, SearchRequest
from attend.attention import Attended
from attend.search.attend import Attention
from attend.search.estimate import WHOLE, attended_share
from attend.search.explain import display_title, explanations, highlights, matches
from attend.search.listing import Listing, listed
from attend.search.plan import AttentionOptions
from attend.search.schedule import Answered, Search, Vanished
from attend.search.values import KEY, HeadBlend, ValueTypes, check_path, decode_value, values_of
from attend.store import CollectionStore, StoredDocument, compile_filter
from attend.types import Float64, Int64, Json
from attend.values import ValueType, infer, only

AHEAD = 10_000
"""Documents read at once for all queries of a batch; beyond, each reads its own, and forgets."""


def attention_options(options: SearchOptions) -> AttentionOptions:
    """Return what attention needs of a request."""
    ends = options.group_by is None and options.cursor is None
    return AttentionOptions(
        attend=options.attend,
        # One more than are listed, to know whether more follow.
        best=options.k + options.offset + 1 if ends else None,
        scorer=options.scorer,
        scale=options.scale,
        heads=None if options.heads is None else tuple(options.heads),
        pool=options.pool,
        temperature=options.temperature,
        lexical=options.lexical,
        recall=options.recall,
    )


def facets_of(store: CollectionStore, options: SearchOptions) -> Facets | None:
    """Count values over what filter and mask let pass: a mask is a filter on ids."""
    if options.facets is None:
        return None
    parts: list[dict[str, Any]] = [options.filter or {}]
    if options.mask is not None:
        parts.append({"@id": {"nin": options.mask.exclude}})
        if options.mask.only is not None:
            parts.append({"@id": {"in": options.mask.only}})
    predicate = compile_filter({"$and": parts}) if any(parts) else None
    return store.facets(options.facets, predicate)


class Answering:
    """Answers of searches that share one attention; their documents are read together.

    Args:
        rows: documents that filter and mask let pass; None for all.
    """

    def __init__(
        self,
        searches: Sequence[Search],
        attention: Attention,
        rows: Int64 | None,
        store: CollectionStore,
        types: ValueTypes,
    ) -> None:
        self.searches = searches
        self.options = searches[0].request
        self.attention = attention
        self.rows = rows
        self.store = store
        self.types = types
        version = attention.scoring.view.made.number
        pairs = zip(searches, attention.attended, strict=True)
        self.listings = [
            listed(
                attended,
                search.request,
                version,
                None if self.options.group_by is None else self._labels(attended),
            )
            for search, attended in pairs
        ]
        self.documents = self._read_ahead()

    def answers(self, facets: Facets | None) -> list[Answered]:
        """Return the answer to each query.

        Raises:
            Vanished: a document was deleted meanwhile.
            UnknownField: no document has such a value, whether or not any answers.
        """
        view, plan = self.attention.scoring.view, self.attention.scoring.plan
        answers = []
        for query, attended in enumerate(self.attention.attended):
            answered = self._answers(attended)
            answer = Answer(
                hits=self._hits(query, self.listings[query]),
                answer=self._value(query, attended, answered),
                attended=attended.total_documents,
                answered=answered,
                confidence=attended.confidence,
                calibrated=plan.calibrated,
                exact=self.attention.exact,
                recall=self.attention.recall,
                generation=view.change,
                projection=view.made.number,
                took_ms=round((time.perf_counter() - self.searches[query].started) * 1000, 3),
                next=self.listings[query].next,
                facets=facets,
                weighing=self._weighing(query) if self.options.explain else None,
            )
            answers.append(Answered(answer, self.attention, query))
        return answers

    def _hits(self, query: int, listing: Listing) -> list[Hit]:
        attended, fields = self.attention.attended[query], self.options.fields
        rows = attended.documents[listing.ranks]
        documents = self._documents(rows)
        return [
            Hit(
                id=document.id,
                score=score,
                weight=weight,
                value=value,
                payload=document.payload if fields is None else only(document.payload, fields),
                **extra,
            )
            for document, value, score, weight, extra in zip(
                documents,
                self._values(query, rows, documents),
                attended.scores[listing.ranks].tolist(),
                attended.weights[listing.ranks].tolist(),
                self._extras(query, listing),
                strict=True,
            )
        ]

    def _extras(self, query: int, listing: Listing) -> list[dict[str, Any]]:
        """Return what a request wants of each hit besides itself."""
        ranks, options = listing.ranks, self.options
        extras: list[dict[str, Any]] = [{} for _ in ranks]
        if listing.groups is not None:
            extras = [listing.groups.extra(rank) for rank in ranks.tolist()]
        if not (options.title or options.highlight or options.explain):
            return extras
        documents = self._with_texts(self.attention.attended[query].documents[ranks])
        columns: dict[str, Sequence[Any]] = {}
        if options.title:
            columns["title"] = [display_title(document) for document in documents]
        if options.highlight or options.explain:
            matched = matches(self.store, self.attention, query, documents)
            if options.highlight:
                texts = self.searches[query].query.texts  # type: ignore[union-attr] # encoded
                every = [text for pairs in texts for text, _ in pairs]
                columns["highlight"] = highlights(matched, every)
            if options.explain:
                names = _part_names(self.searches[query].request)
                columns["explanation"] = explanations(self.attention, query, ranks, matched, names)
        for name, column in columns.items():
            for extra, value in zip(extras, column, strict=True):
                extra[name] = value
        return extras

    def _answers(self, attended: Attended) -> bool:
        """Return whether a document was attended, with enough confidence for an answer."""
        least = self.options.min_confidence
        if least is None:
            least = self.attention.scoring.view.made.tuning.threshold
        if not self.attention.scoring.plan.calibrated or least is None:
            return attended.total_documents > 0
        return attended.total_documents > 0 and attended.confidence >= least

    def _weighing(self, query: int) -> Weighing:
        """Return how logits became weights."""
        scoring, attended = self.attention.scoring, self.attention.attended[query]
        share = WHOLE
        if self.attention.all_weights is None:
            share = attended_share(scoring, attended, self.rows, query)
        logit = scoring.mechanism.null_logit
        return Weighing(
            scoring.mechanism.temperature,
            scoring.mechanism.gates.tolist(),
            None if logit is None else logit.tolist(),
            scoring.view.made.tuning.threshold,
            share,
        )

    def _value(self, query: int, attended: Attended, answered: bool) -> dict[str, Json]:
        """Return the blend of all attended (soft), or of a one-hot weight on the best (hard)."""
        type = self._type
        if attended.total_documents == 0:
            return {"type": "nothing", "reason": "nothing attended", "coverage": 0.0}
        if not answered:
            return {
                "type": "nothing",
                "reason": "nothing here answers that",
                "confidence": attended.confidence,
                "coverage": 0.0,
            }
        scoring = self.attention.scoring
        projection = scoring.view.made.projection
        weighted = projection.w_v is not None or projection.w_o is not None
        through = weighted and scoring.view.made.tuning.takes(self.options.value)
        blend = HeadBlend(type, projection, scoring.gates, through=through)
        blocks: Iterable[tuple[Int64, Float64]]
        if self.options.mode == "hard":
            blocks = [(attended.documents[:1], np.ones((len(attended.head_weights), 1)))]
        elif self.attention.all_weights is None:
            blocks = [(attended.documents, attended.head_weights)]
        else:
            every = self.attention.all_weights()
            blocks = ((block.documents, block.heads[query]) for block in every)
        for rows, weights in blocks:
            documents = self._documents(rows)
            by_head = weights if scoring.parts is None else scoring.over_parts(weights)
            ids = [document.id for document in documents]
            blend.add(ids, self._values(query, rows, documents), by_head)
        answer = blend.answer()
        if self.options.decode and answer.get("vector") is not None:
            vector = np.array(answer["vector"])
            answer["decoded"] = decode_value(self.store, self.options.value, vector)
        return answer

    @cached_property
    def _type(self) -> ValueType:
        """The type of the values that `value` names, of all queries together."""
        path, best = self.options.value, 1 if self.options.mode == "hard" else None
        values = [
            value
            for attended in self.attention.attended
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

    def _read_ahead(self) -> Mapping[int, StoredDocument]:
        """Read the documents that pages and answers of all queries have, in one statement."""
        every = self.options.mode == "soft" and self.attention.all_weights is None
        needed = [
            attended.documents if every else attended.documents[np.append(listing.ranks, 0)]
            for attended, listing in zip(self.attention.attended, self.listings, strict=True)
            if len(attended.documents)
        ]
        if not needed or sum(map(len, needed)) > AHEAD:
            return {}
        return self._read(np.unique(np.concatenate(needed)))

    def _documents(self, rows: Int64) -> list[StoredDocument]:
        listed_rows, documents = rows.tolist(), self.documents
        if not documents.keys() >= set(listed_rows):
            documents = self._read(rows)
        try:
            return [documents[row] for row in listed_rows]
        except KeyError:
            raise Vanished from None

    def _read(self, rows: Int64) -> Mapping[int, StoredDocument]:
        """Read documents, with their texts where a value may be one."""
        return self.store.documents(rows, texts=self.options.value not in (None, KEY))

    def _with_texts(self, rows: Int64) -> list[StoredDocument]:
        documents = self.store.documents(rows)
        if len(documents) < len(rows):
            raise Vanished
        return [documents[row] for row in rows.tolist()]

    def _labels(self, attended: Attended) -> list[Json]:
        """Return each attended document's value of the field that groups."""
        return values_of(self._with_texts(attended.documents), self.options.group_by)

    def _values(self, query: int, rows: Int64, documents: Sequence[StoredDocument]) -> list[Json]:
        path = self.options.value
        if path != KEY:
            return values_of(documents, path)
        best = self.attention.scoring.best_keys(query, rows)
        if len(best) < len(rows):
            raise Vanished
        keys = self.store.embeddings([best[row] for row in rows.tolist()])
        if len(keys) < len(rows):
            raise Vanished
        return [key.tolist() for key in keys]


def _part_names(request: SearchRequest) -> list[Mapping[str, Json]]:
    """Return what names the parts of a mixture: their places, and ids or texts."""
    return [
        {"part": number, **part.model_dump(include={"id", "text"}, exclude_none=True)}
        for number, part in enumerate(request.query.mixture or ())
    ]
