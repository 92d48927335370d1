"""Measures of plain arrays: intervals of means, p-values of paired differences, nDCG, calibration.

Arrays in, named numbers out, the same numbers for the same seed; nothing here knows collections.
SciPy and scikit-learn are imported where they are used: they take longer to import than a search.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attend.api.learning import Bin, Reliability
from attend.core.errors import InvalidRequest
from attend.core.types import Float64

RESAMPLES = 10_000
"""Draws for an interval or a p-value: a p of .05 then has a standard error of .002."""

LEVEL = 0.95
"""The level of intervals."""

NORMAL = 1.959964
"""Standard deviations to either side that hold LEVEL of a normal distribution."""

SEED = 20170612

BLOCK = 1 << 21
"""Random numbers drawn at once, so that memory stays bounded: 16 MiB of them."""

BINS = 10

CUT = 10
"""Documents of a ranking that nDCG looks at."""

GAIN_BINS = 20
"""Bins of gains; measures lie within 0 to 1, and so gains within -1 to 1."""

STAKES: Float64 = np.geomspace(1 / 32, 15 / 16, 8)
"""Shares of the capital that `anytime_p` bets, one for each size of a difference; of smaller ones
20,000 numbers would not tell."""

MOST_CAPITAL = 1e12
"""Of a bet, where more would prove no more."""

UNCHANGED = 1e-9
"""A gain nearer to 0 is rounding."""


class Interval(NamedTuple):
    """A mean, and the bounds within which the true one lies at the stated level.

    `low` and `high` are NaN where there are fewer than two values: one value says nothing of its
    spread.
    """

    mean: float
    low: float
    high: float

    @property
    def bounds(self) -> list[float] | None:
        """Return [low, high], or None where one value has no spread."""
        return None if math.isnan(self.low) else [self.low, self.high]


def ndcg(gains: ArrayLike, ideal: ArrayLike) -> Float64:
    """Compute nDCG at 10 with linear gains (Järvelin and Kekäläinen 2002), as trec_eval does.

    0 where nothing is relevant.

    Args:
        gains: (..., k), the gain of each document of a ranking, the best one first.
        ideal: (...), the `dcg` of the best possible ranking.

    >>> round(float(ndcg([0.0, 0.5], dcg([0.5, 0.0]))), 9)  # 1 / log2(3)
    0.630929754
    """
    gained, best = dcg(gains), np.asarray(ideal, dtype=np.float64)
    return np.divide(gained, best, out=np.zeros_like(gained), where=best > 0)


def dcg(gains: ArrayLike) -> Float64:
    """Sum the gains (..., k) of the first ten ranks, each divided by log2(rank + 1): (...)."""
    first = np.asarray(gains, dtype=np.float64)[..., :CUT]
    discounts = 1 / np.log2(np.arange(2, first.shape[-1] + 2))
    return np.asarray(first @ discounts)


def paired_randomisation(
    a: ArrayLike, b: ArrayLike, resamples: int = RESAMPLES, *, greater: bool = False
) -> float:
    """Return the p-value of "a and b have the same mean", by swapping within pairs.

    Swapping a pair turns the sign of its difference. Where all swaps are no more than `resamples`
    they are counted one by one, and the p-value is exact (Fisher 1935; Smucker, Allan and
    Carterette 2007 for retrieval); else swaps are drawn, and the p-value is never 0. To weigh
    queries, multiply both sides by the weights.

    Args:
        a, b: (n), one value for each query, in the same order.
        greater: ask for a larger mean of a alone (one-sided); else for any difference.

    Raises:
        InvalidRequest: the two differ in length, or a value is not finite.

    >>> paired_randomisation([1.0, 0.5, 1.0], [0.0, 0.5, 0.0])  # two swaps of four
    0.5
    """
    from scipy.stats import monte_carlo_test, permutation_test

    difference: Float64 = np.subtract(*_paired(a, b))
    # A pair without a difference changes no swap's sum: fewer are left to draw.
    difference = difference[difference != 0]
    count = len(difference)
    if count < 2:
        return 1.0
    difference = np.divide(difference, np.abs(difference).sum())
    rng = np.random.default_rng(SEED)

    def total(signed: Float64, axis: int = -1) -> Float64:
        # Sums of the same numbers in another order differ in their last bits.
        sums = signed.sum(axis=axis)
        return np.asarray(np.round(sums if greater else np.abs(sums), 12))

    def swapped(size: tuple[int, ...]) -> Float64:
        signs = rng.integers(0, 2, size, dtype=np.bool_)
        return np.asarray(np.where(signs, difference, -difference))

    test = {"statistic": total, "n_resamples": resamples, "alternative": "greater"}
    if 2**count <= resamples:
        result = permutation_test((difference,), permutation_type="samples", **test)
    else:
        # `permutation_test` would draw the same, but shuffles each pair: ten times as long.
        batch = max(1, BLOCK // count)
        result = monte_carlo_test(difference, swapped, batch=batch, **test)
    return float(result.pvalue)


def anytime_p(differences: ArrayLike, *, greater: bool = False) -> Float64:
    """Return p-values of "the mean is 0" after each difference, valid whenever one looks.

    The chance that any of them ever falls to .05 or below is at most .05 where each difference has
    mean 0 given those before it. They are 1 over the largest capital so far of a player who bets
    fixed shares of it, averaged over the shares (Waudby-Smith and Ramdas 2024; Ville 1939).

    Args:
        differences: (n,), each within -1 to 1, in the order of their time.
        greater: ask for a mean above 0 alone (one-sided); else for any but 0. Differences may then
            be above 1, too.

    Returns: (n,), never rising.

    Raises:
        InvalidRequest: a difference is not finite, or outside -1 to 1.

    >>> anytime_p([1.0] * 20)[-1] < 0.001
    True
    """
    values = _checked(differences)
    if (-values.min() if greater else np.abs(values).max()) > 1:
        raise InvalidRequest("A difference is outside -1 to 1; divide all by the largest possible.")
    stakes = STAKES if greater else np.concatenate([STAKES, -STAKES])
    capital = np.full(len(values), -math.log(len(stakes)))  # in logarithms, before any bet
    total = np.full(len(values), -np.inf)
    for stake in stakes:
        np.logaddexp(total, capital + np.cumsum(np.log1p(stake * values)), out=total)
    return np.exp(-np.maximum.accumulate(np.maximum(total, 0)))


class ExchangeabilityTest:
    """A test of "new numbers come as earlier ones did", valid whenever one looks.

    Each number has a conformal p-value among all before it, ties by lot: these are independent
    and uniform where numbers are exchangeable, so that no bet on them gains in the mean (Vovk,
    Nouretdinov and Gammerman 2003). Bets are on few very small ones, `1 / (2 √p) - 1`, and on
    small or large ones, `± (1 - 2 p)`, with all of STAKES; a part of the capital enters at every
    number, so that a change after a long quiet time is noticed too. By Ville's inequality the
    chance that `p` ever falls to a level is at most this level.

    Attributes:
        p: 1 over the largest capital so far.

    >>> test = ExchangeabilityTest(range(100))
    >>> test.add(50.0), min(test.add(1000.0) for _ in range(30)) < 0.001
    (1.0, True)
    """

    def __init__(self, reference: Iterable[float] = (), seed: int = SEED) -> None:
        self._numbers = array("d", sorted(reference))
        self._rng = np.random.default_rng(seed)
        self._stakes = np.concatenate([STAKES, STAKES, -STAKES])
        self._capital = np.zeros(len(self._stakes))
        self._count = 0
        self.p = 1.0

    def add(self, number: float) -> float:
        """Take the next number, and return `p`: a large number has a small p-value."""
        low, high = bisect_left(self._numbers, number), bisect_right(self._numbers, number)
        ties = (high - low + 1) * (1.0 - self._rng.random())  # itself among them
        p = (len(self._numbers) - high + ties) / (len(self._numbers) + 1)
        insort(self._numbers, number)
        gains = np.repeat([0.5 / math.sqrt(p) - 1, 1 - 2 * p], [len(STAKES), 2 * len(STAKES)])
        self._count += 1
        self._capital += 1 / (self._count * (self._count + 1))
        self._capital = np.minimum(self._capital * (1 + self._stakes * gains), MOST_CAPITAL)
        # What has not entered yet is 1 / (count + 1).
        total = float(self._capital.mean()) + 1 / (self._count + 1)
        self.p = min(self.p, 1 / total)
        return self.p


def anytime_interval(differences: ArrayLike) -> Interval:
    """Return the mean of differences (n,) with bounds that hold the true one whenever one looks.

    They are the means that `anytime_p` has not refuted at the level of LEVEL; both agree about 0.

    >>> anytime_interval([0.5] * 100).low > 0.3
    True
    """
    values = _checked(differences)

    def refuted(mean: float) -> bool:
        # Within -1 to 1 again, as a difference less a mean may not be.
        return bool(anytime_p((values - mean) / (1 + abs(mean)))[-1] <= 1 - LEVEL)

    bounds = []
    for outer in (-1.0, 1.0):
        inner = float(values.mean())
        for _ in range(20):  # to a millionth
            middle = (inner + outer) / 2
            inner, outer = (inner, middle) if refuted(middle) else (middle, outer)
        bounds.append(outer)
    return Interval(float(values.mean()), *bounds)


def ratio_intervals(columns: ArrayLike, weights: ArrayLike) -> list[Interval]:
    """Return the sum of each column (n, m) over that of weights (n,), with normal intervals.

    The rows are drawn, such as searches; the ratio's variance is that of its linear part (the
    delta method), as of self-normalised importance sampling.

    >>> [interval] = ratio_intervals([[1.0], [3.0]], [2.0, 2.0])
    >>> round(interval.mean, 6), round(interval.high, 2)
    (1.0, 1.98)
    """
    values, divisors = _checked(columns, axes=2), _checked(weights)
    ratios = values.sum(axis=0) / divisors.sum()
    residuals = values - divisors[:, None] * ratios
    count = len(values)
    if count < 2:
        return [Interval(float(ratio), math.nan, math.nan) for ratio in ratios]
    halves = NORMAL * math.sqrt(count) * residuals.std(axis=0, ddof=1) / divisors.sum()
    return [
        Interval(float(ratio), float(ratio - half), float(ratio + half))
        for ratio, half in zip(ratios, halves, strict=True)
    ]


def mean_interval(values: ArrayLike) -> Interval:
    """Return the mean of values (n) with its bootstrap interval; see `mean_intervals`."""
    return mean_intervals(_checked(values)[:, None])[0]


def difference_intervals(a: ArrayLike, b: ArrayLike, levels: Sequence[float]) -> list[Interval]:
    """Return the mean of a - b over pairs (n), with an interval for each level."""
    return [columns[0] for columns in _intervals(np.subtract(*_paired(a, b))[:, None], levels)]


def mean_intervals(columns: ArrayLike) -> list[Interval]:
    """Return the mean of each column of (n, m), with bias-corrected accelerated intervals.

    The same draws of rows serve all columns. BCa (Efron 1987) follows the skew that measures
    near 0 or 1 have.

    Raises:
        InvalidRequest: there is no row, or a value is not finite.

    >>> mean_intervals([[0.5], [0.5], [0.5]])
    [Interval(mean=0.5, low=0.5, high=0.5)]
    """
    return _intervals(columns, [LEVEL])[0]


def _intervals(columns: ArrayLike, levels: Sequence[float]) -> list[list[Interval]]:
    """Return the interval of each column of (n, m), for each level."""
    values = _checked(columns, axes=2)
    count, width = values.shape
    means = values.mean(axis=0)  # (n, m) -> (m)
    if count < 2:
        return [[Interval(float(mean), math.nan, math.nan) for mean in means] for _ in levels]
    bounds = np.broadcast_to(means, (len(levels), 2, width)).copy()
    # Values that differ by rounding alone have no spread, and no skew to divide by.
    varied = np.ptp(values, axis=0) > 1e-12 * np.abs(values).max(axis=0)
    if varied.any():
        bounds[:, :, varied] = _bca(values[:, varied], levels)
    return [
        [Interval(*map(float, column)) for column in zip(means, low, high, strict=True)]
        for low, high in bounds
    ]


def by_group(values: ArrayLike, groups: ArrayLike) -> Float64:
    """Return one value for each group, in the order of their names, with the mean of values (n).

    Values of one group, such as a user's, are then drawn, swapped and counted as one.

    >>> by_group([1.0, 2.0, 6.0], [7, 7, 8])
    array([2., 4.])
    """
    checked = _checked(values)
    names, group = np.unique(np.asarray(groups), return_inverse=True)
    if len(group) != len(checked):
        raise InvalidRequest(
            f"{len(checked)} values came with {len(group)} groups; give each value its group."
        )
    sums: Float64 = np.bincount(group, weights=checked).astype(np.float64, copy=False)
    return sums * (len(names) / len(group))


def reliability(confidences: ArrayLike, correct: ArrayLike, bins: int = BINS) -> Reliability:
    """Compare confidences with the share of correct answers at each of them (Guo et al. 2017).

    Args:
        confidences: (n), each within [0, 1].
        correct: (n), each 0 or 1 (or a share of correctness between).

    Raises:
        InvalidRequest: lengths differ, or a number lies outside [0, 1].

    >>> reliability([0.9, 0.9, 0.8, 0.8], [1, 1, 1, 0], bins=5).ece
    0.1
    """
    predicted, observed = _paired(confidences, correct)
    if min(predicted.min(), observed.min()) < 0 or max(predicted.max(), observed.max()) > 1:
        raise InvalidRequest(
            "A confidence or a correctness is outside 0 to 1; send shares from 0 to 1."
        )
    edges, place = _binned(predicted, bins)
    counts = np.bincount(place, minlength=bins)
    sums = [np.bincount(place, weights, minlength=bins) for weights in (predicted, observed)]
    listed = [
        Bin(
            float(edges[i]),
            float(edges[i + 1]),
            int(size),
            *(float(side[i] / size) if size else None for side in sums),
        )
        for i, size in enumerate(counts)
    ]
    return Reliability(listed, round(calibration_error(predicted, observed, bins=bins), 12))


def count_gains(gains: Float64) -> dict[str, Any]:
    """Count gains (q), each within -1 to 1: gained, lost, unchanged, and a histogram of the first
    two.

    >>> counted = count_gains(np.array([0.25, 0.0, -1.0]))
    >>> counted["gained"], counted["lost"], counted["unchanged"]
    (1, 1, 1)
    """
    changed = gains[np.abs(gains) > UNCHANGED]
    gained = int((changed > 0).sum())
    edges = np.round(np.linspace(-1, 1, GAIN_BINS + 1), 12)
    counts, _ = np.histogram(changed, edges)
    return {
        "gained": gained,
        "lost": len(changed) - gained,
        "unchanged": len(gains) - len(changed),
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
    }


def calibration_error(
    predicted: Float64, correct: Float64, counts: Float64 | None = None, bins: int = BINS
) -> float:
    """Return the expected calibration error: the mean distance of the two over bins.

    Args:
        predicted, correct: (n,), each within [0, 1].
        counts: (n,), the weight of each; the same for all if None.

    >>> round(calibration_error(np.array([0.9, 0.8]), np.array([1.0, 0.5])), 9)
    0.2
    """
    weights = np.ones(len(predicted)) if counts is None else counts
    _, place = _binned(predicted, bins)
    # Sums, not means: a bin's share of the error is |sum predicted - sum correct| / n.
    gaps = np.bincount(place, weights=weights * (predicted - correct), minlength=bins)
    return float(np.abs(gaps).sum() / weights.sum())


def auroc(higher: ArrayLike, lower: ArrayLike) -> float:
    """Return the share of pairs in which one of `higher` (p,) exceeds one of `lower` (n,).

    Ties count by half: the area under the ROC curve.

    >>> auroc([0.9, 0.5], [0.5, 0.1])
    0.875
    """
    from sklearn.metrics import roc_auc_score

    first, second = _checked(higher), _checked(lower)
    labels = np.repeat([1, 0], [len(first), len(second)])
    return float(roc_auc_score(labels, np.concatenate([first, second])))


def _bca(values: Float64, levels: Sequence[float]) -> list[tuple[Float64, Float64]]:
    """Return the bounds (m,), (m,) of the means of the columns of (n, m), for each level."""
    from scipy.stats import bootstrap

    count, width = values.shape

    def means(rows: Float64, axis: int) -> Float64:
        """Average the rows (..., r) of the values: (m, ...)."""
        if width == 1:
            return np.asarray(values[:, 0][rows].mean(axis=-1)[None])
        samples = rows.reshape(-1, rows.shape[-1]).astype(np.int64)
        samples += np.arange(len(samples))[:, None] * count
        # The number of times that each row was drawn: one product then serves every column.
        times = np.bincount(samples.ravel(), minlength=len(samples) * count).reshape(-1, count)
        averaged = values.T @ times.T.astype(np.float64) / rows.shape[-1]  # (m, n) @ (n, draws)
        return np.asarray(averaged.reshape(width, *rows.shape[:-1]))

    result, bounds = None, []
    for level in levels:  # of the same draws
        result = bootstrap(
            (np.arange(count),),
            means,
            n_resamples=0 if result else RESAMPLES,
            batch=max(1, BLOCK // count),
            vectorized=True,
            confidence_level=level,
            method="BCa",
            bootstrap_result=result,
            rng=np.random.default_rng(SEED),
        )
        bounds.append((result.confidence_interval.low, result.confidence_interval.high))
    return bounds


def _binned(shares: Float64, bins: int) -> tuple[Float64, np.ndarray]:
    """Return the edges (bins + 1,) of bins over [0, 1], and the bin (n,) of each share."""
    edges = np.round(np.linspace(0, 1, bins + 1), 12)  # .3 and not .30000000000000004
    return edges, np.clip(np.searchsorted(edges, shares, side="right") - 1, 0, bins - 1)


def _paired(a: ArrayLike, b: ArrayLike) -> tuple[Float64, Float64]:
    first, second = _checked(a), _checked(b)
    if len(first) != len(second):
        raise InvalidRequest(
            f"{len(first)} values stand against {len(second)}; send the same number of each."
        )
    return first, second


def _checked(numbers: ArrayLike, axes: int = 1) -> Float64:
    """Return float64; raise InvalidRequest unless finite, with these axes, and not empty."""
    values = np.asarray(numbers, dtype=np.float64)
    if values.ndim != axes or values.size == 0 or not np.isfinite(values).all():
        raise InvalidRequest(
            f"Values of shape {values.shape} were given; send at least one finite number for "
            f"each, in {axes} {'axis' if axes == 1 else 'axes'}."
        )
    return values
