"""Maps of keys: the axes against scikit-learn's, places against products done by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA

from attend import Collection, Data
from attend.api.base import parse
from attend.api.search import MapRequest
from attend.core.errors import InvalidRequest, UnknownProjection
from attend.measure.map import KeyMap, chart
from attend.projection import given

WIDTH = 6
RANDOM = np.random.default_rng(3)
VECTORS = RANDOM.standard_normal((40, WIDTH)) * [5, 3, 1, 0.5, 0.2, 0.1]
TURN = np.linalg.qr(RANDOM.standard_normal((WIDTH, WIDTH)))[0]


@pytest.fixture
def points(tmp_path: Path) -> Collection:
    made = Data(tmp_path).create("points", dimension=WIDTH)
    made.upsert(
        [
            {"id": str(at), "vector": list(each), "payload": {"half": at % 2, "rest": "x"}}
            for at, each in enumerate(VECTORS)
        ]
    )
    return made


def charted(collection: Collection, **asked: Any) -> KeyMap:
    return chart(collection, parse(MapRequest, asked))


def places(found: KeyMap) -> np.ndarray:
    by_id = {each.id: each.place for each in found.points}
    return np.array([by_id[str(at)] for at in range(len(by_id))])


def distances(points: np.ndarray) -> np.ndarray:
    return np.linalg.norm(points[:, None] - points[None], axis=-1)


def test_axes_are_principal_components(points: Collection) -> None:
    oracle = PCA(2).fit(VECTORS)
    found = charted(points)
    # Of an axis either sign is right: distances know of none.
    assert distances(places(found)) == pytest.approx(distances(oracle.transform(VECTORS)), abs=1e-5)
    assert found.explained == pytest.approx(oracle.explained_variance_ratio_, abs=1e-6)
    assert (found.documents, found.query, found.before) == (40, None, None)
    assert places(charted(points)) == pytest.approx(places(found))  # the same signs each time


def test_a_query_falls_where_its_key_would(points: Collection) -> None:
    found = charted(points, query=VECTORS[7].tolist(), fields=["half"])
    assert found.query is not None
    by_id = {each.id: each for each in found.points}
    assert found.query.place == pytest.approx(by_id["7"].place, abs=1e-5)
    assert by_id["7"].payload == {"half": 1}
    hits = points.search(VECTORS[7].tolist(), k=100).hits
    weights = {hit.id: hit.weight for hit in hits}
    assert {each.id: each.weight for each in found.points} == pytest.approx(weights)


def test_movement_is_from_the_version_before(points: Collection) -> None:
    moved = points.add_projection(given(np.eye(WIDTH), TURN, kind="learned"))
    found = charted(points, projection=moved, before=1, query={"id": "3"})
    keys = VECTORS @ TURN.T
    oracle = PCA(2).fit(keys)
    both = np.vstack([oracle.transform(keys), oracle.transform(VECTORS)])
    was = {each.id: each.was for each in found.points}
    told = np.vstack([places(found), [was[str(at)] for at in range(40)]])
    assert distances(told) == pytest.approx(distances(both), abs=1e-5)
    assert found.query is not None
    assert found.query.was == pytest.approx(found.query.place)  # W_Q is the same in both


def test_heads_lie_side_by_side(points: Collection) -> None:
    halves = np.stack([np.eye(WIDTH)[:3], np.eye(WIDTH)[3:]])
    version = points.add_projection(given(halves, halves, kind="given"))
    assert distances(places(charted(points, projection=version))) == pytest.approx(
        distances(places(charted(points))), abs=1e-5
    )
    shared = points.add_projection(given(halves, halves[:1], kind="given"))
    found = charted(points, projection=shared, query=VECTORS[0].tolist())
    assert found.query is not None


def test_what_the_query_attends_to_is_always_shown(points: Collection) -> None:
    found = charted(points, query=VECTORS[0].tolist(), limit=1)
    assert len(found.points) == 40
    assert len(charted(points, limit=5).points) == 5


def test_of_few_documents_there_is_a_map_too(tmp_path: Path) -> None:
    made = Data(tmp_path).create("few", dimension=3)
    assert charted(made).points == []
    assert charted(made, query=[1, 0, 0]).points == []
    made.upsert([{"id": "a", "vector": [1, 0, 0]}])
    assert charted(made).points[0].place == pytest.approx((0, 0))


def test_what_cannot_be_mapped_is_told(points: Collection) -> None:
    narrow = points.add_projection(given(TURN[:2], TURN[:2], kind="given"))
    with pytest.raises(InvalidRequest, match=r"keys of 2 dimensions and version 1 of 6"):
        charted(points, before=narrow)
    with pytest.raises(UnknownProjection):
        charted(points, projection=9)
    points.delete([str(at) for at in range(35)])
    with pytest.raises(InvalidRequest, match="5 documents have none; it takes at least 8"):
        charted(points, method="tsne")
    with pytest.raises(InvalidRequest, match="'pca', 'tsne' or 'umap' was expected"):
        charted(points, method="mds")


# -- t-SNE ---------------------------------------------------------------------------------------

CLUSTERS = 20


@pytest.fixture(scope="module")
def clustered() -> np.ndarray:
    """More clusters than two components can separate."""
    random = np.random.default_rng(0)
    centers = random.normal(size=(CLUSTERS, 32))
    return centers[np.arange(400) % CLUSTERS] + 0.5 * random.normal(size=(400, 32))


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory, clustered: np.ndarray) -> Collection:
    collection = Data(tmp_path_factory.mktemp("data")).create("clusters", dimension=32)
    collection.upsert(
        [{"id": str(i), "vector": list(vector)} for i, vector in enumerate(clustered)]
    )
    return collection


def preserved(points: np.ndarray, placed: np.ndarray, count: int = 10) -> float:
    """The share of each point's nearest that are among its nearest on the map."""
    nearest, there = (np.argsort(distances(each))[:, 1 : count + 1] for each in (points, placed))
    pairs = zip(nearest.tolist(), there.tolist(), strict=True)
    return float(np.mean([len(set(a) & set(b)) / count for a, b in pairs]))


def test_tsne_preserves_neighbours(clusters: Collection, clustered: np.ndarray) -> None:
    by_tsne = charted(clusters, method="tsne")
    components = preserved(clustered, places(charted(clusters)))
    assert preserved(clustered, places(by_tsne)) > 1.5 * components
    groups = np.arange(400) % CLUSTERS
    nearest = np.argsort(distances(places(by_tsne)))[:, 1]
    assert np.mean(groups[nearest] == groups) > 0.95
    assert (by_tsne.method, by_tsne.explained) == ("tsne", None)


def test_tsne_is_the_same_each_time_and_by_its_earlier_name(points: Collection) -> None:
    one, other = charted(points, method="tsne"), charted(points, method="umap")
    assert one.json() == other.json()


def test_tsne_places_a_query_and_a_movement(clusters: Collection, clustered: np.ndarray) -> None:
    moved = charted(clusters, method="tsne", before=1, query=clustered[7].tolist())
    assert moved.query is not None
    by_id = {point.id: point for point in moved.points}
    assert moved.query.place == pytest.approx(by_id["7"].place, abs=1e-3)
    assert moved.query.was == pytest.approx(moved.query.place)
    for point in moved.points:  # both versions are the same
        assert point.was == pytest.approx(point.place, abs=1e-3)
    beside = charted(clusters, method="tsne", query=(clustered[7] + 1e-3).tolist()).query
    assert beside is not None
    groups = np.arange(400) % CLUSTERS
    middles = [places(moved)[groups == group].mean(axis=0) for group in range(CLUSTERS)]
    nearest = np.argmin(np.linalg.norm(np.array(middles) - beside.place, axis=1))
    assert nearest == 7


def test_tsne_takes_equal_documents(tmp_path: Path) -> None:
    collection = Data(tmp_path).create("equal", dimension=4)
    collection.upsert([{"id": str(i), "vector": [1, 0, 0, 0]} for i in range(9)])
    assert np.isfinite(places(charted(collection, method="tsne"))).all()


def test_a_layout_stays_where_the_query_changes(clusters: Collection) -> None:
    """It is fitted to a sample of the documents, and documents of the sample keep their places."""
    plain = charted(clusters, method="tsne", limit=200)
    asked = charted(clusters, method="tsne", limit=200, query={"id": "7"})
    before = {point.id: point.place for point in plain.points}
    shared = [point for point in asked.points if point.id in before]
    assert 50 < len(shared) < 200
    for point in shared:
        assert point.place == pytest.approx(before[point.id], abs=1e-9)
    for method in ("pca", "tsne"):
        one, other = (charted(clusters, method=method, limit=limit) for limit in (5, 150))
        places_there = {point.id: point.place for point in other.points}
        same = [point for point in one.points if point.id in places_there]
        assert same
        assert all(point.place == pytest.approx(places_there[point.id]) for point in same)


def test_a_layout_is_of_the_documents_there_are(points: Collection) -> None:
    before = charted(points).explained
    points.delete([str(at) for at in range(20)])
    assert charted(points).explained != pytest.approx(before)
