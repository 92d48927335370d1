"""A map of a collection: its keys in two dimensions, a query among them, and how far both moved.

Principal components (Pearson 1901) take no time. t-SNE (van der Maaten and Hinton 2008), by
scikit-learn, keeps neighbourhoods better, and takes seconds. A layout is fitted to a sample of the
documents, whatever the query, and used again until a document or the version changes.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from weakref import WeakKeyDictionary

import numpy as np

from attend.api.answers import Answer, KeyMap, MapPoint, MapQuery, Place
from attend.api.search import MapRequest, Query
from attend.collection.collection import Collection
from attend.collection.versions import Version
from attend.core.arrays import KeyTable
from attend.core.deadline import check_deadline
from attend.core.errors import InvalidRequest
from attend.core.types import Float64, Floats
from attend.search.queries import QueryEncoder
from attend.store import CollectionStore, StoredDocument
from attend.values.select import display_title, only

FEWEST = 8
"""Documents that t-SNE takes; fewer have no neighbourhoods."""

PERPLEXITY, STEPS, ANGLE = 10, 400, 0.8
"""Settings of t-SNE. Of 3,000 points in 100 clusters .57 of the ten nearest stay among the ten
nearest (UMAP: .39, in the same time; the library's own settings: .48, in five times the time)."""

SECONDS_PER_KEY = 0.003
"""Time that t-SNE takes at most, also beside other work; nothing interrupts it."""

NEIGHBOURS = 15
"""Documents between which t-SNE places what was not fitted: a query, or a key before it moved."""

MAX_NUMBERS = 4_000_000
"""Numbers in the keys of one map: a second of work for principal components."""

FEWEST_FITTED = 200
"""Documents that a layout is fitted to, however few are shown."""

CACHED = 4
"""Layouts of a collection that are used again."""

Plane = Callable[[Floats], Float64]
"""From keys (n, d) to places (n, 2)."""


MapLayout = tuple[Plane, list[float] | None]
"""A fitted layout, and the variance share of each axis of principal components."""

LayoutKey = tuple[int, int, str, int]
"""Revision, version, method, and the number of documents it is fitted to."""

_layouts: MutableMapping[CollectionStore, dict[LayoutKey, MapLayout]] = WeakKeyDictionary()


def chart(collection: Collection, request: MapRequest) -> KeyMap:
    """Map a collection.

    Raises:
        UnknownProjection: a version does not exist.
        InvalidRequest: the versions have keys of different widths, or there are too few documents
            for t-SNE.
    """
    store = collection.store
    active = request.projection or store.state().projection
    now = _version(collection, active)
    was = None if request.before is None else _version(collection, request.before)
    if was is not None and was.width != now.width:
        raise InvalidRequest(
            f"Version {was.number} has keys of {was.width} dimensions and version {now.number} of "
            f"{now.width}, and movement needs keys of one width. Leave out `before`.",
            field="before",
        )
    answer = None
    if request.query is not None:
        query = request.query.model_dump(exclude_none=True)
        answer = collection.search(query, k=100, projection=request.projection, fields=[])
    shown = _sample(collection, request, answer, now.width)
    method = "pca" if request.method == "pca" else "tsne"
    plane, explained = _layout(store, now, method, request.limit)
    keys = store.own_keys(np.array([document.row for document in shown], dtype=np.int64))
    rows = keys.rows.tolist()
    places = dict(zip(rows, _pairs(plane(_means(now, keys))), strict=True))
    before = {} if was is None else dict(zip(rows, _pairs(plane(_means(was, keys))), strict=True))
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
        query=_query(collection, request.query, now, was, plane),
        method=method,
        explained=explained,
        projection=active,
        before=request.before,
        documents=store.counts()[0],
    )


def _version(collection: Collection, number: int) -> Version:
    """Read a version with projected keys: where W_K folds into the query, they would not move."""
    stored = collection.store.version(number)
    version = Version.of(number, stored, collection.settings.scorer)
    return Version(number, version.projection.materialised(), version.tuning, version.offsets)


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


def _means(version: Version, stored: KeyTable) -> Float64:
    """Return the mean of each document's keys, by row ascending: (n, d)."""
    if not len(stored):
        return np.empty((0, version.width))
    keys = version.keys(stored)
    return np.asarray(keys.with_vectors(keys.vectors.astype(np.float64)).means(), np.float64)


def _layout(store: CollectionStore, version: Version, method: str, limit: int) -> MapLayout:
    """Return the layout of a sample of the documents, fitted once for a state of the collection."""
    fitted_to = min(max(limit, FEWEST_FITTED), max(MAX_NUMBERS // version.width, FEWEST))
    key = store.state().change, version.number, method, fitted_to
    layouts = _layouts.setdefault(store, {})
    if key not in layouts:
        sample = np.array([document.row for document in store.sample(fitted_to)], dtype=np.int64)
        means = _means(version, store.own_keys(sample))
        for outdated in list(layouts)[: len(layouts) - CACHED + 1]:
            layouts.pop(outdated, None)
        layouts[key] = _principal(means) if method == "pca" else (_tsne(means), None)
    return layouts[key]


def _principal(keys: Float64) -> tuple[Plane, list[float]]:
    """Return the first two principal components of keys (n, d), and the variance share of each."""
    center = keys.mean(axis=0) if len(keys) else np.zeros(keys.shape[1])
    _, lengths, axes = np.linalg.svd(keys - center, full_matrices=False)
    axes = np.vstack([axes, np.zeros((2, keys.shape[1]))])[:2]  # (2, d), also for one key
    # Either sign of an axis is right; this takes the same one each time.
    largest = np.abs(axes).argmax(axis=1)
    signs = np.where(axes[np.arange(2), largest] < 0, -1.0, 1.0)
    total = float((lengths**2).sum()) or 1.0
    explained = [*(lengths[:2] ** 2 / total).tolist(), 0.0, 0.0][:2]
    return lambda vectors: (vectors - center) @ (axes * signs[:, None]).T, explained


def _tsne(keys: Float64) -> Plane:
    """Fit t-SNE to keys (n, d); what was not fitted falls between its nearest keys."""
    if len(keys) < FEWEST:
        raise InvalidRequest(
            f"t-SNE shows neighbourhoods, and {len(keys)} documents have none; it takes at least "
            f"{FEWEST} documents. Ask for method pca.",
            field="method",
        )
    check_deadline(SECONDS_PER_KEY * len(keys))
    from sklearn.manifold import TSNE
    from sklearn.neighbors import KNeighborsRegressor

    # A start by components keeps the large shape (Kobak and Linderman 2021). The noise pulls keys
    # that are equal apart; without a spread the library's own start divides by zero.
    start = _principal(keys)[0](keys)
    start = start / (start[:, 0].std() or 1.0) + np.random.default_rng(0).normal(
        scale=0.01, size=start.shape
    )
    fitted = TSNE(
        perplexity=min(PERPLEXITY, (len(keys) - 1) / 3),
        max_iter=STEPS,
        angle=ANGLE,
        init=1e-4 * start,
        random_state=0,
    )
    places = fitted.fit_transform(keys)
    # A distance of 0 has all the weight: a fitted key stays where it is.
    nearest = KNeighborsRegressor(min(NEIGHBOURS, len(keys)), weights="distance")
    nearest.fit(keys, places)
    return lambda vectors: np.asarray(nearest.predict(vectors), dtype=np.float64)


def _query(
    collection: Collection, query: Query | None, now: Version, was: Version | None, plane: Plane
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
    (place,) = _pairs(plane(_as_key(now, embedding)))
    (before,) = [None] if was is None else _pairs(plane(_as_key(was, embedding)))
    return MapQuery(place, before)


def _as_key(version: Version, embedding: Floats) -> Float64:
    """Return a query (d,) in the space of the keys, (1, width).

    Heads stand side by side where keys have heads of their own, else their mean by gates counts.
    """
    heads = version.projection.queries(embedding[None, :])[0].astype(np.float64)  # (H, d_k)
    key = heads if heads.size == version.width else version.projection.gates @ heads
    return np.asarray(key, dtype=np.float64).reshape(1, -1)


def _pairs(places: Float64) -> list[Place]:
    return [(float(x), float(y)) for x, y in places]
