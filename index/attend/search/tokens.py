"""Attention between tokens: the pairs of tokens whose products add up to a score.

An encoder that pools by the mean gives a text of t tokens the embedding Σ h_i / |Σ h_i|. A query
and a key are linear in their embeddings, but for what is added to both (biases, learned offsets),
and so is a score that is their dot product: W_Q q · W_K k = Σ_i Σ_j (W_Q a_i) · (W_K b_j), with the
shares a_i and b_j of the tokens in the two embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attend.collection.versions import Vanished
from attend.core.errors import InvalidRequest, LimitExceeded
from attend.core.settings import Settings
from attend.core.types import Float32, Float64, Int64
from attend.encoder import Encoder, TokenStates
from attend.encoder.tokens import TOGETHER
from attend.projection import Projection
from attend.search.listing import MAX_SHARES, Match
from attend.search.queries import Search
from attend.search.scoring import Scoring
from attend.store import CollectionStore

BILINEAR = ("dot", "cosine")
"""Scorers that are sums over pairs of tokens."""

AGREEMENT = 0.99
"""The least cosine between an embedding and the mean of the tokens that it is made of."""

DIGITS = 7
"""Decimals of a share; what rounding leaves is in the rest."""


class TokenReader:
    """Reads the tokens of the texts of one collection."""

    def __init__(self, settings: Settings, encoder: Callable[[], Encoder]) -> None:
        self._settings = settings
        self._encoder = encoder

    def encoder(self, option: str) -> Encoder:
        """Return the encoder of the collection.

        Args:
            option: the field of the request that needs it.

        Raises:
            InvalidRequest: the collection has vectors without an encoder.
        """
        if self._settings.encoder is None:
            raise InvalidRequest(
                f"{option} compares the tokens of texts, but this collection was made for vectors "
                f"and has no encoder; leave {option} out.",
                field=option.partition("=")[0],
            )
        return self._encoder()


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


def token_shares(
    store: CollectionStore,
    scoring: Scoring,
    place: int,
    matched: Sequence[Match],
    encoder: Encoder,
    text: str,
) -> list[dict[str, Any] | None]:
    """Return for each key that matched a query the shares of pairs of tokens in its score.

    None for a key that is no text of its document, or that the tokens do not give: an own vector,
    the query of an example. None for all keys where the scorer compares otherwise.

    Args:
        place: of the query among those of the scoring.
        text: the query.

    Raises:
        InvalidRequest: the encoder does not pool by the mean.
        LimitExceeded: more shares than are sent at once.
    """
    states = encoder.token_states([text], "query")[0]
    asking = _asking(scoring, place, states)
    if asking is None or scoring.mechanism.scorer not in BILINEAR:
        return [None] * len(matched)
    words = _words(text, states)
    shares: list[dict[str, Any] | None] = []
    cells = 0
    for start in range(0, len(matched), TOGETHER):
        part = matched[start : start + TOGETHER]
        passages = [match.passage or "" for match in part]
        embeddings = store.embeddings([match.key.id for match in part])
        if len(embeddings) < len(part):
            raise Vanished
        read = encoder.token_states(passages, "document")
        for match, embedding, tokens in zip(part, embeddings, read, strict=True):
            cells += len(words) * int((~tokens.special).sum())
            if cells > MAX_SHARES:
                raise LimitExceeded(
                    f"The pairs of tokens of {len(matched)} hits are more than the {MAX_SHARES} "
                    f"shares that are sent at once; lower k, or leave out explain=tokens.",
                    field="explain",
                )
            keys = _keys(scoring, match, embedding, tokens)
            if keys is None:
                shares.append(None)
                continue
            pairs = np.einsum("ihd,jhd->ij", asking, keys).round(DIGITS).tolist()
            named = {"query": words, "passage": _words(match.passage or "", tokens)}
            shares.append({**named, "shares": pairs})
    return shares


def with_rest(
    shares: dict[str, Any] | None, explanation: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Add what the pairs leave of the score by keys: special tokens, biases, learned offsets, and
    what feedback added by moving the query."""
    if shares is None:
        return None
    return {**shares, "rest": explanation["dense"] - float(np.sum(shares["shares"]))}


def _asking(scoring: Scoring, place: int, states: TokenStates) -> Float64 | None:
    """Return the words of a query (t, H, d) as they meet keys, scaled and weighed by head."""
    embedding = scoring.unmoved[place].astype(np.float64)
    parts = _parts(embedding, states)
    if parts is None:
        return None
    factors = scoring.mechanism.gates * scoring.mechanism.scale
    words = projected_words(scoring, linear_part(scoring), parts, embedding)
    return np.asarray(words * factors[:, None], dtype=np.float64)


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


def _keys(
    scoring: Scoring, match: Match, embedding: Float32, states: TokenStates
) -> Float64 | None:
    """Return the words of a passage as heads of keys (t, H, d)."""
    parts = None if match.passage is None else _parts(embedding.astype(np.float64), states)
    if parts is None:
        return None
    linear, ids = linear_part(scoring), np.array([match.key.id], dtype=np.int64)
    keys = linear.keys(parts) - linear.keys(np.zeros_like(parts[:1]))  # (t, Hk, d)
    keys = keys / key_lengths(scoring, ids, embedding[None])[..., None]
    return np.asarray(np.broadcast_to(keys, (len(keys), scoring.mechanism.heads, keys.shape[2])))


def _parts(embedding: Float64, states: TokenStates) -> Float64 | None:
    """Return the share of each word in an embedding (t, d); None where it is of another text.

    With those of the special tokens, the shares add up to the embedding.
    """
    vectors = states.vectors.astype(np.float64)
    total = vectors.sum(axis=0)
    lengths = np.linalg.norm(total), np.linalg.norm(embedding)
    if not all(lengths) or total @ embedding < AGREEMENT * lengths[0] * lengths[1]:
        return None
    parts: Float64 = vectors[~states.special] * (lengths[1] / lengths[0])
    return parts


def linear_part(scoring: Scoring) -> Projection:
    """Return the projection of a plan without what follows W_Q and W_K."""
    projection = scoring.plan.projection.materialised()
    return replace(projection, normalize_queries=False, normalize_keys=False)


def _words(text: str, states: TokenStates) -> list[dict[str, Any]]:
    """Return the tokens of a text that are no special ones, with their places in it."""
    return [
        {"text": text[start:stop], "start": start, "stop": stop}
        for start, stop in states.spans[~states.special].tolist()
    ]
