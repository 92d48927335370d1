"""Why a document is listed: the key that matched, its passage, and what made its logit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attend.attention import Attended
from attend.errors import LimitExceeded
from attend.search.answers import Highlight
from attend.search.attend import Attention
from attend.search.highlighting import HIGHLIGHTER
from attend.search.scoring import Scoring
from attend.store import CollectionStore, StoredDocument, StoredKey
from attend.types import Float64, Int64, Json

MAX_SHARES = 200_000
"""Shares of parts in hits, in one response: about 10 MB of JSON."""


class Vanished(Exception):
    """A document went between the search and the reading of its value."""


class Match(NamedTuple):
    """The key by which a document was found, and its text; None where it was no text."""

    key: StoredKey
    passage: str | None

    def json(self) -> dict[str, Json]:
        return {
            "field": self.key.field,
            "start": self.key.start,
            "stop": self.key.stop,
            "passage": self.passage,
        }


def matches(
    store: CollectionStore, attention: Attention, query: int, documents: Sequence[StoredDocument]
) -> list[Match]:
    """For each document, with its texts, the key that matched the query best.

    Raises:
        Vanished: a document is no longer there.
    """
    rows = np.array([each.row for each in documents], dtype=np.int64)
    best = attention.scoring.best_keys(query, rows)
    keys = store.keys_of(np.array(list(best.values()), dtype=np.int64))
    found = []
    for document in documents:
        key = keys.get(best.get(document.row, 0))
        if key is None:
            raise Vanished
        text = document.fields.get(key.field)
        found.append(Match(key, None if text is None else text[key.start : key.stop]))
    return found


def highlights(found: Sequence[Match], said: Sequence[str]) -> list[Highlight]:
    """The passages that matched, with the places in them of the words that were said."""
    spans = HIGHLIGHTER.spans(said, [match.passage or "" for match in found])
    return [
        Highlight(match.key.field, match.key.start, match.key.stop, match.passage, places)
        for match, places in zip(found, spans, strict=True)
    ]


def because(
    scoring: Scoring, found: Attended, at: Int64, parts: Sequence[Mapping[str, Json]]
) -> list[list[dict[str, Json]]]:
    """Each part of a mixture with its share of a document's weight, by document; largest first.

    Raises:
        LimitExceeded: there are more shares than are sent at once.
    """
    if len(at) * len(parts) > MAX_SHARES:
        raise LimitExceeded(
            f"To explain {len(at)} hits by {len(parts)} parts each takes more than the "
            f"{MAX_SHARES} shares that are sent at once; lower k, or do not ask to explain.",
            field="explain",
        )
    shares = scoring.part_shares(found, at)  # (p, k)
    orders = np.argsort(-shares, axis=0, kind="stable").T  # (k, p)
    return [
        [{**parts[part], "weight": float(share[part])} for part in order.tolist()]
        for order, share in zip(orders, shares.T, strict=True)
    ]


def explanations(
    attention: Attention,
    query: int,
    at: Int64,
    found: Sequence[Match],
    parts: Sequence[Mapping[str, Json]] = (),
) -> list[dict[str, Json]]:
    """What made the logits of the attended documents at some positions (k,).

    Args:
        parts: what the parts of a mixture are; their shares are told then.
    """
    attended, scoring = attention.attended[query], attention.scoring
    lexical = scoring.lexical(query, attended.documents)  # (n,)
    dense = scoring.mechanism.gates @ attended.logits - lexical  # (n,)
    before = _ranks(dense)
    shares = because(scoring, attended, at, parts) if parts else [None] * len(at)
    return [
        {
            **match.json(),
            **({} if share is None else {"because": share}),
            "question": match.key.question,
            "rank": position + 1,
            "rank_before_words": int(before[position]),
            "logits": attended.logits[:, position].tolist(),
            "weights": attended.head_weights[:, position].tolist(),
            "lexical": float(lexical[position]),
            "dense": float(dense[position]),
            "terms": list(scoring.terms(query)),
        }
        for position, match, share in zip(at.tolist(), found, shares, strict=True)
    ]


def _ranks(scores: Float64) -> Int64:
    """Each score's rank, from 1 for the highest; equals as they stand."""
    ranks = np.empty(len(scores), dtype=np.int64)
    ranks[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return ranks
