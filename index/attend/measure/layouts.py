"""Layouts of the keys of a collection in two dimensions, kept beside its published indexes.

A layout is fitted once for a state of the keys: principal components (Pearson 1901), or t-SNE (van
der Maaten and Hinton 2008) by scikit-learn. t-SNE is fitted to at most `LANDMARKS` documents from
all over the collection, so that its cost is bounded, and the others stand between their nearest
landmarks (de Silva and Tenenbaum 2004). Landmarks of a trained version begin where those of the
first version are, and the result is turned, scaled and shifted onto them (Procrustes analysis,
Gower 1975): both versions then have one frame, and a movement is one of the keys.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import faiss
import numpy as np

from attend.api.answers import ClusterLabel
from attend.api.search import MAX_DOTS
from attend.collection.collection import Collection
from attend.collection.versions import Version
from attend.core.arrays import KeyTable, locate
from attend.core.deadline import check_deadline
from attend.core.errors import InvalidRequest
from attend.core.types import Float32, Float64, Floats, Int64, OnStage
from attend.measure.clusters import cluster_labels
from attend.store import CollectionStore, State

log = logging.getLogger("attend")

LayoutMethod = Literal["pca", "tsne"]

FEWEST = 8
"""Documents that t-SNE takes; fewer have no neighbourhoods."""

LANDMARKS = 1500
"""Documents that t-SNE is fitted to. Its time grows with them: 1,500 take some 6 seconds."""

PERPLEXITY, STEPS, ANGLE = 10, 400, 0.8
"""Settings of t-SNE. Of 3,000 points in 100 clusters .57 of the ten nearest stay among the ten
nearest (UMAP: .39, in the same time; the library's own settings: .48, in five times the time)."""

SECONDS_PER_KEY = 0.003
"""Time that t-SNE takes at most, also beside other work; nothing interrupts it."""

NEIGHBOURS = 5
"""Landmarks between which a document stands that is none itself."""

DIMENSIONS = 50
"""Principal components in which distances to landmarks are measured."""

FITTED_NUMBERS = 4_000_000
"""Numbers in the keys that components are fitted to: a second of work."""

LEAST_SHARED = 0.5
"""The share of landmarks that a reference must place, so that a layout begins there."""

DRIFT = 0.1
"""The share of documents that may come, go or change before a layout is fitted again."""

AT_ONCE = 400
"""Documents up to which a layout is fitted while the caller waits: one second."""

COMPARED = 100
"""Documents whose keys are compared to tell whether two versions have the same."""

FORMAT = 1
FOLDER = "maps"

KEPT = 8
"""Layouts of a collection in memory."""


@dataclass(frozen=True, eq=False)
class MapLayout:
    """Places of documents, and what places others among them.

    Attributes:
        rows: (n,) of the documents in the store, ascending.
        places: (n, 2)
        center, axes: (d,) and (d, m), from keys to components.
        landmarks, landmark_places: (l, m) and (l, 2); none where the first two components are the
            place.
        explained: the variance share of each axis of principal components.
        documents, last_key, last_removal: the state of the collection that it was fitted to.
    """

    method: LayoutMethod
    rows: Int64
    places: Float32
    center: Float32
    axes: Float32
    landmarks: Float32
    landmark_places: Float32
    explained: list[float] | None
    labels: Sequence[ClusterLabel]
    documents: int
    last_key: int
    last_removal: int

    def place(self, keys: Floats) -> Float64:
        """Return the places (n, 2) of keys (n, d)."""
        return self.place_components((keys - self.center) @ self.axes)

    def place_components(self, components: Floats) -> Float64:
        """Return the places (n, 2) of keys by their components (n, m)."""
        if not len(self.landmarks):
            return np.asarray(components[:, :2], np.float64)
        count = min(NEIGHBOURS, len(self.landmarks))
        squares, nearest = faiss.knn(
            np.ascontiguousarray(components, np.float32), self.landmarks, count
        )
        distances = np.sqrt(np.maximum(squares.astype(np.float64), 0.0))
        # faiss rounds: what is as near as rounding goes is the landmark itself.
        least = 1e-3 * np.sqrt(np.maximum((components.astype(np.float64) ** 2).sum(axis=1), 1e-12))
        is_landmark = distances[:, :1] <= least[:, None]
        weights = np.where(
            is_landmark, distances <= least[:, None], 1 / np.maximum(distances, 1e-12)
        )
        weights /= weights.sum(axis=1, keepdims=True)
        places = self.landmark_places[nearest].astype(np.float64)
        return np.asarray(np.einsum("nk,nkc->nc", weights, places), np.float64)

    def is_current(self, state: State) -> bool:
        """Return whether no key came or went since it was fitted."""
        return (self.last_key, self.last_removal) == (state.last_key, state.last_removal)

    def is_usable(self, state: State, documents: int) -> bool:
        """Return whether so little changed that it need not be fitted again."""
        if self.is_current(state):
            return True
        changes = max(state.last_key - self.last_key, abs(documents - self.documents))
        return documents > AT_ONCE and changes <= DRIFT * self.documents


_layouts: MutableMapping[CollectionStore, dict[str, MapLayout]] = WeakKeyDictionary()
_fitting: MutableMapping[CollectionStore, threading.Lock] = WeakKeyDictionary()


def version_of(collection: Collection, number: int) -> Version:
    """Read a version with projected keys: where W_K folds into the query, they would not move.

    Raises:
        UnknownProjection: it does not exist.
    """
    stored = collection.store.version(number)
    version = Version.of(number, stored, collection.settings.scorer)
    return Version(number, version.projection.materialised(), version.tuning, version.offsets)


def mean_keys(version: Version, stored: KeyTable) -> Float64:
    """Return the mean of each document's keys, by row ascending: (n, width)."""
    if not len(stored):
        return np.empty((0, version.width))
    keys = version.keys(stored)
    return np.asarray(keys.with_vectors(keys.vectors.astype(np.float64)).means(), np.float64)


def has_same_keys(collection: Collection, version: Version, other: Version) -> bool:
    """Return whether two versions have the same keys: a sample tells versions of other matrices."""
    if version.layout == other.layout:
        return True
    if version.width != other.width:
        return False
    rows = collection.store.column(None, COMPARED).rows
    sample = collection.store.own_keys(rows)
    return np.allclose(mean_keys(version, sample), mean_keys(other, sample), rtol=1e-4, atol=1e-6)


def has_same_queries(version: Version, other: Version) -> bool:
    """Return whether two versions project queries alike, by a few random ones."""
    width = version.projection.d_in
    probes = np.random.default_rng(0).standard_normal((4, width)).astype(np.float32)
    queries = version.projection.queries(probes), other.projection.queries(probes)
    if queries[0].shape != queries[1].shape:
        return False
    return np.allclose(*queries, rtol=1e-4, atol=1e-5)


def stored_layout(
    collection: Collection, version: Version, method: LayoutMethod
) -> MapLayout | None:
    """Return the layout of a version if there is one that can be used; nothing is fitted."""
    name = f"{method}-{version.layout}"
    state, documents = collection.store.state(), collection.store.counts()[0]
    layouts = _layouts.setdefault(collection.store, {})
    layout = layouts.get(name)
    if layout is None or not layout.is_current(state):
        layout = _read(collection, name) or layout  # another process may have a newer one
    if layout is None or not layout.is_usable(state, documents):
        return None
    _keep(layouts, name, layout)
    return layout


def fit_layout(
    collection: Collection,
    version: Version,
    method: LayoutMethod,
    on_stage: OnStage = lambda stage, done: None,
) -> MapLayout:
    """Return the layout of a version, fitted and stored unless there is one.

    Raises:
        InvalidRequest: there are too few documents for t-SNE.
        OverTime: this thread's deadline is too near.
    """
    lock = _fitting.setdefault(collection.store, threading.Lock())
    with lock:
        layout = stored_layout(collection, version, method)
        if layout is not None:
            return layout
        reference = None if method == "pca" else _reference(collection, version, on_stage)
        layout = _fitted(collection, version, method, reference, on_stage)
        _write(collection, version, layout)
        return layout


def _reference(collection: Collection, version: Version, on_stage: OnStage) -> MapLayout | None:
    """Return the layout of the first version that searches, in whose frame others are drawn."""
    stored = [item.version for item in collection.store.projections() if item.role == "search"]
    first = version_of(collection, min(stored, default=version.number))
    if first.layout == version.layout:
        return None
    layout = stored_layout(collection, first, "tsne")
    if layout is None:
        layout = _fitted(collection, first, "tsne", None, on_stage)
        _write(collection, first, layout)
    return layout


def _keep(layouts: dict[str, MapLayout], name: str, layout: MapLayout) -> None:
    layouts.pop(name, None)
    layouts[name] = layout
    for outdated in list(layouts)[:-KEPT]:
        layouts.pop(outdated, None)


def _fitted(
    collection: Collection,
    version: Version,
    method: LayoutMethod,
    reference: MapLayout | None,
    on_stage: OnStage,
) -> MapLayout:
    store = collection.store
    count = max(FITTED_NUMBERS // max(version.width, 1), FEWEST)
    documents = store.counts()[0]
    if method == "tsne":
        _check_enough(documents)
        check_deadline(SECONDS_PER_KEY * min(documents, LANDMARKS))
    on_stage("Reading keys", 0.0)
    column = store.column(None, MAX_DOTS)
    sample = store.own_keys(column.rows[_even(len(column.rows), count)])
    center, axes, explained = components_of(mean_keys(version, sample), DIMENSIONS)
    state, rows, reduced = _reduced(store, version, column.rows, center, axes)
    on_stage("Placing landmarks", 0.2)
    none = np.empty((0, axes.shape[1]), np.float32), np.empty((0, 2), np.float32)
    layout = MapLayout(
        method, rows, reduced[:, :2], center, axes, *none,
        explained=explained, labels=[], documents=documents,
        last_key=state.last_key, last_removal=state.last_removal,
    )  # fmt: skip
    if method == "tsne":
        _check_enough(len(rows))  # some may have gone meanwhile
        picks = _even(len(rows), LANDMARKS)
        landmarks = np.ascontiguousarray(reduced[picks])
        places = _tsne(landmarks, rows[picks], reference)
        layout = replace(layout, landmarks=landmarks, landmark_places=places, explained=None)
        on_stage("Placing the other documents", 0.8)
        layout = replace(layout, places=layout.place_components(reduced).astype(np.float32))
        layout.places[picks] = places
    on_stage("Naming the groups", 0.9)
    return replace(layout, labels=cluster_labels(store, layout.rows, layout.places))


def _check_enough(documents: int) -> None:
    if documents < FEWEST:
        raise InvalidRequest(
            f"t-SNE shows neighbourhoods, and {documents} documents have none; it takes at least "
            f"{FEWEST} documents. Ask for method pca.",
            field="method",
        )


def _even(count: int, most: int) -> Int64:
    """Return at most so many positions of `count`, evenly spread."""
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, most)).astype(np.int64))


def _reduced(
    store: CollectionStore, version: Version, rows: Int64, center: Float32, axes: Float32
) -> tuple[State, Int64, Float32]:
    """Read all keys once; return the rows (n,) and components (n, m) of the documents wanted."""
    row_parts, parts = [np.empty(0, np.int64)], [np.empty((0, axes.shape[1]), np.float32)]
    with store.all_keys() as (state, tables):
        for table in tables:
            places = np.flatnonzero(locate(rows, table.rows).present)
            if len(places):
                part = table.some(places)
                row_parts.append(part.rows)
                parts.append(((mean_keys(version, part) - center) @ axes).astype(np.float32))
    return state, np.concatenate(row_parts), np.concatenate(parts)


def components_of(keys: Float64, most: int) -> tuple[Float32, Float32, list[float]]:
    """Return the mean (d,) of keys, their first components (d, m), and two variance shares.

    At least two components come back, of zeros where there is no spread.
    """
    center = keys.mean(axis=0) if len(keys) else np.zeros(keys.shape[1])
    spread = keys - center
    if len(keys) > keys.shape[1]:  # (d, d) is then the smaller product
        squares, vectors = np.linalg.eigh(spread.T @ spread)
        variances, axes = np.maximum(squares[::-1], 0.0), vectors.T[::-1]
    else:
        _, lengths, axes = np.linalg.svd(spread, full_matrices=False)
        variances = lengths**2
    axes = axes[: max(most, 2)]
    axes = np.vstack([axes, np.zeros((2, keys.shape[1]))])[: max(2, len(axes))]
    # Either sign of an axis is right; this takes the same one each time.
    largest = np.abs(axes).argmax(axis=1)
    signs = np.where(axes[np.arange(len(axes)), largest] < 0, -1.0, 1.0)
    total = float(variances.sum()) or 1.0
    explained = [*(variances[:2] / total).tolist(), 0.0, 0.0][:2]
    return center.astype(np.float32), (axes * signs[:, None]).T.astype(np.float32), explained


def _tsne(keys: Float32, rows: Int64, reference: MapLayout | None) -> Float32:
    """Return places (n, 2) of landmarks (n, m), in the frame of a reference."""
    from sklearn.manifold import TSNE

    shared = locate(np.empty(0, np.int64) if reference is None else reference.rows, rows)
    if reference is not None and shared.present.mean() > LEAST_SHARED:
        before = reference.places[shared.places].astype(np.float64)
        start = np.where(shared.present[:, None], before, before[shared.present].mean(axis=0))
        # From there each document goes only as far as its neighbours do.
        scale, exaggeration = 1.0, 1.0
    else:
        # A start by components keeps the large shape (Kobak and Linderman 2021).
        start = keys[:, :2] / (float(keys[:, 0].std()) or 1.0)
        scale, exaggeration = 1e-4, 12.0
    # The noise pulls keys that are equal apart; without a spread the library's own start divides
    # by zero.
    start = start + np.random.default_rng(0).normal(scale=0.01, size=start.shape)
    fitted = TSNE(
        perplexity=min(PERPLEXITY, (len(keys) - 1) / 3),
        max_iter=STEPS,
        angle=ANGLE,
        early_exaggeration=exaggeration,
        init=scale * start,
        random_state=0,
    )
    places = np.asarray(fitted.fit_transform(keys), np.float64)
    if reference is not None and shared.present.sum() > 2:
        before = reference.places[shared.places[shared.present]].astype(np.float64)
        places = aligned(places, places[shared.present], before)
    return places.astype(np.float32)


def aligned(places: Float64, part: Float64, target: Float64) -> Float64:
    """Turn, mirror, scale and shift places (n, 2) so that a part (m, 2) is nearest to a target.

    >>> square = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]])
    >>> turned = square[:, ::-1] * 3 + 5
    >>> bool(np.allclose(aligned(turned, turned, square), square))
    True
    """
    from_mean, to_mean = part.mean(axis=0), target.mean(axis=0)
    left, lengths, right = np.linalg.svd((part - from_mean).T @ (target - to_mean))
    spread = float(((part - from_mean) ** 2).sum()) or 1.0
    turn = left @ right * (lengths.sum() / spread)
    return np.asarray((places - from_mean) @ turn + to_mean, np.float64)


# -- files ----------------------------------------------------------------------------------------

_ARRAYS = ("rows", "places", "center", "axes", "landmarks", "landmark_places")


def _write(collection: Collection, version: Version, layout: MapLayout) -> None:
    """Keep a layout in memory and store it; where that cannot be done it is in memory only."""
    name = f"{layout.method}-{version.layout}"
    _keep(_layouts.setdefault(collection.store, {}), name, layout)
    if not collection.folder.is_dir():
        return  # the engine has no files
    uuid = collection.store.settings().get("uuid")
    labels = [asdict(label) for label in layout.labels]
    details = {"format": FORMAT, "uuid": uuid, "labels": labels} | {
        field: getattr(layout, field)
        for field in ("method", "explained", "documents", "last_key", "last_removal")
    }
    arrays: dict[str, Any] = {field: getattr(layout, field) for field in _ARRAYS}
    arrays["details"] = np.frombuffer(json.dumps(details).encode(), np.uint8)
    folder = collection.folder / FOLDER
    try:
        folder.mkdir(exist_ok=True)
        descriptor, path = tempfile.mkstemp(dir=folder, prefix="writing-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                np.savez(file, **arrays)
            os.replace(path, folder / f"{name}.npz")
        except BaseException:
            Path(path).unlink(missing_ok=True)
            raise
        _sweep(folder, keep=f"{name}.npz")
    except OSError as error:
        log.info("The map of %s was not stored: %s", collection.name, error)


def _sweep(folder: Path, keep: str) -> None:
    """Remove all but the latest layouts, which others can fit again."""
    paths = sorted(folder.glob("*.npz"), key=lambda path: path.stat().st_mtime)
    for path in paths[: -2 * KEPT]:
        if path.name != keep:
            path.unlink(missing_ok=True)


def _read(collection: Collection, name: str) -> MapLayout | None:
    """Read a stored layout; None where there is none, or it is damaged or of another collection."""
    path = collection.folder / FOLDER / f"{name}.npz"
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {field: file[field] for field in _ARRAYS}
            details: Mapping[str, Any] = json.loads(file["details"].tobytes())
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever a damaged file holds, the layout is fitted again
        log.info("The stored map %s cannot be read: %s", path, error)
        return None
    if (details.get("format"), details.get("uuid")) != (
        FORMAT,
        collection.store.settings().get("uuid"),
    ):
        return None
    labels = [ClusterLabel(**label) for label in details["labels"]]
    fields = ("method", "explained", "documents", "last_key", "last_removal")
    return MapLayout(**arrays, **{field: details[field] for field in fields}, labels=labels)
