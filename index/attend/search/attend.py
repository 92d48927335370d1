"""Attention of queries over the documents of a snapshot: candidates, then exact weights.

Three ways lead to the same numbers. FAISS proposes candidates where its inner product orders keys
as the scorer does, and they are scored again exactly. Where BM25 counts, the best by words join
them, until no document outside of both can be among the top. Or every key is scored in blocks:
for weights over all documents, where that is cheap, or for a scorer that no index knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from attend.attention import (
    Attended,
    BlockWeights,
    Logits,
    attend_logits,
    attend_many,
    weighed,
    weights_by_block,
)
from attend.collection.versions import View
from attend.core.arrays import KeyTable, kth_largest
from attend.core.coalesce import timed
from attend.core.errors import LimitExceeded, WrongKeys
from attend.core.settings import Settings
from attend.core.types import Int64
from attend.keys.segment import BLOCK_KEYS
from attend.search.estimate import estimate_mixture, worth_estimating
from attend.search.memory import Queries
from attend.search.queries import BestByWords, WordScores
from attend.search.scoring import ALL, MAX_SCORES, AttentionOptions, Scoring, plan_of

SCAN_FLOATS = 64_000_000
"""Up to this many floats, scoring all keys takes tens of milliseconds: exact is cheap."""

OVERSAMPLED = 4
"""Beyond that, a scorer that the index does not know re-scores this many times `attend`."""

WIDER = 2
"""Times `attend`: the candidates by keys, and by words, to begin with; then as many times more."""

LOOKED_UP = 10_000
"""Keys that are looked up at once for several queries: 15 MB at 384 dimensions."""

MAX_RANKED = 10_000_000
"""Documents ranked in one batch, where all share the weights: some 500 MB."""

SCAN_SHARE = 8
"""Candidates that are more than one document in eight cost as much as all."""


@dataclass(frozen=True)
class Attention:
    """Attention of some queries.

    Attributes:
        attended: each query's top documents, best first; of all, those that may be listed.
        exact: true if no better document can be missing.
        scoring: of the queries, to explain single documents.
        recall: where keys are quantised, the share of the ten nearest that searches find.
        all_weights: a reading of some queries' weights of all documents, where all share them.
        first: `attended` before the best were scored once more; None where they were not.
    """

    attended: list[Attended]
    exact: bool
    scoring: Scoring
    recall: float | None = None
    all_weights: Callable[[slice], Iterator[BlockWeights]] | None = None
    first: list[Attended] | None = None


def attend(
    view: View,
    settings: Settings,
    queries: Queries,
    options: AttentionOptions,
    rows: Int64 | None = None,
    without: Int64 | None = None,
    *,
    estimate: bool = False,
) -> Attention:
    """Return the attention of queries over the documents of a snapshot.

    The one attention over stored documents: searches and recommendations call it, and whatever
    judges a version by what it would answer.

    Args:
        rows: the documents that filter and mask let pass, ascending; None for all.
        without: a few documents, ascending, that are masked besides.
        estimate: true if a mixture over all may be estimated, where keys are quantised.

    Raises:
        InvalidRequest: options that the version cannot follow.
        LimitExceeded: more weights than memory is for.
        WrongKeys: the snapshot is damaged, and the next one is not.
    """
    try:
        masked = None
        if without is not None and len(without):
            if rows is None and (options.attend == "all" or queries.parts is not None):
                masked = without  # of a few, a mask costs less than a choice
            else:
                rows = np.setdiff1d(view.keys.rows if rows is None else rows, without)
        embeddings, words, parts, _ = queries
        plan = plan_of(
            view.version,
            settings,
            options,
            words=words is not None,
            mixture=parts is not None,
            longest=view.keys.longest,
        )
        scoring = Scoring.of(view, plan, queries, masked)
        if options.attend == "all":
            keep = _best(options, view.keys.documents, len(embeddings))
            if estimate and worth_estimating(scoring, rows, keep, options.recall):
                top = estimate_mixture(scoring, rows, keep, options.recall)
                return Attention([top], False, scoring)
            return _over_all(scoring, rows, keep)
        if parts is not None:
            return _mixed(scoring, rows, options.attend, options.recall)
        if plan.reranks:
            return _proposed(scoring, rows, options.attend, options.attend)
        worded = words is not None and any(len(scores.rows) for scores in words)
        if worded or not plan.native:
            if view.keys.scans and view.keys.keys * embeddings.shape[1] <= SCAN_FLOATS:
                return Attention(_scanned(scoring, rows, options.attend), True, scoring)
            if words is not None and plan.native:
                return _proven(scoring, rows, options.attend, words, options.recall)
        return _proposed(scoring, rows, options.attend, recall=options.recall)
    except WrongKeys as error:
        view.give_up(str(error))
        raise


def weigh_documents(attention: Attention, documents: Int64) -> Attended:
    """Weigh documents by the partitions of one query's attention, best first.

    Documents that are not among the top get the weight that they would have beside them.
    """
    scoring, attended = attention.scoring, attention.attended[0]
    logits = _with_words(scoring, 0, _logits(scoring, 0, documents))
    return weighed(logits, attended.partition, scoring.mechanism, attended.total_documents)


def _best(options: AttentionOptions, documents: int, queries: int) -> int:
    """Return the number of best documents that must be known."""
    if options.best is not None:
        return options.best
    if documents * queries > MAX_RANKED:
        raise LimitExceeded(
            f"To group all {documents} documents, or to go on with them, for {queries} queries at "
            f"once is more than {MAX_RANKED} ranks; ask for fewer at once, or attend to a number "
            f"of documents."
        )
    return max(documents, 1)


def _mixed(scoring: Scoring, rows: Int64 | None, attend: int, recall: float | None) -> Attention:
    """Return the attention of a mixture; by a scan where search is exact.

    For the parts together an index does the same product, and sorts what each proposes besides.
    """
    parts, keys = len(scoring.embeddings), scoring.view.keys
    if parts * min(attend, keys.documents) > MAX_RANKED:
        raise LimitExceeded(
            f"{parts} parts that attend to {attend} documents are more than {MAX_RANKED} weights; "
            f"attend to fewer, or mix fewer parts.",
            field="attend",
        )
    if worth_estimating(scoring, rows, attend, recall):
        top = estimate_mixture(scoring, rows, attend, recall)
        attended = attend_logits(Logits(top.documents, top.logits), scoring.mechanism)
        return Attention([attended], False, scoring)
    return Attention(_scanned(scoring, rows, attend), True, scoring)


def _over_all(scoring: Scoring, rows: Int64 | None, keep: int) -> Attention:
    attended = _scan(scoring, rows, keep)

    def all_weights(queries: slice) -> Iterator[BlockWeights]:
        heads, blocks = scoring.heads[queries], partial(scoring.blocks, rows)
        bias = partial(scoring.bias, queries=queries)
        return weights_by_block(heads, blocks, scoring.mechanism, attended[queries], bias)

    return Attention(attended, True, scoring, all_weights=all_weights)


def _scan(scoring: Scoring, rows: Int64 | None, keep: int, queries: slice = ALL) -> list[Attended]:
    """Return the `keep` best documents with weights among all, in passes of bounded memory."""
    places = range(len(scoring.heads))[queries]
    largest = BLOCK_KEYS + scoring.view.keys.most_keys  # a block ends with a complete document
    step = max(1, MAX_SCORES // (largest * scoring.mechanism.heads))
    passes = [slice(place, min(place + step, places.stop)) for place in places[::step]]
    return [
        attended
        for part in passes
        for attended in attend_many(
            scoring.heads[part],
            partial(scoring.blocks, rows),
            scoring.mechanism,
            keep,
            partial(scoring.bias, queries=part),
        )
    ]


def _scanned(
    scoring: Scoring, rows: Int64 | None, attend: int, queries: slice = ALL
) -> list[Attended]:
    """Return the best documents of a scan over all, with weights among themselves only."""
    best = _scan(scoring, rows, attend, queries)
    if scoring.words is None:
        return [attend_logits(Logits(top.documents, top.logits), scoring.mechanism) for top in best]
    places = range(len(scoring.heads))[queries]
    # A scan has the precision of the keys, while candidates are scored in float64: whichever
    # way a search with words goes, its weights are the same.
    logits = [
        _with_words(scoring, query, _logits(scoring, query, top.documents))
        for query, top in zip(places, best, strict=True)
    ]
    return [attend_logits(z, scoring.mechanism, attend) for z in logits]


def _proposed(
    scoring: Scoring,
    rows: Int64 | None,
    attend: int,
    target: int | None = None,
    recall: float | None = None,
) -> Attention:
    """Return the best of what the index proposes, and of what shares most words.

    Args:
        target: documents that each head proposes; by the scorer if None.
        recall: the share of the nearest keys that the index finds.
    """
    native = scoring.plan.native
    if target is None:
        target = attend if native else attend * OVERSAMPLED
    queries = scoring.index_queries()
    with timed("search"):
        candidates, least = scoring.view.keys.search(queries, rows, target, recall)
    if scoring.words is not None:
        candidates = [
            np.union1d(near, scores.among(rows).best(target).rows)
            for near, scores in zip(candidates, scoring.words, strict=True)
        ]
    attended = []
    one = len(candidates) == 1
    scored = (_logits(scoring, 0, candidates[0]),) if one else _scored(scoring, candidates)
    for query, logits in enumerate(scored):
        z = logits if scoring.words is None else _with_words(scoring, query, logits)
        attended.append(attend_logits(z, scoring.mechanism, attend))
    if not native:
        return Attention(attended, False, scoring)
    return Attention(attended, least >= 1, scoring, None if least >= 1 else least)


def _proven(
    scoring: Scoring,
    rows: Int64 | None,
    attend: int,
    words: Sequence[WordScores],
    recall: float | None,
) -> Attention:
    """Return the top documents by keys and words together, proved to miss none.

    Where keys are quantised, none but what the index itself misses.
    """
    passing = [scores.among(rows) for scores in words]
    documents = scoring.view.keys.documents if rows is None else len(rows)
    settled: dict[int, Attended] = {}
    pending = list(range(len(passing)))
    queries, target, least = scoring.index_queries(), attend * WIDER, 1.0
    while pending and target * SCAN_SHARE <= documents:
        with timed("search"):
            proposed, share = scoring.view.keys.search(queries[pending], rows, target, recall)
        least = min(least, share)
        for query, near in zip(pending, proposed, strict=True):
            top = _settled(scoring, query, near, passing[query].best(target), target, attend)
            settled |= {} if top is None else {query: top}
        pending, target = [query for query in pending if query not in settled], target * WIDER
    for query in pending:
        settled[query] = _scanned(scoring, rows, attend, slice(query, query + 1))[0]
    attended = [settled[query] for query in range(len(passing))]
    return Attention(attended, least >= 1, scoring, None if least >= 1 else least)


def _settled(
    scoring: Scoring, query: int, near: Int64, worded: BestByWords, target: int, attend: int
) -> Attended | None:
    """Return the top documents among candidates, if no other document can be one of them.

    `near` holds the `target` best by keys, `worded` as many by words. What is in neither has a
    logit of at most the sum of what comes last in each (the threshold algorithm: Fagin, Lotem
    and Naor 2003).
    """
    by_keys = _logits(scoring, query, near)
    others = _logits(scoring, query, np.setdiff1d(worded.rows, near))
    dense = Logits(*(np.concatenate(pair, axis=-1) for pair in zip(by_keys, others, strict=True)))
    top = attend_logits(_with_words(scoring, query, dense), scoring.mechanism, attend)
    if len(near) < target:
        return top  # these are all documents
    last = kth_largest(by_keys.z[0], target)[0]
    bound = last + scoring.mechanism.scale[0] * worded.beyond
    return top if top.logits[0, attend - 1] >= bound else None


def _scored(scoring: Scoring, candidates: Sequence[Int64]) -> list[Logits]:
    """Return each query's logits of its own candidates by keys alone.

    The keys of several queries are looked up together where they are few. Each query is scored by
    itself: a product of all would round a query otherwise in other company, and change the order
    of equals between two of its pages.
    """
    keys = scoring.view.keys
    most = max(map(len, candidates)) * keys.most_keys
    step = LOOKED_UP // max(most, 1)
    if step < 2:
        return [_logits(scoring, query, rows) for query, rows in enumerate(candidates)]
    logits = []
    for start in range(0, len(candidates), step):
        part = candidates[start : start + step]
        every = keys.lookup(np.unique(np.concatenate(part)))
        for query, documents in enumerate(every.split(part), start):
            logits.append(_block_logits(scoring, query, documents))
    return logits


def _logits(scoring: Scoring, query: int, documents: Int64) -> Logits:
    """Return one query's logits by keys alone, in float64: candidates are few, and they decide.

    In blocks: a document may have any number of keys.
    """
    keys = scoring.view.keys
    if len(documents) * keys.most_keys <= LOOKED_UP:
        return _block_logits(scoring, query, keys.lookup(documents))
    parts = map(partial(_block_logits, scoring, query), keys.blocks(documents))
    nothing = np.empty(0, dtype=np.int64), np.empty((scoring.mechanism.heads, 0))
    rows, z = zip(nothing, *parts, strict=True)
    return Logits(np.concatenate(rows), np.concatenate(z, axis=1))


def _block_logits(scoring: Scoring, query: int, documents: KeyTable) -> Logits:
    one = slice(query, query + 1)
    heads, shift = scoring.heads[one].astype(np.float64), scoring.shift[one, :, None]
    z = scoring.mechanism.logits(heads, scoring.by_head(documents), shift)
    return Logits(documents.rows, z[0])


def _with_words(scoring: Scoring, query: int, by_keys: Logits) -> Logits:
    bias = scoring.word_bias(by_keys.documents, slice(query, query + 1))
    return by_keys if bias is None else Logits(by_keys.documents, by_keys.z + bias[0])
