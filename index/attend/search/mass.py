"""How much of the softmax over all documents the attended ones have: exact, or with an interval.

What the others add is estimated from documents drawn at random (Rastogi and Van Durme 2015,
"Sublinear partition estimation"); its interval is the empirical Bernstein bound of Maurer and
Pontil 2009, "Empirical Bernstein bounds and sample variance penalization": none of the others has
a larger part than the last of the attended has, so that the bound needs no assumption.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attend.attention import Attended, block_logits
from attend.search.answers import Mass
from attend.search.attending import Attention
from attend.search.focus import Focus
from attend.types import Float64, Int64

DOUBT = 0.05
"""How often the true share lies outside the interval, at most, for each head."""

ALL = Mass(1.0, 1.0, 1.0)


class _Rest(NamedTuple):
    """What documents that are not attended add to each head's sum."""

    sum: Float64  # (H,)
    error: Float64  # (H,) half the width of its interval


def mass_of(attention: Attention, rows: Int64 | None, query: int) -> Mass:
    """The share of one query's attended documents.

    Args:
        rows: those that filter and mask let pass, ascending; None for all.
    """
    focus, found = attention.focus, attention.attended[query]
    if attention.all_weights is not None or not len(found.documents):
        return ALL
    keys = focus.view.keys
    drawn = keys.drawn if rows is None else keys.drawn_of(rows)
    masked = np.empty(0, np.int64) if focus.masked is None else keys.living(focus.masked)
    known = np.union1d(found.documents, masked)
    outside = np.isin(drawn.some.documents, known, invert=True)
    others = drawn.of - len(known)
    if others <= 0 or not outside.any():
        return ALL
    one = slice(query, query + 1)
    block = focus.block(drawn.some)._replace(bias=focus.bias(drawn.some.documents, one))
    z = block_logits(focus.heads[one], block, focus.mechanism, shift=focus.shift[one])[0]
    return _mass(focus, found, z[:, outside].astype(np.float64), others)


def _mass(focus: Focus, found: Attended, drawn: Float64, others: int) -> Mass:
    """From the logits (H, m) of documents drawn of so many others."""
    tau, gates = focus.mechanism.temperature, focus.mechanism.gates
    peak = np.maximum(found.logits.max(axis=1), drawn.max(axis=1))[:, None]
    own = np.exp((found.logits - peak) / tau).sum(axis=1)  # (H,)
    parts = np.exp((drawn - peak) / tau)
    # By several heads together documents are attended; one of them may find more in another.
    largest = parts.max(axis=1)
    if focus.mechanism.heads == 1:
        largest = np.maximum(largest, np.exp((found.logits.min(axis=1) - peak[:, 0]) / tau))
    rest = _rest(parts, largest, others)
    shares = [
        float(gates @ (own / (own + np.maximum(0, rest.sum + sign * rest.error))))
        for sign in (0, 1, -1)
    ]
    return Mass(*shares)


def _rest(parts: Float64, largest: Float64, others: int) -> _Rest:
    """The sum over all others, from that over those drawn (H, m)."""
    drawn = parts.shape[1]
    if drawn == others:
        return _Rest(parts.sum(axis=1), np.zeros(len(parts)))
    log = np.log(4 / DOUBT)  # half the doubt for either side
    spread = parts.var(axis=1, ddof=1) if drawn > 1 else largest**2
    error = np.sqrt(2 * spread * log / drawn) + 7 * largest * log / (3 * max(1, drawn - 1))
    return _Rest(others * parts.mean(axis=1), others * error)
