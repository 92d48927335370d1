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
from attend.core.arrays import KeyTable
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
    order = np.argsort(table.rows)
    places = order[np.searchsorted(table.rows, attended.documents, sorter=order)]
    keys = best_of(replace(table, vectors=table.vectors[:, 0]), scoring.heads[0, 0])[places]
    bias, scale = scoring.word_bias(attended.documents), mechanism.scale[0]
    by_keys = z if bias is None else z - bias[0]
    again = layered(z / scale, by_keys / scale, keys[None], scoring.plan.layer)
    documents = attended.documents[np.argsort(-again[0], kind="stable")]
    return attend_logits(Logits(documents, z), mechanism)


def best_of(table: KeyTable, query: Floats) -> Floats:
    """Return the best key of each document (n, d) for a query (d,)."""
    if table.single:
        return table.vectors
    scores = table.vectors @ query.astype(table.vectors.dtype)
    best: Floats = table.vectors[np.lexsort((-scores, table.ordinals))[table.starts[:-1]]]
    return best


def layered(scores: Float64, by_keys: Float64, keys: Floats, share: float) -> Float64:
    """Return the scores (q, n) of candidates by q'.

    Args:
        scores: unscaled, best first; -inf where there is none, with a key of zeros.
        by_keys: the part of them that is a product of query and key.
        keys: (q, n, d) the best key of each.
        share: β.
    """
    weights = Softmax.of(SHARPNESS * scores[:, :BEST]).weights.astype(keys.dtype)
    counts = np.isfinite(scores).sum(axis=1, keepdims=True)
    taken = np.einsum("qk,qkd->qd", weights, keys[:, :BEST]) - keys.sum(axis=1) / counts
    again: Floats = np.matmul(keys, taken[:, :, None].astype(keys.dtype))[:, :, 0]
    return np.asarray(scores + share * (again - by_keys), dtype=np.float64)
