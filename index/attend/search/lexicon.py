"""The lexical term: how much the words that a query and a document share add to a logit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from attend.store import Lexical
from attend.tuning import DEFAULT_COVERAGE, DEFAULT_LEXICAL, Tuning
from attend.types import Float64, Int64


@dataclass(frozen=True)
class Strength:
    """λ and γ of the lexical term λ · c(q) · lex(d), c(q) = (maximum / ideal) ** γ."""

    weight: float
    coverage: float


OFF = Strength(0.0, 0.0)


class Best(NamedTuple):
    """The documents of the largest shares."""

    rows: Int64  # in no order
    beyond: float
    """The largest share of any other document."""


class Overlap(NamedTuple):
    """One query's lexical term, for the documents that share a word with it.

    Attributes:
        rows: (n,) documents, ascending.
        shares: (n,) λ · c(q) · lex(d), on the scorer's scale, from above 0 to λ.
        terms: the query's words that were looked up.
    """

    rows: Int64
    shares: Float64
    terms: tuple[str, ...]

    def of(self, documents: Int64) -> Float64:
        """Documents (m,) in any order as their shares (m,), 0 for those that share no word."""
        if not len(self.rows):
            return np.zeros(len(documents))
        at = np.minimum(np.searchsorted(self.rows, documents), len(self.rows) - 1)
        return np.where(self.rows[at] == documents, self.shares[at], 0.0)

    def among(self, rows: Int64 | None) -> Overlap:
        """Without the documents that a filter holds back; the shares stay as they are."""
        if rows is None:
            return self
        if not len(rows):
            return Overlap(NO_OVERLAP.rows, NO_OVERLAP.shares, self.terms)
        at = np.minimum(np.searchsorted(rows, self.rows), len(rows) - 1)
        kept = rows[at] == self.rows
        return Overlap(self.rows[kept], self.shares[kept], self.terms)

    def best(self, count: int) -> Best:
        """The `count` documents of the largest shares."""
        if len(self.rows) <= count:
            return Best(self.rows, 0.0)
        order = np.argpartition(-self.shares, count)  # what stands at `count` is in its place
        return Best(self.rows[order[:count]], float(self.shares[order[count]]))


NO_OVERLAP = Overlap(np.empty(0, dtype=np.int64), np.empty(0), ())


def strength_of(asked: bool | float | None, tuning: Tuning) -> Strength:
    """How much words count: as the request says, else as the version does."""
    if asked is None:
        return own_strength(tuning)
    if asked is True:
        return Strength(DEFAULT_LEXICAL, DEFAULT_COVERAGE)
    if not asked:
        return OFF
    coverage = tuning.coverage if tuning.lexical else DEFAULT_COVERAGE
    return Strength(float(asked), coverage)


def own_strength(tuning: Tuning) -> Strength:
    """How much words count where a request does not say."""
    return Strength(tuning.lexical, tuning.coverage) if tuning.lexical else OFF


class Lexicon(Protocol):
    """Which documents share words with texts."""

    def lexical_many(self, texts: Sequence[str]) -> list[Lexical]: ...


def overlaps(store: Lexicon, texts: Sequence[str], strength: Strength) -> list[Overlap] | None:
    """The lexical terms of queries (q); None where words do not count."""
    if strength.weight == 0:
        return None
    return [_overlap(found, strength) for found in store.lexical_many(texts)]


def blended(parts: Sequence[tuple[Overlap, float]]) -> Overlap:
    """Lexical terms, each with its share, as one: that of a query with several texts."""
    if not parts:
        return NO_OVERLAP
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    rows, of = np.unique(np.concatenate([each.rows for each, _ in parts]), return_inverse=True)
    weighed = np.concatenate([each.shares * share for each, share in parts])
    shares = np.bincount(of, weighed, len(rows)).astype(np.float64)
    terms = dict.fromkeys(term for each, _ in parts for term in each.terms)
    return Overlap(rows, shares, tuple(terms))


def _overlap(found: Lexical, strength: Strength) -> Overlap:
    if not len(found.rows) or found.maximum <= 0:
        return Overlap(NO_OVERLAP.rows, NO_OVERLAP.shares, found.terms)
    # Sums over the same words in another order: they may differ in the last bit.
    covered = min(1.0, found.maximum / found.ideal) ** strength.coverage
    shares = strength.weight * covered * found.scores / found.maximum
    return Overlap(found.rows, shares, found.terms)
