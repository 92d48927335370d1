"""Estimates of a softmax over more documents than are scored.

A mixture over quantised keys: each part proposes the documents nearest to it, and the best that
any of them proposes are scored for all. The weights of a part are shares of its sum over all
documents, though: over the scored alone, parts that are near to everything would count too much,
and of fifty parts whose best documents weigh about the same, an error of a tenth in their sums
changes half of the list. So what a part proposed beyond those that are scored counts by the bytes
that the index keeps of it, and what it did not propose by a random sample of the documents
(Rastogi and Van Durme 2015, "Sublinear partition estimation").

The share of the softmax over all documents that the top ones have: what the others add is
estimated from the same sample. Its interval is the empirical Bernstein bound of Maurer and Pontil
2009, "Empirical Bernstein bounds and sample variance penalization": no other document has a
larger part than the last of the top ones, so that the bound needs no assumption.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from attend.api.answers import AttendedShare
from attend.attention import Attended, Logits, Partition, join, log_mix, partition
from attend.attention import weighed as weigh_logits
from attend.core.arrays import KeyTable, locate
from attend.core.coalesce import timed
from attend.core.types import Bool, Float32, Float64, Int64
from attend.keys import NONE, Near, Sample
from attend.keys.snapshot import SAMPLED
from attend.recommend.weights import PartScores
from attend.search.scoring import Scoring

PROPOSED = 320
"""Keys near a part that it proposes. (50 parts, 1,000,000 grown keys: its sum is known to 0.015 of
its log with a sample of 32,768, to 0.023 with half of them, and 0.99 and 0.94 of the exact ten are
found.)"""

SCORED = 64
"""Documents of each part that are scored for all. (With sums as they truly are, 0.94 of the exact
ten are found with 32, all with 64.)"""

PART_RECALL = 0.65
"""Recall target of each of many parts: what one misses, others propose or the sample covers."""

MANY = 16
"""Fewer parts search with the recall that the index was built for."""

BLOCK = 2048
"""Documents of the sample that meet the parts at once: their scores stay in the cache."""

CACHED = 100_000
"""Parts whose sums over the sample are cached: some 20 MB. Histories come again, and popular
documents are in many."""

SHARED = 4
"""Documents scored for each one that is returned, as parts propose some of the same."""

WIDER = 4
"""Factor on what is proposed where too few are left without those that are masked."""

SCAN_SHARE = 4
"""Candidates that are more than one in four documents cost as much as a scan."""

PRECISE = 1e-30
"""Weights below have lost digits in single precision: there only their logs have an order."""

DOUBT = 0.05
"""Probability that the true share lies outside the interval, at most, for each head."""

WHOLE = AttendedShare(1.0, 1.0, 1.0)


def worth_estimating(scoring: Scoring, rows: Int64 | None, keep: int, recall: float | None) -> bool:
    """Return whether the index knows the parts of a mixture, over keys that it quantised."""
    keys = scoring.view.keys
    if (
        scoring.parts is None
        or not scoring.plan.indexed
        or keys.promises(recall or PART_RECALL) >= 1
    ):
        return False
    by_items = isinstance(scoring.words, PartScores)
    if scoring.words and not by_items and any(len(scores.rows) for scores in scoring.words):
        return False
    documents = keys.documents if rows is None else len(rows)
    candidates = len(scoring.heads[0]) * max(PROPOSED, _scored(scoring, keep)) + SAMPLED
    return candidates * SCAN_SHARE < documents


class _Parts(NamedTuple):
    """Parts as they meet keys: logits over the temperature are queries · keys + shift.

    In single precision: what a sample errs by is a thousand times what rounding does.
    """

    queries: Float32  # (H, d)
    factor: Float32  # (H,) by which `queries` are longer than the index is searched with
    shift: Float32  # (H,)

    @classmethod
    def of(cls, scoring: Scoring) -> _Parts:
        mechanism = scoring.mechanism
        factor = mechanism.scale / mechanism.temperature
        queries = (scoring.heads[0] * factor[:, None]).astype(np.float32)
        shift = scoring.shift[0] / mechanism.temperature
        return cls(queries, factor.astype(np.float32), shift.astype(np.float32))

    def logits(self, documents: KeyTable) -> Float32:
        """Return the logits of documents with all of their keys: (H, n)."""
        z = documents.best(self.queries @ documents.vectors.T)  # (H, d) @ (d, m) -> (H, n)
        z += self.shift[:, None]
        return np.asarray(z, dtype=np.float32)


def estimate_mixture(
    scoring: Scoring, rows: Int64 | None, keep: int, recall: float | None
) -> Attended:
    """Return the `keep` best documents of a mixture; weights are shares of estimated sums."""
    keys, parts = scoring.view.keys, _Parts.of(scoring)
    masked = _masked(scoring)
    count = _scored(scoring, keep)
    with timed("search"):
        near = _proposed(scoring, rows, masked, keep, recall)
        proposed = _documents(near.rows[:, :count])
        scored = keys.lookup(np.union1d(proposed, _by_items(scoring, rows, masked, count)))
    z = parts.logits(scored)  # (H, n)
    bias = scoring.word_bias(scored.rows)  # here of items alone
    z = z if bias is None else z + (bias[0] / scoring.mechanism.temperature).astype(np.float32)
    sample = keys.sample(rows)
    sums = join(partition(z), _beyond(parts, near, sample, np.sort(scored.rows), masked))
    best = _best(z, sums, scoring.mechanism.gates, keep)
    logits = Logits(scored.rows[best], z[:, best] * np.float64(scoring.mechanism.temperature))
    return weigh_logits(logits, sums, scoring.mechanism, sample.total - len(masked))


def _by_items(scoring: Scoring, rows: Int64 | None, masked: Int64, count: int) -> Int64:
    """Return the documents that pass for which parts have one of their `count` largest weights."""
    if not isinstance(scoring.words, PartScores):
        return np.empty(0, np.int64)
    best = np.setdiff1d(scoring.words.best(count), masked)
    return best if rows is None else best[locate(rows, best).present]


def attended_share(
    scoring: Scoring, top: Attended, rows: Int64 | None, query: int
) -> AttendedShare:
    """Return the share of one query's top documents in the softmax over all documents.

    Args:
        rows: the documents that filter and mask let pass, ascending; None for all.
    """
    keys = scoring.view.keys
    sample = keys.sample(rows)
    counted = np.union1d(top.documents, _masked(scoring))
    outside = np.isin(sample.documents.rows, counted, invert=True)
    others = sample.total - len(counted)
    if not len(top.documents) or others <= 0 or not outside.any():
        return WHOLE
    one = slice(query, query + 1)
    documents = scoring.by_head(sample.documents)
    bias = scoring.bias(documents.rows, one)
    z = scoring.mechanism.logits(scoring.heads[one], documents, bias)[0]
    return _share(scoring, top, z[:, outside].astype(np.float64), others)


def _masked(scoring: Scoring) -> Int64:
    """Return the masked documents that are alive, ascending."""
    if scoring.masked is None:
        return np.empty(0, np.int64)
    return np.sort(scoring.view.keys.living(scoring.masked))


def _share(scoring: Scoring, top: Attended, sampled: Float64, others: int) -> AttendedShare:
    """Return the share, from the logits (H, m) of a sample of all other documents."""
    tau, gates = scoring.mechanism.temperature, scoring.mechanism.gates
    peak = np.maximum(top.logits.max(axis=1), sampled.max(axis=1))[:, None]
    inside = np.exp((top.logits - peak) / tau).sum(axis=1)  # (H,)
    parts = np.exp((sampled - peak) / tau)
    # By several heads together documents are ranked; one of them may find more in another.
    largest = parts.max(axis=1)
    if scoring.mechanism.heads == 1:
        largest = np.maximum(largest, np.exp((top.logits.min(axis=1) - peak[:, 0]) / tau))
    rest, error = _rest(parts, largest, others)
    shares = [
        float(gates @ (inside / (inside + np.maximum(0, rest + sign * error))))
        for sign in (0, 1, -1)
    ]
    return AttendedShare(*shares)


def _rest(parts: Float64, largest: Float64, others: int) -> tuple[Float64, Float64]:
    """Return each head's sum (H,) over all others, from a sample (H, m), and its error (H,)."""
    size = parts.shape[1]
    if size == others:
        return parts.sum(axis=1), np.zeros(len(parts))
    log = np.log(4 / DOUBT)  # half the doubt for either side
    spread = parts.var(axis=1, ddof=1) if size > 1 else largest**2
    error = np.sqrt(2 * spread * log / size) + 7 * largest * log / (3 * max(1, size - 1))
    return others * parts.mean(axis=1), others * error


def _proposed(
    scoring: Scoring, rows: Int64 | None, masked: Int64, keep: int, recall: float | None
) -> Near:
    """Return documents near each part that are not masked, at least `keep` different ones."""
    keys, queries = scoring.view.keys, scoring.index_queries()
    flat = queries.reshape(-1, queries.shape[-1])
    target, passing = max(PROPOSED, _scored(scoring, keep)), rows
    share = PART_RECALL if recall is None and len(flat) >= MANY else recall
    while True:
        near = keys.near(flat, passing, target, share, roughly=share == PART_RECALL)
        lost = locate(masked, near.rows).present
        if passing is rows and lost.sum(axis=1).max(initial=0) * 2 > target:
            # The index looks elsewhere for what is rare nearby only if it knows what is masked.
            passing = np.setdiff1d(keys.rows if rows is None else rows, masked)
            continue
        left = _without(near, lost)
        enough = len(_documents(left.rows[:, : _scored(scoring, keep)])) >= keep
        if enough or target >= keys.keys:
            return left
        target *= WIDER


def _without(near: Near, lost: Bool) -> Near:
    """Return what is left, still best first, filled up with nothing."""
    order = np.argsort(lost | (near.rows == NONE), axis=1, kind="stable")
    rows, scores = np.where(lost, NONE, near.rows), np.where(lost, -np.inf, near.scores)
    scores = scores.astype(np.float32, copy=False)
    return Near(*(np.take_along_axis(column, order, axis=1) for column in (rows, scores)))


def _documents(rows: Int64) -> Int64:
    """Return the documents among rows, ascending."""
    distinct = np.unique(rows)
    return distinct[np.searchsorted(distinct, NONE, side="right") :]


def _scored(scoring: Scoring, keep: int) -> int:
    """Return how many documents of each part, or each head of one, are scored for all."""
    shared = -(-keep * SHARED // len(scoring.heads[0]))
    return max(SCORED, min(keep, shared))


def _beyond(parts: _Parts, near: Near, sample: Sample, scored: Int64, masked: Int64) -> Partition:
    """Return what documents that are not among the `scored` (n,), ascending, add: (H,).

    What the part proposed counts by the index's own scores, the rest by the sample.
    """
    proposed = (near.rows != NONE) & ~locate(scored, near.rows).present
    scores = np.where(proposed, near.scores, np.float32(-np.inf))
    z: Float32 = parts.factor[:, None] * scores + parts.shift[:, None]
    counted = len(scored) + len(masked) + np.count_nonzero(proposed, axis=1)  # (H,)
    rows = np.where(proposed, near.rows, NONE)
    rest = _sampled(parts, sample, rows, np.union1d(scored, masked), counted)
    return join(partition(z), rest)


def _sampled(
    parts: _Parts, sample: Sample, rows: Int64, others: Int64, counted: Int64
) -> Partition:
    """Return the sums over all documents not counted yet (H,), by those of the sample.

    Args:
        rows: (H, k) the documents counted for one part, `others` for all; `counted` (H,) how
            many these are.
    """
    sums, documents = _sums(parts, sample), sample.documents
    places, present = locate(documents.rows, rows)
    place = np.union1d(places[present], np.flatnonzero(locate(others, documents.rows).present))
    taken_out = documents.some(place)
    within = np.zeros((len(rows), len(place)), dtype=bool)
    within[:, locate(others, taken_out.rows).present] = True
    within[np.nonzero(present)[0], np.searchsorted(place, places[present])] = True
    z = parts.logits(taken_out)  # (H, c)
    taken = np.where(within, np.exp(z - sums.maximum[:, None]), 0).sum(axis=1)
    # What is counted outweighs by far what rounding leaves of the rest, if that is little.
    rest = np.maximum(sums.total - taken, 0)
    left = len(documents.rows) - np.count_nonzero(within, axis=1)
    factor = np.maximum(sample.total - counted, 0) / np.maximum(left, 1)
    return Partition(sums.maximum, rest * factor)


def _sums(parts: _Parts, sample: Sample) -> Partition:
    """Return the sums over the whole sample (H,), cached for parts that came before."""
    names = [
        blake2b(query.tobytes() + shift.tobytes(), digest_size=16).digest()
        for query, shift in zip(parts.queries, parts.shift, strict=True)
    ]
    new = [place for place, name in enumerate(names) if name not in sample.cache]
    if len(sample.cache) + len(new) > CACHED:
        sample.cache.clear()
        new = list(range(len(names)))
    fresh_sums = _summed(
        _Parts(*(column[np.array(new, dtype=np.int64)] for column in parts)), sample
    )
    pairs = zip(fresh_sums.maximum.tolist(), fresh_sums.total.tolist(), strict=True)
    fresh = {names[place]: pair for place, pair in zip(new, pairs, strict=True)}
    sample.cache.update(fresh)
    # Another thread may have cleared them meanwhile.
    cached = [fresh.get(name) or sample.cache.get(name) for name in names]
    if None in cached:
        return _summed(parts, sample)
    maximum, total = np.array(cached).T
    return Partition(maximum, total)


def _summed(parts: _Parts, sample: Sample) -> Partition:
    """Return the sums over the whole sample (H,), block by block."""
    sums = Partition(np.full(len(parts.queries), -np.inf), np.zeros(len(parts.queries)))
    count = len(sample.documents) if len(parts.queries) else 0
    for first in range(0, count, BLOCK):
        block = sample.documents.some(np.arange(first, min(first + BLOCK, count)))
        sums = join(sums, partition(parts.logits(block)))
    return sums


def _best(z: Float32, sums: Partition, gates: Float64, keep: int) -> Int64:
    """Return the places of the `keep` largest weights, of equals the first."""
    shares = np.exp(z - sums.maximum.astype(np.float32)[:, None])
    weights = (gates / sums.total).astype(np.float32) @ shares  # (H,) @ (H, n) -> (n,)
    order = np.argsort(-weights, kind="stable")[:keep]
    if weights[order[-1]] > PRECISE:
        return order
    return np.argsort(-log_mix(z - sums.log[:, None], gates), kind="stable")[:keep]
