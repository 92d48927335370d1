"""W_V: what blended vectors are taken to, so that answers come nearer to what is right.

By ridge regression from the identity (Hoerl and Kennard 1970): the blend of noisy neighbours is too
bold where values say little of each other, and too timid where a query lies at the edge.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attend.types import Float64


class Output(NamedTuple):
    """An affine map of blended vectors."""

    w: Float64  # (v, v)
    b: Float64  # (v,)

    def of(self, blends: Float64) -> Float64:
        """(q, v) to (q, v)."""
        mapped: Float64 = blends @ self.w.T + self.b
        return mapped

    def unscaled(self, center: Float64, spread: float) -> Output:
        """The same map of what was centred and divided by the spread, before it was."""
        return Output(self.w, self.b * spread + center - self.w @ center)

    def scaled(self, center: Float64, spread: float) -> Output:
        """The inverse of `unscaled`."""
        return Output(self.w, (self.w @ center + self.b - center) / spread)


def fit_output(blends: Float64, wanted: Float64, ridge: float) -> Output:
    """The map of least squared error from blends (q, v) to what was wanted (q, v).

    Args:
        ridge: above 0, how much staying at the identity counts, beside blends of the same spread.
    """
    mean, target = blends.mean(axis=0), wanted.mean(axis=0)
    x = blends - mean
    rest = wanted - target - x  # what the identity leaves
    moments = x.T @ x
    # Where all blends are the same, they tell nothing but where to move them.
    penalty = ridge * (float(np.trace(moments)) / len(moments) or 1.0)
    change = np.linalg.solve(moments + penalty * np.eye(len(moments)), x.T @ rest).T
    w = np.eye(len(moments)) + change
    return Output(w, target - w @ mean)
