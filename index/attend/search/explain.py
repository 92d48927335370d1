"""Explanations: the parts of a document's score, and the key that matched.

A logit is a chain of scores, each with one thing more than the one before, and a part is the
difference that this makes:

    meaning   the encoder alone: the default scale times q·k, the best of the document's own keys
    learned   W_Q, W_K, learned offsets and example queries as keys, scorer and scale of the version
    memory    stored feedback, which moves the query, and the votes of a trained version
    lexical   BM25 times its weight
    recency   -ln 2 times the age in half-lives, at the fitted temperature
    layer     the second layer
    rerank    the tokens of the best documents, compared one by one

With one head the score is the logit, and the parts add up to it. With several heads (and in a
mixture, whose parts are heads) the score is the log of the weight, Σ_h a_h with a_h = g_h exp(z_h /
t) / Z_h. With the shares r_h = a_h / Σ a_h of the heads in this weight

    log Σ_h a_h = Σ_h r_h log(a_h / r_h) = Σ_h (r_h / t) z_h + Σ_h r_h (log g_h - log Z_h - log r_h)

(the identity behind variational bounds: Neal and Hinton 1998), so that the parts of each head count
r_h / t times, and the second sum is a part of its own, `partition`: what turns logits into the log
of a weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attend.attention import Attended, Mechanism
from attend.core.arrays import locate
from attend.core.types import Float32, Float64, Int64, Json
from attend.projection import RAW_KEYS
from attend.search.attend import Attention
from attend.search.hits import Match, explain_parts, unmoved_logits
from attend.search.scoring import Scoring
from attend.store import CollectionStore


@dataclass(frozen=True, eq=False)
class ScoreParts:
    """The parts of the scores of k documents.

    Attributes:
        by_head: each part of the logits, by name, (H, k).
        shares: (H, k) how much the logit of each head counts in the score.
        partition: (k,) what the logits leave of the score.
    """

    by_head: Mapping[str, Float64]
    shares: Float64
    partition: Float64

    @classmethod
    def of(
        cls, attention: Attention, places: Int64, queries: Float32, store: CollectionStore
    ) -> ScoreParts:
        """Take the scores of the attended documents at some places (k,) apart.

        Args:
            queries: (p or 1, d) the embeddings as they were encoded.
        """
        attended, scoring = attention.attended, attention.scoring
        rows, heads = attended.documents[places], scoring.mechanism.heads
        second = attention.first or attended
        keyed = _logits_of(attention.plain or second, rows)
        layered, z = _logits_of(second, rows), attended.logits[:, places]
        lexical, recency = np.zeros((2, heads, len(rows)))
        if (bias := scoring.added(rows)) is not None:
            lexical += bias[0]
        if (times := scoring.queries.recency) is not None:
            recency += scoring.plan.temperature * times.scores.of(rows)
            lexical -= recency
        if scoring.queries.votes is not None:  # these are what feedback added
            votes = scoring.queries.votes[0].of(rows)
            lexical -= scoring.mechanism.scale[:, None] * votes
        dense = keyed - lexical - recency
        unmoved = dense
        if scoring.queries.before is not None and len(rows):
            unmoved = unmoved_logits(scoring, rows)
        meaning, untrained = unmoved, scoring.plan.untrained
        if untrained is not None:
            meaning = _meaning(scoring, untrained, rows, queries, store)
        by_head = {
            "meaning": meaning,
            "learned": unmoved - meaning,
            "memory": dense - unmoved,
            "lexical": lexical,
            "recency": recency,
            "layer": layered - keyed,
            "rerank": z - layered,
        }
        if heads == 1:
            return cls(by_head, np.ones((1, len(rows))), np.zeros(len(rows)))
        cooled = z / scoring.mechanism.temperature
        with np.errstate(divide="ignore"):
            logs = np.log(scoring.mechanism.gates)[:, None] - attended.log_partition[:, None]
        shares = np.exp(logs + cooled - attended.scores[places])  # r (H, k)
        beyond = (shares * (attended.scores[places] - cooled)).sum(axis=0)
        return cls(by_head, shares / scoring.mechanism.temperature, beyond)

    def rows(self) -> list[dict[str, float]]:
        """Return the parts of each score by name; they add up to it."""
        parts = {name: (self.shares * part).sum(axis=0) for name, part in self.by_head.items()}
        parts["partition"] = self.partition
        return [
            dict(zip(parts, map(float, values), strict=True))
            for values in zip(*parts.values(), strict=True)
        ]


def _logits_of(top: Attended, rows: Int64) -> Float64:
    """Return the logits (H, k) of some of the attended documents."""
    return np.asarray(top.logits[:, _places(top, rows)])


def _places(top: Attended, rows: Int64) -> Int64:
    ordered = np.argsort(top.documents)
    return ordered[locate(top.documents[ordered], rows).places]


def _meaning(
    scoring: Scoring,
    untrained: Mechanism,
    rows: Int64,
    queries: Float32,
    store: CollectionStore,
) -> Float64:
    """Return the logits (H, k) that an untrained version gives documents by their own keys.

    0 for a document that has none. All heads of one part of a mixture have the same.
    """
    version = scoring.view.version
    is_raw = version.projection.key_fingerprint == RAW_KEYS and not version.moved
    keys = scoring.view.keys.lookup(rows) if is_raw else store.own_keys(np.unique(rows))
    logits = np.zeros((len(queries), len(rows)))
    if len(keys):
        one_head = replace(keys, vectors=keys.vectors[:, None, :])
        z = untrained.logits(queries.astype(np.float64)[:, None, :], one_head)[:, 0]
        order = np.argsort(keys.rows)
        places, present = locate(keys.rows[order], rows)
        logits[:, present] = z[:, order[places[present]]]
    return np.repeat(logits, scoring.mechanism.heads // len(queries), axis=0)


def explanations(
    attention: Attention,
    places: Int64,
    matched: Sequence[Match],
    parts: ScoreParts,
    names: Sequence[Mapping[str, Json]] = (),
) -> list[dict[str, Any]]:
    """Explain the logits of the attended documents at some places (k,).

    Args:
        parts: of their scores.
        names: of the parts of a mixture, whose shares are added.
    """
    attended, scoring = attention.attended, attention.scoring
    gates, rows = scoring.mechanism.gates, attended.documents[places]
    is_first, second = attention.first is None, attention.first or attended
    ranks, beside = _ranks_before_words(attention, rows), _places(second, rows)
    words = scoring.queries.words or ()
    terms = list(dict.fromkeys(term for scores in words for term in scores.terms))
    shares = explain_parts(scoring, attended, places, names) if names else None
    mean = {name: gates @ part for name, part in parts.by_head.items()}
    dense = mean["meaning"] + mean["learned"] + mean["memory"]
    return [
        {
            "field": match.key.field,
            "start": match.key.start,
            "stop": match.key.stop,
            "passage": match.passage,
            **({} if shares is None else {"because": shares[rank]}),
            "question": match.key.question,
            "rank": place + 1,
            "rank_before_words": int(ranks[rank]),
            **(
                {}
                if is_first
                else {
                    "rank_before_rerank": int(beside[rank]) + 1,
                    "rerank": float(mean["rerank"][rank]),
                }
            ),
            "logits": attended.logits[:, place].tolist(),
            "weights": attended.head_weights[:, place].tolist(),
            "lexical": float(mean["lexical"][rank]),
            "dense": float(dense[rank]),
            "layer": float(mean["layer"][rank]),
            "memory": float(mean["memory"][rank]),
            "parts": score,
            "terms": terms,
        }
        for rank, (place, match, score) in enumerate(
            zip(places.tolist(), matched, parts.rows(), strict=True)
        )
    ]


def _ranks_before_words(attention: Attention, rows: Int64) -> Int64:
    """Return the ranks (k,) of documents by keys and feedback alone, without words and times,
    from 1."""
    scoring, top = attention.scoring, attention.plain or attention.first or attention.attended
    gates, bias = scoring.mechanism.gates, scoring.added(top.documents)
    dense = gates @ top.logits
    if bias is not None:
        dense = dense - gates @ bias[0]
    if scoring.queries.votes is not None:
        votes = scoring.queries.votes[0].of(top.documents)
        dense = dense + (gates @ scoring.mechanism.scale) * votes
    ranks = np.empty(len(dense), dtype=np.int64)  # equals as they stand
    ranks[np.argsort(-dense, kind="stable")] = np.arange(1, len(dense) + 1)
    return ranks[_places(top, rows)]
