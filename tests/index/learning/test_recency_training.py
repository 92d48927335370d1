"""Times as a learned part: the half-life that questions follow is found, chance is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attend.core.errors import Unsupported
from attend.core.settings import Tuning
from attend.learning.calibration import fit_rate
from attend.learning.data import DocumentAges
from tests.index.helpers import vector_data
from tests.index.learning.superseded import (
    HALF_LIFE,
    NOW,
    SCALE,
    WIDTH,
    Superseded,
    right_at_first,
    stored,
    superseded,
)

LEARNED = 300


def made_collection(folder: Path, made: Superseded) -> Any:
    collection = vector_data(folder).create("made", dimension=WIDTH, normalize=True)
    stored(collection, made, LEARNED)
    return collection


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = superseded(150, 700, seed=1)
    collection = made_collection(tmp_path_factory.mktemp("superseded"), made)
    before = right_at_first(collection, made, LEARNED, memory=0)
    report = collection.train(progress=False, parts=["examples", "recency"])
    return collection, made, before, report


def test_the_half_life_of_the_answers_is_found_and_promoted(trained: Any) -> None:
    collection, made, before, report = trained
    assert report["promoted"]
    assert report["chosen"]["recency"] == "day"
    assert report["calibration"]["recency"]["field"] == "day"
    assert report["calibration"]["recency"]["half_life"] == pytest.approx(HALF_LIFE, rel=0.2)
    [active] = [one for one in collection.projections() if one.active]
    assert Tuning.of(active.tuning).recency == (
        "day",
        report["calibration"]["recency"]["half_life"],
    )
    assert before == pytest.approx(0.5, abs=0.1)
    assert right_at_first(collection, made, LEARNED) >= 0.9


def test_searches_answer_by_it_and_may_do_without(trained: Any) -> None:
    collection, made, before, report = trained
    half_life = report["calibration"]["recency"]["half_life"]
    query, options = made.questions[-1].tolist(), {"now": NOW, "explain": True}
    answer = collection.search(query, **options)
    assert answer.calibrated == "examples"
    asked = {"field": "day", "half_life": half_life}
    assert collection.search(query, recency=asked, **options).hits == answer.hits
    for hit in answer.hits:
        aged = -np.log(2) * made.ages[int(hit.id[1:])] / half_life
        assert hit.explanation["parts"]["recency"] == pytest.approx(aged, abs=1e-4)
        assert sum(hit.explanation["parts"].values()) == pytest.approx(hit.score, abs=1e-4)
    without = right_at_first(collection, made, LEARNED, recency=False)
    assert without == pytest.approx(before, abs=0.1)


def test_what_the_active_version_learned_of_times_counts_for_it(trained: Any) -> None:
    collection, _, _, first = trained
    again = collection.train(progress=False, parts=["examples", "recency"])
    assert not again["promoted"]
    assert again["before"]["ndcg@10"] == pytest.approx(first["after"]["ndcg@10"], abs=0.02)
    without = collection.train(progress=False, parts=["examples"], promote=False)
    assert without["after"]["ndcg@10"] < without["before"]["ndcg@10"] - 0.1
    assert without["chosen"]["recency"] == ""


def test_times_that_say_nothing_are_not_chosen(tmp_path: Path) -> None:
    made = superseded(150, 700, seed=2, noise=True)
    collection = made_collection(tmp_path, made)
    report = collection.train(progress=False, parts=["examples", "recency"])
    assert report["chosen"]["recency"] == ""
    assert not report["promoted"]


def test_a_rate_is_fitted_as_the_plain_likelihood_has_it() -> None:
    rng = np.random.default_rng(0)
    scores, ages = rng.uniform(0, 1, (4000, 12)), rng.uniform(0, 300, (4000, 12))
    scores[:, 10:][rng.random((4000, 2)) < 0.5] = -np.inf
    z = SCALE * scores - np.log(2) * ages / HALF_LIFE
    right = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    grades = (np.arange(12) == right[:, None]).astype(float)
    rate, _ = fit_rate(scores, ages, grades, 10.0, 5.0)
    assert np.log(2) / (SCALE * rate) == pytest.approx(HALF_LIFE, rel=0.05)

    def loss(scale: float, rate: float) -> float:
        shares = np.exp(scale * (scores - rate * ages))
        return -float(np.log((shares * grades).sum(axis=1) / shares.sum(axis=1)).mean())

    scales = np.linspace(15, 25, 41)
    least = min(loss(scale, rate) for scale in scales)
    for other in (0.9 * rate, 1.1 * rate):
        assert min(loss(scale, other) for scale in scales) > least
    shuffled = rng.permutation(ages.ravel()).reshape(ages.shape)
    assert fit_rate(scores, shuffled, grades, 10.0, 5.0)[0] == 0.0


def test_fields_are_tried_that_look_like_times(tmp_path: Path) -> None:
    collection = vector_data(tmp_path).create("fields", dimension=2)
    collection.upsert(
        [
            {
                "id": f"d{row}",
                "vector": [1.0, row / 50],
                "value": {"sold": f"20{row % 24:02}-03-{row % 27 + 1:02}"},
                "payload": {
                    "number": row,
                    "constant": "2020-01-01",
                    "seldom": f"2020-01-{row + 1:02}" if row < 20 else None,
                    "meta": {"seen": 1.6e9 + row},
                    "words": f"word {row}",
                },
            }
            for row in range(50)
        ]
    )
    rows = np.array([document.row for document in collection.store.scroll(0, 50)])
    ages = DocumentAges(collection, rows).by_field
    assert set(ages) == {"sold", "meta.seen"}
    np.testing.assert_allclose(ages["meta.seen"], np.arange(49, -1, -1) / 86400, atol=1e-9)


def test_an_engine_without_times_refuses_to_learn_them() -> None:
    from attend_milvus.server import CAPABILITIES

    assert "recency" not in CAPABILITIES.train
    with pytest.raises(Unsupported, match="recency"):
        CAPABILITIES.check("recency")
