"""Weighted mean and variance of rows that arrive in blocks, merged without cancellation.

Chan, Golub and LeVeque 1979 (pairwise merging of means and variances), with two
additions: a mean is kept as a row that occurred plus a shift, so that values of one
size (1e9 and a little) lose no digits and a single row comes back as it was; and
columns are kept between −1 and 1 by a power of two, so that no square overflows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attend.types import Float64

_BELOW_ONE = float(np.nextafter(1.0, 0.0))


@dataclass(frozen=True, slots=True)
class Moments:
    """What a block of (n, d) rows leaves behind; arrays are (d,), in units of 2**exponent."""

    weight: float  # W = Σw
    concentration: float  # Σ(w/W)², the inverse of the effective sample size
    exponent: NDArray[np.int32]
    anchor: Float64  # one of the rows
    shift: Float64  # mean - anchor
    variance: Float64

    @property
    def mean(self) -> Float64:
        """Weighted mean, (d,)."""
        return _unscaled(self.anchor + self.shift, self.exponent)

    @property
    def std(self) -> Float64:
        """Weighted population standard deviation, (d,)."""
        return _unscaled(np.sqrt(self.variance), self.exponent)

    @property
    def effective_sample_size(self) -> float:
        """(Σw)² / Σw² (Kish 1965): how many equal weights would be as informative."""
        return 1.0 / self.concentration


def moments(rows: Float64, weights: Float64) -> Moments:
    """The moments of n >= 1 finite rows, (n, d), under (n,) positive weights."""
    weight = float(weights.sum())
    shares = weights / weight  # (n,)
    exponent = np.frexp(np.abs(rows).max(axis=0))[1]  # (d,)
    scaled = np.ldexp(rows, -exponent)  # (n, d)
    anchor = scaled[weights.argmax()]
    offsets = scaled - anchor
    shift = shares @ offsets  # (n,) @ (n, d) -> (d,)
    variance = shares @ (offsets - shift) ** 2
    return Moments(weight, float(shares @ shares), exponent, anchor, shift, variance)


def merge(a: Moments, b: Moments) -> Moments:
    """The moments of both blocks' rows together."""
    exponent = np.maximum(a.exponent, b.exponent)
    a, b = _at(a, exponent), _at(b, exponent)
    weight = a.weight + b.weight
    of_a, of_b = a.weight / weight, b.weight / weight
    # Anchors first: rows of one size differ exactly, their means would not.
    apart = (b.anchor - a.anchor) + (b.shift - a.shift)
    return Moments(
        weight=weight,
        concentration=of_a**2 * a.concentration + of_b**2 * b.concentration,
        exponent=exponent,
        anchor=a.anchor,
        shift=a.shift + of_b * apart,
        variance=of_a * a.variance + of_b * b.variance + of_a * of_b * apart**2,
    )


def _at(part: Moments, exponent: NDArray[np.int32]) -> Moments:
    down = part.exponent - exponent
    return replace(
        part,
        exponent=exponent,
        anchor=np.ldexp(part.anchor, down),
        shift=np.ldexp(part.shift, down),
        variance=np.ldexp(part.variance, 2 * down),
    )


def _unscaled(scaled: Float64, exponent: NDArray[np.int32]) -> Float64:
    # Rounding may carry the largest float64 up to 1.0, and that would become infinite.
    result: Float64 = np.ldexp(np.clip(scaled, -_BELOW_ONE, _BELOW_ONE), exponent)
    return result
