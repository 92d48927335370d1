"""The logits of a block's documents: reduce over keys of scale·score, plus bias and shift."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attend.attention.reduce import by_document
from attend.attention.settings import Mechanism
from attend.attention.types import Block, check_block
from attend.errors import InvalidRequest
from attend.types import Bool, Floats, Int64

Allowed: TypeAlias = Callable[[Int64], Bool]
"""A mask: of documents (n,), those that may be attended to, as (n,) or (q, n)."""

LARGEST = 1e100
"""Beyond any logit that means something, and far from overflow at any temperature."""


def only(ids: Int64) -> Allowed:
    """The mask that lets these row ids through and no other."""
    return lambda documents: np.isin(documents, ids)


def without(ids: Int64) -> Allowed:
    """The mask that holds these row ids back."""
    return lambda documents: np.isin(documents, ids, invert=True)


def block_logits(
    queries: Floats,
    block: Block,
    mechanism: Mechanism,
    *,
    allowed: Allowed | None = None,
    shift: Floats | None = None,
) -> Floats:
    """Queries (q, H, d) against a block: the matrix z (q, H, n), -inf where masked.

    In the precision of queries and keys, or of the bias if that is finer.

    `shift` (q, H) is what a folded projection adds to the logits of each query and head.
    Raises InvalidRequest for shapes that disagree and for logits that are not finite.
    """
    check_queries(queries, mechanism, shift)
    if len(block.documents) == 0:
        return np.zeros((*queries.shape[:2], 0))
    check_block(block, *queries.shape[1:])
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below
        scaled = score_keys(queries, block.keys, mechanism)
    _check_size(scaled)
    logits = by_document(scaled, block.starts, mechanism.pool)
    if shift is not None:
        logits = logits + shift[:, :, None]
    if block.bias is not None:
        logits = logits + _by_head(block.bias, logits.shape)
    if allowed is None:
        return logits
    mask = _per_query("mask", allowed(block.documents), len(queries), logits.shape[-1])
    np.copyto(logits, -np.inf, where=~mask)  # nobody else has seen them yet
    return logits


def score_keys(queries: Floats, keys: Floats, mechanism: Mechanism) -> Floats:
    """Queries (q, H, d) against keys (m, Hk, d), scaled by head: (q, H, m).

    Hk is 1, H, or what divides H: then each run of Hk heads meets the keys' heads in turn, as the
    parts of a mixture do.
    """
    q, heads, d = queries.shape
    by_key = queries if keys.shape[1] == 1 else queries.reshape(-1, keys.shape[1], d)
    found = mechanism.score(by_key, keys).reshape(q, heads, len(keys))
    scaled = np.empty(found.shape, found.dtype)  # by query, however the product lies in memory
    return np.multiply(found, mechanism.scale[:, None].astype(found.dtype), out=scaled)


def check_queries(queries: Floats, mechanism: Mechanism, shift: Floats | None) -> None:
    """Raise InvalidRequest unless queries are (q, H, d) and the shift (q, H)."""
    if queries.ndim != 3 or queries.shape[1] != mechanism.heads:
        raise InvalidRequest(
            f"Queries of shape {queries.shape} were given; {mechanism.heads} heads take "
            f"(q, {mechanism.heads}, d)."
        )
    if shift is not None and shift.shape != queries.shape[:2]:
        raise InvalidRequest(
            f"A shift of shape {shift.shape} was given for queries of shape "
            f"{queries.shape}; send one number for each query and head."
        )


def _check_size(logits: Floats) -> None:
    # Written so that NaN fails too; and -inf would pass for a mask.
    if logits.size and not (float(logits.min()) >= -LARGEST and float(logits.max()) <= LARGEST):
        raise InvalidRequest(
            "A query and a key have no finite score; one of them holds NaN, infinity or "
            "numbers too large to multiply."
        )


def _by_head(bias: Floats, shape: tuple[int, ...]) -> Floats:
    """(q, H, n) as it is, else as `_per_query`."""
    if bias.ndim == 3 and bias.shape == shape:
        return bias
    return _per_query("bias", bias, shape[0], shape[-1])


def _per_query(name: str, array: NDArray[Any], queries: int, documents: int) -> NDArray[Any]:
    """(n,) or (q, n) as (1 or q, 1, n), to meet logits (q, H, n)."""
    if array.shape not in ((documents,), (queries, documents)):
        raise InvalidRequest(
            f"A {name} of shape {array.shape} was given for {queries} queries and "
            f"{documents} documents; send ({documents},) or ({queries}, {documents})."
        )
    return np.atleast_2d(array)[:, None, :]
