"""A second layer of attention, over the candidates of a query.

The best documents say in other words what a query asks for. So the query becomes

    q' = (1 - β) q + β (Σ_j a_j k_j - k̄)

with the best key k_j of each of its best documents, their softmax a_j by the scores of keys and
words, times s, and the mean key k̄ of all that the query attends to: what they have in common tells
none of them apart. These are scored again by q', and exchange their logits: in the new order they
weigh what those weighed that were there before, so that all that was fitted stays as it was.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attend.api.search import SearchOptions
from attend.attention import Attended, Logits, Softmax, attend_logits
from attend.collection.versions import View
from attend.core.arrays import KeyTable, locate
from attend.core.settings import Settings
from attend.core.types import Float64, Floats, Int64
from attend.search.attend import Attention, AttentionOptions, attend
from attend.search.queries import Queries

BEST, SHARPNESS = 5, 10.0
"""The best documents, and s, the factor on their unscaled scores."""


def attend_twice(
    view: View,
    settings: Settings,
    queries: Queries,
    options: SearchOptions,
    rows: Int64 | None = None,
) -> list[Attention]:
    """Return the attention of each of the queries, with the second layer where a plan has one.

    Only queries with texts have one, over a number of documents. See `attend`.
    """
    attentions = attend(view, settings, queries, AttentionOptions.of(options), rows)
    fits = any(queries.texts) and options.attend != "all"
    if not (fits and attentions and attentions[0].scoring.plan.layer):
        return attentions
    return [
        replace(attention, attended=_again(attention), plain=attention.attended)
        if len(attention.attended.documents)
        else attention
        for attention in attentions
    ]


def _again(attention: Attention) -> Attended:
    scoring, attended = attention.scoring, attention.attended
    mechanism, z = scoring.mechanism, attended.logits  # (1, n): there is one head
    table = scoring.by_head(scoring.view.keys.lookup(attended.documents))
    table = replace(table, vectors=table.vectors[:, 0])
    if (examples := scoring.queries.examples) is not None:  # these say nothing in other words
        table = replace(table, examples=np.isin(table.ids, examples)).own
        if not len(table):  # all have keys of examples alone
            return attended
    query = scoring.heads[0]  # (1, d)
    order = np.argsort(table.rows)
    places, present = locate(table.rows[order], attended.documents)
    positions = best_keys(table, query)[:, order[places]]
    keys = np.where(present[:, None], table.vectors[positions], np.float32(0))  # (1, n, d)
    again = layered(z / mechanism.scale[0], query, keys, scoring.plan.layer)
    documents = attended.documents[np.argsort(-again[0], kind="stable")]
    return attend_logits(Logits(documents, z), mechanism)


def best_keys(table: KeyTable, queries: Floats) -> Int64:
    """Return the position of the best key of each document for queries (q, d): (q, n)."""
    positions = np.arange(len(table.ids))
    if table.single:
        return np.broadcast_to(positions, (len(queries), len(positions)))
    scores = queries.astype(table.vectors.dtype) @ table.vectors.T  # (q, m)
    highest = np.repeat(table.best(scores), table.counts, axis=1)
    highest_at = np.where(scores == highest, positions, len(positions))
    return np.minimum.reduceat(highest_at, table.starts[:-1], axis=1)


def layered(scores: Float64, queries: Floats, keys: Floats, share: float) -> Float64:
    """Return the scores (q, n) of candidates by q'.

    Args:
        scores: unscaled, best first; -inf where there is none, with a key of zeros.
        queries: (q, d).
        keys: (q, n, d) the best key of each candidate.
        share: β.
    """
    weights = Softmax.of(SHARPNESS * scores[:, :BEST]).weights.astype(keys.dtype)
    counts = np.isfinite(scores).sum(axis=1, keepdims=True)
    taken = np.einsum("qk,qkd->qd", weights, keys[:, :BEST]) - keys.sum(axis=1) / counts
    moves = (taken - queries).astype(keys.dtype)
    moved: Floats = np.matmul(keys, moves[:, :, None])[:, :, 0]
    return np.asarray(scores + share * moved, dtype=np.float64)
