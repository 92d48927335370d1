"""From query embeddings to attended documents: projection, candidates, exact weights.

Three ways lead to the same numbers. FAISS proposes candidates where its inner product
orders keys as the scorer does, and they are scored again exactly. Where shared words count
too, the best by words join them, until no document outside of both can belong to the attended
set. Or every key is scored, in blocks, where the caller asks for all, where that is cheap, or
where the scorer is one that an index of inner products does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from index.attention import (
    Attended,
    Logits,
    Weights,
    attend_logits,
    attend_many,
    block_logits,
    weights_by_block,
)
from index.focus import ALL, Focus, focus_on
from index.keys import Candidates, joined
from index.lexicon import Best, Overlap
from index.requests import SearchOptions
from index.settings import Settings
from index.types import Float32, Int64
from index.views import View

SCAN_FLOATS = 64_000_000
"""Up to this many floats, scoring all keys takes tens of milliseconds: exact is cheap."""

OVERSAMPLED = 4
"""Beyond that, a scorer that the index does not know re-scores this many times `attend`."""

WIDER = 2
"""With words, this many times `attend` by keys and as many by words are looked at first; where
that proves too few, as many times more."""

SCAN_SHARE = 8
"""Candidates that are more than one in so many documents cost as much as all of them."""


@dataclass(frozen=True)
class Attention:
    """What a batch of queries attends to.

    Attributes:
        attended: for each query, its documents, best first (with `attend: "all"`, those
            that may be listed).
        exact: whether no better document can have been missed.
        all_weights: a reading of every document's weights, where all are attended to.
        focus: how queries meet keys, to explain single documents.
    """

    attended: list[Attended]
    exact: bool
    focus: Focus
    all_weights: Callable[[], Iterator[Weights]] | None = None


def attend(
    view: View,
    settings: Settings,
    embeddings: Float32,
    rows: Int64 | None,
    options: SearchOptions,
    overlaps: Sequence[Overlap] | None = None,
) -> Attention:
    """Attention of queries (q, d) over the documents of a view.

    Args:
        rows: the documents that filter and mask let pass, ascending; None for all.
        overlaps: each query's lexical term over all documents; None where words do not count.
    """
    focus = focus_on(view, settings, embeddings, overlaps, options, options.attend)
    if options.attend == "all":
        return _over_all(focus, rows, options.k + options.offset)
    worded = overlaps is not None and any(len(overlap.rows) for overlap in overlaps)
    cheap = view.keys.keys * embeddings.shape[1] <= SCAN_FLOATS
    if cheap and (worded or not focus.native):
        return Attention(_scanned(focus, rows, options.attend), True, focus)
    if overlaps is not None and worded and focus.native:
        return Attention(_proven(focus, rows, options.attend, overlaps), True, focus)
    return _proposed(focus, rows, options.attend)


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


def _over_all(focus: Focus, rows: Int64 | None, keep: int) -> Attention:
    blocks = focus.blocks(rows)
    attended = attend_many(focus.heads, blocks, focus.mechanism, keep, shift=focus.shift)

    def all_weights() -> Iterator[Weights]:
        return weights_by_block(focus.heads, blocks, focus.mechanism, attended, shift=focus.shift)

    return Attention(attended, True, focus, all_weights)


def _scanned(focus: Focus, rows: Int64 | None, attend: int, queries: slice = ALL) -> list[Attended]:
    """The best documents of a scan over all, with weights among themselves only."""
    found = attend_many(
        focus.heads[queries],
        focus.blocks(rows, queries),
        focus.mechanism,
        attend,
        shift=focus.shift[queries],
    )
    if focus.overlaps is None:
        logits = [Logits(each.documents, each.logits) for each in found]
        return [attend_logits(each, focus.mechanism) for each in logits]
    places = range(len(focus.heads))[queries]
    # A scan has the precision of the keys, while candidates are scored in float64: whichever
    # way a search with words goes, its weights are the same.
    best = [focus.view.keys.lookup(each.documents) for each in found]
    return [_weighed(focus, *pair, attend) for pair in zip(places, best, strict=True)]


def _proposed(focus: Focus, rows: Int64 | None, attend: int) -> Attention:
    """The best of what the index proposes, and of what shares most words."""
    wanted = attend if focus.native else attend * OVERSAMPLED
    candidates = focus.view.keys.search(focus.index_queries(), rows, wanted)
    if focus.overlaps is not None:
        candidates = [
            joined([near, _others(focus, overlap.among(rows).best(wanted).rows, near)])
            for near, overlap in zip(candidates, focus.overlaps, strict=True)
        ]
    attended = [_weighed(focus, at, found, attend) for at, found in enumerate(candidates)]
    return Attention(attended, focus.native, focus)


def _proven(
    focus: Focus, rows: Int64 | None, attend: int, overlaps: Sequence[Overlap]
) -> list[Attended]:
    """The attended sets by keys and words together, each proved to miss no document."""
    passing = [overlap.among(rows) for overlap in overlaps]
    documents = focus.view.keys.documents if rows is None else len(rows)
    settled: dict[int, Attended] = {}
    pending = list(range(len(passing)))
    queries, wanted = focus.index_queries(), attend * WIDER
    while pending and wanted * SCAN_SHARE <= documents:
        candidates = focus.view.keys.search(queries[pending], rows, wanted)
        for at, near in zip(pending, candidates, strict=True):
            found = _settled(focus, at, near, passing[at].best(wanted), wanted, attend)
            settled |= {} if found is None else {at: found}
        pending, wanted = [at for at in pending if at not in settled], wanted * WIDER
    for at in pending:
        settled[at] = _scanned(focus, rows, attend, slice(at, at + 1))[0]
    return [settled[at] for at in range(len(passing))]


def _settled(
    focus: Focus, at: int, near: Candidates, worded: Best, wanted: int, attend: int
) -> Attended | None:
    """The attended set among candidates, if no other document can belong to it.

    `near` holds the `wanted` best by keys, `worded` as many by words. What is in neither has a
    logit of at most the sum of what comes last in each (the threshold algorithm: Fagin, Lotem
    and Naor 2003).
    """
    by_keys = _logits(focus, at, near)
    others = _logits(focus, at, _others(focus, worded.rows, near))
    dense = Logits(*(np.concatenate(pair, axis=-1) for pair in zip(by_keys, others, strict=True)))
    attended = attend_logits(_with_words(focus, at, dense), focus.mechanism, attend)
    if len(near.documents) < wanted:
        return attended  # these are all there are
    last = np.partition(by_keys.z[0], -wanted)[-wanted]
    bound = last + focus.mechanism.scale[0] * worded.beyond
    return attended if attended.logits[0, attend - 1] >= bound else None


def _others(focus: Focus, rows: Int64, near: Candidates) -> Candidates:
    """The documents of `rows` that are not among the candidates."""
    return focus.view.keys.lookup(np.setdiff1d(rows, near.documents))


def _weighed(focus: Focus, at: int, found: Candidates, attend: int) -> Attended:
    logits = _with_words(focus, at, _logits(focus, at, found))
    return attend_logits(logits, focus.mechanism, attend)


def _logits(focus: Focus, at: int, found: Candidates) -> Logits:
    """One query's logits by keys alone, in float64: there are few, and they decide."""
    query, shift = focus.heads[at : at + 1].astype(np.float64), focus.shift[at : at + 1]
    z = block_logits(query, focus.block(found), focus.mechanism, shift=shift)
    return Logits(found.documents, z[0])


def _with_words(focus: Focus, at: int, by_keys: Logits) -> Logits:
    bias = focus.bias(by_keys.documents, slice(at, at + 1))
    return by_keys if bias is None else Logits(by_keys.documents, by_keys.z + bias[0])
