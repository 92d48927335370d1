"""Values of documents: what a path names, of which type, and how weights blend them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from attend.api.answers import Facets
from attend.api.names import remedy, suggestion
from attend.api.search import SearchRequest
from attend.collection.versions import Vanished, View
from attend.core.deadline import check_deadline, forgetting
from attend.core.errors import InvalidRequest, UnknownField
from attend.core.settings import Settings
from attend.core.types import Float64, Json
from attend.projection import Projection
from attend.store import CollectionStore, Predicate, StoredDocument, compile_filter
from attend.store.filters import VALUE, Among, Within, WithinDates, by_value, is_date, leaves_of
from attend.store.selection import check_facets
from attend.values.blends import blend_for, nearest
from attend.values.kinds import ValueType, infer, is_list, is_numbers, parse_type
from attend.values.select import select

KEY = "@key"
"""The value that is the key itself, so that K = V."""

TYPE_SAMPLE = 1000
"""Documents from which the type of their values is inferred."""

HINT_SAMPLE = 100
"""Documents in which the fields of a filter are looked for: searches that find nothing may be many,
and a thousand documents take ten times as long as the search."""

STALE = 100
"""Writes after which a type is inferred again, so that all processes come to one."""

MAX_PATHS = 100
"""Paths whose types are remembered: callers name them, and memory stays bounded."""

BLOCK = 4096
"""Documents that are read at once in search of the nearest value."""

_Vectors: TypeAlias = tuple[list[int], Any]
"""Rows of documents, and their vectors (n, d)."""

PYTHON_TYPES: Mapping[str, set[type]] = {
    "boolean": {bool},
    "number": {int, float},
    "category": {str},
    "text": {str},
    "image": {str},
    "vector": {list, tuple},
    "labels": {list, tuple},
    "object": {dict},
}
"""Types of the values of a kind; `mixed` takes all."""


class ValueTypes:
    """The types of one collection's values, by path: declared, or inferred from a sample.

    Attributes:
        value_name: the name of the values' column.

    A type is inferred once. After writes it is inferred again only where the values of an answer
    do not fit it, or the collection has half as many documents again, or half as many, or after
    `STALE` writes.
    """

    def __init__(self, store: CollectionStore, settings: Settings) -> None:
        self._store = store
        self.value_name = settings.value_name
        self._declared = declared_types(settings)
        # By path the type, None where no document of the sample has such a value, with the state
        # and the size of the collection when it was inferred.
        self._inferred: dict[str | None, tuple[ValueType | None, int, int]] = {}

    def of(self, path: str | None, view: View, values: Sequence[Json]) -> ValueType | None:
        """Return the type of a path's values; None where no document of the sample has any.

        Args:
            values: those that are to be blended.
        """
        declared = self._declared.get(path)
        if declared is not None:
            return declared
        inferred = self._inferred.get(path)
        if inferred is not None:
            type, revision, documents = inferred
            is_recent = view.change - revision < STALE
            is_similar = documents <= view.keys.documents * 2 <= documents * 3
            if revision == view.change or (is_recent and is_similar and _fits(type, path, values)):
                return type
        with forgetting():
            sample = values_of(self._store.sample(TYPE_SAMPLE), path)
        type = infer(sample) if any(value is not None for value in sample) else None
        if inferred is None and len(self._inferred) >= MAX_PATHS:
            self._inferred.clear()
        self._inferred[path] = type, view.change, view.keys.documents
        return type


def _fits(type: ValueType | None, path: str | None, values: Sequence[Json]) -> bool:
    """Return whether values may be of a type; where nothing has a named one, it may be gone."""
    types = {value.__class__ for value in values} - {None.__class__}
    if type is None:
        return not types
    if not types:
        return path is None
    if type.kind == "mixed":
        return not any(types <= alike for alike in PYTHON_TYPES.values())
    if not types <= PYTHON_TYPES[type.kind]:
        return False
    return type.fields is None or all(
        value is None or (isinstance(value, dict) and value.keys() <= type.fields.keys())
        for value in values
    )


def declared_types(settings: Settings) -> dict[str | None, ValueType]:
    """Return the types that a collection declares, by path; None is that of the whole value."""
    declared: dict[str | None, ValueType] = {KEY: ValueType("vector")}
    if settings.values is not None:
        declared[None] = parse_type(settings.values, field="values")
    if isinstance(settings.values, Mapping):
        parts = settings.values.items()
        declared |= {path: parse_type(part, field="values") for path, part in parts}
    return declared


def values_of(documents: Sequence[StoredDocument], path: str | None) -> list[Json]:
    """Return what a path names in each document; None where it has no such thing."""
    if path is None:
        return [document.value for document in documents]
    return [value_of(document, path) for document in documents]


def value_of(document: StoredDocument, path: str | None) -> Json:
    return select(path, document.id, document.value, document.payload, document.fields)


def with_value(request: SearchRequest, name: str | None) -> SearchRequest:
    """Return a request in which the name of the values' column stands for the value."""
    changes: dict[str, Any] = {}
    if name is not None and request.filter:
        changes["filter"] = by_value(request.filter, name)
    if request.group_by is not None and request.group_by == name:
        changes["group_by"] = VALUE
    if request.value is not None and request.value in (name, VALUE):
        changes["value"] = None
    return request.model_copy(update=changes) if changes else request


def facets_by_name(
    store: CollectionStore,
    fields: Sequence[str],
    predicate: Predicate | None,
    value_name: str | None,
    limit: int = 10,
) -> Facets:
    """Count the values of fields; the name of the values' column stands for the value."""
    check_facets(fields)
    counted = store.facets([VALUE if f == value_name else f for f in fields], predicate, limit)
    return {field: counted[VALUE if field == value_name else field] for field in fields}


def check_path(path: str | None, sample: Sequence[StoredDocument]) -> None:
    """Refuse a value path that no document of the sample has.

    Raises:
        UnknownField: it names the fields that documents have.
    """
    if path in (None, KEY) or not sample:
        return
    if any(value_of(document, path) is not None for document in sample):
        return
    names = field_names(sample)
    meant = suggestion(str(path), names)
    question = "" if meant is None else f" Did you mean {meant!r}?"
    raise UnknownField(
        f"No document looked at has a value {path!r}; there are {', '.join(names) or 'none'}, "
        f"@id and {KEY}.{question}",
        field="value",
    )


def field_names(documents: Sequence[StoredDocument]) -> list[str]:
    """Return the names of the fields that any of some documents has, in value, payload or texts."""
    names: dict[str, None] = {}
    for document in documents:
        tree: Mapping[str, Json] = document.value if isinstance(document.value, Mapping) else {}
        names |= dict.fromkeys([*tree, *document.payload, *document.fields])
    return list(names)


def filter_hints(store: CollectionStore, filter: Mapping[str, Json] | None) -> list[str] | None:
    """Return why a filter may let nothing pass, as far as a sample of documents tells; or None.

    For a search without documents: the filter may be right, and name what nothing has.
    """
    leaves = leaves_of(compile_filter(filter or {}).node)
    sample = store.sample(HINT_SAMPLE) if leaves else []
    hints = field_hints(sample, [leaf.field for leaf in leaves], "the filter")
    for leaf in leaves:
        values = values_of(sample, leaf.field)
        stored = [item for value in values for item in (value if is_list(value) else [value])]
        stored = [item for item in stored if item is not None]
        if isinstance(leaf, Among):
            hints += _spelling_hints(leaf, stored)
        elif isinstance(leaf, Within | WithinDates) and stored:
            hints += _kind_hints(leaf, stored)
    return list(dict.fromkeys(hints)) or None


def _spelling_hints(leaf: Among, stored: Sequence[Json]) -> list[str]:
    """Return the stored values that a filter seems to mean: others by their case or type alone."""
    exact = {_json(value) for value in stored}
    alike = {_json(value).strip('"').casefold(): value for value in stored}
    wrong = [value for value in map(_json, leaf.values[:HINT_SAMPLE]) if value not in exact]
    return [
        f"No document looked at has {value} in {leaf.field}; did you mean {_json(alike[plain])}?"
        for value in wrong
        if (plain := value.strip('"').casefold()) in alike
    ]


def _kind_hints(leaf: Within | WithinDates, stored: Sequence[Json]) -> list[str]:
    """Return why no stored value can lie within bounds: all are of another kind, or dates that are
    written in another form."""
    bound, first = leaf.bounds[0][1], _json(stored[0])
    is_within_dates = isinstance(leaf, WithinDates)
    if not is_within_dates and all(
        isinstance(it, str) is not isinstance(bound, str) for it in stored
    ):
        return [
            f"{leaf.field} is compared with {_json(bound)}, but documents have {first}; a text and "
            f"a number are not compared."
        ]
    if (is_within_dates or is_date(bound)) and not any(map(is_date, stored)):
        return [
            f"{leaf.field} is compared with dates, but documents have {first}; write dates as "
            f"2024-05-17 or 2024-05-17T12:30:00Z."
        ]
    return []


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)[:80]


def field_hints(sample: Sequence[StoredDocument], fields: Sequence[str], place: str) -> list[str]:
    """Return a sentence for each field that no document of a sample has.

    Args:
        place: the part of the request that names them.
    """
    unknown = [
        field
        for field in dict.fromkeys(fields)
        if not field.startswith("@")
        and sample
        and all(value_of(document, field) is None for document in sample)
    ]
    names = field_names(sample)
    sentences = [
        f"No document looked at ({len(sample):,}) has the field {field!r} of {place}; "
        f"{remedy(field, names)}"
        for field in unknown
    ]
    return [text if text.endswith("?") else f"{text}." for text in sentences]


class HeadBlend:
    """A blend of vectors whose heads go through W_V and W_O."""

    def __init__(self, projection: Projection, gates: Float64) -> None:
        self._projection = projection
        self._gates = gates
        self._blends = [blend_for(ValueType("vector")) for _ in range(projection.heads)]

    def add(self, ids: Sequence[str], values: Sequence[Json], weights: Float64) -> None:
        """Take in documents with their weights by head (H, n)."""
        for blend, by_head in zip(self._blends, weights, strict=True):
            blend.add(ids, values, by_head)

    def answer(self) -> dict[str, Json]:
        answers = [blend.answer() for blend in self._blends]
        coverage = float(self._gates @ [answer["coverage"] for answer in answers])
        vectors = [answer["vector"] for answer in answers]
        if any(vector is None for vector in vectors):
            # W_O takes all heads together: without one it has nothing to work on.
            return {**answers[0], "vector": None, "coverage": coverage}
        heads = np.array(vectors)  # (H, d_v)
        mixed = self._projection.output(heads)
        return {**answers[0], "vector": mixed.tolist(), "coverage": coverage}


def decode_value(store: CollectionStore, path: str | None, vector: Float64) -> dict[str, Json]:
    """Return the stored document whose value (or key, where that is the value) is nearest.

    Raises:
        InvalidRequest: W_V and W_O led to a width that no stored value has.
        Vanished: the document was deleted meanwhile.
    """
    width, best, nearest_row = len(vector), None, 0
    stored = _stored_keys(store, width) if path == KEY else _stored_values(store, path, width)
    for rows, vectors in stored:
        near = nearest(vector, vectors)
        if best is None or near.distance < best.distance:
            best, nearest_row = near, rows[near.place]
    if best is None:
        raise InvalidRequest(
            f"The answer has {len(vector)} dimensions, and no stored value has, so that none "
            f"can be named. Ask without decode, or of a projection that keeps the width.",
            field="decode",
        )
    document = store.documents(np.array([nearest_row]), texts=False).get(nearest_row)
    if document is None:
        raise Vanished
    return {
        "id": document.id,
        "value": document.value,
        "cosine": best.cosine,
        "distance": best.distance,
    }


def _stored_keys(store: CollectionStore, width: int) -> Iterator[_Vectors]:
    with store.all_keys() as (_, tables):
        for table in tables:
            if table.vectors.shape[1] == width:
                yield table.documents.tolist(), table.vectors


def _stored_values(store: CollectionStore, path: str | None, width: int) -> Iterator[_Vectors]:
    """Read the values that are vectors of a width; all others are passed over."""
    after = 0
    while True:
        with forgetting():
            block = store.scroll(after, BLOCK)
        if not block:
            return
        check_deadline()
        values = [(document.row, value_of(document, path)) for document in block]
        fitting = [pair for pair in values if is_numbers(pair[1]) and len(pair[1]) == width]
        if fitting:
            yield [row for row, _ in fitting], [value for _, value in fitting]
        after = block[-1].row
