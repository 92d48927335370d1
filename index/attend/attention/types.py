"""The words of attention: what it reads, how it weighs, what it found."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from attend.attention.softmax import Partition
from attend.errors import InvalidRequest
from attend.types import Float64, Floats, Int64


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


class Attended(NamedTuple):
    """What one query attends to, best first."""

    documents: Int64
    """(n,) row ids; of a streamed attention only the `keep` best."""
    scores: Float64
    """(n,) the logit for one head, log weight for several; higher is better."""
    logits: Float64
    """(H, n)"""
    weights: Float64
    """(n,) mixed over heads by their gates."""
    head_weights: Float64
    """(H, n) each head's own softmax."""
    partition: Partition
    """(H,) each head's sum of exp(logit / temperature), null included."""
    null_weight: float
    """The weight of "nothing here answers that"; 0 without a null key."""
    total_documents: int
    """How many documents share the weights, listed or not; 0 if all were masked."""

    @property
    def log_partition(self) -> Float64:
        """(H,) log of each head's sum; -inf if all was masked and there is no null."""
        return self.partition.log

    @property
    def confidence(self) -> float:
        """One less the null's weight; 0 where there was nothing to attend to."""
        return 1 - self.null_weight if self.total_documents else 0.0


def pieces(block: Block, most: int) -> Iterator[Block]:
    """A block without a bias in pieces of about `most` keys; a document is never cut."""
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
