"""Read the history of a recommendation: interactions, examples and profile as weighted parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from attend.api.recommend import MAX_USED, ExampleItem, ProfileItem, RecommendRequest, query_of
from attend.core.errors import InvalidRequest, KeylessDocuments, UnknownDocument
from attend.core.liking import chosen_liking, is_liked
from attend.core.types import Float32, Float64, Int64, Json
from attend.engines.engine import StoredCollection
from attend.search.queries import QueryEncoder
from attend.store import compile_filter
from attend.store.filters import by_value
from attend.values.kinds import as_numbers

NO_ROW = 0
"""The row of a part that is not a document; rows begin at 1."""

DAY = 86_400.0

LEAST = 1e-6
"""A smaller weight counts as none: quotients of weights stay numbers."""

PROFILE_DOCUMENTS = 1000
"""The most documents whose mean stands for a field of a profile."""

LISTED = 10
"""Missing ids that an error lists."""


class HistoryPart(NamedTuple):
    """One part of a history.

    Attributes:
        name: its name in an explanation: an id, a text, a fact.
        row: the row of a document, else `NO_ROW`.
        weight: above zero, or below for a negative example.
        item: the example or fact that was sent; None for documents of the history.
        stored: true if it was read from the store and not sent.
    """

    name: Mapping[str, Json]
    row: int
    weight: float
    value: Json = None
    time: float = np.nan
    item: ExampleItem | ProfileItem | None = None
    stored: bool = False


@dataclass(frozen=True)
class History:
    """The parts (p,) of a user.

    Attributes:
        embeddings: (p, d), of documents the mean of their keys.
        weights: (p,) below zero for negative examples; their sum is arbitrary.
        seen: rows of all documents that the user met, ascending, used or not.
        total: the number of parts before those of least weight were left out.
        missing: the ids and the user of the request that do not exist, as an answer has them.
    """

    parts: Sequence[HistoryPart]
    embeddings: Float32
    weights: Float64
    seen: Int64
    total: int
    missing: Sequence[Mapping[str, Json]]

    @property
    def rows(self) -> Int64:
        """Return the rows (p,) of documents, `NO_ROW` for other parts."""
        return np.array([part.row for part in self.parts], dtype=np.int64)

    @property
    def values(self) -> list[Json]:
        """Return what the user gave the parts (p,)."""
        return [part.value for part in self.parts]

    def select(self, mask: np.ndarray) -> History:
        """Return the history of some parts."""
        parts = [part for part, is_chosen in zip(self.parts, mask, strict=True) if is_chosen]
        embeddings, weights = self.embeddings[mask], self.weights[mask]
        return replace(self, parts=parts, embeddings=embeddings, weights=weights)


class Histories:
    """Reads the histories that requests name."""

    def __init__(self, collection: StoredCollection, queries: QueryEncoder) -> None:
        self._store, self._queries = collection.store, queries
        self._value_name = collection.settings.value_name

    def of(self, request: RecommendRequest, most: int | None = None) -> History:
        """Read the history of a request.

        Args:
            most: the most parts that are used; MAX_USED if None.

        Raises:
            InvalidRequest: nothing is known of the user, or no document has a fact.
            UnknownDocument: ids are missing, and the request does not skip them.
        """
        examples = [*request.positive, *request.negative]
        ids = [item.id for item in request.history]
        ids += [item.id for item in examples if item.id is not None]
        rows = self._store.rows_of(ids)
        liked_from = self._liked_from(request)
        stored = self._stored(request, liked_from)
        missing: list[dict[str, Json]] = [{"id": id} for id in dict.fromkeys(ids) if id not in rows]
        if request.user is not None and not stored:
            missing.append({"user": request.user})
        if missing and request.on_missing == "error":
            raise missing_error(missing)
        parts = [*_merged(stored, request, rows, liked_from), *_sent(request, rows)]
        seen = np.unique(np.array([part.row for part in parts if part.row], dtype=np.int64))
        counting = [part for part in parts if abs(part.weight) >= LEAST]
        used = _heaviest(_decayed(counting, request.half_life), most or MAX_USED)
        if not used:
            raise _empty_error(request, missing, len(seen) > 0, liked_from)
        try:
            embeddings = self._embeddings(used)
        except KeylessDocuments as error:  # nothing can be similar to these
            used = [part for part in used if part.row not in error.rows]
            if not used:
                raise
            embeddings = self._embeddings(used)
        weights = np.array([part.weight for part in used])
        return History(used, embeddings, weights, seen, len(parts), missing)

    def embeddings(self, items: Sequence[ExampleItem]) -> Float32:
        """Embed examples or targets, (n, d); the encoder gets all texts in one call."""
        queries = self._queries.encode([query_of(item) for item in items])
        return np.concatenate([query.embeddings for query in queries])

    def _liked_from(self, request: RecommendRequest) -> float | None:
        """Return the threshold of likes: of the request, of the collection, or of what is sent."""
        if request.liked_from is not None:
            return request.liked_from
        values = as_numbers([item.value for item in request.history])
        if request.target is not None or (request.user is None and np.isnan(values).all()):
            return None  # nothing is left out, or nothing has a number
        liking = self._store.liking()
        return (chosen_liking(values) if liking.source is None else liking).liked_from

    def _stored(self, request: RecommendRequest, liked_from: float | None) -> list[HistoryPart]:
        if request.user is None:
            return []
        stored = self._store.interactions_of(request.user)
        weight = partial(_default_weight, request=request, liked_from=liked_from)
        columns = (stored.documents, stored.rows.tolist(), stored.values, stored.times.tolist())
        return [
            HistoryPart({"id": id}, row, weight(value), value, time, stored=True)
            for id, row, value, time in zip(*columns, strict=True)
        ]

    def _embeddings(self, parts: Sequence[HistoryPart]) -> Float32:
        """Embed parts (p, d): documents by their rows, examples as queries, facts as either."""
        rows = np.array([part.row for part in parts], dtype=np.int64)
        embeddings = np.empty((len(parts), self._queries.dimension), dtype=np.float32)
        embeddings[rows != NO_ROW] = self._queries.embed_documents(rows[rows != NO_ROW])
        queries: dict[int, ExampleItem] = {}
        for place in np.flatnonzero(rows == NO_ROW).tolist():
            item = parts[place].item
            meaning = self._of_profile(item) if isinstance(item, ProfileItem) else item
            if isinstance(meaning, ExampleItem):
                queries[place] = meaning
            else:
                embeddings[place] = meaning
        if queries:
            embeddings[list(queries)] = self.embeddings(list(queries.values()))
        return embeddings

    def _of_profile(self, fact: ProfileItem) -> ExampleItem | Float32:
        """Return the mean of the documents that have a fact, or its text to be encoded."""
        text = fact.text
        if fact.field is not None:
            rows = self._store.matching(
                compile_filter(by_value({fact.field: fact.value}, self._value_name))
            )
            if len(rows):
                count = min(len(rows), PROFILE_DOCUMENTS)
                spread = rows[np.linspace(0, len(rows) - 1, count).astype(int)]
                return self._queries.unit(self._queries.embed_documents(spread).mean(axis=0))
            if not self._queries.takes_text:
                raise InvalidRequest(
                    f"No document has {fact.value!r} in the field {fact.field!r}, and this "
                    f"collection has no encoder for it as a text; name a field that documents "
                    f"have.",
                    field="facts",
                )
            text = f"{fact.field}: {fact.value}"
        return ExampleItem.model_construct(id=None, text=text, vector=None)


def example_name(item: ExampleItem) -> dict[str, Json]:
    """Return the name of an example in an explanation."""
    if item.vector is not None:
        return {"vector": True}
    return {"id": item.id} if item.id is not None else {"text": item.text}


def missing_error(
    missing: Sequence[Mapping[str, Json]], field: str = "history"
) -> InvalidRequest | UnknownDocument:
    """Return the error for a user without interactions, or for ids that no document has."""
    ids = [repr(name["id"]) for name in missing if "id" in name]
    if not ids:
        return InvalidRequest(
            f"No interactions of the user {missing[0]['user']!r} are stored; store them, send a "
            f'history, or ask with "on_missing": "skip".',
            field="user",
        )
    more = f" (and {len(ids) - LISTED} others)" if len(ids) > LISTED else ""
    return UnknownDocument(
        f"No document has the id {', '.join(ids[:LISTED])}{more}. Correct it, ask with "
        f'"on_missing": "skip", or send a text as {{"text": …}}.',
        field=field,
    )


def _default_weight(value: Json, request: RecommendRequest, liked_from: float | None) -> float:
    """Return the weight of a document where none is sent.

    A document that was not liked has no weight, and is not recommended again. To a prediction it
    says the same as any other.
    """
    return float(request.target is not None or is_liked(value, liked_from))


def _merged(
    stored: Iterable[HistoryPart],
    request: RecommendRequest,
    rows: Mapping[str, int],
    liked_from: float | None,
) -> list[HistoryPart]:
    """Return each document of the history once: the sent entry counts, of several the latest, and
    of equal times the last."""
    merged = {part.row: part for part in stored}
    for item in request.history:
        row = rows.get(item.id)
        if row is None:
            continue
        sent = "weight" in item.model_fields_set
        weight = item.weight if sent else _default_weight(item.value, request, liked_from)
        time = np.nan if item.time is None else float(item.time)
        before = merged.pop(row, None)
        if before is not None and not before.stored and time < before.time:
            merged[row] = before
            continue
        merged[row] = HistoryPart({"id": item.id}, row, weight, item.value, time)
    return list(merged.values())


def _sent(request: RecommendRequest, rows: Mapping[str, int]) -> list[HistoryPart]:
    """Return examples, negative ones with a weight below zero, and the profile."""
    parts = [
        HistoryPart(
            example_name(item), rows.get(item.id or "", NO_ROW), sign * item.weight, item=item
        )
        for items, sign in ((request.positive, 1), (request.negative, -1))
        for item in items
        if item.id is None or item.id in rows
    ]
    for fact in request.facts:
        name: dict[str, Json] = {"fact": fact.field, "value": fact.value}
        name = name if fact.text is None else {"fact": fact.text}
        parts.append(HistoryPart(name, NO_ROW, fact.weight, item=fact))
    return parts


def _decayed(parts: Sequence[HistoryPart], half_life: float | None) -> list[HistoryPart]:
    """Halve weights every `half_life` days; parts without a time are as old as the oldest."""
    times = np.array([part.time for part in parts])
    if half_life is None or np.isnan(times).all():
        return list(parts)
    documents = np.array([part.item is None for part in parts])
    age = np.nanmax(times) - np.where(np.isnan(times), np.nanmin(times), times)
    with np.errstate(over="ignore"):  # a half-life near zero
        factors = np.where(documents, 0.5 ** (age / DAY / half_life), 1.0)
    # A weight never decays to zero: the document remains in the history.
    return [
        part._replace(weight=part.weight * max(float(factor), 1e-12))
        for part, factor in zip(parts, factors.tolist(), strict=True)
    ]


def _heaviest(parts: Sequence[HistoryPart], most: int) -> list[HistoryPart]:
    """Return the heaviest parts, of equals the latest, then the last ones sent."""
    if len(parts) <= most:
        return list(parts)
    weights = np.array([abs(part.weight) for part in parts])
    times = np.array([part.time for part in parts])
    order = np.lexsort((-np.arange(len(parts)), -np.nan_to_num(times, nan=-np.inf), -weights))
    return [parts[place] for place in np.sort(order[:most]).tolist()]


def _empty_error(
    request: RecommendRequest,
    missing: Sequence[Mapping[str, Json]],
    seen: bool,
    liked_from: float | None,
) -> InvalidRequest:
    """Return the error for a history without a part that counts.

    Args:
        seen: true if the user met any document that exists.
        liked_from: the threshold of likes.
    """
    unliked = "at 0 or below" if liked_from is None else f"below {liked_from:g}"
    needed = "send a history, positive examples, facts, or a user with stored interactions"
    if seen:
        return InvalidRequest(
            f"Every weight of the history is zero, as of documents that were not liked (valued "
            f"{unliked}, or false); give one that is not, or {needed}.",
            field="history" if request.history else "user",
        )
    unknown = sum("id" in name for name in missing)
    ids = f", for no document has any of the {unknown} ids that were sent" if unknown else ""
    return InvalidRequest(f"Nothing is known of the user{ids}; {needed}.", field="history")
