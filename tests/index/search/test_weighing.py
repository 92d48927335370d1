"""What an explained answer says of its weights is enough to compute them again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from attend import Collection, Data
from attend.api.answers import AttendedShare
from attend.core.settings import Tuning
from attend.projection import identity
from attend.search import hits


@pytest.fixture
def tuned(tmp_path: Path) -> Collection:
    made = Data(tmp_path).create("points", dimension=4)
    vectors = np.random.default_rng(1).standard_normal((30, 4))
    made.upsert([{"id": str(at), "vector": list(each)} for at, each in enumerate(vectors)])
    plain = identity(4)
    tuning = Tuning(scale=(2.0,), null=(0.5,), threshold=0.9, attend=100, scorer="dot")
    made.store.add_projection(
        plain.kind, plain.to_bytes(), plain.fingerprint, {}, tuning=tuning.stored()
    )
    return made


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_weights_follow_from_what_is_explained(tuned: Collection, temperature: float) -> None:
    asked = {"k": 100, "explain": True, "temperature": temperature, "projection": 2}
    answer = tuned.search([1.0, -1.0, 0.5, 0.0], **asked)
    weighing = answer.weighing
    assert weighing is not None
    assert (weighing.temperature, weighing.gates, weighing.null) == (temperature, [1.0], [0.5])
    assert weighing.threshold == 0.9
    logits = [hit.explanation["logits"][0] for hit in answer.hits if hit.explanation]
    shares = softmax(np.array([*logits, 0.5]) / weighing.temperature)
    assert [hit.weight for hit in answer.hits] == pytest.approx(shares[:-1].tolist())
    assert answer.confidence == pytest.approx(1 - shares[-1])
    assert answer.json()["weighing"] == weighing.json()


def test_without_a_null_key_there_is_none(tuned: Collection) -> None:
    weighing = tuned.search([1.0, 0, 0, 0], explain=True).weighing
    assert weighing is not None
    assert (weighing.null, weighing.threshold) == (None, None)
    assert tuned.search([1.0, 0, 0, 0]).weighing is None
    assert "weighing" not in tuned.search([1.0, 0, 0, 0]).json()


# -- how much of all the attended have ----------------------------------------------------------


DOCUMENTS, WIDTH = 3000, 8


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Collection, np.ndarray]:
    made = Data(tmp_path_factory.mktemp("many")).create("many", dimension=WIDTH, normalize=True)
    vectors = np.random.default_rng(2).standard_normal((DOCUMENTS, WIDTH))
    made.upsert(
        [
            {"id": str(at), "vector": list(each), "payload": {"even": at % 2 == 0}}
            for at, each in enumerate(vectors)
        ]
    )
    return made, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def share_of(vectors: np.ndarray, query: np.ndarray, attend: int, scale: float) -> float:
    """By all documents, in float64."""
    weights = np.sort(softmax(scale * (vectors @ query)))
    return float(weights[-attend:].sum())


@pytest.mark.parametrize("attend", [5, 100])
@pytest.mark.parametrize("even", [False, True])
def test_the_mass_of_the_attended_is_exact_where_all_are_drawn(many, attend, even) -> None:
    collection, vectors = many
    query = vectors[7]
    options = {"filter": {"even": True}} if even else {}
    answer = collection.search(
        query.tolist(), attend=attend, scale=10, projection=1, explain=True, **options
    )
    mass = answer.weighing.mass
    share, low, high = mass.share, mass.low, mass.high
    expected = share_of(vectors[::2] if even else vectors, query, attend, 10)
    assert share == pytest.approx(expected, rel=1e-5)
    assert low == high == share


def test_of_all_documents_the_mass_is_one(many) -> None:
    collection, vectors = many
    for attend in ("all", DOCUMENTS):
        answer = collection.search(vectors[0].tolist(), attend=attend, explain=True)
        assert answer.weighing.mass == AttendedShare(1.0, 1.0, 1.0)


@pytest.mark.parametrize("scale", [1, 5, 20])
def test_an_estimated_mass_lies_within_its_interval(many, monkeypatch, scale) -> None:
    """Drawn are a tenth of the documents; the bound holds for every query, as it is a wide one."""
    monkeypatch.setattr(hits, "SAMPLED", DOCUMENTS // 10)
    collection, vectors = many
    keys = collection.views.current(1).keys
    keys.__dict__.pop("_of_all", None)  # what was drawn for the tests above
    apart = []
    for query in np.random.default_rng(3).standard_normal((20, WIDTH)):
        query /= np.linalg.norm(query)
        answer = collection.search(
            query.tolist(), attend=20, scale=scale, projection=1, explain=True
        )
        mass, true = answer.weighing.mass, share_of(vectors, query, 20, scale)
        assert 0 <= mass.low < mass.share < mass.high <= 1
        assert mass.low <= true <= mass.high
        apart.append(mass.share / true - 1)
    keys.__dict__.pop("_of_all", None)
    assert abs(np.mean(apart)) < 0.05
