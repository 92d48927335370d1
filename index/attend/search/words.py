"""BM25 in the logits: how much the words that a query and a document share add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attend.arrays import locate, top
from attend.store import CollectionStore, Lexical
from attend.tuning import DEFAULT_COVERAGE, DEFAULT_LEXICAL, Tuning
from attend.types import Float64, Int64


class WordWeight(NamedTuple):
    """λ and γ of the term λ · c(q) · lex(d), c(q) = (maximum / ideal) ** γ."""

    weight: float
    coverage: float


OFF = WordWeight(0.0, 0.0)


class BestByWords(NamedTuple):
    """Documents of the largest scores.

    Attributes:
        rows: in no order.
        beyond: the largest score of any other document.
    """

    rows: Int64
    beyond: float


class WordScores(NamedTuple):
    """BM25 terms of one query, for the documents that share a word with it.

    Attributes:
        rows: (n,) documents, ascending.
        scores: (n,) λ · c(q) · lex(d), on the scorer's scale, from above 0 to λ.
        terms: the query's words that were looked up.
    """

    rows: Int64
    scores: Float64
    terms: tuple[str, ...]

    def of(self, documents: Int64) -> Float64:
        """Return the scores (m,) of documents (m,) in any order; 0 without a shared word."""
        if not len(self.rows):
            return np.zeros(len(documents))
        places, present = locate(self.rows, documents)
        return np.where(present, self.scores[places], 0.0)

    def among(self, rows: Int64 | None) -> WordScores:
        """Leave out the documents that a filter holds back; the scores stay as they are."""
        if rows is None:
            return self
        passing = locate(rows, self.rows).present
        return WordScores(self.rows[passing], self.scores[passing], self.terms)

    def best(self, count: int) -> BestByWords:
        """Return the `count` documents of the largest scores."""
        if len(self.rows) <= count:
            return BestByWords(self.rows, 0.0)
        order = top(self.scores, count + 1)
        return BestByWords(self.rows[order[:-1]], float(self.scores[order[-1]]))


NO_WORDS = WordScores(np.empty(0, dtype=np.int64), np.empty(0), ())


def word_weight(option: bool | float | None, tuning: Tuning) -> WordWeight:
    """Return how much words count: as a request says, else as the version does."""
    if option is None:
        return fitted_word_weight(tuning)
    if option is True:
        return WordWeight(DEFAULT_LEXICAL, DEFAULT_COVERAGE)
    if not option:
        return OFF
    coverage = tuning.coverage if tuning.lexical else DEFAULT_COVERAGE
    return WordWeight(float(option), coverage)


def fitted_word_weight(tuning: Tuning) -> WordWeight:
    """Return how much words count in a version where a request does not say."""
    return WordWeight(tuning.lexical, tuning.coverage) if tuning.lexical else OFF


def score_words(
    store: CollectionStore,
    texts: Sequence[Sequence[tuple[str, float]]],
    option: bool | float | None,
    tuning: Tuning,
) -> list[WordScores] | None:
    """Return the BM25 scores of each embedding; None where words do not count.

    Args:
        texts: for each embedding the texts behind it, each with its share.
        option: how much words count; None for the version's own weight.
    """
    if not any(texts) or not (option or (option is None and tuning.lexical)):
        return None
    weight = word_weight(option, tuning)
    matches = iter(store.lexical_many([text for pairs in texts for text, _ in pairs]))
    return [
        _joined([(_weighted(next(matches), weight), share) for _, share in pairs])
        for pairs in texts
    ]


def _joined(parts: Sequence[tuple[WordScores, float]]) -> WordScores:
    """Return the scores of several texts, each with its share, as those of one query."""
    if not parts:
        return NO_WORDS
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    every = np.concatenate([words.rows for words, _ in parts])
    rows, places = np.unique(every, return_inverse=True)
    shares = np.concatenate([words.scores * share for words, share in parts])
    scores = np.bincount(places, shares, len(rows)).astype(np.float64)
    terms = dict.fromkeys(term for words, _ in parts for term in words.terms)
    return WordScores(rows, scores, tuple(terms))


def _weighted(matches: Lexical, weight: WordWeight) -> WordScores:
    if not len(matches.rows) or matches.maximum <= 0:
        return NO_WORDS._replace(terms=matches.terms)
    # Sums over the same words in another order: they may differ in the last bit.
    covered = min(1.0, matches.maximum / matches.ideal) ** weight.coverage
    scores = weight.weight * covered * matches.scores / matches.maximum
    return WordScores(matches.rows, scores, matches.terms)
