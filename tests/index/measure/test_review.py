"""Versions that use sends back, and versions that stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attend import Collection, Data
from attend.learning.evidence import ROLLED_BACK
from attend.projection import Projection

WORDS = [
    f"{first}{last}" for first in ("ba", "de", "fi", "go", "lu") for last in ("ma", "ne", "ri")
]
TEXTS = [" ".join(np.random.default_rng(number).choice(WORDS, 5)) for number in range(60)]


@pytest.fixture
def collection(tmp_path: Path, tiny_encoder: Any) -> Iterator[Collection]:
    data = Data(tmp_path, load_encoder=lambda name: tiny_encoder)
    made = data.create("default")
    made.upsert([{"id": str(number), "text": text} for number, text in enumerate(TEXTS)])
    made.configure(log=True)
    yield made
    data.close()


def promoted(collection: Collection, noise: float) -> int:
    """A version whose queries are turned at random, as if a training had promoted it."""
    width = collection.settings.dimension
    turn = np.eye(width) + noise * np.random.default_rng(1).normal(size=(width, width))
    weights = turn[None].astype(np.float32)
    version = collection.add_projection(Projection("learned", width, np.ones(1), w_q=weights))
    mix = {"before": 0.4, "after": 0.441, "p": 0.001, "decides": True}
    report = {"promoted": True, "used": {"relevant": 10}, "views": {"mix": mix}}
    collection.activate(version, force=True, report=report)
    return version


def use(collection: Collection, searches: int, seed: int = 0) -> None:
    """Ask for documents by their own first words, and use the document where it is looked at."""
    rng = np.random.default_rng(seed)
    for _ in range(searches):
        number = int(rng.integers(len(TEXTS)))
        answer = collection.search(" ".join(TEXTS[number].split()[:4]), lexical=False)
        looks = rng.random(len(answer.hits)) < 1 / np.arange(1, len(answer.hits) + 1)
        chances = np.where([hit.id == str(number) for hit in answer.hits], 0.9, 0.1)
        used = looks & (rng.random(len(answer.hits)) < chances)
        assert answer.search is not None
        served = [hit.id for hit, is_used in zip(answer.hits, used, strict=True) if is_used]
        collection.used(answer.search, served)


def test_a_version_that_use_says_is_worse_is_sent_back_once(collection: Collection) -> None:
    before = collection.info().projection
    version = promoted(collection, noise=0.5)
    assert collection.review() is None  # nothing was used yet
    use(collection, 300)
    result = collection.review()
    assert result is not None
    assert result.rolled_back
    assert (result.version, result.previous, result.p <= 0.05) == (version, before, True)
    assert result.gain > 0
    assert f"version {before} answers again" in result.reason
    assert collection.info().projection == before
    assert list(collection.store.settings()[ROLLED_BACK]) == [str(version)]
    assert collection.learned().sentence == (
        "Learned from use: 1 promotion, 1 rollback, +0.0 points"
    )
    use(collection, 20)
    assert collection.review() is None  # there is nothing that was promoted over another
    collection.activate(version)
    assert collection.review() is None  # somebody has decided
    assert collection.info().projection == version


def test_an_equal_version_stays_however_often_it_is_reviewed(collection: Collection) -> None:
    version = promoted(collection, noise=0.0)
    for seed in range(6):
        use(collection, 30, seed)
        result = collection.review()
        assert result is not None
        assert not result.rolled_back
        assert "nothing shows that it is worse" in result.reason
    assert collection.info().projection == version
    learned = collection.learned()
    assert (learned.promotions, learned.rollbacks) == (1, 0)
    assert learned.gain == pytest.approx(0.041)
    assert learned.sentence == "Learned from use: 1 promotion, 0 rollbacks, +4.1 points"


def test_only_what_a_training_promoted_is_reviewed(collection: Collection) -> None:
    version = promoted(collection, noise=0.5)
    collection.activate(version, force=True, report={"promoted": False, "forced": True})
    use(collection, 10)
    assert collection.review() is None
