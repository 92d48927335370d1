"""Interleaved versions: which one use promotes, sends back or leaves."""

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


def turned(collection: Collection, noise: float) -> int:
    """A version whose queries are turned at random: the more, the worse it is."""
    width = collection.settings.dimension
    turn = np.eye(width) + noise * np.random.default_rng(1).normal(size=(width, width))
    weights = turn[None].astype(np.float32)
    return collection.add_projection(Projection("learned", width, np.ones(1), w_q=weights))


def trained(collection: Collection, noise: float, *, promoted: bool) -> int:
    """The same, as if a training had promoted it, or kept it without a proof."""
    mix = {"before": 0.4, "after": 0.441, "p": 0.001 if promoted else 0.2, "decides": True}
    report: dict[str, Any] = {
        "promoted": promoted, "kept": not promoted, "used": {"relevant": 10}, "views": {"mix": mix},
    }  # fmt: skip
    before, version = collection.info().projection, turned(collection, noise)
    collection.activate(version, force=True, report=report)
    if not promoted:
        collection.activate(before)
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


def test_a_version_that_use_says_is_worse_is_sent_back(collection: Collection) -> None:
    before = collection.info().projection
    version = trained(collection, 0.5, promoted=True)
    assert collection.review() is None  # nothing is interleaved yet
    collection.configure(interleave=[before, version])
    use(collection, 300)
    result = collection.review()
    assert result is not None
    assert (result.active, result.event, result.ended) == (before, "rolled_back", True)
    assert result.comparison.better == before
    assert (collection.info().projection, collection.settings.interleave) == (before, None)
    assert list(collection.store.settings()[ROLLED_BACK]) == [str(version)]
    learned = collection.learned().sentence
    assert learned == "Learned from use: 1 promotion, 1 rollback, +0.0 points"
    [evidence] = [one.evidence for one in collection.projections() if one.version == version]
    assert evidence.rolled_back
    assert f"Sent back by use: Version {before} is better, by " in evidence.verdict
    assert collection.review() is None


def test_a_version_without_a_proof_is_promoted_by_use(collection: Collection) -> None:
    old = turned(collection, 0.5)
    collection.activate(old)
    better = trained(collection, 0.0, promoted=False)
    collection.configure(interleave=[old, better])
    use(collection, 300)
    result = collection.review()
    assert result is not None
    assert (result.active, result.event, result.ended) == (better, "promoted", True)
    [version] = [one for one in collection.projections() if one.version == better]
    assert (version.report["promoted"], version.report["kept"]) == (True, False)
    assert version.report["by_use"] == result.comparison.sentence
    assert f"Proved better by use: Version {better} is better, by " in version.evidence.verdict
    assert version.evidence.state == "proved"
    assert version.evidence.sentence.endswith("proved by use")
    learned = collection.learned()
    assert (learned.promotions, learned.rollbacks) == (1, 0)
    assert collection.rollback() == old


def test_equal_versions_stay_and_are_interleaved_no_longer_than_told(
    collection: Collection,
) -> None:
    before, version = collection.info().projection, trained(collection, 0.0, promoted=True)
    collection.configure(interleave=[before, version])
    for seed in range(6):
        use(collection, 30, seed)
        result = collection.review(*[100][: seed == 5])
        assert result is not None
        assert (result.active, result.event) == (version, None)
        assert result.ended == (seed == 5)
    assert collection.settings.interleave is None
    learned = collection.learned()
    assert learned.gain == pytest.approx(0.041)
    assert learned.sentence == "Learned from use: 1 promotion, 0 rollbacks, +4.1 points"


def test_what_was_used_before_they_were_interleaved_again_says_nothing(
    collection: Collection,
) -> None:
    before, version = collection.info().projection, trained(collection, 0.5, promoted=True)
    collection.configure(interleave=[before, version])
    use(collection, 300)
    collection.configure(interleave=None)
    collection.configure(interleave=[before, version])
    result = collection.review()
    assert result is not None
    assert (result.event, result.comparison.interleaved) == (None, 0)


def test_a_version_that_is_gone_is_interleaved_no_longer(collection: Collection) -> None:
    before, version = collection.info().projection, turned(collection, 0.5)
    collection.configure(interleave=[before, version])
    collection.store.add_projection("identity", b"", "", {}, replaces=version)
    result = collection.review()
    assert result is not None
    assert (result.event, result.ended) == (None, True)
    assert collection.settings.interleave is None
