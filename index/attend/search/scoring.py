"""Scoring: the queries of one search over one snapshot, as a scoring plan scores them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from attend.attention import Attended, Mechanism, Softmax, log_mix
from attend.key_table import KeyTable
from attend.search.plan import ScoringPlan
from attend.search.words import WordScores
from attend.types import Float32, Float64, Floats, Int64
from attend.view import View

FEW_KEYS = 1024
"""Up to this many keys queries are float64: float32 moves a weight by a millionth or two."""

MAX_SCORES = 1 << 20
"""Scores of a block of keys, for all queries and heads of one pass: 8 MB, some eight times over."""

ALL = slice(None)


class Queries(NamedTuple):
    """Queries of one search, which share their options.

    Attributes:
        embeddings: (q, d); of a mixture, its parts (p, d).
        words: the BM25 scores of each embedding; None where words do not count.
        parts: (p,) where the embeddings are parts of one mixture: how much each counts, summing
            to one.
    """

    embeddings: Float32
    words: Sequence[WordScores] | None = None
    parts: Float64 | None = None


@dataclass(frozen=True, eq=False)
class Scoring:
    """Queries over a snapshot, as a plan scores them.

    Attributes:
        embeddings: (q, d), or the parts of one mixture (p, d).
        heads: (q, H, d) the projected queries; of a mixture (1, p * H, d), part by part.
        shift: (q, H) what folding adds to each logit.
        parts: (p,) how much each part of a mixture counts; None for plain queries.
        words: the BM25 scores of each embedding; None where words do not count.
        masked: documents that a scan leaves out besides those that filters do.
    """

    view: View
    plan: ScoringPlan
    mechanism: Mechanism
    embeddings: Float32
    heads: Floats
    shift: Float64
    parts: Float64 | None = None
    words: Sequence[WordScores] | None = None
    masked: Int64 | None = None

    @classmethod
    def of(
        cls, view: View, plan: ScoringPlan, queries: Queries, masked: Int64 | None = None
    ) -> Scoring:
        """Project queries by a plan."""
        embeddings, words, parts = queries
        exact = embeddings.astype(np.float64) if view.keys.keys <= FEW_KEYS else embeddings
        heads: Floats
        shift: Floats
        if plan.untouched:
            heads, shift = exact[:, None, :], np.zeros((len(exact), 1))
        else:
            heads, shift = plan.projection.asked(exact)
        compare = plan.mechanism
        if parts is not None:
            compare = _of_mixture(compare, parts)
            heads = heads.reshape(1, compare.heads, heads.shape[2])
            shift = shift.reshape(1, compare.heads)
        scaled = np.asarray(shift * compare.scale, dtype=np.float64)
        return cls(view, plan, compare, embeddings, heads, scaled, parts, words, masked)

    def by_head(self, candidates: KeyTable) -> KeyTable:
        """Return documents with their keys by head, (m, Hk, d)."""
        if not self.plan.stored_form:
            return candidates.with_vectors(self.plan.projection.keys(candidates.vectors))
        count, width = candidates.vectors.shape
        d = self.heads.shape[2]
        return candidates.with_vectors(candidates.vectors.reshape(count, width // d, d))

    def blocks(self, rows: Int64 | None) -> Iterator[KeyTable]:
        """Return all documents of `rows` with their keys by head, block by block."""
        most = max(1, MAX_SCORES // self.mechanism.heads)
        for candidates in self.view.keys.blocks(rows):
            parts = [candidates] if len(candidates.ids) <= most else candidates.blocks(most)
            yield from map(self.by_head, parts)

    def bias(self, documents: Int64, queries: slice = ALL) -> Float64:
        """Return what is added to the logits of documents (n,): (q, H, n), or (q, H, 1)."""
        bias: Float64 = self.shift[queries][:, :, None]
        words = self.word_bias(documents, queries)
        if words is not None:
            bias = bias + words
        if self.masked is not None:
            bias = bias + np.where(np.isin(documents, self.masked), -np.inf, 0.0)
        return bias

    def word_bias(self, documents: Int64, queries: slice = ALL) -> Float64 | None:
        """Return what BM25 adds to the logits of documents (n,): (q, H, n)."""
        if self.words is None:
            return None
        words = self.words[queries] if self.parts is None else self.words
        shares = np.stack([scores.of(documents) for scores in words])  # (q or p, n)
        count = len(words) if self.parts is None else 1
        shape = (count, self.mechanism.heads, len(documents))
        by_head = np.repeat(shares, self.plan.projection.heads, axis=0).reshape(shape)
        scaled: Float64 = by_head * self.mechanism.scale[:, None]
        return scaled

    def over_parts(self, weights: Float64) -> Float64:
        """Mix weights (p * H, n) over the parts: those of the projection's heads (H, n)."""
        if self.parts is None:
            return weights
        by_part = weights.reshape(len(self.parts), self.plan.projection.heads, -1)
        mixed: Float64 = np.tensordot(self.parts, by_part, axes=1)  # (p,) @ (p, H, n) -> (H, n)
        return mixed

    @property
    def gates(self) -> Float64:
        """Weights of the projection's heads, (H,)."""
        if self.parts is None:
            return self.mechanism.gates
        by_part = self.mechanism.gates.reshape(-1, self.plan.projection.heads)
        gates: Float64 = by_part.sum(axis=0)
        return gates

    def log_weights(self, attended: Attended) -> Float64:
        """Return the log weights of attended documents (n,), also of those far too far off."""
        return log_mix(self._logs(attended.logits, attended), self.mechanism.gates)

    def part_shares(self, attended: Attended, places: Int64) -> Float64:
        """Return the share of each part in the weight of some attended documents (k,): (p, k).

        In logs, so that each column sums to one even where weights underflow.
        """
        logits = self._logs(attended.logits[:, places], attended)
        with np.errstate(divide="ignore"):
            shares = Softmax.of(logits.T + np.log(self.mechanism.gates)).weights.T  # (p * H, k)
        parts = 1 if self.parts is None else len(self.parts)
        by_part = shares.reshape(parts, self.plan.projection.heads, -1)
        summed: Float64 = by_part.sum(axis=1)
        return summed

    def _logs(self, logits: Float64, attended: Attended) -> Float64:
        return logits / self.mechanism.temperature - attended.log_partition[:, None]

    def index_queries(self) -> Float32:
        """Return the queries in the space of the index: (q, H, Hk * d).

        An index of several heads holds their keys side by side; a head's query is zero
        over the others, so that one inner product is that head's.
        """
        if not self.plan.stored_form:
            return self.embeddings[:, None, :]
        q, heads, d = self.heads.shape
        if self.view.made.width == d:
            return np.ascontiguousarray(self.heads, dtype=np.float32)
        spread = np.zeros((q, heads, heads, d), dtype=np.float32)
        spread[:, np.arange(heads), np.arange(heads)] = self.heads
        return spread.reshape(q, heads, heads * d)

    def best_keys(self, query: int, rows: Int64) -> dict[int, int]:
        """Return for each document row the id of the key that matches the query best."""
        candidates = self.view.keys.lookup(rows)
        if not len(candidates):
            return {}
        keys = self.by_head(candidates).vectors
        scores = self.mechanism.score_keys(self.heads[query : query + 1], keys)[0]  # (H, m)
        score = self.mechanism.gates @ scores  # (m,)
        places = np.split(np.arange(len(score)), candidates.starts[1:-1])
        best = [int(part[np.argmax(score[part])]) for part in places]
        ids = candidates.ids[best].tolist()
        return dict(zip(candidates.rows.tolist(), ids, strict=True))

    def lexical(self, query: int, documents: Int64) -> Float64:
        """Return what words add to the logits of documents, (n,); the heads' mean by gates."""
        bias = self.word_bias(documents, slice(query, query + 1))
        return np.zeros(len(documents)) if bias is None else self.mechanism.gates @ bias[0]

    def terms(self, query: int) -> tuple[str, ...]:
        """Return the words of a query that were looked up."""
        if self.words is None:
            return ()
        words = self.words if self.parts is not None else self.words[query : query + 1]
        return tuple(dict.fromkeys(term for scores in words for term in scores.terms))


def _of_mixture(compare: Mechanism, parts: Float64) -> Mechanism:
    """Return the mechanism with its heads once for each part, as the parts count."""
    gates = np.outer(parts, compare.gates).ravel()  # (p, H) -> (p * H,)
    scale = np.tile(compare.scale, len(parts))
    return replace(compare, gates=gates / gates.sum(), scale=scale)
