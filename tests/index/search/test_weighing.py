"""What an explained answer says of its weights is enough to compute them again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from index import Collection, Data
from index.projection import identity
from index.tuning import Tuning


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
    assert answer.json()["weighing"] == weighing._asdict()


def test_without_a_null_key_there_is_none(tuned: Collection) -> None:
    weighing = tuned.search([1.0, 0, 0, 0], explain=True).weighing
    assert weighing is not None
    assert (weighing.null, weighing.threshold) == (None, None)
    assert tuned.search([1.0, 0, 0, 0]).weighing is None
    assert "weighing" not in tuned.search([1.0, 0, 0, 0]).json()
