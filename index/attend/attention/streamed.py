"""Attention over all keys, in memory that does not grow with their number.

A running maximum and sum per head give the exact softmax in one pass over blocks:
Milakov and Gimelshein 2018, "Online normalizer calculation for softmax". Queries share
each block, so that their products with its keys are one matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from attend.arrays import kth_largest
from attend.attention.logits import Allowed, Block, block_logits, check_queries
from attend.attention.mechanism import Mechanism
from attend.attention.softmax import Partition, cooled, join, summed, weigh, weigh_one
from attend.attention.top import Attended, Logits, mixed, rank, scores, unmasked, weighed
from attend.errors import InvalidRequest
from attend.types import Float64, Floats, Int64


@dataclass(frozen=True)
class Blocks:
    """Blocks that can be read more than once: each reading calls `read` again."""

    read: Callable[[], Iterator[Block]]

    def __iter__(self) -> Iterator[Block]:
        return self.read()


LOST = 1e-290
"""Weights below have lost digits, or all of them: there only their logs have an order."""

ROUNDED = 1e-9
"""Of a score, by which sums in another order may differ, and far more."""

_Scored: TypeAlias = tuple[Block, Floats]
"""A block with its logits (q, H, n)."""


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
    only: list[_Scored]
    """The block with its logits, if it is the only one: it need not be scored again."""
    shares: tuple[Partition, Floats] | None
    """The partition (q, H) of that block and the exponentials in it (q, H, n)."""


def attend_many(
    queries: Floats,
    blocks: Iterable[Block],
    mechanism: Mechanism,
    keep: int,
    *,
    allowed: Allowed | None = None,
    shift: Floats | None = None,
    beyond: Partition | None = None,
) -> list[Attended]:
    """Attend to every document with queries (q, H, d): weights are the true softmax.

    Return the `keep` best of each query. With several heads the blocks are read twice,
    for the mixture that ranks documents is known only once the partitions are; give
    `Blocks` or a list then, not an iterator. Logits are in the precision of queries and
    keys: float64 queries give float64 logits.

    `beyond` (q, H) is what documents that are in no block add to the sums.
    """
    check_queries(queries, mechanism, shift)
    _check_keep(keep)
    if mechanism.heads > 1:
        _check_rereadable(blocks)
    reader = _Reader(queries, blocks, mechanism, allowed, shift)
    read = _first_reading(reader, keep, beyond)
    best = read.best
    if mechanism.heads > 1:
        best = _second_reading(read.only or reader, read, mechanism, keep)
    return [
        weighed(listed, part, mechanism, int(documents))
        for listed, part, documents in zip(best, _by_query(read.sums), read.documents, strict=True)
    ]


def weights_by_block(
    queries: Floats,
    blocks: Iterable[Block],
    mechanism: Mechanism,
    attended: Sequence[Attended],
    *,
    allowed: Allowed | None = None,
    shift: Floats | None = None,
) -> Iterator[BlockWeights]:
    """Yield every document's weights, block by block, once `attend_many` has the sums.

    A blend of values needs them, listed or not; with the same queries, mask and shift.
    """
    sums = Partition(
        np.stack([top.partition.maximum for top in attended]),
        np.stack([top.partition.total for top in attended]),
    )
    for block, z in _Reader(queries, blocks, mechanism, allowed, shift):
        yield BlockWeights(block.documents, weigh(z / mechanism.temperature, sums))


@dataclass(frozen=True)
class _Reader:
    """Blocks with their logits (q, H, n)."""

    queries: Floats
    blocks: Iterable[Block]
    mechanism: Mechanism
    allowed: Allowed | None
    shift: Floats | None

    def __iter__(self) -> Iterator[tuple[Block, Floats]]:
        last = None
        for block in self.blocks:
            if len(block.documents) == 0:
                continue
            if block.documents[0] == last:
                raise InvalidRequest(
                    f"Document {last} lies across two blocks, and would weigh twice; give "
                    f"all keys of a document in one block."
                )
            last = block.documents[-1]
            yield (
                block,
                block_logits(
                    self.queries, block, self.mechanism, allowed=self.allowed, shift=self.shift
                ),
            )


def _first_reading(reader: _Reader, keep: int, beyond: Partition | None) -> _FirstReading:
    """Return partitions, and with one head the best documents too, as z alone ranks them."""
    mechanism, count = reader.mechanism, len(reader.queries)
    sums = _null_alone(count, mechanism)
    sums = sums if beyond is None else join(sums, beyond)
    documents = np.zeros(count, np.int64)
    best = [_nothing(mechanism.heads)] * count
    only: list[_Scored] = []
    last: tuple[Partition, Floats] | None = None
    for number, (block, z) in enumerate(reader):
        here, shares = summed(cooled(z, mechanism.temperature))
        sums = join(sums, here)
        documents += np.count_nonzero(z[:, 0] > -np.inf, axis=-1)  # masks are the same for heads
        if mechanism.heads == 1:
            best = _merged(best, block, z, sums, mechanism, keep)
        only, last = ([], None) if number else ([(block, z)], (here, shares))
    return _FirstReading(sums, documents, best, only, last)


def _second_reading(
    scored: Iterable[_Scored], read: _FirstReading, mechanism: Mechanism, keep: int
) -> list[Logits]:
    best = [_nothing(mechanism.heads)] * len(read.documents)
    weights = _weights(read, mechanism)
    for block, z in scored:
        best = _merged(best, block, z, read.sums, mechanism, keep, weights)
    return best


def _weights(read: _FirstReading, mechanism: Mechanism) -> list[Float64] | None:
    """Return each query's mixed weights (n,) in the only block, without another exponential."""
    if read.shares is None:
        return None
    (maximum, _), shares = read.shares
    factors = mechanism.gates * weigh_one(maximum, read.sums)  # (q, H)
    return [factor @ share for factor, share in zip(factors, shares, strict=True)]


def _merged(
    best: list[Logits],
    block: Block,
    z: Floats,
    sums: Partition,
    mechanism: Mechanism,
    keep: int,
    weights: Sequence[Float64] | None = None,
) -> list[Logits]:
    """Merge a block's logits (q, H, n), and weights if known, into each query's best so far."""
    by_query = [None] * len(z) if weights is None else weights
    peaks = z.max(axis=-1)  # (q, H)
    return [
        old
        if _hopeless(old, peak, mechanism, keep)
        else _merge(old, Logits(block.documents, logits), part, mechanism, keep, weight)
        for old, peak, logits, part, weight in zip(
            best, peaks, z, _by_query(sums), by_query, strict=True
        )
    ]


def _hopeless(old: Logits, peak: Floats, mechanism: Mechanism, keep: int) -> bool:
    """Return whether the largest logit of a block (H,) is below all of the best, as usual."""
    if mechanism.heads > 1 or keep == 0 or len(old.documents) < keep:
        return False
    return bool(peak[0] < old.z[0, -1])


def _merge(
    old: Logits,
    new: Logits,
    part: Partition,
    mechanism: Mechanism,
    keep: int,
    weights: Floats | None = None,
) -> Logits:
    """Return the `keep` best of both, by score and then by row id."""
    if weights is None:
        new = _reaching(new, old, part, mechanism, keep)
    new = unmasked(_cut(new, part, mechanism, keep, weights))
    if not len(new.documents):
        return old
    both = Logits(np.concatenate([old.documents, new.documents]), np.hstack([old.z, new.z]))
    order = rank(both.documents, scores(both.z, part, mechanism))[:keep]
    return Logits(both.documents[order], both.z[:, order])


def _reaching(new: Logits, old: Logits, part: Partition, mechanism: Mechanism, keep: int) -> Logits:
    """Return what of a block reaches the last of the best so far: of most blocks little does."""
    if keep == 0 or len(old.documents) < keep:
        return new
    least = scores(old.z[:, -1:], part, mechanism)[0]
    places = np.flatnonzero(scores(new.z, part, mechanism) >= least)
    return Logits(new.documents[places], new.z[:, places])


def _cut(
    new: Logits,
    part: Partition,
    mechanism: Mechanism,
    keep: int,
    weights: Floats | None = None,
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
    return Logits(new.documents[near], new.z[:, near])


def _by_query(sums: Partition) -> list[Partition]:
    """Split a partition (q, H) into q of (H,)."""
    return [Partition(*part) for part in zip(sums.maximum, sums.total, strict=True)]


def _null_alone(queries: int, mechanism: Mechanism) -> Partition:
    shape = (queries, mechanism.heads)
    if mechanism.null_logit is None:
        return Partition(np.full(shape, -np.inf), np.zeros(shape))
    null = np.broadcast_to(mechanism.null_logit / mechanism.temperature, shape)
    return Partition(null, np.ones(shape))


def _nothing(heads: int) -> Logits:
    return Logits(np.zeros(0, np.int64), np.zeros((heads, 0)))


def _check_keep(keep: int) -> None:
    if isinstance(keep, bool) or not isinstance(keep, int | np.integer) or keep < 0:
        raise InvalidRequest(f"keep is {keep!r}; send a whole number of at least 0.", field="k")


def _check_rereadable(blocks: Iterable[Block]) -> None:
    if iter(blocks) is blocks:
        raise InvalidRequest(
            "Attention with several heads reads its blocks twice, but an iterator was given; "
            "give Blocks(function) or a list."
        )
