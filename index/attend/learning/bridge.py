"""A map from the embeddings of one encoder to those of another, fitted on texts that both encoded.

Keys that are mapped stand for those of the other encoder until their texts are encoded. An
orthogonal map turns the space (Schönemann 1966, "A generalized solution of the orthogonal
Procrustes problem"); an affine one adds a linear correction with a ridge, and a shift (both as in
Drift-Adapter, arXiv 2509.23471, which maps queries the other way: the scores are the same, and keys
of both kinds lie in one index). The orthogonal one is taken unless the other proves better on texts
that it was not fitted on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from attend.core.arrays import top_mask, unit
from attend.core.types import Float32, Float64, Floats

FOLDS = 5

NEAREST = 10
"""Neighbours of a query whose share is the recall of a map."""

RIDGE = 0.1
"""Of the affine correction, in units of the mean variance of a direction."""

BETTER = 0.01
"""The gain in recall from which on the affine map is taken."""

SEED = 20170612


@dataclass(frozen=True)
class KeyMap:
    """A map of embeddings (n, d) to those of another encoder (n, e), at length one.

    >>> turn = KeyMap("orthogonal", np.array([[0.0, 1.0], [-1.0, 0.0]]), np.zeros(2))
    >>> turn(np.array([[1.0, 0.0]])).tolist()
    [[0.0, 1.0]]
    """

    kind: Literal["orthogonal", "affine"]
    matrix: Float64  # (d, e)
    shift: Float64  # (e,)

    def __call__(self, embeddings: Floats) -> Float32:
        mapped: Float64 = embeddings.astype(np.float64) @ self.matrix + self.shift
        return unit(mapped).astype(np.float32)


class FittedMap(NamedTuple):
    """A map, and how well it does on texts that it was not fitted on.

    Attributes:
        recall: the share of the ten nearest keys of the other encoder that are among the ten
            nearest mapped ones, as a mean over queries.
        recalls: the same by kind of map.
    """

    map: KeyMap
    recall: float
    recalls: dict[str, float]


def orthogonal_map(before: Floats, after: Floats) -> KeyMap:
    """Return the matrix with orthonormal rows or columns that best turns (n, d) into (n, e)."""
    left, _, right = np.linalg.svd(before.astype(np.float64).T @ after, full_matrices=False)
    return KeyMap("orthogonal", left @ right, np.zeros(after.shape[1]))


def affine_map(before: Floats, after: Floats) -> KeyMap:
    """Return the orthogonal map plus a ridge regression of what it leaves over."""
    turn = orthogonal_map(before, after)
    left_over = after - before.astype(np.float64) @ turn.matrix
    mean, shift = before.mean(axis=0, dtype=np.float64), left_over.mean(axis=0)
    centred = before - mean
    gram = centred.T @ centred
    gram += RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram))
    correction = np.linalg.solve(gram, centred.T @ (left_over - shift))
    return KeyMap("affine", turn.matrix + correction, shift - mean @ correction)


def fit_map(before: Float32, after: Float32, queries: Float32) -> FittedMap:
    """Fit a map, and measure it on the keys of texts that were left out.

    Args:
        before, after: (n, d) and (n, e) keys of the same texts by either encoder.
        queries: (q, e) by the other encoder.
    """
    folds = np.random.default_rng(SEED).permutation(len(before)) % FOLDS
    wanted = top_mask(queries @ after.T, NEAREST)
    recalls = {}
    for fit in (orthogonal_map, affine_map):
        mapped = np.empty_like(after)
        for fold in range(FOLDS):
            out = folds == fold
            mapped[out] = fit(before[~out], after[~out])(before[out])
        hits = top_mask(queries @ mapped.T, NEAREST) & wanted
        recalls[fit.__name__.partition("_")[0]] = float(hits.sum() / wanted.sum())
    fit = affine_map if recalls["affine"] - recalls["orthogonal"] >= BETTER else orthogonal_map
    map = fit(before, after)
    return FittedMap(map, recalls[map.kind], recalls)
