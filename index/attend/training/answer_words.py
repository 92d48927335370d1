"""The words that held-out documents share with those that answer them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from attend.learn.answers.held import Fold, Words
from attend.store import CollectionStore, Lexical
from attend.types import Float64, Int64

BLOCK = 64
"""Texts looked up at once: what is found of each can be as long as the collection."""


def with_words(
    fold: Fold, store: CollectionStore, rows: Int64, texts: Sequence[str], watch: Callable[[], None]
) -> Fold:
    """A fold with the lexical term of its held-out documents.

    A query's best is that among the members: itself it would find first, and a new query does
    not find itself.

    Args:
        rows, texts: of all documents (n,), rows ascending.
        watch: called often; may raise to stop.
    """
    shares = np.zeros((len(fold.held), len(fold.members)), dtype=np.float16)
    coverage = np.zeros(len(fold.held), dtype=np.float32)
    members = rows[fold.members]
    for at in range(0, len(fold.held), BLOCK):
        watch()
        asked = fold.held[at : at + BLOCK].tolist()
        for query, found in enumerate(store.lexical_many([texts[each] for each in asked]), at):
            places, scores = _among(members, found)
            best = float(scores.max(initial=0.0))
            if best > 0:
                shares[query, places] = scores / best
                coverage[query] = min(1.0, best / found.ideal)
    return fold._replace(words=Words(shares, coverage))


def _among(members: Int64, found: Lexical) -> tuple[Int64, Float64]:
    """Positions among the members, and the scores of what was found there."""
    at = np.minimum(np.searchsorted(members, found.rows), len(members) - 1)
    kept = members[at] == found.rows
    return at[kept], found.scores[kept]
