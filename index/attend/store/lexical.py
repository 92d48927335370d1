"""BM25 over the documents' texts, by SQLite's FTS5: what a query says in the same words.

A query is a bag of words, whatever its text holds: nothing in it is syntax.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attend.store.matches import Match, ReadMatches
from attend.types import Float64, Int64

K1 = 1.2
"""FTS5's k1 in bm25(); its b is 0.75 (sqlite.org/fts5.html#the_bm25_function)."""

LEAST_IDF = 1e-6
"""FTS5's idf of a term that half of the documents have, or more."""

MAX_TERMS = 64
"""Terms that a query is matched by, the rarest: those of a paragraph."""

FULL_DOCUMENTS = 100_000
"""Up to so many documents every term counts. Above, only the rarest do, which together match so
many at most: a query takes no longer than it takes here."""

MAX_SPAN = 4_000_000
"""Of row numbers, over which scores are summed as in a table: 32 MB."""


class Lexical(NamedTuple):
    """The documents that have words of a query.

    Attributes:
        rows: rows of documents (n,), ascending.
        scores: BM25 of each (n,), above 0.
        maximum: the best score in the whole collection; 0 where nothing matches.
        ideal: what a perfect match could come near to: the sum of idf * (k1 + 1) over the
            terms looked for, and over those that no document has.
        terms: the stems that were looked for, the rarest first.
    """

    rows: Int64
    scores: Float64
    maximum: float
    ideal: float
    terms: tuple[str, ...]


class _Term(NamedTuple):
    stem: str
    word: str
    documents: int


def search(matches: ReadMatches, words: Mapping[str, str], limit: int | None = None) -> Lexical:
    """The documents that have any of the words, given by stem: all of them, or the best.

    Words that more than half of the documents have are not looked for: each would add at most
    LEAST_IDF * (K1 + 1) to a score, and nearly every document to the result.
    """
    size = matches.size
    most = min(size // 2, FULL_DOCUMENTS)
    terms = [_Term(stem, word, matches.count(stem, word, most)) for stem, word in words.items()]
    used = _rarest([each for each in terms if 0 < each.documents <= most], size)
    absent = [each for each in terms if not each.documents]
    ideal = (K1 + 1) * sum(idf(each.documents, size) for each in (*used, *absent))
    rows, scores = _summed([matches.match(each.stem, each.word) for each in used])
    maximum = float(scores.max(initial=0.0))
    if limit is not None:
        best = np.sort(np.lexsort((rows, -scores))[:limit])
        rows, scores = rows[best], scores[best]
    return Lexical(rows, scores, maximum, ideal, tuple(each.stem for each in used))


def idf(documents: int, size: int) -> float:
    """How much a term says that `documents` of `size` documents have, as FTS5 reckons."""
    return max(math.log((size - documents + 0.5) / (documents + 0.5)), LEAST_IDF)


def _rarest(terms: Sequence[_Term], size: int) -> list[_Term]:
    rarest = sorted(terms, key=lambda each: each.documents)[:MAX_TERMS]
    if size <= FULL_DOCUMENTS:
        return rarest
    matched = np.cumsum([each.documents for each in rarest])
    return rarest[: int((matched <= FULL_DOCUMENTS).sum())]


def _summed(matches: Sequence[Match]) -> tuple[Int64, Float64]:
    """The rows of all documents of several matches, and the sum of each one's scores."""
    if not matches:
        return np.empty(0, dtype=np.int64), np.empty(0)
    rows = np.concatenate([each.rows for each in matches]).astype(np.int64)
    scores = np.concatenate([each.scores for each in matches])
    first, last = int(rows.min()), int(rows.max())
    if last - first > MAX_SPAN:
        rows, places = np.unique(rows, return_inverse=True)
        return rows, np.bincount(places, weights=scores).astype(np.float64, copy=False)
    # By row, which is several times as fast as sorting: rows are numbered without many gaps.
    sums = np.bincount(rows - first, weights=scores).astype(np.float64, copy=False)
    found: Int64 = np.flatnonzero(sums).astype(np.int64)
    return found + first, sums[found]
