"""Back from a blended vector to a stored one: the nearest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attend.errors import DimensionMismatch
from attend.types import Float64, Json

_ROWS = 4096  # differences are taken for so many candidates at a time, to bound memory


class Nearest(NamedTuple):
    """The candidate nearest to a vector; `cosine` is 0 where one of the two has no length."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    cosine: float
    distance: float


def nearest(vector: ArrayLike, candidates: ArrayLike) -> Nearest:
    """The row of (n, d) candidates at the least Euclidean distance from a (d,) vector.

    Of equal distances the first counts. Raises DimensionMismatch where the widths
    differ, ValueError without candidates or with numbers that are not finite.

    >>> nearest([1.0, 0.9], [[3.0, 3.0], [1.0, 0.0]])
    Nearest(index=1, cosine=0.7432941462471663, distance=0.9)
    """
    query, rows = _checked(np.asarray(vector, np.float64), np.asarray(candidates, np.float64))
    blocks = range(0, len(rows), _ROWS)
    distances = np.concatenate(
        [np.linalg.norm(rows[start : start + _ROWS] - query, axis=1) for start in blocks]
    )  # (n,)
    index = int(distances.argmin())
    return Nearest(index, _cosine(query, rows[index]), float(distances[index]))


def decode(vector: ArrayLike, ids: Sequence[str], vectors: ArrayLike) -> dict[str, Json]:
    """Find the document whose stored vector is nearest to a blended one, ready for JSON.

    `vectors` is (n, d), one row to each id; `value` in the result is that row. Raises
    as `nearest` does, and ValueError where ids and rows differ in number.
    """
    rows = np.asarray(vectors, dtype=np.float64)
    if len(ids) != len(rows):
        raise ValueError(f"{len(ids)} ids came with {len(rows)} vectors. Give each id one row.")
    closest = nearest(vector, rows)
    return {
        "id": ids[closest.index],
        "value": rows[closest.index].tolist(),
        "cosine": closest.cosine,
        "distance": closest.distance,
    }


def _checked(query: Float64, rows: Float64) -> tuple[Float64, Float64]:
    if query.ndim != 1 or rows.ndim != 2 or len(rows) == 0:
        raise ValueError(
            f"A vector of shape {query.shape} came with candidates of shape {rows.shape}. "
            "Give (d,) and (n, d), with at least one candidate."
        )
    if query.shape[0] != rows.shape[1]:
        raise DimensionMismatch(expected=rows.shape[1], got=query.shape[0])
    if not (np.isfinite(query).all() and np.isfinite(rows).all()):
        raise ValueError("The vector or a candidate holds NaN or infinity. Give finite numbers.")
    return query, rows


def _cosine(a: Float64, b: Float64) -> float:
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.clip(a @ b / lengths, -1.0, 1.0)) if lengths > 0 else 0.0
