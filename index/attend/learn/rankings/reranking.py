"""Candidates scored again by the additive scorer, as a search does that re-ranks by it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attend.learn.data import Memory, Questions
from attend.learn.heads import ATTEND
from attend.learn.rankings.additive import Additive
from attend.learn.rankings.ranking import NEVER, Parts
from attend.learn.space import Space
from attend.types import Bool, Float32


def reranked(
    parts: Parts, memory: Memory, space: Space, asked: Questions, additive: Additive
) -> Parts:
    """Candidates of one head, scored again: the best by keys, and the best by words, as many of
    each as a search attends to.

    Others are not looked at by a search that re-ranks, and have no score; example keys take no
    part.
    """
    queries = space.queries(asked.embeddings)[0]
    offered = space.keys[0] @ additive.u.T  # (m, a): of all keys, as most are met more than once
    dense = np.full_like(parts.dense, NEVER)
    for at, kept in enumerate(_kept(parts)):
        places = np.flatnonzero(kept)
        documents = parts.documents[at, places]
        meets = queries[at] @ additive.w.T + additive.b
        by_key = np.tanh(offered[memory.positions(documents)] + meets) @ additive.v
        counts = memory.counts[documents]
        dense[0, at, places] = np.maximum.reduceat(by_key, np.cumsum(counts) - counts)
    return parts._replace(dense=dense, examples=np.full_like(dense, NEVER))


def _kept(parts: Parts) -> Iterator[Bool]:
    """(c,) of each question, what is scored again."""
    for dense, lexical in zip(parts.dense[0], parts.lexical, strict=True):
        yield _best(dense, NEVER) | _best(lexical, 0.0)


def _best(scores: Float32, least: float) -> Bool:
    if len(scores) <= ATTEND:
        return scores > least
    last = -np.partition(-scores, ATTEND - 1)[ATTEND - 1]
    return np.asarray((scores >= last) & (scores > least))
