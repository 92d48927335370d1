"""Layouts of maps: stored and read again, in one frame, bounded, and maps in columns."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attend import Collection, Data
from attend.api.answers import MapColumns
from attend.api.base import parse
from attend.api.search import MapColumnsRequest
from attend.core.deadline import until
from attend.core.errors import InvalidRequest, OverTime, UnknownProjection
from attend.measure import layouts
from attend.measure.layouts import MapLayout, fit_layout, stored_layout, version_of
from attend.measure.map import chart_columns
from attend.projection import given

WIDTH, GROUPS, COUNT = 16, 6, 240
RANDOM = np.random.default_rng(5)
CENTERS = RANDOM.normal(size=(GROUPS, WIDTH)) * 2
VECTORS = CENTERS[np.arange(COUNT) % GROUPS] + 0.3 * RANDOM.normal(size=(COUNT, WIDTH))
WORDS = ("whale", "rose", "ghost", "rocket", "bread", "violin")


@pytest.fixture
def data(tmp_path: Path) -> Data:
    data = Data(tmp_path)
    documents(data.create("grouped", dimension=WIDTH), range(COUNT))
    return data


@pytest.fixture
def grouped(data: Data) -> Collection:
    return data.collection("grouped")


def documents(collection: Collection, numbers: range, vectors: Any = VECTORS) -> None:
    collection.upsert(
        [
            {
                "id": str(n),
                "vector": vectors[n].tolist(),
                "value": {"group": WORDS[n % GROUPS], "price": n / 4},
                "payload": {"title": f"The {WORDS[n % GROUPS]} with number {n}"},
            }
            for n in numbers
        ]
    )


def columns(collection: Collection, **fields: Any) -> MapColumns:
    return chart_columns(collection, parse(MapColumnsRequest, fields))


def places(answer: MapColumns) -> np.ndarray:
    return np.column_stack([answer.x, answer.y])


def spread(points: np.ndarray) -> float:
    return float(np.sqrt(points.var(axis=0).sum()))


def layout_of(collection: Collection, version: int = 1) -> MapLayout | None:
    return stored_layout(collection, version_of(collection, version), "tsne")


def test_a_layout_is_stored_and_read_by_another_process(tmp_path: Path, data: Data) -> None:
    answer = columns(data.collection("grouped"))
    data.close()
    again = Data(tmp_path).collection("grouped")
    layout = layout_of(again)
    assert layout is not None
    assert layout.places == pytest.approx(places(answer), abs=1e-3)
    assert columns(again).json() == answer.json()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", None])
def test_a_damaged_layout_is_fitted_again(
    tmp_path: Path, data: Data, content: bytes | None
) -> None:
    answer = columns(data.collection("grouped"))
    data.close()
    (path,) = (tmp_path / "collections" / "grouped" / "maps").glob("tsne-*.npz")
    path.write_bytes(path.read_bytes()[:-200] if content is None else content)
    again = Data(tmp_path).collection("grouped")
    assert layout_of(again) is None
    assert columns(again).json() == answer.json()


def test_a_layout_of_another_collection_is_not_taken(tmp_path: Path, data: Data) -> None:
    columns(data.collection("grouped"))
    (path,) = (tmp_path / "collections" / "grouped" / "maps").glob("tsne-*.npz")
    other = data.create("other", dimension=WIDTH)
    documents(other, range(COUNT))
    folder = tmp_path / "collections" / "other" / "maps"
    folder.mkdir()
    (folder / path.name).write_bytes(path.read_bytes())
    assert layout_of(other) is None


def test_versions_have_one_frame(grouped: Collection) -> None:
    turn = np.eye(WIDTH) + 0.05 * RANDOM.normal(size=(WIDTH, WIDTH))
    moved = grouped.add_projection(given(np.eye(WIDTH), turn, kind="learned"))
    answer = columns(grouped, projection=moved, before=1)
    assert answer.moved
    assert answer.was_x is not None
    assert answer.was_y is not None
    was = np.column_stack([answer.was_x, answer.was_y])
    assert was == pytest.approx(places(columns(grouped, projection=1)), abs=1e-3)
    # Keys that moved little stay about where they were, though t-SNE may turn and mirror a map.
    distances = np.linalg.norm(places(answer) - was, axis=1)
    assert np.median(distances) < 0.3 * spread(was)
    assert spread(places(answer)) == pytest.approx(spread(was), rel=0.5)


def test_versions_of_the_same_keys_have_one_layout(grouped: Collection) -> None:
    same = grouped.add_projection(given(2 * np.eye(WIDTH), np.eye(WIDTH), kind="given"))
    answer = columns(grouped, projection=same, before=1)
    assert not answer.moved
    assert (answer.was_x, answer.was_y) == (answer.x, answer.y)


def test_documents_beyond_the_landmarks_stand_in_their_group(
    grouped: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "LANDMARKS", 60)
    answer = columns(grouped, colour="group")
    assert answer.names is not None
    assert answer.codes is not None
    points, groups = places(answer), np.array(answer.codes)
    middles = np.array([np.median(points[groups == g], axis=0) for g in range(GROUPS)])
    nearest = np.linalg.norm(points[:, None] - middles[None], axis=-1).argmin(axis=1)
    assert np.mean(nearest == groups) > 0.95


def test_new_documents_are_placed_without_a_fit(
    grouped: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "AT_ONCE", 0)
    monkeypatch.setattr("attend.measure.map.AT_ONCE", 0)
    layout = fit_layout(grouped, version_of(grouped, 1), "tsne")
    added = np.vstack([VECTORS, VECTORS[:5] + 1e-3])
    documents(grouped, range(COUNT, COUNT + 5), added)
    answer = columns(grouped)
    assert answer.method == "tsne"
    assert places(answer)[:COUNT] == pytest.approx(layout.places, abs=1e-3)
    assert places(answer)[COUNT:] == pytest.approx(
        layout.places[:5], abs=0.2 * spread(layout.places)
    )
    grouped.delete([str(n) for n in range(COUNT // 2)])  # too many to be passed over
    assert layout_of(grouped) is None
    assert columns(grouped).method == "pca"


def test_a_large_collection_is_not_fitted_while_the_caller_waits(
    grouped: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attend.measure.map.AT_ONCE", 100)
    answer = columns(grouped)
    assert (answer.method, len(answer.ids)) == ("pca", COUNT)
    assert answer.explained is not None
    fit_layout(grouped, version_of(grouped, 1), "tsne")
    assert columns(grouped).method == "tsne"
    with until(time.monotonic() + 0.1), pytest.raises(OverTime):
        fit_layout(
            grouped,
            version_of(
                grouped,
                grouped.add_projection(given(np.eye(WIDTH), 2 * np.eye(WIDTH), kind="given")),
            ),
            "tsne",
        )


def test_groups_are_named_by_what_only_they_say(grouped: Collection) -> None:
    labels = [label for label in columns(grouped).labels if label.level == 0]
    assert {word for label in labels for word in label.words} == set(WORDS)
    assert sum(label.documents for label in labels) <= COUNT


def test_columns_are_filtered_and_coloured(grouped: Collection) -> None:
    answer = columns(grouped, colour="price", filter={"group": "rose"}, method="pca")
    assert answer.ids == [str(n) for n in range(COUNT) if n % GROUPS == 1]
    assert answer.numbers == [n / 4 for n in range(COUNT) if n % GROUPS == 1]
    assert (answer.names, answer.codes) == (None, None)
    everything = places(columns(grouped, method="pca"))[1::GROUPS]
    assert places(answer) == pytest.approx(everything, abs=1e-3)
    named = columns(grouped, colour="group", limit=30)
    assert named.names is not None
    assert named.codes is not None
    assert len(named.ids) == 30
    expected = [WORDS[int(id) % GROUPS] for id in named.ids]
    assert [named.names[code] for code in named.codes] == expected
    missing = columns(grouped, colour="absent")
    assert (missing.names, missing.codes) == ([], [-1] * COUNT)
    assert columns(grouped, limit=0).ids == []


def test_what_cannot_be_shown_is_refused(grouped: Collection) -> None:
    narrow = grouped.add_projection(given(np.eye(WIDTH)[:2], np.eye(WIDTH)[:2], kind="given"))
    with pytest.raises(InvalidRequest, match="keys of 2 dimensions and version 1 of 16"):
        columns(grouped, before=narrow, method="pca")
    assert columns(grouped, before=narrow, method="tsne").moved  # each has places of its own
    with pytest.raises(UnknownProjection):
        columns(grouped, projection=9)
    with pytest.raises(InvalidRequest, match="no field name"):
        columns(grouped, colour='a"b')
