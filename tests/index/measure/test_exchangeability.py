"""The test of exchangeability: its p-value by definition, quiet streams, and changes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from attend.measure.statistics import SEED, STAKES, ExchangeabilityTest


def by_definition(reference: list[float], numbers: list[float]) -> Iterator[float]:
    """The p-value after each number, from products over every start."""
    lots, seen, least = np.random.default_rng(SEED), list(reference), 1.0
    strange, either = [], []
    for count, number in enumerate(numbers, start=1):
        seen.append(number)
        ties = sum(other == number for other in seen)
        p = (sum(other > number for other in seen) + (1 - lots.random()) * ties) / len(seen)
        strange.append(0.5 / p**0.5 - 1)
        either.append(1 - 2 * p)
        capital = 0.0
        for start in range(1, count + 1):
            grown = [
                np.prod([1 + stake * gain for gain in gains[start - 1 :]])
                for gains, stakes in ((strange, STAKES), (either, STAKES), (either, -STAKES))
                for stake in stakes
            ]
            capital += np.mean(grown) / (start * (start + 1))
        capital += 1 - sum(1 / (start * (start + 1)) for start in range(1, count + 1))
        least = min(least, 1 / capital)
        yield least


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_it_is_what_the_definition_says(shift: float) -> None:
    rng = np.random.default_rng(1)
    reference = rng.normal(size=20).round(1).tolist()
    numbers = (shift + rng.normal(size=30)).round(1).tolist()  # with ties
    test = ExchangeabilityTest(reference)
    np.testing.assert_allclose(
        [test.add(number) for number in numbers], list(by_definition(reference, numbers)), rtol=1e-9
    )


def test_quiet_streams_raise_no_alarm_however_often_one_looks() -> None:
    rng, ends = np.random.default_rng(2), []
    for seed in range(30):
        # Numbers of few values are ties more often than not.
        quiet = rng.normal(size=2200) if seed % 3 else rng.integers(0, 2, 2200)
        test = ExchangeabilityTest(quiet[:200].tolist(), seed)
        ends.append([test.add(number) for number in quiet[200:].tolist()][-1])
    assert min(ends) > 0.001
    assert np.mean(np.array(ends) <= 0.05) <= 0.1


@pytest.mark.parametrize("quiet", [0, 3000])
@pytest.mark.parametrize("kind", ["strange", "familiar", "refused"])
def test_changes_are_told_however_long_it_was_quiet_before(quiet: int, kind: str) -> None:
    rng, late = np.random.default_rng(3), 0
    for seed in range(10):
        if kind == "refused":  # one in twenty before, one in three now
            before, after = rng.random(250 + quiet) < 0.05, rng.random(500) < 0.33
        else:
            before, after = rng.normal(size=250 + quiet), rng.normal(size=500)
            after[rng.random(500) < 0.2] += 6
            after = after if kind == "strange" else rng.normal(size=500) - 0.7
        test = ExchangeabilityTest(before[:250].tolist(), seed)
        for number in before[250:].tolist():
            test.add(number)
        assert test.p > 0.001
        for number in after.tolist():
            test.add(number)
        late += test.p > 0.001
    assert late == 0


def test_no_alarm_is_too_long() -> None:
    test = ExchangeabilityTest(range(100))
    with np.errstate(all="raise"):
        assert 0 < min(test.add(1000.0 + number) for number in range(3000)) < 1e-9
