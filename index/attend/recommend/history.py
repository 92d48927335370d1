"""Whom a recommendation is for: ids, stored interactions, examples and facts as weighted parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attend.api.recommend import MAX_USED, ExampleItem, ProfileItem, RecommendRequest, query_of
from attend.errors import InvalidRequest, UnknownDocument
from attend.search.encode import QueryEncoder
from attend.store import CollectionStore, compile_filter
from attend.types import Float32, Float64, Int64, Json
from attend.values import as_number

NO_ROW = 0
"""The row of a part that is no document; rows begin at 1."""

DAY = 86_400.0

LEAST = 1e-6
"""A weight of less is none: quotients of weights stay numbers."""

OF_FACT = 1000
"""Documents whose mean stands for a fact, at most."""

NAMED = 10
"""Missing ids that an error names."""


def is_liked(value: Json) -> bool:
    """Whether having met a document, and given it this, is a sign of what a user wants.

    All values are, and none, but for numbers of 0 and below, and false.
    """
    return value is not False and not as_number(value) <= 0  # NaN for what is no number


class Part(NamedTuple):
    """One thing that is known of a user.

    Attributes:
        name: what it is called where it explains something: an id, a text, a fact.
        row: of the document that it is, else `NO_ROW`.
        weight: above zero, or below for a negative example.
        stored: whether it was read from the store, and not sent.
    """

    name: Mapping[str, Json]
    row: int
    weight: float
    value: Json = None
    time: float = np.nan
    given: ExampleItem | ProfileItem | None = None
    stored: bool = False


@dataclass(frozen=True)
class Missing:
    """What was named and is not there."""

    ids: Sequence[str] = ()
    user: str | None = None

    def json(self) -> list[dict[str, Json]]:
        found: list[dict[str, Json]] = [{"id": id} for id in self.ids]
        return found if self.user is None else [*found, {"user": self.user}]

    def __bool__(self) -> bool:
        return bool(self.ids) or self.user is not None


@dataclass(frozen=True)
class History:
    """The parts (p,) of a user, those that count most first.

    Attributes:
        embeddings: (p, d), of documents the mean of their keys.
        weights: (p,) below zero for negative examples; not summing to anything.
        seen: rows of all documents that the user met, ascending, used or not.
        given: how many parts there were, before those of least weight were left out.
    """

    parts: Sequence[Part]
    embeddings: Float32
    weights: Float64
    seen: Int64
    given: int
    missing: Missing

    @property
    def rows(self) -> Int64:
        """(p,) rows of documents, `NO_ROW` for other parts."""
        return np.array([part.row for part in self.parts], dtype=np.int64)

    def chosen(self, which: np.ndarray) -> History:
        """Some of the parts, by place or as a mask."""
        at = np.arange(len(self.parts))[which]
        return History(
            [self.parts[each] for each in at.tolist()],
            self.embeddings[at],
            self.weights[at],
            self.seen,
            self.given,
            self.missing,
        )


class Histories:
    """Reads histories as requests name them."""

    def __init__(self, store: CollectionStore, queries: QueryEncoder) -> None:
        self._store = store
        self._queries = queries

    def of(self, request: RecommendRequest, most: int | None = None) -> History:
        """The history of a request.

        Args:
            most: of its parts that are used; as many as may attend if None.

        Raises:
            InvalidRequest: nothing is known of the user, or a fact stands for nothing.
            UnknownDocument: ids are missing, and are not to be skipped.
        """
        examples = [*request.positive, *request.negative]
        ids = [each.id for each in request.history]
        ids += [each.id for each in examples if each.id is not None]
        rows = self._store.rows_of(ids)
        stored = self._stored(request)
        unknown = request.user if request.user is not None and not stored else None
        missing = Missing([id for id in dict.fromkeys(ids) if id not in rows], unknown)
        if missing and request.on_missing == "error":
            raise not_there(missing)
        parts = [*_merged(stored, request, rows), *_others(request, rows)]
        seen = np.unique(np.array([part.row for part in parts if part.row], dtype=np.int64))
        counting = [part for part in parts if abs(part.weight) >= LEAST]
        kept = _heaviest(_decayed(counting, request.half_life), most or MAX_USED)
        if not kept:
            raise _nobody(request, missing, met=len(seen) > 0)
        weights = np.array([part.weight for part in kept])
        return History(kept, self._embeddings(kept), weights, seen, len(parts), missing)

    def embeddings(self, given: Sequence[ExampleItem]) -> Float32:
        """Examples or targets as embeddings (n, d); texts meet the encoder in one call."""
        asked = self._queries.encode([query_of(each) for each in given])
        return np.concatenate([each.embeddings for each in asked])

    def _stored(self, request: RecommendRequest) -> list[Part]:
        if request.user is None:
            return []
        met = self._store.interactions_of(request.user)
        return [
            Part({"id": id}, row, _usual(value, request), value, time, stored=True)
            for id, row, value, time in zip(
                met.documents, met.rows.tolist(), met.values, met.times.tolist(), strict=True
            )
        ]

    def _embeddings(self, parts: Sequence[Part]) -> Float32:
        """(p, d): documents by their rows, examples as queries, facts by text or by documents."""
        rows = np.array([part.row for part in parts], dtype=np.int64)
        documents = np.flatnonzero(rows)
        found = np.empty((len(parts), self._queries.dimension), dtype=np.float32)
        found[documents] = self._queries.embed_documents(rows[documents])
        others = {at: parts[at].given for at in np.flatnonzero(rows == NO_ROW).tolist()}
        asked = {at: each for at, each in others.items() if isinstance(each, ExampleItem)}
        said = {
            at: self._of_fact(each) for at, each in others.items() if isinstance(each, ProfileItem)
        }
        asked |= {at: each for at, each in said.items() if isinstance(each, ExampleItem)}
        if asked:
            found[list(asked)] = self.embeddings(list(asked.values()))
        for at, each in said.items():
            if not isinstance(each, ExampleItem):
                found[at] = each
        return found

    def _of_fact(self, fact: ProfileItem) -> ExampleItem | Float32:
        """The mean of the documents that a fact is true of; else its text, to be encoded."""
        if fact.text is not None:
            return ExampleItem.model_construct(id=None, text=fact.text, vector=None)
        assert fact.field is not None  # validated
        rows = self._store.matching(compile_filter({fact.field: fact.value}))
        if len(rows):
            spread = rows[np.linspace(0, len(rows) - 1, min(len(rows), OF_FACT)).astype(int)]
            return self._queries.unit(self._queries.embed_documents(spread).mean(axis=0))
        if self._queries.takes_text:
            text = f"{fact.field}: {fact.value}"
            return ExampleItem.model_construct(id=None, text=text, vector=None)
        raise InvalidRequest(
            f"No document has {fact.value!r} in the field {fact.field!r}, and this collection has "
            f"no encoder for it as a text; name a field that documents have.",
            field="facts",
        )


def _usual(value: Json, request: RecommendRequest) -> float:
    """The weight of what was met, where none is said.

    What was not liked asks for nothing more of its kind, and is not to be recommended again. To a
    prediction it says as much as what was.
    """
    return float(request.target is not None or is_liked(value))


def _merged(
    stored: Iterable[Part], request: RecommendRequest, rows: Mapping[str, int]
) -> list[Part]:
    """Each document that was met, once: as it was said last, and what is sent is later."""
    merged = {part.row: part for part in stored}
    for each in request.history:
        row = rows.get(each.id)
        if row is None:
            continue
        said = "weight" in each.model_fields_set
        weight = each.weight if said else _usual(each.value, request)
        time = np.nan if each.time is None else float(each.time)
        merged.pop(row, None)
        merged[row] = Part({"id": each.id}, row, weight, each.value, time)
    return list(merged.values())


def _others(request: RecommendRequest, rows: Mapping[str, int]) -> list[Part]:
    """Examples, with negative ones below zero, and facts."""
    signed = [*((each, 1) for each in request.positive), *((each, -1) for each in request.negative)]
    found = [
        Part(name_of(each), rows.get(each.id or "", NO_ROW), sign * each.weight, given=each)
        for each, sign in signed
        if each.id is None or each.id in rows
    ]
    return [
        *found,
        *(Part(_fact_name(each), NO_ROW, each.weight, given=each) for each in request.facts),
    ]


def name_of(given: ExampleItem) -> dict[str, Json]:
    if given.vector is not None:
        return {"vector": True}
    return {"id": given.id} if given.id is not None else {"text": given.text}


def _fact_name(fact: ProfileItem) -> dict[str, Json]:
    if fact.text is not None:
        return {"fact": fact.text}
    return {"fact": fact.field, "value": fact.value}


def _decayed(parts: Sequence[Part], half_life: float | None) -> list[Part]:
    """Older parts count less, by half in `half_life` days; those without a time as the oldest."""
    times = np.array([part.time for part in parts])
    if half_life is None or np.isnan(times).all():
        return list(parts)
    met = np.array([part.given is None for part in parts])
    age = np.nanmax(times) - np.where(np.isnan(times), np.nanmin(times), times)
    with np.errstate(over="ignore"):  # a half-life of next to nothing
        factors = np.where(met, 0.5 ** (age / DAY / half_life), 1.0)
    # So old that nothing is left of it is as good as not there, but it was there.
    return [
        part._replace(weight=part.weight * max(float(factor), 1e-12))
        for part, factor in zip(parts, factors.tolist(), strict=True)
    ]


def _heaviest(parts: Sequence[Part], most: int) -> list[Part]:
    """The parts that are used: the heaviest, of equals the latest, then those said last."""
    if len(parts) <= most:
        return list(parts)
    weights = np.array([abs(part.weight) for part in parts])
    times = np.array([part.time for part in parts])
    order = np.lexsort((-np.arange(len(parts)), -np.nan_to_num(times, nan=-np.inf), -weights))
    return [parts[at] for at in np.sort(order[:most]).tolist()]


def not_there(missing: Missing, field: str = "history") -> InvalidRequest | UnknownDocument:
    if missing.user is not None and not missing.ids:
        return InvalidRequest(
            f"No interactions of the user {missing.user!r} are stored; store them, send a history, "
            f'or ask with "on_missing": "skip".',
            field="user",
        )
    more = f" (and {len(missing.ids) - NAMED} others)" if len(missing.ids) > NAMED else ""
    return UnknownDocument(
        f"No document has the id {', '.join(map(repr, missing.ids[:NAMED]))}{more}. Correct it, "
        f'ask with "on_missing": "skip", or send a text as {{"text": …}}.',
        field=field,
    )


def _nobody(request: RecommendRequest, missing: Missing, met: bool) -> InvalidRequest:
    """Why there is nothing to recommend by.

    Args:
        met: whether the user met anything that is there.
    """
    what = "send a history, positive examples, facts, or a user with stored interactions"
    if met:
        return InvalidRequest(
            f"Every weight of the history is zero, as it is of what was valued at 0 or below; "
            f"give one that is not, or {what}.",
            field="history" if request.history else "user",
        )
    said = "Nothing is known of the user"
    if missing.ids:
        said += f", for no document has any of the {len(missing.ids)} ids that were sent"
    return InvalidRequest(f"{said}; {what}.", field="history")
