"""From query embeddings to attended documents: projection, candidates, exact weights.

Three ways lead to the same numbers. FAISS proposes candidates where its inner product
orders keys as the scorer does, and they are scored again exactly. Where shared words count
too, the best by words join them, until no document outside of both can belong to the attended
set. Or every key is scored, in blocks, where the caller asks for all, where that is cheap, or
where the scorer is one that an index of inner products does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attend.api.search import SearchOptions
from attend.attention import (
    Attended,
    Logits,
    Weights,
    attend_logits,
    attend_many,
    block_logits,
    weighed,
    weights_by_block,
)
from attend.errors import LimitExceeded
from attend.keys import Candidates, divided
from attend.search.focus import ALL, MAX_SCORES, Focus
from attend.search.focusing import focus_on
from attend.search.lexicon import Best, Overlap
from attend.search.mixing import estimated, worth_estimating
from attend.settings import Settings
from attend.timings import timed
from attend.types import Float32, Float64, Int64
from attend.views import View

SCAN_FLOATS = 64_000_000
"""Up to this many floats, scoring all keys takes tens of milliseconds: exact is cheap."""

OVERSAMPLED = 4
"""Beyond that, a scorer that the index does not know re-scores this many times `attend`."""

WIDER = 2
"""With words, this many times `attend` by keys and as many by words are looked at first; where
that proves too few, as many times more."""

LOOKED_UP = 10_000
"""Keys that are looked up at once for several queries: 15 MB at 384 dimensions."""

MAX_RANKED = 10_000_000
"""Documents ranked in one batch, where all are attended to: some 500 MB."""

SCAN_SHARE = 8
"""Candidates that are more than one in so many documents cost as much as all of them."""


@dataclass(frozen=True)
class Attention:
    """What a batch of queries attends to.

    Attributes:
        attended: for each query, its documents, best first (with `attend: "all"`, those
            that may be listed).
        exact: whether no better document can have been missed.
        recall: where keys are quantised, the share of the ten nearest that searches find.
        all_weights: a reading of every document's weights, where all are attended to.
        focus: how queries meet keys, to explain single documents.
    """

    attended: list[Attended]
    exact: bool
    focus: Focus
    recall: float | None = None
    all_weights: Callable[[], Iterator[Weights]] | None = None


def attend(
    view: View,
    settings: Settings,
    embeddings: Float32,
    rows: Int64 | None,
    options: SearchOptions,
    overlaps: Sequence[Overlap] | None = None,
    parts: Float64 | None = None,
    without: Int64 | None = None,
    estimate: bool = False,
) -> Attention:
    """Attention of queries (q, d) over the documents of a view.

    Args:
        rows: the documents that filter and mask let pass, ascending; None for all.
        overlaps: each query's lexical term over all documents; None where words do not count.
        parts: (p,) where the embeddings (p, d) are parts of one mixture: how much each counts,
            summing to one.
        without: few documents, ascending, that are masked besides.
        estimate: whether the attention of a mixture over all may be estimated, where keys are
            quantised.
    """
    masked = None
    if without is not None and len(without):
        if rows is None and (options.attend == "all" or parts is not None):
            masked = without  # of a few, a mask costs less than a choice
        else:
            rows = np.setdiff1d(view.keys.rows if rows is None else rows, without)
    focus = focus_on(view, settings, embeddings, overlaps, options, options.attend, parts, masked)
    if options.attend == "all":
        keep = _ranked(options, view.keys.documents, len(embeddings))
        if estimate and worth_estimating(focus, rows, keep, options.recall):
            return _estimated(focus, rows, keep, options.recall)
        return _over_all(focus, rows, keep)
    if parts is not None:
        return _mixed(focus, rows, options.attend, options.recall)
    if focus.reranks:
        return _proposed(focus, rows, options.attend, options.attend)
    worded = overlaps is not None and any(len(overlap.rows) for overlap in overlaps)
    cheap = view.keys.scans and view.keys.keys * embeddings.shape[1] <= SCAN_FLOATS
    if cheap and (worded or not focus.native):
        return Attention(_scanned(focus, rows, options.attend), True, focus)
    if overlaps is not None and worded and focus.native:
        return _proven(focus, rows, options.attend, overlaps, options.recall)
    return _proposed(focus, rows, options.attend, recall=options.recall)


def _mixed(focus: Focus, rows: Int64 | None, attend: int, recall: float | None) -> Attention:
    """The attended set of a mixture.

    By a scan where search is exact: for the parts together an index does the same product, and
    would sort besides what each proposes.
    """
    parts, keys = len(focus.embeddings), focus.view.keys
    if parts * min(attend, keys.documents) > MAX_RANKED:
        raise LimitExceeded(
            f"{parts} parts that attend to {attend} documents are more than {MAX_RANKED} weights; "
            f"attend to fewer, or mix fewer parts.",
            field="attend",
        )
    if worth_estimating(focus, rows, attend, recall):
        found = _estimated(focus, rows, attend, recall)
        best = [Logits(each.documents, each.logits) for each in found.attended]
        return replace(found, attended=[attend_logits(each, focus.mechanism) for each in best])
    return Attention(_scanned(focus, rows, attend), True, focus)


def _estimated(focus: Focus, rows: Int64 | None, keep: int, recall: float | None) -> Attention:
    return Attention([estimated(focus, rows, keep, recall)], False, focus)


def weighed_in(attention: Attention, documents: Int64) -> Attended:
    """Documents with what they weigh in the attention of one query, best first.

    That is, by its partitions: documents that are not in the attended set get the weight that they
    would have beside it.
    """
    focus, found = attention.focus, attention.attended[0]
    logits = _with_words(focus, 0, _logits(focus, 0, documents))
    return weighed(logits, found.partition, focus.mechanism, found.total_documents)


def attend_matrix(
    view: View,
    settings: Settings,
    embeddings: Float32,
    rows: Int64 | None,
    options: SearchOptions,
    overlaps: Sequence[Overlap] | None = None,
) -> Attention:
    """Attention of queries (q, d) over every document that may be attended to, all listed."""
    focus = focus_on(view, settings, embeddings, overlaps, options, "all")
    return _over_all(focus, rows, view.keys.documents)


def _ranked(options: SearchOptions, documents: int, queries: int) -> int:
    """How many of the best must be known, to list of them what is asked and tell if more follow."""
    if options.group_by is None and options.cursor is None:
        return options.k + options.offset + 1
    if documents * queries > MAX_RANKED:
        raise LimitExceeded(
            f"To group all {documents} documents, or to go on with them, for {queries} queries at "
            f"once is more than {MAX_RANKED} ranks; ask for fewer at once, or attend to a number "
            f"of documents."
        )
    return max(documents, 1)


def _over_all(focus: Focus, rows: Int64 | None, keep: int) -> Attention:
    blocks = focus.blocks(rows)
    attended = _scan(focus, rows, keep)

    def all_weights() -> Iterator[Weights]:
        return weights_by_block(
            focus.heads,
            blocks,
            focus.mechanism,
            attended,
            allowed=focus.allowed,
            shift=focus.shift,
        )

    return Attention(attended, True, focus, all_weights=all_weights)


def _scan(focus: Focus, rows: Int64 | None, keep: int, queries: slice = ALL) -> list[Attended]:
    """The `keep` best documents with weights among all, in passes of bounded memory."""
    places = range(len(focus.heads))[queries]
    step = max(1, MAX_SCORES // (focus.view.keys.largest_block * focus.mechanism.heads))
    passes = [slice(at, min(at + step, places.stop)) for at in places[::step]]
    return [
        attended
        for part in passes
        for attended in attend_many(
            focus.heads[part],
            focus.blocks(rows, part),
            focus.mechanism,
            keep,
            allowed=focus.allowed,
            shift=focus.shift[part],
        )
    ]


def _scanned(focus: Focus, rows: Int64 | None, attend: int, queries: slice = ALL) -> list[Attended]:
    """The best documents of a scan over all, with weights among themselves only."""
    found = _scan(focus, rows, attend, queries)
    if focus.overlaps is None:
        logits = [Logits(each.documents, each.logits) for each in found]
        return [attend_logits(each, focus.mechanism) for each in logits]
    places = range(len(focus.heads))[queries]
    # A scan has the precision of the keys, while candidates are scored in float64: whichever
    # way a search with words goes, its weights are the same.
    return [
        _weighed(focus, at, each.documents, attend) for at, each in zip(places, found, strict=True)
    ]


def _proposed(
    focus: Focus,
    rows: Int64 | None,
    attend: int,
    wanted: int | None = None,
    recall: float | None = None,
) -> Attention:
    """The best of what the index proposes, and of what shares most words.

    Args:
        wanted: documents that each head proposes; by the scorer if None.
        recall: the share of the nearest that the index is to find.
    """
    if wanted is None:
        wanted = attend if focus.native else attend * OVERSAMPLED
    with timed("search"):
        candidates, least = focus.view.keys.search(focus.index_queries(), rows, wanted, recall)
    if focus.overlaps is not None:
        candidates = [
            np.union1d(near, overlap.among(rows).best(wanted).rows)
            for near, overlap in zip(candidates, focus.overlaps, strict=True)
        ]
    attended = [
        attend_logits(_with_words(focus, at, each), focus.mechanism, attend)
        for at, each in enumerate(_scored(focus, candidates))
    ]
    if not focus.native:
        return Attention(attended, False, focus)
    return _found(attended, focus, least)


def _found(attended: list[Attended], focus: Focus, recall: float) -> Attention:
    """Of an index that finds such a share."""
    exact = recall >= 1
    return Attention(attended, exact, focus, None if exact else recall)


def _proven(
    focus: Focus,
    rows: Int64 | None,
    attend: int,
    overlaps: Sequence[Overlap],
    recall: float | None,
) -> Attention:
    """The attended sets by keys and words together, each proved to miss no document.

    Where keys are quantised, none but what the index itself misses.
    """
    passing = [overlap.among(rows) for overlap in overlaps]
    documents = focus.view.keys.documents if rows is None else len(rows)
    settled: dict[int, Attended] = {}
    pending = list(range(len(passing)))
    queries, wanted, least = focus.index_queries(), attend * WIDER, 1.0
    while pending and wanted * SCAN_SHARE <= documents:
        with timed("search"):
            candidates, found_share = focus.view.keys.search(queries[pending], rows, wanted, recall)
        least = min(least, found_share)
        for at, near in zip(pending, candidates, strict=True):
            found = _settled(focus, at, near, passing[at].best(wanted), wanted, attend)
            settled |= {} if found is None else {at: found}
        pending, wanted = [at for at in pending if at not in settled], wanted * WIDER
    for at in pending:
        settled[at] = _scanned(focus, rows, attend, slice(at, at + 1))[0]
    return _found([settled[at] for at in range(len(passing))], focus, least)


def _settled(
    focus: Focus, at: int, near: Int64, worded: Best, wanted: int, attend: int
) -> Attended | None:
    """The attended set among candidates, if no other document can belong to it.

    `near` holds the `wanted` best by keys, `worded` as many by words. What is in neither has a
    logit of at most the sum of what comes last in each (the threshold algorithm: Fagin, Lotem
    and Naor 2003).
    """
    by_keys = _logits(focus, at, near)
    others = _logits(focus, at, np.setdiff1d(worded.rows, near))
    dense = Logits(*(np.concatenate(pair, axis=-1) for pair in zip(by_keys, others, strict=True)))
    attended = attend_logits(_with_words(focus, at, dense), focus.mechanism, attend)
    if len(near) < wanted:
        return attended  # these are all there are
    last = np.partition(by_keys.z[0], -wanted)[-wanted]
    bound = last + focus.mechanism.scale[0] * worded.beyond
    return attended if attended.logits[0, attend - 1] >= bound else None


def _weighed(focus: Focus, at: int, documents: Int64, attend: int) -> Attended:
    logits = _with_words(focus, at, _logits(focus, at, documents))
    return attend_logits(logits, focus.mechanism, attend)


def _scored(focus: Focus, candidates: Sequence[Int64]) -> Iterator[Logits]:
    """Each query's logits of its own candidates by keys alone.

    The keys of several queries are looked up together where they are few. Scored is each query by
    itself: a product of all would round a query otherwise in other company, and change the order
    of equals between two of its pages.
    """
    keys = focus.view.keys
    most = max(map(len, candidates)) * keys.most_keys
    step = LOOKED_UP // max(most, 1)
    if len(candidates) == 1 or step < 2:
        yield from (_logits(focus, at, found) for at, found in enumerate(candidates))
        return
    for start in range(0, len(candidates), step):
        part = candidates[start : start + step]
        every = keys.lookup(np.unique(np.concatenate(part)))
        for at, found in enumerate(divided(every, part), start):
            yield _block_logits(focus, at, found)


def _logits(focus: Focus, at: int, documents: Int64) -> Logits:
    """One query's logits by keys alone, in float64: there are few, and they decide.

    In blocks: a document may have any number of keys.
    """
    none = Logits(np.empty(0, dtype=np.int64), np.empty((focus.mechanism.heads, 0)))
    found = [_block_logits(focus, at, block) for block in focus.view.keys.blocks(documents)]
    rows, z = zip(none, *found, strict=True)
    return Logits(np.concatenate(rows), np.concatenate(z, axis=1))


def _block_logits(focus: Focus, at: int, found: Candidates) -> Logits:
    query, shift = focus.heads[at : at + 1].astype(np.float64), focus.shift[at : at + 1]
    z = block_logits(query, focus.block(found), focus.mechanism, shift=shift)[0]
    return Logits(found.documents, z)


def _with_words(focus: Focus, at: int, by_keys: Logits) -> Logits:
    bias = focus.bias(by_keys.documents, slice(at, at + 1))
    return by_keys if bias is None else Logits(by_keys.documents, by_keys.z + bias[0])
