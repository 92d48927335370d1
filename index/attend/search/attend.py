"""Attention of queries over the documents of a snapshot: candidates, then exact weights.

`attend` chooses which documents are scored: see there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attend.api.search import SearchOptions
from attend.attention import (
    Attended,
    BlockWeights,
    Logits,
    Softmax,
    attend_logits,
    attend_many,
    join,
    partition,
    rank,
    scores,
    weighed,
    weights_by_block,
)
from attend.collection.versions import View
from attend.core.arrays import KeyTable, kth_largest, locate
from attend.core.coalesce import timed
from attend.core.errors import LimitExceeded, WrongKeys
from attend.core.settings import Settings
from attend.core.types import Float64, Floats, Int64
from attend.keys.segment import BLOCK_KEYS
from attend.search.queries import NO_WORDS, Queries, WordScores
from attend.search.scoring import MAX_SCORES, NOTHING, AttentionOptions, Scoring, plan_of

SCAN_FLOATS = 64_000_000
"""Up to this many floats, scoring all keys takes tens of milliseconds: exact is cheap."""

OVERSAMPLED = 4
"""Beyond that, a scorer that the index does not know re-scores this many times `attend`."""

WIDER = 2
"""Times `attend`: the candidates by keys, and by words, to begin with; then as many times more."""

TOGETHER = 4
"""Queries whose products with keys of their own are one call: more leave the caches."""

LOOKED_UP = 10_000
"""Keys that are looked up at once for several queries: 15 MB at 384 dimensions."""

MAX_RANKED = 10_000_000
"""Documents ranked in one batch of weights over all: some 500 MB."""

SCAN_SHARE = 8
"""Candidates that are more than one document in eight cost as much as all."""

PART_WIDER, PART_LEAST = 2, 32
"""Candidates of each part: times what is kept over the root of the number of parts; the least."""

PART_SAMPLE = 1024
"""Documents drawn to estimate what the others add to the sums of parts that agree; some fifteen
times as many for 50 parts at random."""

MANY_PARTS = 16
PART_RECALL = 0.3
"""The share of the ten nearest that each of many parts finds: what one misses, others propose."""


@dataclass(frozen=True)
class Attention:
    """Attention of a query, or a mixture.

    Attributes:
        attended: the top documents, best first; of all, those that may be listed.
        exact: true if no better document can be missing.
        scoring: of the query, to explain single documents.
        recall: where keys are quantised, the share of the ten nearest that searches find.
        all_weights: reads the weights of all documents, in blocks, where all share them.
        first: `attended` before the best were scored by tokens; None where they were not.
        plain: what both began with, if that was before a second layer.
    """

    attended: Attended
    exact: bool
    scoring: Scoring
    recall: float | None = None
    all_weights: Callable[[], Iterator[BlockWeights]] | None = None
    first: Attended | None = None
    plain: Attended | None = None


def attend(
    view: View,
    settings: Settings,
    queries: Queries,
    options: AttentionOptions,
    rows: Int64 | None = None,
    without: Int64 = NOTHING,
    *,
    approximate: bool = False,
) -> list[Attention]:
    """Return the attention of each of the queries over the documents of a snapshot.

    The first of these routes that fits is taken:

    1. a mixture over quantised keys: the candidates of each part, and a sample of the rest;
    2. weights over all documents, or a mixture: all keys, in blocks;
    3. words, times, or a scorer that no index knows, in few documents: all keys, unless it reranks;
    4. words or times beside a scorer that the index knows: candidates, until they are proved to be
       enough;
    5. everything else: the candidates of the index.

    Args:
        rows: the documents that filter and mask let pass, ascending; None for all.
        without: a few documents, ascending, that are masked besides.
        approximate: true if a mixture over all may take the first route, too.

    Raises:
        InvalidRequest: options that the version cannot follow.
        LimitExceeded: more weights than memory is for.
        WrongKeys: the snapshot is damaged, and the next one is not.
    """
    words = queries.words or [NO_WORDS] * len(queries.embeddings)
    is_mixture, keys = queries.parts is not None, view.keys
    number, recall = options.attend, options.recall
    has_words, longest = queries.words is not None, keys.longest
    plan = plan_of(
        view.version, settings, options, words=has_words, mixture=is_mixture, longest=longest
    )
    is_worded = queries.recency is not None or any(len(scores.rows) for scores in words)
    # Of a few, a mask costs less than a choice.
    is_masked = rows is None and (number == "all" or is_mixture or (plan.native and not is_worded))
    if len(without) and not is_masked:
        rows = np.setdiff1d(rows if rows is not None else keys.rows, without, True)
    try:
        scoring = Scoring.of(view, plan, queries, without if is_masked else NOTHING)
        may_approximate = is_mixture and not is_worded and (approximate or number != "all")
        if may_approximate and (proposed := _proposed_by_parts(scoring, rows, options)):
            return proposed
        if number == "all":
            return _over_all(scoring, rows, _keep(scoring, options))
        is_small = keys.scans and keys.keys * queries.embeddings.shape[1] <= SCAN_FLOATS
        if is_mixture or (is_small and not plan.reranks and (is_worded or not plan.native)):
            return _attentions(scoring.each(), _scanned(scoring, rows, number))
        if is_worded and plan.native:
            return _proven(scoring, rows, number, words, recall)
        return _proposed(scoring, rows, number, recall)
    except WrongKeys as error:
        view.give_up(str(error))
        raise


def _attentions(
    scorings: Sequence[Scoring], attended: Sequence[Attended], recall: float = 1.0
) -> list[Attention]:
    """Return the attention of each query, of whose nearest documents this share was looked at."""
    is_exact = recall >= 1
    return [
        Attention(top, is_exact, one, None if is_exact else recall)
        for one, top in zip(scorings, attended, strict=True)
    ]


def weigh_documents(attention: Attention, documents: Int64) -> Attended:
    """Weigh documents by a query's attention, best first, also those beyond the top."""
    scoring, attended = attention.scoring, attention.attended
    logits = _with_words(scoring, _logits(scoring, documents))
    return weighed(logits, attended.partition, scoring.mechanism, attended.total_documents)


def _keep(scoring: Scoring, options: AttentionOptions) -> int:
    """Return the number of documents to list of all that share the weights."""
    if options.best is not None:
        return options.best
    documents, queries = scoring.view.keys.documents, len(scoring.queries.embeddings)
    if documents * queries > MAX_RANKED:
        raise LimitExceeded(
            f"To group all {documents} documents, or to go on with them, for {queries} queries at "
            f"once is more than {MAX_RANKED} ranks; ask for fewer at once, or attend to a number "
            f"of documents."
        )
    return max(documents, 1)


def _proposed_by_parts(
    scoring: Scoring, rows: Int64 | None, options: AttentionOptions
) -> list[Attention]:
    """Return the attention of a mixture over all documents, from the nearest ones of each part.

    A part weighs a document among all: what those that no part proposes add to its sum is estimated
    from a sample, drawn by what the parts attend to. (With 50 parts at random over 1,000,000
    documents, .95 of the exact ten are listed; with 8,192 documents drawn evenly, .72.)

    Returns: one, or none where keys are not quantised, or candidates cost as much as all documents.
    """
    keys, mechanism, recall = scoring.view.keys, scoring.mechanism, options.recall
    keep = _keep(scoring, options) if options.attend == "all" else options.attend
    masked = keys.living(scoring.masked)
    documents = keys.documents if rows is None else len(rows)
    is_quantised = scoring.plan.indexed and keys.scans and keys.promises(recall) < 1
    fetch = max(PART_LEAST, int(PART_WIDER * keep / math.sqrt(mechanism.heads))) + len(masked)
    if not is_quantised or mechanism.heads * fetch * SCAN_SHARE >= documents:
        return []
    if recall is None and mechanism.heads >= MANY_PARTS:
        recall = PART_RECALL
    queries = scoring.index_queries()
    with timed("search"):
        [near], _ = keys.search(queries, rows, fetch, recall)
    if scoring.queries.items is not None:
        best = scoring.queries.items.best(keep)
        near = np.union1d(near, best if rows is None else best[locate(rows, best).present])
    near = np.setdiff1d(near, masked)
    logits = _with_words(scoring, _logits(scoring, near))
    sums = partition(mechanism.cooled(logits.z), mechanism.null)
    scale = (mechanism.scale / mechanism.temperature).astype(np.float32)
    sample, rates = keys.drawn(queries[0] * scale[:, None], mechanism.gates, rows, PART_SAMPLE)
    bias = scoring.bias(sample.rows).astype(np.float32)
    z = mechanism.logits(scoring.heads, scoring.by_head(sample), bias)[0]
    counts = np.where(locate(near, sample.rows).present, -np.inf, -np.log(rates))
    sums = join(sums, partition(mechanism.cooled(z) + counts.astype(np.float32)))
    order = rank(logits.documents, scores(logits.z, sums, mechanism))[:keep]
    if options.attend == "all":
        top = weighed(logits.some(order), sums, mechanism, documents - len(masked))
    else:
        top = attend_logits(logits.some(order), mechanism)
    return [Attention(top, False, scoring)]


def _over_all(scoring: Scoring, rows: Int64 | None, keep: int) -> list[Attention]:
    def all_weights(one: Scoring, top: Attended) -> Iterator[BlockWeights]:
        blocks = partial(one.blocks, rows)
        return weights_by_block(one.heads, blocks, one.mechanism, [top], one.bias)

    attended = _scan(scoring, rows, keep)
    return [
        Attention(top, True, one, all_weights=partial(all_weights, one, top))
        for one, top in zip(scoring.each(), attended, strict=True)
    ]


def _scan(scoring: Scoring, rows: Int64 | None, keep: int) -> list[Attended]:
    """Return the `keep` best documents with weights among all, in passes of bounded memory."""
    largest = BLOCK_KEYS + scoring.view.keys.most_keys  # a block ends with a complete document
    step = max(1, MAX_SCORES // (largest * scoring.mechanism.heads))
    passes = range(0, len(scoring.heads), step)
    parts = [scoring.some(slice(first, first + step)) for first in passes]
    parts = parts if len(parts) > 1 else [scoring]
    blocks, mechanism = partial(scoring.blocks, rows), scoring.mechanism
    return [
        attended
        for part in parts
        for attended in attend_many(part.heads, blocks, mechanism, keep, part.bias)
    ]


def _scanned(scoring: Scoring, rows: Int64 | None, attend: int) -> list[Attended]:
    """Return the best documents of a scan over all, with weights among themselves only."""
    parts = 1 if scoring.queries.parts is None else len(scoring.queries.parts)
    if parts > 1 and parts * min(attend, scoring.view.keys.documents) > MAX_RANKED:
        raise LimitExceeded(
            f"{parts} parts that attend to {attend} documents are more than {MAX_RANKED} weights; "
            f"attend to fewer, or mix fewer parts.",
            field="attend",
        )
    best = _scan(scoring, rows, attend)
    queries = scoring.queries
    if queries.words is None and queries.items is None and queries.recency is None:
        return [attend_logits(Logits(top.documents, top.logits), scoring.mechanism) for top in best]
    # A scan has the precision of the keys, while candidates are scored in float64: whichever
    # way a search with words goes, its weights are the same.
    logits = [
        _with_words(one, _logits(one, top.documents))
        for one, top in zip(scoring.each(), best, strict=True)
    ]
    return [attend_logits(z, scoring.mechanism, attend) for z in logits]


def _proposed(
    scoring: Scoring, rows: Int64 | None, attend: int, recall: float | None
) -> list[Attention]:
    """Return the best of what the index proposes, and of what shares most words."""
    native = scoring.plan.native
    target = attend * (1 if native or scoring.plan.reranks else OVERSAMPLED) + len(scoring.masked)
    queries = scoring.index_queries()
    with timed("search"):
        candidates, least = scoring.view.keys.search(queries, rows, target, recall)
    if scoring.queries.words is not None:
        candidates = [
            np.union1d(near, scores.among(rows).best(target)[0])
            for near, scores in zip(candidates, scoring.queries.words, strict=True)
        ]
    if (times := scoring.queries.recency) is not None:
        newest = times.scores.among(rows).best(target)[0]
        candidates = [np.union1d(near, newest) for near in candidates]
    if len(scoring.masked):
        candidates = [np.setdiff1d(near, scoring.masked) for near in candidates]
    attentions, scorings = list[Attention](), scoring.each()
    scored = _scored(scoring, scorings, candidates)
    is_exact = native and least >= 1
    recall = least if native and least < 1 else None
    for one, logits in zip(scorings, scored, strict=True):
        z = _with_words(one, logits)
        top = attend_logits(z, scoring.mechanism, attend)
        attentions.append(Attention(top, is_exact, one, recall))
    return attentions


def _proven(
    scoring: Scoring,
    rows: Int64 | None,
    attend: int,
    words: Sequence[WordScores],
    recall: float | None,
) -> list[Attention]:
    """Return the top documents by keys and words together, proved to miss none.

    An index of quantised keys misses some itself: there one costly look is enough.
    """
    passing, times = [scores.among(rows) for scores in words], scoring.queries.recency
    timed_rows = NO_WORDS if times is None else times.scores.among(rows)
    documents = scoring.view.keys.documents if rows is None else len(rows)
    settled: dict[int, Attended] = {}
    pending = list(range(len(passing)))
    scorings, queries = scoring.each(), scoring.index_queries()
    target, least = attend * WIDER, 1.0
    while pending and target * SCAN_SHARE <= documents:
        with timed("search"):
            proposed, share = scoring.view.keys.search(queries[pending], rows, target, recall)
        least, newest = min(least, share), timed_rows.best(target)
        for query, near in zip(pending, proposed, strict=True):
            best = passing[query].best(target), newest
            top = _settled(scorings[query], near, best, target, attend, share < 1)
            settled |= {} if top is None else {query: top}
        pending, target = [query for query in pending if query not in settled], target * WIDER
    for query in pending:
        settled[query] = _scanned(scorings[query], rows, attend)[0]
    return _attentions(scorings, [settled[query] for query in range(len(scorings))], least)


def _settled(
    scoring: Scoring,
    near: Int64,
    best: tuple[tuple[Int64, float], tuple[Int64, float]],
    target: int,
    attend: int,
    enough: bool,
) -> Attended | None:
    """Return the top documents among candidates, if these are enough, or no other can be one.

    `near` holds the `target` best by keys, and `best` as many by words and by times. What is in
    none has at most the sum of the last of each (the threshold algorithm: Fagin, Lotem and Naor
    2003).
    """
    (worded, beyond), (newest, later) = best
    by_keys = _logits(scoring, near)
    others = _logits(scoring, np.setdiff1d(np.union1d(worded, newest), near))
    dense = Logits(*(np.concatenate(pair, axis=-1) for pair in zip(by_keys, others, strict=True)))
    top = attend_logits(_with_words(scoring, dense), scoring.mechanism, attend)
    if enough or len(near) < target:  # or these are all documents
        return top
    last = kth_largest(by_keys.z[0], target)[0]
    bound = last + scoring.mechanism.scale[0] * beyond + scoring.plan.temperature * later
    return top if top.logits[0, attend - 1] >= bound else None


def _scored(
    scoring: Scoring, scorings: Sequence[Scoring], candidates: Sequence[Int64]
) -> list[Logits]:
    """Return each query's logits of its own candidates by keys alone.

    The keys of several queries are looked up together where they are few. Each query is scored by
    itself: a product of all would round a query otherwise in other company, and change the order
    of equals between two of its pages.
    """
    keys = scoring.view.keys
    most = max(map(len, candidates)) * keys.most_keys
    step = LOOKED_UP // max(most, 1)
    if step < 2 or len(scorings) == 1:
        return list(map(_logits, scorings, candidates))
    logits, alike = list[Logits](), scoring.plan.native and scoring.plan.stored_form
    heads, shift = scoring.heads.astype(np.float64), scoring.shift[:, :, None]
    for start in range(0, len(candidates), step):
        part = candidates[start : start + step]
        every = keys.lookup(np.unique(np.concatenate(part)))
        order = np.argsort(every.rows, kind="stable")
        places, present = locate(every.rows[order], np.concatenate(part))
        if not (alike and every.single and present.all() and len({*map(len, part)}) == 1):
            logits += map(_block_logits, scorings[start : start + step], every.split(part))
            continue
        vectors, places = every.vectors, order[places].reshape(np.shape(part))
        for first in range(0, len(part), TOGETHER):
            few = slice(start + first, min(start + first + TOGETHER, start + step))
            keyed = every.with_vectors(vectors[places[first : first + TOGETHER]])
            z = scoring.mechanism.logits(heads[few], scoring.by_head(keyed), shift[few])
            logits += map(Logits, candidates[few], z)
    return logits


def _logits(scoring: Scoring, documents: Int64) -> Logits:
    """Return one query's logits by keys alone, in float64: candidates are few, and they decide."""
    keys = scoring.view.keys
    if len(documents) * keys.most_keys <= LOOKED_UP:
        return _block_logits(scoring, keys.lookup(documents))
    # In blocks: a document may have any number of keys.
    parts = map(partial(_block_logits, scoring), keys.blocks(documents))
    nothing = np.empty(0, dtype=np.int64), np.empty((scoring.mechanism.heads, 0))
    rows, z = zip(nothing, *parts, strict=True)
    return Logits(np.concatenate(rows), np.concatenate(z, axis=1))


def _block_logits(scoring: Scoring, documents: KeyTable) -> Logits:
    heads, shift = scoring.heads.astype(np.float64), scoring.shift[:, :, None]
    z = scoring.mechanism.logits(heads, scoring.by_head(documents), shift)
    return Logits(documents.rows, z[0])


def _with_words(scoring: Scoring, by_keys: Logits) -> Logits:
    bias = scoring.added(by_keys.documents)
    return by_keys if bias is None else Logits(by_keys.documents, by_keys.z + bias[0])


# -- the second layer -----------------------------------------------------------------------
#
# The best documents say in other words what a query asks for. So the query becomes
#
#     q' = (1 - β) q + β (Σ_j a_j k_j - k̄)
#
# with the best key k_j of each of its best documents, their softmax a_j by the scores of keys and
# words, times s, and the mean key k̄ of all that the query attends to: what they have in common
# tells none of them apart. These are scored again by q', and exchange their logits: in the new
# order they weigh what those weighed that were there before, so that all that was fitted stays.

BEST, SHARPNESS = 5, 10.0
"""The best documents, and s, the factor on their unscaled scores."""


def attend_twice(
    view: View,
    settings: Settings,
    queries: Queries,
    options: SearchOptions,
    rows: Int64 | None = None,
    without: Int64 = NOTHING,
) -> list[Attention]:
    """Return the attention of each of the queries, with the second layer where a plan has one.

    Only queries with texts have one, over a number of documents. See `attend`.
    """
    attentions = attend(view, settings, queries, AttentionOptions.of(options), rows, without)
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
