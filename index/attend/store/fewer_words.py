"""BM25 as a collection without some of its documents would score it.

Nothing is deleted: the matches of each word are counted again without those documents.
"""

from __future__ import annotations

import numpy as np

from attend.store.words import FULL_DOCUMENTS, WordMatch, WordReader, idf
from attend.types import Int64


class FewerWords:
    """Reads words as if some documents were not there.

    Scores have the inverse document frequencies of the documents that are left. The mean length of
    texts, which a few documents hardly change, stays that of the whole collection.
    """

    def __init__(self, reader: WordReader, rows: Int64) -> None:
        """
        Args:
            rows: of the documents that count as absent, ascending.
        """
        self._reader, self._rows = reader, rows
        # The limit of a search of the whole collection, by which counts are cached.
        self._most = min(reader.size() // 2, FULL_DOCUMENTS)
        self._size = reader.size() - reader.having_texts(rows)

    def size(self) -> int:
        """Return the number of documents that are left and have texts."""
        return self._size

    def count(self, stem: str, word: str, most: int) -> int:
        """Return the number of documents left that have a word, or more than `most`.

        A word that more than half of the whole collection has counts as one that half of what is
        left have.
        """
        count = self._whole_count(stem, word)
        return count - len(self._absent(stem, word)) if 0 < count <= self._most else count

    def match(self, stem: str, word: str) -> WordMatch:
        """Return the documents left that have a word."""
        match, absent = self._reader.match(stem, word), self._absent(stem, word)
        left = WordMatch(np.delete(match.rows, absent), np.delete(match.scores, absent))
        before = idf(self._whole_count(stem, word), self._reader.size())
        factor = idf(len(left.rows), self._size) / before
        return left._replace(scores=left.scores * np.float32(factor))

    def _whole_count(self, stem: str, word: str) -> int:
        return self._reader.count(stem, word, self._most)

    def _absent(self, stem: str, word: str) -> Int64:
        """Return the places of absent documents among those that have a word."""
        rows = self._reader.match(stem, word).rows
        places = np.minimum(np.searchsorted(rows, self._rows), len(rows) - 1)
        return np.asarray(places[rows[places] == self._rows], dtype=np.int64)
