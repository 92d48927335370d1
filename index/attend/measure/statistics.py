"""Means with intervals, paired differences with p-values, and how true a confidence is.

Plain arrays in, named numbers out, the same numbers for the same seed; nothing here knows of
collections. Everything is drawn in blocks, so that memory stays bounded whatever the count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attend.errors import InvalidRequest
from attend.types import Float64

RESAMPLES = 10_000
"""Draws for an interval or a p-value: a p of .05 then has a standard error of .002."""

SEED = 20170612

BLOCK = 1 << 21
"""Random numbers drawn at once: 16 MiB of them."""

BINS = 10

NORMAL = NormalDist()


class Interval(NamedTuple):
    """A mean, and the bounds within which the true one lies at the stated level.

    The bounds are NaN where there are fewer than two values: one value says nothing of its
    spread.
    """

    mean: float
    low: float
    high: float


class Bin(NamedTuple):
    """Confidences in [low, high): how many, their mean, and the share that was correct.

    The last bin takes 1 as well. `predicted` and `observed` are None in an empty bin.
    """

    low: float
    high: float
    size: int
    predicted: float | None
    observed: float | None


class Reliability(NamedTuple):
    """Bins of equal width over [0, 1], and the expected calibration error over them."""

    bins: list[Bin]
    ece: float


def paired_randomisation(
    a: ArrayLike, b: ArrayLike, seed: int = SEED, resamples: int = RESAMPLES
) -> float:
    """Two-sided p-value of "a and b have the same mean", by swapping within pairs.

    The p-value is (hits + 1) / (resamples + 1), where hits are the swaps whose difference is
    at least the one observed; it is never 0. Where all swaps are no more than `resamples`
    they are counted one by one, and the p-value is exact (Fisher 1935; Smucker, Allan and
    Carterette 2007 for retrieval). To weigh queries, multiply both sides by the weights.

    Args:
        a, b: (n), one value for each query, in the same order.

    Raises:
        InvalidRequest: the two differ in length, or a value is not finite.

    >>> paired_randomisation([1.0, 0.5, 1.0], [0.0, 0.5, 0.0])  # two swaps of four
    0.5
    """
    difference = _differences(a, b)
    # A pair without a difference changes no swap's sum: fewer are left to draw.
    difference = difference[difference != 0]
    # Sums of the same numbers in another order differ in their last bits.
    observed = abs(float(difference.sum())) - 1e-12 * float(np.abs(difference).sum())
    exact = len(difference) <= math.log2(resamples)
    signs = _every_sign(len(difference)) if exact else _signs(len(difference), seed, resamples)
    hits = sum(int((np.abs(block @ difference) >= observed).sum()) for block in signs)
    return hits / 2 ** len(difference) if exact else (hits + 1) / (resamples + 1)


def mean_interval(values: ArrayLike, seed: int = SEED, level: float = 0.95) -> Interval:
    """The mean of values (n) with its bootstrap interval; see `mean_intervals`."""
    return mean_intervals(_checked(values)[:, None], seed, level)[0]


def difference_interval(
    a: ArrayLike, b: ArrayLike, seed: int = SEED, level: float = 0.95
) -> Interval:
    """The mean of a - b over pairs (n), with its bootstrap interval: pairs stay together."""
    return mean_interval(_differences(a, b), seed, level)


def mean_intervals(
    columns: ArrayLike, seed: int = SEED, level: float = 0.95, resamples: int = RESAMPLES
) -> list[Interval]:
    """The mean of each column of (n, m), with bias-corrected accelerated intervals.

    One drawing of rows serves all columns. BCa (Efron 1987) follows the skew that measures
    near 0 or 1 have.

    Raises:
        InvalidRequest: there is no row, or a value is not finite.

    >>> mean_intervals([[0.5], [0.5], [0.5]])
    [Interval(mean=0.5, low=0.5, high=0.5)]
    """
    values = _checked(columns, axes=2)
    if len(values) < 2:
        return [Interval(float(mean), math.nan, math.nan) for mean in values[0]]
    means = values.mean(axis=0)  # (n, m) -> (m)
    drawn = np.concatenate(list(_resampled_means(values, seed, resamples)))  # (resamples, m)
    return [
        Interval(float(mean), *_bca(values[:, at], mean, drawn[:, at], level))
        for at, mean in enumerate(means)
    ]


def by_group(values: ArrayLike, groups: ArrayLike) -> Float64:
    """One value for each group, in the order of their names, whose mean is that of values (n).

    Values of one group, such as a user's, are then drawn, swapped and counted as one.

    >>> by_group([1.0, 2.0, 6.0], [7, 7, 8])
    array([2., 4.])
    """
    given = _checked(values)
    names, at = np.unique(np.asarray(groups), return_inverse=True)
    if len(at) != len(given):
        raise InvalidRequest(f"{len(given)} values came with {len(at)} groups; give each its own.")
    summed: Float64 = np.bincount(at, weights=given).astype(np.float64, copy=False)
    return summed * (len(names) / len(at))


def reliability(confidences: ArrayLike, correct: ArrayLike, bins: int = BINS) -> Reliability:
    """How often answers of each confidence are correct (Guo et al. 2017).

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
        raise InvalidRequest("A confidence or a correctness is outside 0 to 1; both are shares.")
    edges = np.round(np.linspace(0, 1, bins + 1), 12)  # .3 and not .30000000000000004
    place = np.clip(np.searchsorted(edges, predicted, side="right") - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    # Sums, not means: a bin's share of the error is |sum predicted - sum observed| / n.
    sums = [np.bincount(place, weights, minlength=bins) for weights in (predicted, observed)]
    error = float(np.abs(sums[0] - sums[1]).sum() / len(predicted))
    found = [
        Bin(
            float(edges[at]),
            float(edges[at + 1]),
            int(count),
            *(float(side[at] / count) if count else None for side in sums),
        )
        for at, count in enumerate(counts)
    ]
    return Reliability(found, round(error, 12))


def _signs(count: int, seed: int, resamples: int) -> Iterator[Float64]:
    """Random signs (block, count), `resamples` rows in all."""
    random = np.random.default_rng(seed)
    for rows in _blocks(resamples, count):
        bits = np.frombuffer(random.bytes(-(-rows * count // 8)), dtype=np.uint8)
        ones = np.unpackbits(bits, count=rows * count).reshape(rows, count)
        yield np.subtract(ones * 2.0, 1.0)


def _every_sign(count: int) -> Iterator[Float64]:
    """All 2^count rows of signs (2^count, count), in one block."""
    rows = np.arange(2**count)[:, None]
    yield np.subtract(((rows >> np.arange(count)) & 1) * 2.0, 1.0)


def _resampled_means(values: Float64, seed: int, resamples: int) -> Iterator[Float64]:
    """Means (block, m) of rows drawn with replacement from (n, m)."""
    random = np.random.default_rng(seed)
    count = len(values)
    for rows in _blocks(resamples, count):
        drawn = random.integers(0, count, size=(rows, count))
        drawn += np.arange(rows)[:, None] * count
        # How often each row was drawn: one product then serves every column.
        times = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)
        yield times.astype(np.float64) @ values / count  # (rows, n) @ (n, m)


def _bca(values: Float64, mean: float, drawn: Float64, level: float) -> tuple[float, float]:
    """The quantiles of the drawn means, corrected for bias and for skew."""
    # Values that differ by rounding alone have no spread, and no skew to divide by.
    if np.ptp(values) <= 1e-12 * np.abs(values).max():
        return float(mean), float(mean)
    deviations = values - mean
    spread = float((deviations**2).sum())
    # Half of the ties count as below: with few distinct values there are many.
    below = ((drawn < mean).mean() + (drawn <= mean).mean()) / 2
    bias = NORMAL.inv_cdf(float(np.clip(below, 1 / len(drawn), 1 - 1 / len(drawn))))
    # A value's influence on a mean (by the jackknife) is its deviation over n - 1, which cancels.
    skew = float((deviations**3).sum()) / (6 * spread**1.5)
    tails = NORMAL.inv_cdf((1 - level) / 2), NORMAL.inv_cdf((1 + level) / 2)
    places = [NORMAL.cdf(bias + (bias + z) / (1 - skew * (bias + z))) for z in tails]
    low, high = np.quantile(drawn, places)
    return float(low), float(high)


def _blocks(rows: int, width: int) -> Iterator[int]:
    """Rows to draw at once, summing to `rows`."""
    step = max(1, BLOCK // max(1, width))
    for at in range(0, rows, step):
        yield min(step, rows - at)


def _differences(a: ArrayLike, b: ArrayLike) -> Float64:
    first, second = _paired(a, b)
    return np.subtract(first, second)


def _paired(a: ArrayLike, b: ArrayLike) -> tuple[Float64, Float64]:
    first, second = _checked(a), _checked(b)
    if len(first) != len(second):
        raise InvalidRequest(
            f"{len(first)} values stand against {len(second)}; pairs need as many of each."
        )
    return first, second


def _checked(given: ArrayLike, axes: int = 1) -> Float64:
    """As float64; raises InvalidRequest unless finite, with the axes asked for, and not empty."""
    values = np.asarray(given, dtype=np.float64)
    if values.ndim != axes or values.size == 0 or not np.isfinite(values).all():
        raise InvalidRequest(
            f"Values of shape {values.shape} were given; send at least one finite number for "
            f"each, in {axes} {'axis' if axes == 1 else 'axes'}."
        )
    return values
