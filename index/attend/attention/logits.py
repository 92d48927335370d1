"""The logits of a block's documents: reduce over keys of scale·score, plus bias and shift."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attend.attention.mechanism import Mechanism, by_document
from attend.errors import InvalidRequest
from attend.types import Bool, Floats, Int64

Allowed: TypeAlias = Callable[[Int64], Bool]
"""A mask: of documents (n,), those that may be attended to, as (n,) or (q, n)."""

LARGEST = 1e100
"""Beyond any logit that means something, and far from overflow at any temperature."""


class Block(NamedTuple):
    """Some documents with all their keys; blocks of one reading share no document."""

    documents: Int64
    """(n,) row ids, each once."""
    starts: Int64
    """(n,) where each document's keys begin in `keys`; they are contiguous."""
    keys: Floats
    """(m, Hk, d), Hk being 1 (shared by all heads), H, or what divides H (by runs of heads)."""
    bias: Floats | None = None
    """Added to the documents' logits, such as a lexical term: (n,) or (q, n) in every head, or
    (q, H, n) by head."""


def without(ids: Int64) -> Allowed:
    """Return the mask that holds these row ids back."""
    return lambda documents: np.isin(documents, ids, invert=True)


def block_logits(
    queries: Floats,
    block: Block,
    mechanism: Mechanism,
    *,
    allowed: Allowed | None = None,
    shift: Floats | None = None,
) -> Floats:
    """Score queries (q, H, d) against a block: the matrix z (q, H, n), -inf where masked.

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
    """Score queries (q, H, d) against keys (m, Hk, d), scaled by head: (q, H, m).

    Hk is 1, H, or what divides H: then each run of Hk heads meets the keys' heads in turn, as the
    parts of a mixture do.
    """
    q, heads, d = queries.shape
    by_key = queries if keys.shape[1] == 1 else queries.reshape(-1, keys.shape[1], d)
    scores = mechanism.score(by_key, keys).reshape(q, heads, len(keys))
    scaled = np.empty(scores.shape, scores.dtype)  # by query, however the product lies in memory
    return np.multiply(scores, mechanism.scale[:, None].astype(scores.dtype), out=scaled)


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
    """Return (q, H, n) as it is, else as `_per_query` does."""
    if bias.ndim == 3 and bias.shape == shape:
        return bias
    return _per_query("bias", bias, shape[0], shape[-1])


def _per_query(name: str, array: NDArray[Any], queries: int, documents: int) -> NDArray[Any]:
    """Turn (n,) or (q, n) into (1 or q, 1, n), to meet logits (q, H, n)."""
    if array.shape not in ((documents,), (queries, documents)):
        raise InvalidRequest(
            f"A {name} of shape {array.shape} was given for {queries} queries and "
            f"{documents} documents; send ({documents},) or ({queries}, {documents})."
        )
    return np.atleast_2d(array)[:, None, :]


def pieces(block: Block, most: int) -> Iterator[Block]:
    """Cut a block without a bias into pieces of about `most` keys; a document is never cut."""
    if len(block.keys) <= most:
        yield block
        return
    ends = np.append(block.starts[1:], len(block.keys))
    cuts = [0, *(np.flatnonzero(np.diff(ends // most)) + 1).tolist(), len(ends)]
    for first, last in pairwise(cuts):
        begin = block.starts[first]
        yield Block(
            block.documents[first:last],
            block.starts[first:last] - begin,
            block.keys[begin : ends[last - 1]],
        )


def check_block(block: Block, heads: int, width: int) -> None:
    """Raise InvalidRequest for a block whose parts disagree.

    numpy reduces over starts that do not ascend without complaint, and wrongly.
    """
    documents, starts, keys, _ = block
    if keys.ndim != 3 or not keys.shape[1] or heads % keys.shape[1] or keys.shape[2] != width:
        raise InvalidRequest(
            f"Keys of shape {keys.shape} do not fit queries of {heads} heads and {width} "
            f"dimensions; send (m, Hk, {width}), Hk dividing {heads}."
        )
    if documents.ndim != 1 or starts.shape != documents.shape:
        raise InvalidRequest(
            f"Starts of shape {starts.shape} were given for documents of shape "
            f"{documents.shape}; send one start for each document."
        )
    edges = np.concatenate([starts, [len(keys)]])
    if edges[0] != 0 or (np.diff(edges) < 1).any():
        raise InvalidRequest(
            f"The starts of {len(starts)} documents do not divide {len(keys)} keys; they must "
            f"begin at 0 and ascend, and each document needs a key."
        )
