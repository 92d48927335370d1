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
from attend.errors import InvalidRequest, UnknownProjection
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
    with pytest.raises(InvalidRequest, match="which 5 documents do not have; it takes 8"):
        charted(points, method="umap")
    with pytest.raises(InvalidRequest, match="Input should be 'pca' or 'umap'"):
        charted(points, method="tsne")
