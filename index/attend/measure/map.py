"""A map of a collection: its keys in two dimensions, a query among them, and how far both moved.

Principal components (Pearson 1901) are there at once and need nothing besides numpy. UMAP
(McInnes, Healy and Melville 2018) keeps neighbourhoods better, and takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from attend import umap
from attend.api.queries import Query
from attend.api.search import MapRequest
from attend.collection import Collection
from attend.errors import InvalidRequest
from attend.search.answers import Answer
from attend.search.asking import Asking
from attend.search.titles import title_of
from attend.store import KeyBatch, StoredDocument
from attend.types import Float64, Floats, Json
from attend.values import only
from attend.versions import Version

FEWEST = 8
"""Documents that UMAP takes; fewer have no neighbourhoods."""

MAX_NUMBERS = 4_000_000
"""Numbers of the keys that are looked at together: a second of work."""

Place = tuple[float, float]
Plane = Callable[[Floats], Float64]
"""From keys (n, d) to places (n, 2)."""


class Point(NamedTuple):
    """A document where the mean of its keys is; `was`: where it was under the version before.

    `title` is what to call it before people; `weight` its share of the query's attention, and None
    where it was not attended to.
    """

    id: str
    title: str
    place: Place
    was: Place | None
    weight: float | None
    payload: Mapping[str, Json]


class QueryPoint(NamedTuple):
    """Where the query falls among the keys, and where it fell before."""

    place: Place
    was: Place | None


@dataclass(frozen=True)
class KeyMap:
    """The places of a sample of documents, and of all that the query attends to.

    Attributes:
        explained: the share of the variance that each axis shows; None with UMAP.
        documents: how many there are, shown or not.
    """

    points: Sequence[Point]
    query: QueryPoint | None
    method: str
    explained: Sequence[float] | None
    projection: int
    before: int | None
    documents: int

    def json(self) -> dict[str, Any]:
        """Plain data, as the service sends it."""
        points = [each._asdict() for each in self.points]
        query = None if self.query is None else self.query._asdict()
        return asdict(self) | {"points": points, "query": query}


def chart(collection: Collection, request: MapRequest) -> KeyMap:
    """Map the collection as a request has it.

    Raises:
        UnknownProjection: there is no such version.
        InvalidRequest: the versions have keys of different widths, or there are too few documents
            for UMAP.
    """
    store = collection.store
    active = request.projection or store.state().projection
    now = _version(collection, active)
    was = None if request.before is None else _version(collection, request.before)
    _check_widths(now, was)
    answer = _attended(collection, request)
    shown = _sample(collection, request, answer, now.width)
    keys = store.own_keys(np.array([each.row for each in shown], dtype=np.int64))
    means, rows = _means(now, keys), np.unique(keys.documents).tolist()
    places, explained = _plane(request.method, means)
    there = dict(zip(rows, _pairs(places(means)), strict=True))
    moved = [] if was is None else _pairs(places(_means(was, keys)))
    before = dict(zip(rows, moved, strict=False))  # of none, where no version before was named
    weights = {} if answer is None else {hit.id: hit.weight for hit in answer.hits}
    return KeyMap(
        points=[
            Point(
                each.id,
                title_of(each),
                there[each.row],
                before.get(each.row),
                weights.get(each.id),
                only(each.payload, request.fields),
            )
            for each in shown
            if each.row in there  # one that went meanwhile has no keys
        ],
        query=_query(collection, request.query, now, was, places),
        method=request.method,
        explained=explained,
        projection=active,
        before=request.before,
        documents=store.counts()[0],
    )


def _version(collection: Collection, number: int) -> Version:
    """A version whose keys are projected: where W_K folds into the query, they would not move."""
    stored = collection.store.version(number)
    made = Version.of(number, stored, collection.settings.scorer)
    return Version(number, made.projection.materialised(), made.tuning, made.offsets)


def _check_widths(now: Version, was: Version | None) -> None:
    if was is not None and was.width != now.width:
        raise InvalidRequest(
            f"Version {was.number} has keys of {was.width} dimensions and version {now.number} of "
            f"{now.width}: between them nothing can be said to move. Leave out `before`.",
            field="before",
        )


def _attended(collection: Collection, request: MapRequest) -> Answer | None:
    if request.query is None:
        return None
    asked = request.query.model_dump(exclude_none=True)
    return collection.search(asked, k=100, projection=request.projection, fields=[])


def _sample(
    collection: Collection, request: MapRequest, answer: Answer | None, width: int
) -> list[StoredDocument]:
    """Documents from all over the collection, and all that the query attends to."""
    found = [] if answer is None else [hit.id for hit in answer.hits]
    attended = collection.store.find(found)
    limit = max(len(attended), min(request.limit, MAX_NUMBERS // width))
    sample = collection.store.sample(limit)
    by_id = {each.id: each for each in [*attended.values(), *sample]}
    return list(by_id.values())[:limit]


def _means(version: Version, batch: KeyBatch) -> Float64:
    """The mean of each document's keys, by row ascending: (n, d)."""
    if not len(batch.ids):
        return np.empty((0, version.width))
    vectors = version.keys(batch).vectors.astype(np.float64)  # (m, d)
    starts = np.unique(batch.documents, return_index=True)[1]
    counts = np.diff([*starts, len(vectors)])
    means: Float64 = np.add.reduceat(vectors, starts) / counts[:, None]
    return means


def _plane(method: str, keys: Float64) -> tuple[Plane, list[float] | None]:
    return (_umap(keys), None) if method == "umap" else _principal(keys)


def _principal(keys: Float64) -> tuple[Plane, list[float]]:
    """The first two principal components of keys (n, d), with the share of variance of each."""
    center = keys.mean(axis=0) if len(keys) else np.zeros(keys.shape[1])
    _, lengths, axes = np.linalg.svd(keys - center, full_matrices=False)
    axes = np.vstack([axes, np.zeros((2, keys.shape[1]))])[:2]  # (2, d), also of one key
    # Of the two signs an axis may have, the same one each time.
    largest = np.abs(axes).argmax(axis=1)
    signs = np.where(axes[np.arange(2), largest] < 0, -1.0, 1.0)
    whole = float((lengths**2).sum()) or 1.0
    explained = [*(lengths[:2] ** 2 / whole).tolist(), 0.0, 0.0][:2]
    return lambda given: (given - center) @ (axes * signs[:, None]).T, explained


def _umap(keys: Float64) -> Plane:
    if len(keys) < FEWEST:
        raise InvalidRequest(
            f"UMAP tells neighbourhoods apart, which {len(keys)} documents do not have; it takes "
            f"{FEWEST}. Ask for method pca.",
            field="method",
        )
    start, _ = _principal(keys)
    fitted = umap.fit(keys, start(keys))
    return lambda given: fitted.transform(np.asarray(given, dtype=np.float64))


def _query(
    collection: Collection,
    query: Query | None,
    now: Version,
    was: Version | None,
    places: Plane,
) -> QueryPoint | None:
    if query is None:
        return None
    asking = Asking(collection.store, collection.settings, collection.encoder)
    if query.mixture is not None:
        raise InvalidRequest(
            "A mixture attends with each of its parts, and so has no one place on a map; send a "
            "blend, or one of the parts.",
            field="query",
        )
    embedding = asking.asked([query])[0].embeddings[0]
    there = [
        None if version is None else _pairs(places(_as_key(version, embedding)))[0]
        for version in (now, was)
    ]
    assert there[0] is not None
    return QueryPoint(there[0], there[1])


def _as_key(version: Version, embedding: Floats) -> Float64:
    """A query (d,) where keys are, (1, width): heads side by side, or their mean by gates."""
    heads = version.projection.queries(embedding[None, :])[0].astype(np.float64)  # (H, d_k)
    one = heads if heads.size == version.width else version.projection.gates @ heads
    return np.asarray(one, dtype=np.float64).reshape(1, -1)


def _pairs(places: Float64) -> list[Place]:
    return [(float(x), float(y)) for x, y in places]
