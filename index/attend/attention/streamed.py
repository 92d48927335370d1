"""Attention over all keys, in memory that does not grow with their number.

A running maximum and sum per head give the exact softmax in one pass over blocks:
Milakov and Gimelshein 2018, "Online normalizer calculation for softmax". Queries share
each block, so that their products with its keys are one matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from attend.attention.mechanism import Mechanism
from attend.attention.softmax import (
    Attended,
    Logits,
    Partition,
    join,
    mixed,
    rank,
    scores,
    summed,
    weigh,
    weigh_one,
    weighed,
)
from attend.core.arrays import KeyTable, kth_largest
from attend.core.types import Float64, Floats, Int64

Blocks: TypeAlias = Callable[[], Iterable[KeyTable]]
"""Reads all documents with their keys (m, Hk, d) block by block; may be called again."""

Bias: TypeAlias = Callable[[Int64], Floats]
"""Of documents (n,): what is added to their logits, broadcast to (q, H, n); -inf masks."""

LOST = 1e-290
"""Weights below have lost digits, or all of them: there only their logs have an order."""

ROUNDED = 1e-9
"""Of a score, by which sums in another order may differ, and far more."""


class ScoredBlock(NamedTuple):
    """The documents of a block with their logits."""

    documents: Int64
    """(n,)"""
    z: Floats
    """(q, H, n)"""


class BlockWeights(NamedTuple):
    """The share of one block in the attention, for blending its values."""

    documents: Int64
    """(n,)"""
    heads: Float64
    """(q, H, n)"""


class _FirstReading(NamedTuple):
    """Result of a first reading of all blocks."""

    sums: Partition
    """(q, H)"""
    documents: Int64
    """(q,) the number that was not masked."""
    best: list[Logits]
    """The best of each query; empty for several heads."""
    only: list[ScoredBlock]
    """The block, if it is the only one: it need not be scored again."""
    weights: Sequence[Float64] | None
    """Each query's mixed weights (n,) in that block."""


def attend_many(
    queries: Floats, blocks: Blocks, mechanism: Mechanism, keep: int, bias: Bias | None = None
) -> list[Attended]:
    """Attend to every document with queries (q, H, d): weights are the true softmax.

    Return the `keep` best of each query. With several heads the blocks are read twice,
    for the mixture that ranks documents is known only once the partitions are. Logits are in
    the precision of queries and keys: float64 queries give float64 logits.
    """
    read = _first_reading(_scored(queries, blocks, mechanism, bias), len(queries), mechanism, keep)
    best = read.best
    if mechanism.heads > 1:
        for block in read.only or _scored(queries, blocks, mechanism, bias):
            best = _merged(best, block, read.sums, mechanism, keep, read.weights)
    return [
        weighed(listed, part, mechanism, int(documents))
        for listed, part, documents in zip(best, _by_query(read.sums), read.documents, strict=True)
    ]


def weights_by_block(
    queries: Floats,
    blocks: Blocks,
    mechanism: Mechanism,
    attended: Sequence[Attended],
    bias: Bias | None = None,
) -> Iterator[BlockWeights]:
    """Yield every document's weights, block by block, once `attend_many` has the sums.

    A blend of values needs them, listed or not; with the same queries and bias.
    """
    sums = Partition(
        np.stack([top.partition.maximum for top in attended]),
        np.stack([top.partition.total for top in attended]),
    )
    for documents, z in _scored(queries, blocks, mechanism, bias):
        yield BlockWeights(documents, weigh(z / mechanism.temperature, sums))


def _scored(
    queries: Floats, blocks: Blocks, mechanism: Mechanism, bias: Bias | None
) -> Iterator[ScoredBlock]:
    for documents in blocks():
        added = None if bias is None else bias(documents.rows)
        yield ScoredBlock(documents.rows, mechanism.logits(queries, documents, added))


def _first_reading(
    scored: Iterable[ScoredBlock], queries: int, mechanism: Mechanism, keep: int
) -> _FirstReading:
    """Return partitions, and with one head the best documents too, as z alone ranks them."""
    shape, heads = (queries, mechanism.heads), mechanism.heads
    sums = Partition(np.full(shape, -np.inf), np.zeros(shape))
    if mechanism.null is not None:
        sums = Partition(np.broadcast_to(mechanism.null, shape), np.ones(shape))
    documents = np.zeros(queries, np.int64)
    best = [Logits(np.zeros(0, np.int64), np.zeros((heads, 0)))] * queries
    only: list[ScoredBlock] = []
    weights: Sequence[Float64] | None = None
    for number, block in enumerate(scored):
        here, shares = summed(mechanism.cooled(block.z))
        sums = join(sums, here)
        # Masks are the same for all heads.
        documents += np.count_nonzero(block.z[:, 0] > -np.inf, axis=-1)
        if heads == 1:
            best = _merged(best, block, sums, mechanism, keep)
        only, weights = ([], None) if number else ([block], None)
        if only and heads > 1:
            weights = _weights(here, shares, sums, mechanism)
    return _FirstReading(sums, documents, best, only, weights)


def _weights(
    block: Partition, shares: Floats, sums: Partition, mechanism: Mechanism
) -> list[Float64]:
    """Return each query's mixed weights (n,) in the first block, without another exponential.

    Args:
        block: (q, H) its own partition, with the exponentials in it (q, H, n).
        sums: (q, H) its partition with the no-answer score.
    """
    factors = mechanism.gates * weigh_one(block.maximum, sums)  # (q, H)
    return [factor @ share for factor, share in zip(factors, shares, strict=True)]


def _merged(
    best: list[Logits],
    block: ScoredBlock,
    sums: Partition,
    mechanism: Mechanism,
    keep: int,
    weights: Sequence[Float64] | None = None,
) -> list[Logits]:
    """Merge a block's logits, and mixed weights if known, into each query's best so far."""
    by_query = [None] * len(block.z) if weights is None else weights
    peaks = block.z[:, 0].max(axis=-1, initial=-np.inf)  # (q,)
    merged = []
    for old, peak, z, part, weight in zip(
        best, peaks, block.z, _by_query(sums), by_query, strict=True
    ):
        full = 0 < keep <= len(old.documents)
        # Of most blocks nothing reaches the best so far, where one head ranks them.
        if full and mechanism.heads == 1 and peak < old.z[0, -1]:
            merged.append(old)
            continue
        new = Logits(block.documents, z)
        if full and weight is None:
            least = scores(old.z[:, -1:], part, mechanism)[0]
            new = new.some(np.flatnonzero(scores(z, part, mechanism) >= least))
        merged.append(_merge(old, new, part, mechanism, keep, weight))
    return merged


def _merge(
    old: Logits,
    new: Logits,
    part: Partition,
    mechanism: Mechanism,
    keep: int,
    weights: Floats | None,
) -> Logits:
    """Return the `keep` best of both, by score and then by row id."""
    new = _cut(new, part, mechanism, keep, weights).unmasked()
    if not len(new.documents):
        return old
    both = Logits(np.concatenate([old.documents, new.documents]), np.hstack([old.z, new.z]))
    return both.some(rank(both.documents, scores(both.z, part, mechanism))[:keep])


def _cut(
    new: Logits, part: Partition, mechanism: Mechanism, keep: int, weights: Floats | None
) -> Logits:
    """Leave out what cannot be among the `keep` best: sorting the block costs more."""
    if len(new.documents) <= keep or keep == 0:
        return new
    score = weights
    if score is None:
        score = new.z[0] if mechanism.heads == 1 else mixed(new.z, part, mechanism)
    threshold = kth_largest(score, keep)[0]
    if mechanism.heads > 1 and threshold <= LOST:
        score = scores(new.z, part, mechanism)
        threshold = kth_largest(score, keep)[0]
    # With all ties, among which the row id decides, and with what rounding may have parted.
    near = score >= threshold - abs(threshold) * ROUNDED
    return new.some(np.flatnonzero(near))


def _by_query(sums: Partition) -> list[Partition]:
    """Split a partition (q, H) into q of (H,)."""
    return [Partition(*part) for part in zip(sums.maximum, sums.total, strict=True)]
