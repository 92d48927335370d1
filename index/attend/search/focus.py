"""How queries meet the keys of a view: projected, compared by a mechanism, with shared words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from attend.attention import (
    Allowed,
    Attended,
    Block,
    Blocks,
    Mechanism,
    log_mix,
    pieces,
    score_keys,
    softmax,
    without,
)
from attend.keys import Candidates
from attend.projection import Projection
from attend.search.lexicon import Overlap
from attend.types import Float32, Float64, Int64
from attend.views import View

Attend = int | Literal["all"]

FEW_KEYS = 1024
"""Up to so many keys queries are float64: in float32 a weight may be off by a millionth or two."""

ALL = slice(None)

MAX_SCORES = 1 << 20
"""Scores of a block of keys, for all queries and heads of one pass: 8 MB, some eight times over."""


@dataclass(frozen=True)
class Focus:
    """Queries as a view's projection sees them, and the mechanism that compares them.

    Attributes:
        parts: (p,) how much each part of a mixture counts; None where queries are plain.
        overlaps: the lexical term of each embedding; None where words do not count.
        native: whether the index orders documents as the mechanism does, but for words.
        indexed: whether it orders them as each single head does.
        reranks: whether the scorer was fitted to candidates, and looks at no more than those.
        masked: documents that a scan leaves out besides those that filters do.
        calibrated: whether scale and null were fitted for what is asked.
    """

    view: View
    mechanism: Mechanism
    projection: Projection
    embeddings: Float32  # (q, d), or the p parts of a mixture (p, d)
    parts: Float64 | None
    overlaps: Sequence[Overlap] | None
    native: bool
    indexed: bool
    reranks: bool
    calibrated: bool
    masked: Int64 | None = None
    heads: Float32 | Float64 = field(
        init=False
    )  # (q, H, d); of a mixture (1, p * H, d), part by part
    shift: Float64 = field(init=False)  # (q, H), scaled as logits are

    def __post_init__(self) -> None:
        precise = self.view.keys.keys <= FEW_KEYS
        asked = self.projection.asked(
            self.embeddings.astype(np.float64) if precise else self.embeddings
        )
        queries = len(asked.heads) if self.parts is None else 1
        heads = asked.heads.reshape(queries, self.mechanism.heads, asked.heads.shape[2])
        object.__setattr__(self, "heads", heads)
        shift = asked.shift.reshape(queries, self.mechanism.heads)
        object.__setattr__(self, "shift", shift * self.mechanism.scale)

    def block(self, candidates: Candidates) -> Block:
        """Candidates with their keys by head, (m, Hk, d), without the lexical term."""
        if self._as_stored:
            count, width = candidates.keys.shape
            d = self.heads.shape[2]
            keys = candidates.keys.reshape(count, width // d, d)
        else:
            keys = self.projection.keys(candidates.keys)
        return Block(candidates.documents, candidates.starts, keys)

    def blocks(self, rows: Int64 | None, queries: slice = ALL) -> Blocks:
        """All documents of `rows`, with the lexical terms of some of the queries."""
        most = max(1, MAX_SCORES // self.mechanism.heads)
        return Blocks(
            lambda: (
                block._replace(bias=self.bias(block.documents, queries))
                for found in self.view.keys.blocks(rows)
                for block in pieces(self.block(found), most)
            )
        )

    def bias(self, documents: Int64, queries: slice = ALL) -> Float64 | None:
        """The lexical terms of documents (n,) as they meet logits: (q, H, n)."""
        if self.overlaps is None:
            return None
        chosen = self.overlaps[queries] if self.parts is None else self.overlaps
        shares = np.stack([overlap.of(documents) for overlap in chosen])  # (q or p, n)
        count = len(chosen) if self.parts is None else 1
        shape = (count, self.mechanism.heads, len(documents))
        by_head = np.repeat(shares, self.inner, axis=0).reshape(shape)
        scaled: Float64 = by_head * self.mechanism.scale[:, None]
        return scaled

    @property
    def allowed(self) -> Allowed | None:
        """The mask of a scan; None where it leaves out nothing."""
        return None if self.masked is None else without(self.masked)

    @property
    def inner(self) -> int:
        """Heads of the projection, of which a mixture has as many for each part."""
        return self.projection.heads

    def by_head(self, weights: Float64) -> Float64:
        """Weights (p * H, n) as those of the projection's heads (H, n), the parts mixed."""
        if self.parts is None:
            return weights
        apart = weights.reshape(len(self.parts), self.inner, -1)
        mixed: Float64 = np.tensordot(self.parts, apart, axes=1)  # (p,) @ (p, H, n) -> (H, n)
        return mixed

    @property
    def gates(self) -> Float64:
        """How much each of the projection's heads counts, (H,)."""
        if self.parts is None:
            return self.mechanism.gates
        gates: Float64 = self.mechanism.gates.reshape(-1, self.inner).sum(axis=0)
        return gates

    def log_weights(self, found: Attended) -> Float64:
        """Of some attended documents, (n,); also of those too far off to have a weight."""
        logits = found.logits / self.mechanism.temperature - found.log_partition[:, None]
        return log_mix(logits, self.mechanism.gates)

    def because(self, found: Attended, at: Int64) -> Float64:
        """Of the weight of some attended documents (k,) the share of each part: (p, k).

        In logs, so that each column sums to one even where weights are too small to be told.
        """
        logits = found.logits[:, at] / self.mechanism.temperature - found.log_partition[:, None]
        with np.errstate(divide="ignore"):
            shares = softmax(logits.T + np.log(self.mechanism.gates)).weights.T  # (p * H, k)
        parts = 1 if self.parts is None else len(self.parts)
        together: Float64 = shares.reshape(parts, self.inner, -1).sum(axis=1)
        return together

    def index_queries(self) -> Float32:
        """The queries in the space of the index: (q, H, Hk * d).

        An index of several heads holds their keys side by side; a head's query is zero
        over the others, so that one inner product is that head's.
        """
        if not self._as_stored:
            return self.embeddings[:, None, :]
        q, heads, d = self.heads.shape
        width = self.view.keys.width
        if width == d:
            return np.ascontiguousarray(self.heads, dtype=np.float32)
        spread = np.zeros((q, heads, heads, d), dtype=np.float32)
        spread[:, np.arange(heads), np.arange(heads)] = self.heads
        return spread.reshape(q, heads, heads * d)

    def best_keys(self, query: int, rows: Int64) -> dict[int, int]:
        """For each document row the id of the key that matched the query best."""
        found = self.view.keys.lookup(rows)
        if not len(found.documents):
            return {}
        block = self.block(found)
        scores = score_keys(self.heads[query : query + 1], block.keys, self.mechanism)[0]  # (H, m)
        score = self.mechanism.gates @ scores  # (m,)
        parts = np.split(np.arange(len(score)), found.starts[1:])
        best = [int(part[np.argmax(score[part])]) for part in parts]
        return dict(zip(found.documents.tolist(), found.key_ids[best].tolist(), strict=True))

    def lexical(self, query: int, documents: Int64) -> Float64:
        """What shared words add to the logits of documents, (n,); the heads' mean by gates."""
        bias = self.bias(documents, slice(query, query + 1))
        return np.zeros(len(documents)) if bias is None else self.mechanism.gates @ bias[0]

    def terms(self, query: int) -> tuple[str, ...]:
        """The words of a query that were looked up."""
        if self.overlaps is None:
            return ()
        chosen = self.overlaps if self.parts is not None else self.overlaps[query : query + 1]
        return tuple(dict.fromkeys(term for each in chosen for term in each.terms))

    @cached_property
    def _as_stored(self) -> bool:
        """Whether the view's keys are in the form that this scorer needs."""
        return self.projection.key_fingerprint == self.view.projection.key_fingerprint
