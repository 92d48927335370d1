"""The words that questions share with documents, as sparse matrices to learn from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from scipy import sparse

from attend.arrays import locate
from attend.learn.data import Memory, Sparse
from attend.store.words import Lexical
from attend.stored import StoredCollection
from attend.types import Float32

MOST_MATCHES = 50_000_000
FEWEST_MATCHES = 1000
"""Documents that share words with questions, of all together and of one: 400 MB and no less than
ten times as many as can come into an answer."""


def shared_words_of(
    collection: StoredCollection, texts: Sequence[str | None], memory: Memory
) -> tuple[Sparse, Float32]:
    """Return BM25 over each question's maximum (q, n), and its coverage (q,).

    Of each question the best documents by words, as many as there is room for.
    """
    room, able = room_of(len(texts)), collection.capabilities.lexical
    matches = (collection.store.lexical(text, room) if text and able else None for text in texts)
    return word_shares(matches, len(texts), memory)


def room_of(questions: int) -> int:
    """Return the number of documents that are read for the words of each of some questions."""
    return max(FEWEST_MATCHES, MOST_MATCHES // max(1, questions))


def word_shares(
    matches: Iterable[Lexical | None], count: int, memory: Memory
) -> tuple[Sparse, Float32]:
    """Return BM25 over the maximum of each of `count` questions (q, n), and its coverage (q,)."""
    columns, shares = [np.empty(0, np.int32)], [np.empty(0, np.float32)]
    counts, coverage = np.zeros(count, np.int64), np.zeros(count, np.float32)
    for question, match in enumerate(matches):
        if match is not None and match.maximum > 0:
            index, there = locate(memory.rows, match.rows)
            columns.append(index[there].astype(np.int32))
            shares.append((match.scores[there] / match.maximum).astype(np.float32))
            counts[question] = there.sum()
            coverage[question] = min(1.0, match.maximum / match.ideal)
    pointers = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)  # as the columns are
    entries = np.concatenate(shares), np.concatenate(columns), pointers
    return sparse.csr_array(entries, shape=(count, len(memory))), coverage
