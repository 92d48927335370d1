"""Pairs: what each pair of tokens, and of whole words, adds to the comparison of two texts.

An encoder that pools by the mean gives a text of t tokens the embedding Σ h_i / |Σ h_i|. A query
and a key are linear in their embeddings, but for what is added to both (biases, learned offsets),
and so is a score that is their dot product: W_Q q · W_K k = Σ_i Σ_j (W_Q a_i) · (W_K b_j), with the
shares a_i and b_j of the tokens in the two embeddings.

All states of one text are alike, so that each token of a query resembles each token of a passage
(Ethayarajh 2019, "How Contextual are Contextualized Word Representations?"; Mu and Viswanath 2018,
"All-but-the-Top", take the common mean away). What is specific to a pair is left once its row and
its column have the mean 0: p_ij - p_i· - p_·j + p··, as in classical scaling (Torgerson 1952). The
tokens that the model adds count in these means, so that a text of one word has a mean besides
itself. A side of a single token is not centred. The pairs of the tokens of two words add up to the
pair of the words.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from attend.core.errors import LimitExceeded
from attend.core.types import Float32, Float64, Int64
from attend.encoder import Encoder, TokenStates
from attend.encoder.tokens import TOGETHER
from attend.search.hits import MAX_SHARES, STOP_WORDS, Match, Span, read_embeddings, word_spans
from attend.search.scoring import Scoring
from attend.search.tokens import BILINEAR, key_lengths, linear_part, projected_words
from attend.store import CollectionStore
from attend.store.words import is_letter

AGREEMENT = 0.99
"""The least cosine between an embedding and the mean of the tokens that it is made of."""

DIGITS = 7
"""Decimals of a share; what rounding leaves is in the rest."""


class TextWords(NamedTuple):
    """A text, its tokens, and the whole words that these are pieces of.

    Attributes:
        owners: (t,) the place of each token's word; -1 for a token that is in no word.
        spans: (w) where the words stand, in characters.
    """

    text: str
    states: TokenStates
    owners: Int64
    spans: Sequence[Span]

    @classmethod
    def of(cls, text: str, states: TokenStates) -> TextWords:
        """Join the tokens of a text to words: what no blank and no sign parts.

        Signs are words of their own, and so is each letter of a script without blanks.
        """
        owners, spans = np.full(len(states.spans), -1), list[Span]()
        for place, (start, stop) in enumerate(states.spans.tolist()):
            piece = text[start:stop]
            start, stop = start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())
            if states.special[place] or start >= stop:
                continue
            if spans and (start < spans[-1][1] or _goes_on(text, spans[-1][1], start)):
                spans[-1] = spans[-1][0], max(stop, spans[-1][1])
            else:
                spans.append((start, stop))
            owners[place] = len(spans) - 1
        return cls(text, states, owners, spans)

    def tokens(self) -> list[dict[str, Any]]:
        """Return the tokens that are no special ones, with their places in the text."""
        spans = self.states.spans[~self.states.special].tolist()
        return [{"text": self.text[a:b], "start": a, "stop": b} for a, b in spans]

    def words(self, shared: Sequence[Span], common: Collection[str]) -> list[dict[str, Any]]:
        """Return the words, each with whether BM25 finds it in the other text, or leaves it out.

        Args:
            shared: where words of the other text stand in this one.
            common: words, in small letters, that tell nothing.
        """
        return [
            {
                "text": self.text[start:stop],
                "start": start,
                "stop": stop,
                "lexical": any(first < stop and start < last for first, last in shared),
                "stop_word": _tells_nothing(self.text[start:stop], common),
            }
            for start, stop in self.spans
        ]

    def summed(self, rows: Float64) -> Float64:
        """Add up the rows (t, n) of the tokens of each word: (w, n)."""
        sums = np.zeros((len(self.spans), rows.shape[1]))
        inside = self.owners >= 0
        np.add.at(sums, self.owners[inside], rows[inside])
        return sums


def _goes_on(text: str, stop: int, start: int) -> bool:
    """Return whether a word that ends at `stop` goes on with the token at `start`."""
    sides = text[stop - 1], text[start]
    return (
        start == stop
        and all((side.isalnum() or side == "_") for side in sides)
        and not any(is_letter(side.lower()) for side in sides)
    )


def _tells_nothing(word: str, common: Collection[str]) -> bool:
    lower = word.lower()
    return lower in STOP_WORDS or lower in common or not any(map(str.isalnum, lower))


def pair_shares(
    store: CollectionStore,
    scoring: Scoring,
    matched: Sequence[Match],
    encoders: tuple[Encoder, Encoder],
    text: str,
    shares: Float64,
) -> list[dict[str, Any]]:
    """Return for each key that matched a query the shares of pairs in its score.

    These are `tokens`, and `words` with centred shares. Both are None for a key that is no text of
    its document, or that the tokens do not give: an own vector, the query of an example; and for
    all keys where the scorer compares otherwise.

    Args:
        encoders: of the query and of passages.
        text: the query.
        shares: (H, k) how much the logit of each head counts in the score of a document.

    Raises:
        InvalidRequest: the encoder does not pool by the mean.
        LimitExceeded: more shares than are sent at once.
    """
    nothing: dict[str, Any] = {"tokens": None, "words": None}
    states = encoders[0].token_states([text], "query")[0]
    embedding = scoring.unmoved[0].astype(np.float64)
    of_query = _parts(embedding, states)
    if of_query is None or scoring.mechanism.scorer not in BILINEAR:
        return [nothing] * len(matched)
    # The tokens of the query (t, H, d) as they meet keys, scaled by head.
    heads = projected_words(scoring, linear_part(scoring), of_query, embedding)
    heads = heads * scoring.mechanism.scale[:, None]
    query, cells, pairs = TextWords.of(text, states), 0, list[dict[str, Any]]()
    for start in range(0, len(matched), TOGETHER):
        part = matched[start : start + TOGETHER]
        embeddings = read_embeddings(store, [match.key.id for match in part])
        read = encoders[1].token_states([match.passage or "" for match in part], "document")
        for match, vector, tokens in zip(part, embeddings, read, strict=True):
            passage = TextWords.of(match.passage or "", tokens)
            cells += len(query.tokens()) * len(passage.tokens())
            cells += len(query.spans) * len(passage.spans)
            if cells > MAX_SHARES:
                raise LimitExceeded(
                    f"The pairs of tokens of {len(matched)} hits are more than the {MAX_SHARES} "
                    f"shares that are sent at once; lower k, or leave out explain=tokens.",
                    field="explain",
                )
            keys = _keys(scoring, match, vector, tokens)
            if keys is None:
                pairs.append(nothing)
                continue
            by_head = np.einsum("ihd,jhd->hij", heads, keys)  # (H, t, s)
            compared = np.tensordot(shares[:, len(pairs)], by_head, axes=1)
            mean = np.tensordot(scoring.mechanism.gates, by_head, axes=1)
            pairs.append(
                {
                    "tokens": _token_pairs(query, passage, mean),
                    "words": _word_pairs(store, scoring, query, passage, compared),
                }
            )
    return pairs


def _token_pairs(query: TextWords, passage: TextWords, pairs: Float64) -> dict[str, Any]:
    """Return the pairs (t, s) without those of special tokens, and their names."""
    inner = pairs[~query.states.special][:, ~passage.states.special].round(DIGITS)
    return {"query": query.tokens(), "passage": passage.tokens(), "shares": inner.tolist()}


def _word_pairs(
    store: CollectionStore, scoring: Scoring, query: TextWords, passage: TextWords, pairs: Float64
) -> dict[str, Any]:
    """Return the centred pairs of words (w, v), their names, and what centring took from them."""
    summed = _between(query, passage, pairs)
    shares = _between(query, passage, centred(pairs)).round(DIGITS)
    common = store.common_words([query.text])
    both: tuple[Sequence[Span], Sequence[Span]] = ((), ())
    if any(scores.terms for scores in scoring.queries.words or ()):  # else they do not count
        [there] = word_spans([query.text], [passage.text], common)
        [here] = word_spans([passage.text], [query.text], common)
        both = here, there
    return {
        "query": query.words(both[0], common),
        "passage": passage.words(both[1], common),
        "shares": shares.tolist(),
        "mean": float(summed.sum() - shares.sum()),
    }


def _between(query: TextWords, passage: TextWords, pairs: Float64) -> Float64:
    """Add up the pairs of tokens (t, s) between each two words: (w, v)."""
    return passage.summed(query.summed(pairs).T).T


def centred(pairs: Float64) -> Float64:
    """Take from pairs (t, s) what their rows and columns have in common.

    >>> centred(np.array([[3.0, 1.0], [1.0, 1.0]])).tolist()
    [[0.5, -0.5], [-0.5, 0.5]]
    >>> centred(np.array([[3.0, 1.0]])).tolist()
    [[1.0, -1.0]]
    """
    for axis, length in enumerate(pairs.shape):
        if length > 1:
            pairs = pairs - pairs.mean(axis=axis, keepdims=True)
    return pairs


def _keys(
    scoring: Scoring, match: Match, embedding: Float32, states: TokenStates
) -> Float64 | None:
    """Return the tokens of a passage as heads of keys (t, H, d)."""
    parts = None if match.passage is None else _parts(embedding.astype(np.float64), states)
    if parts is None:
        return None
    linear, ids = linear_part(scoring), np.array([match.key.id], dtype=np.int64)
    keys = linear.keys(parts) - linear.keys(np.zeros_like(parts[:1]))  # (t, Hk, d)
    keys = keys / key_lengths(scoring, ids, embedding[None])[..., None]
    return np.asarray(np.broadcast_to(keys, (len(keys), scoring.mechanism.heads, keys.shape[2])))


def _parts(embedding: Float64, states: TokenStates) -> Float64 | None:
    """Return the share of each token in an embedding (t, d); None where it is of another text."""
    vectors = states.vectors.astype(np.float64)
    total = vectors.sum(axis=0)
    lengths = np.linalg.norm(total), np.linalg.norm(embedding)
    if not all(lengths) or total @ embedding < AGREEMENT * lengths[0] * lengths[1]:
        return None
    parts: Float64 = vectors * (lengths[1] / lengths[0])
    return parts
