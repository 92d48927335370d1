"""From attended documents to an answer: what is listed, and what is blended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from attend.api.search import SearchOptions
from attend.attention import Attended
from attend.errors import InvalidRequest
from attend.projection import Projection
from attend.search.answers import Hit, Weighing
from attend.search.attend import Attention
from attend.search.estimate import WHOLE, attended_share
from attend.search.explaining import Vanished, explanations, highlights, matches
from attend.search.listing import Groups, Listed, listed
from attend.search.titles import title_of
from attend.search.value_types import KEY, ValueTypes, value_of
from attend.store import CollectionStore, StoredDocument
from attend.types import Float64, Int64, Json
from attend.values import Blend, Nearest, ValueType, blend_for, is_numbers, nearest, only

AHEAD = 10_000
"""Documents read at once for all queries of a batch; what needs more reads its own, and forgets."""


class Page(NamedTuple):
    """What is listed, and the cursor of what follows."""

    hits: list[Hit]
    next: str | None


@dataclass(frozen=True)
class Reading:
    """What one batch of requests needs from the store, read together.

    Attributes:
        rows: documents that filter and mask let pass; None for all.
        fingerprints: of what was asked, by query; cursors carry them.
        texts: each query's texts, to highlight.
        parts: what each part of each mixture is; nothing for other queries.
        types: of the values that `options.value` may name.
    """

    store: CollectionStore
    attention: Attention
    rows: Int64 | None
    options: SearchOptions
    fingerprints: Sequence[str]
    texts: Sequence[Sequence[str]]
    parts: Sequence[Sequence[Mapping[str, Json]]]
    types: ValueTypes

    @cached_property
    def _type(self) -> ValueType:
        """Of the values that `options.value` names."""
        change = self.attention.scoring.view.change
        return self.types.of(self.options, change, self._best)

    def _best(self, count: int | None) -> list[StoredDocument]:
        """So many of each query's best documents, all if None."""
        rows = [found.documents[:count] for found in self.attention.attended]
        return self._documents(np.unique(np.concatenate(rows)))

    @cached_property
    def _listings(self) -> list[Listed]:
        """The page of each query."""
        return [
            listed(found, self.options, asked, self._labels(found))
            for found, asked in zip(self.attention.attended, self.fingerprints, strict=True)
        ]

    @cached_property
    def _ahead(self) -> Mapping[int, StoredDocument]:
        """Documents that the pages and answers of all queries have, read in one statement."""
        whole = self.options.mode == "soft" and self.attention.all_weights is None
        needed = [
            found.documents if whole else found.documents[np.append(listing.at, 0)]
            for found, listing in zip(self.attention.attended, self._listings, strict=True)
            if len(found.documents)
        ]
        if not needed or sum(map(len, needed)) > AHEAD:
            return {}
        return self._read(np.unique(np.concatenate(needed)))

    def page(self, query: int) -> Page:
        """The documents listed for a query."""
        found, listing = self.attention.attended[query], self._listings[query]
        at, rows = listing.at, found.documents[listing.at]
        documents = self._documents(rows)
        values = self._values(query, rows, documents)
        extras = self._extras(query, listing)
        hits = [
            Hit(document.id, score, weight, value, self._payload(document), **extra)
            for document, value, score, weight, extra in zip(
                documents,
                values,
                found.scores[at].tolist(),
                found.weights[at].tolist(),
                extras,
                strict=True,
            )
        ]
        return Page(hits, listing.next)

    def answered(self, query: int) -> bool:
        """Whether anything was attended, and with enough confidence for an answer."""
        found, least = self.attention.attended[query], self._least()
        if not self.attention.scoring.plan.calibrated or least is None:
            return found.total_documents > 0
        return found.total_documents > 0 and found.confidence >= least

    def weighing(self, query: int) -> Weighing | None:
        """How logits became weights, where that was asked for."""
        if not self.options.explain:
            return None
        made = self.attention.scoring.mechanism
        null = None if made.null_logit is None else made.null_logit.tolist()
        threshold = self.attention.scoring.view.tuning.threshold
        mass = WHOLE
        if self.attention.all_weights is None:
            attended = self.attention.attended[query]
            mass = attended_share(self.attention.scoring, attended, self.rows, query)
        return Weighing(made.temperature, made.gates.tolist(), null, threshold, mass)

    def _least(self) -> float | None:
        """The confidence below which nothing is answered."""
        asked = self.options.min_confidence
        return self.attention.scoring.view.tuning.threshold if asked is None else asked

    def answer(self, query: int) -> dict[str, Json]:
        """The blend of all attended (soft), or of a one-hot weight on the best (hard).

        Raises:
            UnknownField: nothing has such a value, whether or not anything is answered.
        """
        type, found = self._type, self.attention.attended[query]
        if found.total_documents == 0:
            return {"type": "nothing", "reason": "nothing attended", "coverage": 0.0}
        if not self.answered(query):
            return {
                "type": "nothing",
                "reason": "nothing here answers that",
                "confidence": found.confidence,
                "coverage": 0.0,
            }
        answer = self._blended(query, found, type)
        if self.options.decode and answer.get("vector") is not None:
            answer["decoded"] = self._decoded(np.array(answer["vector"]))
        return answer

    def _blended(self, query: int, found: Attended, type: ValueType) -> dict[str, Json]:
        scoring = self.attention.scoring
        projection = scoring.view.projection
        through = _has_value_weights(projection) and scoring.view.tuning.takes(self.options.value)
        blend = _blend(type, projection, scoring.gates, through=through)
        if self.options.mode == "hard":
            one_hot = np.ones((len(found.head_weights), 1))
            self._add(blend, query, found.documents[:1], one_hot)
        elif self.attention.all_weights is None:
            self._add(blend, query, found.documents, found.head_weights)
        else:
            for block in self.attention.all_weights():
                self._add(blend, query, block.documents, block.heads[query])
        return blend.answer()

    def _add(self, blend: HeadBlend, query: int, rows: Int64, weights: Float64) -> None:
        documents = self._documents(rows)
        ids = [document.id for document in documents]
        by_head = self.attention.scoring.by_head(weights)
        blend.add(ids, self._values(query, rows, documents), by_head)

    def _documents(self, rows: Int64) -> list[StoredDocument]:
        wanted, known = rows.tolist(), self._ahead
        if not known.keys() >= set(wanted):
            known = self._read(rows)
        try:
            return [known[row] for row in wanted]
        except KeyError:
            raise Vanished from None

    def _whole(self, rows: Int64) -> list[StoredDocument]:
        """With their texts, which are not read ahead of what is blended."""
        documents = self.store.documents(rows)
        if len(documents) < len(rows):
            raise Vanished
        return [documents[row] for row in rows.tolist()]

    def _read(self, rows: Int64) -> Mapping[int, StoredDocument]:
        read = self.store.values if self.options.value in (None, KEY) else self.store.documents
        return read(rows)

    def _values(self, query: int, rows: Int64, documents: Sequence[StoredDocument]) -> list[Json]:
        if self.options.value == KEY:
            best = self.attention.scoring.best_keys(query, rows)
            if len(best) < len(rows):
                raise Vanished
            keys = self.store.embeddings([best[row] for row in rows.tolist()])
            if len(keys) < len(rows):
                raise Vanished
            return [key.tolist() for key in keys]
        return [value_of(document, self.options.value) for document in documents]

    def _labels(self, found: Attended) -> list[Json] | None:
        """Each attended document's value of the field that groups."""
        path = self.options.group_by
        if path is None:
            return None
        return [value_of(each, path) for each in self._whole(found.documents)]

    def _payload(self, document: StoredDocument) -> Mapping[str, Json]:
        fields = self.options.fields
        return document.payload if fields is None else only(document.payload, fields)

    def _extras(self, query: int, listing: Listed) -> list[dict[str, Any]]:
        """What was asked for of each hit besides itself."""
        at, options = listing.at, self.options
        extras: list[dict[str, Any]] = [{} for _ in at]
        if listing.groups is not None:
            for extra, position in zip(extras, at.tolist(), strict=True):
                extra |= _group(listing.groups, position)
        if not (options.title or options.highlight or options.explain):
            return extras
        documents = self._whole(self.attention.attended[query].documents[at])
        if options.title:
            _add(extras, "title", [title_of(each) for each in documents])
        if options.highlight or options.explain:
            found = matches(self.store, self.attention, query, documents)
            if options.highlight:
                marked = highlights(found, self.texts[query])
                _add(extras, "highlight", marked)
            if options.explain:
                parts = self.parts[query]
                explained = explanations(self.attention, query, at, found, parts)
                _add(extras, "explanation", explained)
        return extras

    def _decoded(self, vector: Float64) -> dict[str, Json]:
        """The stored document whose value (or key, where that is the value) is nearest.

        Raises:
            InvalidRequest: W_V and W_O led to a width that nothing stored has.
        """
        by_key = self.options.value == KEY
        found = self._nearest_key(vector) if by_key else self._nearest_value(vector)
        if found is None:
            raise InvalidRequest(
                f"The answer has {len(vector)} dimensions, and no stored value has, so that none "
                f"can be named. Ask without decode, or of a projection that keeps the width.",
                field="decode",
            )
        near, document = found
        return {
            "id": document.id,
            "value": document.value,
            "cosine": near.cosine,
            "distance": near.distance,
        }

    def _nearest_value(self, vector: Float64) -> tuple[Nearest, StoredDocument] | None:
        best: tuple[Nearest, StoredDocument] | None = None
        for block in _scroll(self.store):
            found = [(document, value_of(document, self.options.value)) for document in block]
            held = [(document, value) for document, value in found if _has_width(value, vector)]
            if not held:
                continue
            near = nearest(vector, [value for _, value in held])
            if best is None or near.distance < best[0].distance:
                best = near, held[near.index][0]
        return best

    def _nearest_key(self, vector: Float64) -> tuple[Nearest, StoredDocument] | None:
        best: tuple[Nearest, int] | None = None
        with self.store.all_keys() as (_, batches):
            for batch in batches:
                if batch.embeddings.shape[1] != len(vector):
                    return None
                near = nearest(vector, batch.embeddings)
                if best is None or near.distance < best[0].distance:
                    best = near, int(batch.documents[near.index])
        if best is None:
            raise Vanished
        return best[0], self._documents(np.array([best[1]]))[0]


def _group(groups: Groups, at: int) -> dict[str, Json]:
    number = int(groups.of[at])
    return {
        "group": groups.labels[at],
        "group_size": int(groups.sizes[number]),
        "group_weight": float(groups.weights[number]),
    }


def _add(extras: Sequence[dict[str, Any]], name: str, found: Sequence[Any]) -> None:
    for extra, each in zip(extras, found, strict=True):
        extra[name] = each


class HeadBlend:
    """A blend whose heads may go through W_V and W_O, as vector values do."""

    def __init__(
        self, blends: Sequence[Blend], projection: Projection, gates: Float64, *, through: bool
    ) -> None:
        self._blends, self._through = blends, through
        self._projection = projection
        self._gates = gates

    def add(self, ids: Sequence[str], values: Sequence[Json], weights: Float64) -> None:
        """weights (H, n)."""
        if len(self._blends) == 1:
            self._blends[0].add(ids, values, self._gates @ weights)
            return
        for blend, each in zip(self._blends, weights, strict=True):
            blend.add(ids, values, each)

    def answer(self) -> dict[str, Json]:
        answers = [blend.answer() for blend in self._blends]
        if not self._through or "vector" not in answers[0]:
            return answers[0]
        coverage = float(self._gates @ [each["coverage"] for each in answers])
        vectors = [each["vector"] for each in answers]
        if any(vector is None for vector in vectors):
            # W_O takes all heads together: without one there is nothing to give it.
            return {**answers[0], "vector": None, "coverage": coverage}
        heads = np.array(vectors)  # (H, d_v)
        mixed = self._projection.output(heads, np.ones(len(heads)))
        return {**answers[0], "vector": mixed.tolist(), "coverage": coverage}


def _blend(type: ValueType, projection: Projection, gates: Float64, *, through: bool) -> HeadBlend:
    """A blend of values, through W_V and W_O where these are for them."""
    through = through and type.kind == "vector"
    blends = [blend_for(type) for _ in range(projection.heads if through else 1)]
    return HeadBlend(blends, projection, gates, through=through)


def _has_value_weights(projection: Projection) -> bool:
    return projection.w_v is not None or projection.w_o is not None


def _has_width(value: Json, vector: Float64) -> TypeGuard[Sequence[float]]:
    """Whether a value is a vector of that width; `decode` passes over all others."""
    return is_numbers(value) and len(value) == len(vector)


def _scroll(store: CollectionStore, size: int = 4096) -> Iterator[list[StoredDocument]]:
    after = 0
    while block := store.scroll(after, size):
        yield block
        after = block[-1].row
