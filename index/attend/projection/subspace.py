"""Untrained projections onto the directions in which a collection varies: PCA and LSI.

Latent semantic indexing by a truncated singular value decomposition: Deerwester et al.
1990, "Indexing by Latent Semantic Analysis". A row x is folded in as V^T x, or as
S^-1 V^T x where every direction is to count the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np

from attend.errors import InvalidRequest
from attend.projection.arrays import floating, rows
from attend.projection.checks import check_count
from attend.projection.kinds import mean_gates
from attend.projection.projection import Projection
from attend.types import Float64, Floats

Embeddings: TypeAlias = Floats | Iterable[Floats]
"""A matrix (m, d_in), or its rows in blocks (b, d_in)."""

BLOCK_ROWS = 8192
SVD_VALUES = 1 << 20
"""Up to this many numbers the whole matrix is decomposed: about a second, and 8 MiB."""


class Spectrum(NamedTuple):
    """Directions of a matrix of m rows, strongest first, none beyond its rank."""

    values: Float64
    """(r,) singular values."""
    directions: Float64
    """(r, d_in) orthonormal rows: V^T."""
    mean: Float64
    """(d_in,) of the rows; zero unless they were centred."""


def pca(embeddings: Embeddings, d_k: int, *, normalize: bool = False) -> Projection:
    """The d_k principal components: centred, queries and keys alike.

    `normalize` gives projected vectors length one. Raises InvalidRequest for a d_k above
    the rank of the centred embeddings.
    """
    found = spectrum(embeddings, centered=True)
    return _subspace("pca", found, _cut(found, d_k), found.mean, normalize)


def lsi(
    embeddings: Embeddings, k: int, *, scaled: bool = False, normalize: bool = False
) -> Projection:
    """The k strongest directions of the embeddings as they are, neither centred nor scaled.

    With `scaled` each is divided by its singular value. Raises InvalidRequest for a k
    above the rank of the embeddings.
    """
    found = spectrum(embeddings, centered=False)
    weight = _cut(found, k)
    if scaled:
        weight = weight / found.values[:k, None]
    return _subspace("lsi-scaled" if scaled else "lsi", found, weight, None, normalize)


def spectrum(embeddings: Embeddings, *, centered: bool) -> Spectrum:
    """Singular values and directions in float64, from blocks where there are many rows.

    Small matrices go through a full SVD, exact to rounding. Large ones go through their
    Gram matrix (d_in, d_in), summed over blocks: it squares the singular values, so that
    one below about 1e-8 of the largest is lost in rounding, and counts as none.
    """
    blocks = _blocks(embeddings)
    held: list[Float64] = []
    for block in blocks:
        held.append(block)
        if sum(part.size for part in held) > SVD_VALUES:
            return _by_gram(chain(held, blocks), centered)
    if not held:
        raise InvalidRequest("There are no embeddings to find directions in; add documents first.")
    return _by_svd(np.concatenate(held), centered)


def _blocks(embeddings: Embeddings) -> Iterator[Float64]:
    """The rows in float64 blocks of one width."""
    parts = [embeddings] if isinstance(embeddings, np.ndarray) else embeddings
    width = None
    for part in parts:
        part = floating(part)
        width = part.shape[-1] if width is None and part.ndim == 2 else width
        checked = rows(part, width or 0)
        for start in range(0, len(checked), BLOCK_ROWS):
            block = checked[start : start + BLOCK_ROWS].astype(np.float64)
            if not np.isfinite(block).all():
                raise InvalidRequest("An embedding holds NaN or infinity; embed it again.")
            yield block


def _by_svd(x: Float64, centered: bool) -> Spectrum:
    mean = x.mean(axis=0) if centered else np.zeros(x.shape[1])
    _, values, directions = np.linalg.svd(x - mean, full_matrices=False)
    floor = max(x.shape) * np.finfo(np.float64).eps * values[0]
    return _signed(values, directions, mean, floor)


def _by_gram(blocks: Iterator[Float64], centered: bool) -> Spectrum:
    first = next(blocks)
    # Summed about the first block's mean: about zero, the mean's square would swamp a
    # small variance when it is taken off again.
    origin = first.mean(axis=0) if centered else np.zeros(first.shape[1])
    gram, total, count = np.zeros((first.shape[1],) * 2), np.zeros(first.shape[1]), 0
    for block in chain([first], blocks):
        moved = block - origin
        gram += moved.T @ moved  # (d, b) @ (b, d) -> (d, d)
        total += moved.sum(axis=0)
        count += len(block)
    drift = total / count if centered else np.zeros_like(total)
    squares, vectors = np.linalg.eigh(gram - count * np.outer(drift, drift))
    values = np.sqrt(np.clip(squares[::-1], 0, None))
    floor = np.sqrt(len(values) * np.finfo(np.float64).eps) * values[0]
    return _signed(values, vectors.T[::-1], origin + drift, floor)


def _signed(values: Float64, directions: Float64, mean: Float64, floor: float) -> Spectrum:
    """Cut at the rank; a direction's sign is arbitrary, so its largest part is made positive."""
    rank = int((values > floor).sum())
    kept = directions[:rank]
    largest = np.take_along_axis(kept, np.abs(kept).argmax(axis=1)[:, None], axis=1)
    return Spectrum(values[:rank], kept * np.sign(largest), mean)


def _cut(found: Spectrum, k: int) -> Float64:
    check_count("The number of dimensions", k)
    if k > len(found.values):
        raise InvalidRequest(
            f"{k} dimensions were asked for, but the embeddings vary in {len(found.values)}; "
            f"ask for at most that many."
        )
    return found.directions[:k]


def _subspace(
    kind: str, found: Spectrum, weight: Float64, center: Float64 | None, normalize: bool
) -> Projection:
    return Projection(
        kind=kind,
        d_in=len(found.mean),
        gates=mean_gates(1),
        w_q=weight[None],  # (1, k, d_in)
        w_k=weight[None],
        center=center,
        normalize_queries=normalize,
        normalize_keys=normalize,
    )
