"""Late interaction: the best documents are scored once more, token by token.

MaxSim is the mean, over the words of the query, of the best cosine that each has with a word of the
passage (Khattab and Zaharia 2020, "ColBERT"). The words are the encoder's own, through W_Q and W_K;
nothing of them is stored. A document's logit becomes a mean of the two scores, on one scale, and
the documents together weigh what they weighed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attend.attention import Attended, Logits, attend_logits, log_mix, partition
from attend.core.coalesce import timed
from attend.core.deadline import checked
from attend.core.errors import InvalidRequest
from attend.core.types import Float16, Float32, Float64, Int64
from attend.encoder import Encoder
from attend.projection import Projection
from attend.search.attend import Attention
from attend.search.hits import Match, matches, read_documents, read_embeddings
from attend.search.queries import QueryEncoder, Search
from attend.search.scoring import Scoring
from attend.store import CollectionStore

BILINEAR = ("dot", "cosine")
"""Scorers that are sums over pairs of tokens."""

SHARE = 0.75
"""Share of MaxSim in the score. (nDCG@10 of training questions, the 20 best of 500 of SciFact and
600 of CoNaLa: .689 and .648 without it, .705 and .676 with it alone, .719 and .680 with .75.)"""

STEP = 1e-9
"""Least distance between the scores of two documents that are kept above all others."""


def query_text(search: Search, option: str) -> str:
    """Return the text of a query.

    Raises:
        InvalidRequest: the query is no single text.
    """
    parts = search.parts
    text = parts[0].text if len(parts) == 1 and parts[0].weight > 0 else None
    if not text or search.request.query.mixture is not None:
        raise InvalidRequest(
            f"{option} compares the tokens of texts, but the query is no single text; send a "
            f"text, or leave {option} out.",
            field=option.partition("=")[0],
        )
    return text


def projected_words(
    scoring: Scoring, projection: Projection, words: Float64, embedding: Float64
) -> Float64:
    """Project words (t, d) of the query of an embedding (d,), without biases: (t, H, d)."""
    linear = linear_part(scoring)
    heads = projection.queries(words) - projection.queries(np.zeros_like(words[:1]))
    if scoring.plan.projection.normalize_queries or scoring.mechanism.scorer == "cosine":
        heads = heads / np.linalg.norm(linear.queries(embedding[None]), axis=2)[..., None]
    return np.asarray(heads, dtype=np.float64)


def key_lengths(scoring: Scoring, ids: Int64, embeddings: Float32) -> Float64:
    """Return the lengths (m, Hk or 1) that keys are divided by after their projection."""
    if not (scoring.plan.projection.normalize_keys or scoring.mechanism.scorer == "cosine"):
        return np.ones((len(ids), 1))
    moved = scoring.view.version.shifted(ids, embeddings).astype(np.float64)
    return np.asarray(np.linalg.norm(linear_part(scoring).keys(moved), axis=2))


def linear_part(scoring: Scoring) -> Projection:
    """Return the projection of a plan without what follows W_Q and W_K."""
    projection = scoring.plan.projection.materialised()
    return replace(projection, normalize_queries=False, normalize_keys=False)


def rerank(
    attentions: Sequence[Attention],
    searches: Sequence[Search],
    store: CollectionStore,
    encoders: QueryEncoder,
) -> list[Attention]:
    """Return the attention of searches with the best documents of each scored once more.

    Other documents keep their logits, and stay below them. All searches have the same options.

    Raises:
        InvalidRequest: a query is no single text, no encoder pools by the mean, or the scorer is no
            product.
        Vanished: a document was deleted meanwhile.
    """
    scorer = attentions[0].scoring.mechanism.scorer
    texts = [query_text(search, "rerank") for search in searches]
    if scorer not in BILINEAR:
        raise InvalidRequest(
            f"rerank compares tokens by their products, but the scorer is {scorer}; leave rerank "
            f"out, or ask for the scorer {' or '.join(BILINEAR)}.",
            field="rerank",
        )
    encoder, count = encoders.token_encoder("rerank"), searches[0].request.rerank
    return [
        replace(
            attention,
            attended=_reranked(attention, text, count, store, encoder),
            first=attention.attended,
        )
        for attention, text in zip(attentions, checked(texts), strict=True)
    ]


def _reranked(
    attention: Attention, text: str, count: int, store: CollectionStore, encoder: Encoder
) -> Attended:
    """Return a query's attention with its `count` best documents scored once more."""
    attended, scoring = attention.attended, attention.scoring
    rows = attended.documents[:count]
    if not len(rows):
        return attended
    matched = matches(store, scoring, read_documents(store, rows))
    logits = attended.logits[:, : len(rows)]  # (H, n)
    bias = scoring.added(rows)
    by_keys = logits if bias is None else logits - bias[0]
    with timed("attend"):
        difference = _max_sims(scoring, text, matched, store, encoder) - by_keys
    z = logits + SHARE * filled(difference)
    tau = scoring.mechanism.temperature
    z += tau * (partition(logits / tau).log - partition(z / tau).log)[:, None]
    if len(attended.documents) > len(rows):
        z += _lift(attention, z)
    every = np.concatenate([z, attended.logits[:, len(rows) :]], axis=1)
    # The no-answer score stays that of the first ranking, and with it the confidence.
    null = None if attended.null is None else attended.null * tau
    mechanism = replace(scoring.mechanism, null_logit=null, levels=None)
    return attend_logits(Logits(attended.documents, every), mechanism)


def _max_sims(
    scoring: Scoring,
    text: str,
    matched: Sequence[Match],
    store: CollectionStore,
    encoder: Encoder,
) -> Float64:
    """Return MaxSim of a query and the passages of keys, scaled by head: (H, n).

    NaN for a key that is no text.
    """
    words = encoder.unit_tokens([text], "query")[0].astype(np.float64)
    sims = np.full((scoring.mechanism.heads, len(matched)), np.nan)
    with_text = [n for n, match in enumerate(matched) if match.passage]
    if not len(words) or not with_text:
        return sims
    # W_K is folded into the words of the query, which are few.
    folded = linear_part(scoring).fold()
    query = projected_words(scoring, folded, words, scoring.unmoved[0].astype(np.float64))
    by_head = query.transpose(1, 0, 2).astype(np.float32)  # (H, t, d)
    passages = encoder.unit_tokens([matched[n].passage or "" for n in with_text], "document")
    sims[:, with_text] = max_sims(by_head, passages)
    ids = np.array([match.key.id for match in matched], dtype=np.int64)
    embeddings = np.stack(read_embeddings(store, ids.tolist()))
    lengths = key_lengths(scoring, ids, embeddings)  # (n, Hk or 1)
    return np.asarray(sims / lengths.T * scoring.mechanism.scale[:, None])


def max_sims(words: Float32, passages: Sequence[Float16]) -> Float32:
    """Return MaxSim of the words of a query (H, t, d) and of n passages (s, d) each: (H, n).

    NaN for a passage without words.
    """
    import torch  # here: seconds to import, and without the encoder nothing comes by

    heads, count, width = words.shape
    by_word = np.ascontiguousarray(words.reshape(-1, width).T)  # (d, H t)
    similarities = np.full((len(passages), heads * count), np.nan, dtype=np.float32)
    for place, passage in enumerate(passages):  # one after the other, each in the processor's cache
        if len(passage):
            # NumPy takes several times as long to widen half precision.
            wide = torch.tensor(passage, dtype=torch.float32).numpy()
            similarities[place] = (wide @ by_word).max(axis=0)  # (s, H t) -> (H t,)
    sims: Float32 = similarities.reshape(-1, heads, count).mean(axis=2).T
    return sims


def filled(difference: Float64) -> Float64:
    """Fill in what documents without text lack (H, n) by the mean of the others: they stay."""
    lacking = np.isnan(difference).any(axis=0)
    if lacking.all():
        return np.zeros_like(difference)
    mean = difference[:, ~lacking].mean(axis=1, keepdims=True)
    return np.where(lacking, mean, difference)


def _lift(attention: Attention, z: Float64) -> Float64:
    """Return what logits (H, n) need to stay above those of the documents beyond: (n,)."""
    attended, mechanism = attention.attended, attention.scoring.mechanism
    tau = mechanism.temperature
    score, unit_step = z[0], 1.0
    if mechanism.heads > 1:  # the score is the log of the weight
        score, unit_step = log_mix(z / tau - attended.log_partition[:, None], mechanism.gates), tau
    order = np.argsort(-score, kind="stable")
    beyond = float(attended.scores[len(score)])
    least = beyond + STEP * max(1.0, abs(beyond)) * np.arange(len(score), 0, -1)
    lift = np.empty(len(score))
    lift[order] = np.maximum(least - score[order], 0.0)
    return lift * unit_step
