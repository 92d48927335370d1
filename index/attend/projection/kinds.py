"""Untrained projections: the identity, given matrices, and the directions of PCA and LSI.

Latent semantic indexing by a truncated singular value decomposition: Deerwester et al.
1990, "Indexing by Latent Semantic Analysis". A row x is folded in as V^T x, or as
S^-1 V^T x where every direction is to count the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from attend.core.errors import InvalidRequest
from attend.core.types import Float64, Floats
from attend.projection.projection import Projection
from attend.projection.tensors import check_count, check_heads_divide, floating, rows


def mean_gates(heads: int) -> Float64:
    """(H,): every head counts the same."""
    return np.full(heads, 1 / heads)


def identity(d_in: int, *, normalize: bool = False) -> Projection:
    """Queries and keys are the embeddings: one head, no matrix, no cost."""
    return Projection(
        "identity", d_in, mean_gates(1), normalize_queries=normalize, normalize_keys=normalize
    )


def given(
    w_q: ArrayLike | None,
    w_k: ArrayLike | None,
    *,
    heads: int | None = None,
    gates: ArrayLike | None = None,
    additive: tuple[ArrayLike, ...] | None = None,
    kind: str = "given",
    **others: Any,
) -> Projection:
    """Make a projection of its matrices: (H, d, d_in) each, or one head's (d, d_in).

    With `heads` a matrix (H*d, d_in) is cut into H blocks of rows, as one square W_Q of
    512 is eight heads of 64; biases likewise. One of w_q and w_k may be None, and is the
    identity then. `additive` holds W, U, v and, if there is one, the bias of Bahdanau's
    scorer, which compares the projected queries and keys. Raises InvalidRequest for shapes that
    disagree and heads that do not divide.

    Args:
        others: further tensors and flags of `Projection`, by name.
    """
    stacked = [floating(w) for w in (w_q, w_k) if w is not None]
    if not stacked:
        raise InvalidRequest("Neither w_q nor w_k was given; for no matrix at all use identity.")
    if heads is None:
        heads = max((len(w) for w in stacked if w.ndim == 3), default=1)
    check_count("heads", heads)
    weights = mean_gates(heads) if gates is None else np.asarray(gates, dtype=np.float64)
    if weights.shape != (heads,):
        raise InvalidRequest(
            f"Gates of shape {weights.shape} were given for {heads} heads; send one for each.",
            field="heads",
        )
    scorer = [floating(parameter) for parameter in additive or ()]
    if len(scorer) not in (0, 3, 4):
        raise InvalidRequest(
            f"The additive scorer was given {len(scorer)} parameters; send W, U and v, and the "
            f"bias if there is one."
        )
    names = ("additive_w", "additive_u", "additive_v", "additive_b")
    parts: dict[str, Any] = {
        name: _blocks(name, part, heads) if name in BY_HEAD else part
        for name, part in {"w_q": w_q, "w_k": w_k, **others}.items()
    }
    parts |= zip(names, scorer, strict=False)
    width = int(stacked[0].shape[-1]) if stacked[0].ndim else 0
    return Projection(kind, width, weights, **parts)


BY_HEAD = {"w_q": 3, "w_k": 3, "b_q": 2, "b_k": 2, "w_v": 3, "b_v": 2}
"""The number of axes of each tensor with a block for each head."""


def _blocks(name: str, tensor: ArrayLike | None, heads: int) -> Floats | None:
    """Return the tensor with a head axis in front: rows are cut where it has none."""
    if tensor is None:
        return None
    array = floating(tensor)
    if array.ndim != BY_HEAD[name] - 1:
        return array  # the projection itself names a shape that is wrong altogether
    check_heads_divide(array.shape[0], heads, name)
    return array.reshape(heads, array.shape[0] // heads, *array.shape[1:])


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
    components = spectrum(embeddings, centered=True)
    return _subspace("pca", components, _cut(components, d_k), components.mean, normalize)


def lsi(
    embeddings: Embeddings, k: int, *, scaled: bool = False, normalize: bool = False
) -> Projection:
    """The k strongest directions of the embeddings as they are, neither centred nor scaled.

    With `scaled` each is divided by its singular value. Raises InvalidRequest for a k
    above the rank of the embeddings.
    """
    components = spectrum(embeddings, centered=False)
    weight = _cut(components, k)
    if scaled:
        weight = weight / components.values[:k, None]
    return _subspace("lsi-scaled" if scaled else "lsi", components, weight, None, normalize)


def spectrum(embeddings: Embeddings, *, centered: bool) -> Spectrum:
    """Singular values and directions in float64, from blocks where there are many rows.

    Small matrices go through a full SVD, exact to rounding. Large ones go through their
    Gram matrix (d_in, d_in), summed over blocks: it squares the singular values, so that
    one below about 1e-8 of the largest is lost in rounding, and counts as none.
    """
    blocks = _row_blocks(embeddings)
    parts: list[Float64] = []
    for block in blocks:
        parts.append(block)
        if sum(part.size for part in parts) > SVD_VALUES:
            return _by_gram(chain(parts, blocks), centered)
    if not parts:
        raise InvalidRequest("There are no embeddings to find directions in; add documents first.")
    return _by_svd(np.concatenate(parts), centered)


def _row_blocks(embeddings: Embeddings) -> Iterator[Float64]:
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
    strongest = directions[:rank]
    largest = np.take_along_axis(strongest, np.abs(strongest).argmax(axis=1)[:, None], axis=1)
    return Spectrum(values[:rank], strongest * np.sign(largest), mean)


def _cut(components: Spectrum, k: int) -> Float64:
    check_count("The number of dimensions", k)
    if k > len(components.values):
        raise InvalidRequest(
            f"{k} dimensions were asked for, but the embeddings vary in {len(components.values)}; "
            f"ask for at most that many."
        )
    return components.directions[:k]


def _subspace(
    kind: str, components: Spectrum, weight: Float64, center: Float64 | None, normalize: bool
) -> Projection:
    return Projection(
        kind=kind,
        d_in=len(components.mean),
        gates=mean_gates(1),
        w_q=weight[None],  # (1, k, d_in)
        w_k=weight[None],
        center=center,
        normalize_queries=normalize,
        normalize_keys=normalize,
    )
