"""Projections on either engine: stored, activated, rolled back; each against brute force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pytest

from attend.collection.collection import Collection
from attend.collection.data import Data
from attend.connect.client import RemoteLibrary
from attend.core.errors import Conflict, DimensionMismatch, InvalidRequest, UnknownProjection
from attend.projection import Projection
from attend.projection import given as projection_given
from tests.index.helpers import several_keys
from tests.milvus.contract import SCALE, WIDTH, Drawn, check, drawn, query

ASKED = query(3)


class Moved(NamedTuple):
    """A projection, and what it makes of the query and of all keys, by plain products."""

    projection: Projection
    query: list[float]
    keys: Mapping[str, np.ndarray]


@pytest.fixture(scope="module")
def versioned(library: Data) -> Collection:
    """A collection of its own: versions stay. A server takes none from a client, but learns them;
    so its own are added where they are stored."""
    versioned = library.create("versions", dimension=WIDTH)
    if isinstance(library, RemoteLibrary):
        versioned.add_projection = library.behind.collection("versions").add_projection
    return versioned


@pytest.fixture(scope="module")
def made(versioned: Collection) -> Mapping[str, Drawn]:
    found = drawn((f"v{at}" for at in range(20)), 23)
    versioned.upsert([each.document for each in found.values()])
    return found


def moved(made: Mapping[str, Drawn], seed: int, *, normalize: bool = False) -> Moved:
    rng = np.random.default_rng(seed)
    w_q, w_k = (np.eye(WIDTH) + rng.normal(scale=0.4, size=(2, WIDTH, WIDTH))).astype(np.float32)
    keys = {id: np.float64(each.keys) @ w_k.T for id, each in made.items()}  # (m, d) @ (d, d)
    asked = np.float64(ASKED) @ w_q.T
    if normalize:
        keys = {id: each / np.linalg.norm(each, axis=1, keepdims=True) for id, each in keys.items()}
        asked = asked / np.linalg.norm(asked)
    projection = projection_given(w_q, w_k, normalize_queries=normalize, normalize_keys=normalize)
    return Moved(projection, asked.tolist(), keys)


def search_is(collection: Collection, wanted: Moved | Mapping[str, Drawn]) -> None:
    answer = collection.search(ASKED, k=100, scale=SCALE, consistency="strong")
    if isinstance(wanted, Moved):
        check(answer, wanted.keys, wanted.query)
    else:
        check(answer, {id: each.keys for id, each in wanted.items()}, ASKED)


@pytest.mark.parametrize("normalize", [False, True], ids=["folded", "keys of its own"])
def test_a_version_answers_from_its_activation_to_its_rollback(
    versioned: Collection, made: Mapping[str, Drawn], normalize: bool
) -> None:
    before = next(each.version for each in versioned.projections() if each.active)
    new = moved(made, 1, normalize=normalize)
    version = versioned.add_projection(new.projection, {"said": "by the contract"})
    search_is(versioned, made)
    versioned.activate(version)
    assert [each.version for each in versioned.projections() if each.active] == [version]
    search_is(versioned, new)

    # What is written under a version is found under it, and afterwards under the one before.
    later = drawn(["later"], 99)["later"]
    versioned.upsert([later.document])
    with_it = moved({**made, "later": later}, 1, normalize=normalize)
    search_is(versioned, with_it)
    assert versioned.rollback() == before
    search_is(versioned, {**made, "later": later})
    assert versioned.delete(["later"]) == 1
    search_is(versioned, made)


def test_another_version_may_be_asked_without_activation(
    versioned: Collection, made: Mapping[str, Drawn]
) -> None:
    other = moved(made, 2)
    version = versioned.add_projection(other.projection)
    answer = versioned.search(ASKED, k=100, scale=SCALE, projection=version)
    check(answer, other.keys, other.query)
    assert answer.projection == version
    search_is(versioned, made)


def test_what_is_stored_of_a_version_comes_back(versioned: Collection) -> None:
    projection = moved(drawn(["x"], 1), 5).projection
    version = versioned.add_projection(projection, {"k": [1, None, "é"]})
    stored = next(each for each in versioned.projections() if each.version == version)
    assert stored.note == {"k": [1, None, "é"]}
    assert not stored.active
    if not isinstance(versioned, Collection):
        return
    weights = versioned.store.version(version).weights
    assert Projection.from_bytes(weights).fingerprint == projection.fingerprint


def test_versions_that_are_not_there_are_refused(versioned: Collection) -> None:
    with pytest.raises(UnknownProjection, match="9999"):
        versioned.activate(9999)
    with pytest.raises(UnknownProjection, match="9999"):
        versioned.search(ASKED, projection=9999)
    with pytest.raises(InvalidRequest, match=f"{WIDTH + 1} dimensions"):
        versioned.add_projection(projection_given(None, np.eye(WIDTH + 1)))


def test_an_activation_that_expected_another_changes_nothing(versioned: Collection) -> None:
    active = next(each.version for each in versioned.projections() if each.active)
    version = versioned.add_projection(moved(drawn(["x"], 1), 6).projection)
    with pytest.raises(Conflict):
        versioned.activate(version, expected=version)
    assert [each.version for each in versioned.projections() if each.active] == [active]


def test_a_vector_of_another_width_is_refused(versioned: Collection) -> None:
    with pytest.raises(DimensionMismatch, match=f"has {WIDTH + 2} dimensions.*{WIDTH}"):
        versioned.search(query(1, WIDTH + 2))
    with pytest.raises(DimensionMismatch, match=f"has {WIDTH - 1} dimensions.*{WIDTH}"):
        versioned.upsert([several_keys("wrong", [query(1, WIDTH - 1)])])
    assert "wrong" not in versioned.ids()
