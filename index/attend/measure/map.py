"""A map of a collection: its keys in two dimensions, a query among them, and how far both moved.

`attend.measure.layouts` places the keys. `chart` returns points with what a query attends to,
`chart_columns` all documents of a large collection, compactly.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from attend.api.answers import Answer, KeyMap, MapColumns, MapPoint, MapQuery, Place
from attend.api.search import MAX_DOTS, MapColumnsRequest, MapRequest, Query
from attend.collection.collection import Collection
from attend.collection.versions import Version
from attend.core.arrays import locate
from attend.core.errors import InvalidRequest
from attend.core.types import Float64, Floats, Int64, Json
from attend.measure.layouts import (
    AT_ONCE,
    LayoutMethod,
    MapLayout,
    fit_layout,
    has_same_keys,
    has_same_queries,
    mean_keys,
    stored_layout,
    version_of,
)
from attend.search.queries import QueryEncoder
from attend.store import Column, StoredDocument, compile_filter
from attend.values.select import display_title, only

MAX_NUMBERS = 4_000_000
"""Numbers in the keys of one map of points: a second of work."""

MAX_NAMES = 1000
"""Values of a field that have a name of their own in columns."""

READ = 10_000
"""Documents whose keys are read at once."""

FEW_NUMBERS = 8
"""Different numbers up to which they are names of groups, such as a code or a year."""

LONGEST_NAME = 200
"""Characters of such a name."""

Plane = Callable[[Floats], Float64]
"""From keys (n, d) to places (n, 2)."""


def chart(collection: Collection, request: MapRequest) -> KeyMap:
    """Map a collection.

    Raises:
        UnknownProjection: a version does not exist.
        InvalidRequest: the versions have keys of different widths, or there are too few documents
            for t-SNE.
    """
    store = collection.store
    method: LayoutMethod = "pca" if request.method == "pca" else "tsne"
    now, was = _versions(collection, request, method)
    answer = None
    if request.query is not None:
        query = request.query.model_dump(exclude_none=True)
        answer = collection.search(
            query, k=100, projection=request.projection, filter=request.filter, fields=[]
        )
    shown = _sample(collection, request, answer, now.width)
    layout = fit_layout(collection, now, method)
    before_plane = layout.place
    if was is not None and method == "tsne":
        before_plane = fit_layout(collection, was, method).place
    keys = store.own_keys(np.array([document.row for document in shown], dtype=np.int64))
    rows = keys.rows.tolist()
    places = dict(zip(rows, _pairs(layout.place(mean_keys(now, keys))), strict=True))
    before = (
        {}
        if was is None
        else dict(zip(rows, _pairs(before_plane(mean_keys(was, keys))), strict=True))
    )
    weights = {} if answer is None else {hit.id: hit.weight for hit in answer.hits}
    points = [
        MapPoint(
            document.id,
            display_title(*document[1:]),
            places[document.row],
            before.get(document.row),
            weights.get(document.id),
            only(document.payload, request.fields, {}),
        )
        for document in shown
        if document.row in places  # one that was deleted meanwhile has no keys
    ]
    return KeyMap(
        points=points,
        query=_query(collection, request.query, (now, layout.place), (was, before_plane)),
        method=method,
        explained=layout.explained,
        projection=now.number,
        before=request.before,
        documents=store.counts()[0],
    )


def chart_columns(collection: Collection, request: MapColumnsRequest) -> MapColumns:
    """Map all documents of a collection, as columns.

    Nothing that takes long is computed: where no t-SNE is stored and there are more than a few
    documents, the places are principal components. Documents that came since a layout was fitted
    stand where their keys are among the others; those whose texts changed stay until it is fitted
    again.

    Raises:
        UnknownProjection: a version does not exist.
        InvalidRequest: the versions have keys of different widths, or there are too few documents
            for t-SNE.
    """
    store, method = collection.store, request.method
    documents = store.counts()[0]
    now, was = _versions(collection, request, method)
    moved = was is not None and not has_same_keys(collection, now, was)
    layouts: list[MapLayout] = []
    for version in (now, *([was] if was is not None and moved else [])):
        layout = stored_layout(collection, version, method)
        if layout is None and (method == "pca" or documents <= AT_ONCE):
            layout = fit_layout(collection, version, method)
        if layout is not None:
            layouts.append(layout)
    if len(layouts) < 1 + moved:
        return chart_columns(collection, request.model_copy(update={"method": "pca"}))
    column = _shown(collection, request)
    places = _places(collection, now, layouts[0], column.rows)
    before = None
    if was is not None:
        before = places
        if moved:
            through = layouts[0] if method == "pca" else layouts[1]
            before = _places(collection, was, through, column.rows, stored=method == "tsne")
    numbers, names, codes = _coloured(column.values)
    return MapColumns(
        ids=column.ids,
        x=_rounded(places[:, 0]),
        y=_rounded(places[:, 1]),
        was_x=None if before is None else _rounded(before[:, 0]),
        was_y=None if before is None else _rounded(before[:, 1]),
        colour=request.colour,
        numbers=numbers,
        names=names,
        codes=codes,
        labels=layouts[0].labels,
        method=method,
        explained=layouts[0].explained,
        pending=None,
        projection=now.number,
        before=request.before,
        moved=moved,
        queries_moved=was is not None and not has_same_queries(now, was),
        documents=documents,
    )


def _shown(collection: Collection, request: MapColumnsRequest) -> Column:
    """Return the documents to show, of all or of those that pass the filter."""
    if request.limit == 0:
        return Column(np.empty(0, np.int64), [], None)
    column = collection.store.column(request.colour, MAX_DOTS)
    places = np.arange(len(column.rows))
    if request.filter:
        passing = collection.store.matching(compile_filter(request.filter))
        places = np.flatnonzero(locate(passing, column.rows).present)
    if len(places) > request.limit:
        step = -(-len(places) // max(request.limit, 1))
        places = places[::step][: request.limit]
    if len(places) == len(column.rows):
        return column
    values = column.values
    return Column(
        column.rows[places],
        [column.ids[place] for place in places],
        None if values is None else [values[place] for place in places],
    )


def _places(
    collection: Collection, version: Version, layout: MapLayout, rows: Int64, *, stored: bool = True
) -> Float64:
    """Return the places (n, 2) of documents: those of a layout, else where their keys are.

    Args:
        stored: false where the layout is another version's.
    """
    there = locate(layout.rows if stored else np.empty(0, np.int64), rows)
    places = np.zeros((len(rows), 2))
    places[there.present] = layout.places[there.places[there.present]]
    missing = np.flatnonzero(~there.present)
    for start in range(0, len(missing), READ):
        part = missing[start : start + READ]
        keys = collection.store.own_keys(rows[part])
        present = locate(keys.rows, rows[part])
        means = layout.place(mean_keys(version, keys)) if len(keys) else np.zeros((1, 2))
        places[part] = np.where(present.present[:, None], means[present.places], 0.0)
    return places


def _coloured(
    values: Sequence[Json] | None,
) -> tuple[list[float | None] | None, list[str] | None, list[int] | None]:
    """Return values as numbers, or as names and a code for each; of a list the first one counts."""
    if values is None:
        return None, None, None
    firsts = [value[0] if isinstance(value, list) and value else value for value in values]
    present = [value for value in firsts if value is not None]
    is_numeric = [isinstance(v, int | float) and not isinstance(v, bool) for v in present]
    if present and all(is_numeric) and len(set(present)) > FEW_NUMBERS:
        return [None if v is None else float(v) for v in firsts], None, None  # type: ignore[arg-type]
    texts = [_name(value) for value in firsts]
    frequent = Counter(text for text in texts if text is not None).most_common(MAX_NAMES)
    names = [name for name, _ in frequent]
    codes = {name: code for code, name in enumerate(names)}
    return None, names, [-1 if text is None else codes.get(text, -1) for text in texts]


def _name(value: Json) -> str | None:
    if value is None or isinstance(value, dict | list):
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:LONGEST_NAME]


def _rounded(numbers: Float64) -> list[float]:
    """Return numbers with so many digits that no two pixels of a large screen are one."""
    most = float(np.abs(numbers).max(initial=0.0)) or 1.0
    rounded: list[float] = np.round(numbers, max(0, 4 - int(np.floor(np.log10(most))))).tolist()
    return rounded


def _versions(
    collection: Collection, request: MapRequest | MapColumnsRequest, method: LayoutMethod
) -> tuple[Version, Version | None]:
    """Return the version to show and the one before."""
    now = version_of(collection, request.projection or collection.store.state().projection)
    if request.before is None:
        return now, None
    was = version_of(collection, request.before)
    if method == "pca" and was.width != now.width:
        raise InvalidRequest(
            f"Version {was.number} has keys of {was.width} dimensions and version {now.number} of "
            f"{now.width}, and movement needs keys of one width. Leave out `before`.",
            field="before",
        )
    return now, was


def _sample(
    collection: Collection, request: MapRequest, answer: Answer | None, width: int
) -> list[StoredDocument]:
    """Read documents from all over the collection, and all that the query attends to."""
    hits = [] if answer is None else [hit.id for hit in answer.hits]
    attended = collection.store.find(hits)
    limit = max(len(attended), min(request.limit, MAX_NUMBERS // width))
    sample = collection.store.sample(limit)
    by_id = {document.id: document for document in [*attended.values(), *sample]}
    return list(by_id.values())[:limit]


def _query(
    collection: Collection,
    query: Query | None,
    now: tuple[Version, Plane],
    was: tuple[Version | None, Plane],
) -> MapQuery | None:
    if query is None:
        return None
    if query.mixture is not None:
        raise InvalidRequest(
            "A mixture attends with each of its parts and has no single place on a map; send a "
            "blend, or one of the parts.",
            field="query",
        )
    encoder = QueryEncoder(collection.store, collection.settings, collection.encoder)
    embedding = encoder.encode([query])[0].embeddings[0]
    version, plane = now
    (place,) = _pairs(plane(_as_key(version, embedding)))
    before, plane = was
    if before is None:
        return MapQuery(place, None)
    return MapQuery(place, _pairs(plane(_as_key(before, embedding)))[0])


def _as_key(version: Version, embedding: Floats) -> Float64:
    """Return a query (d,) in the space of the keys, (1, width).

    Heads stand side by side where keys have heads of their own, else their mean by gates counts.
    """
    heads = version.projection.queries(embedding[None, :])[0].astype(np.float64)  # (H, d_k)
    key = heads if heads.size == version.width else version.projection.gates @ heads
    return np.asarray(key, dtype=np.float64).reshape(1, -1)


def _pairs(places: Float64) -> list[Place]:
    return [(float(x), float(y)) for x, y in places]
