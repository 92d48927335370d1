"""Mixtures over quantised keys: what the parts propose, and an estimate of all the rest.

Each part proposes the documents nearest to it, and the best that any of them proposes are scored
for all. A part's weights are shares of its sum over all documents, though: over the scored alone,
parts that are near to everything would count too much, and of fifty parts whose best documents
weigh about the same, an error of a tenth in their sums changes half of the list. So what a part
proposed beyond those that are scored counts by the bytes that the index keeps of it, and what it
did not propose by documents drawn at random (Rastogi and Van Durme 2015, "Sublinear partition
estimation").
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from attend.attention import Attended, Logits, Partition, join, log_mix, partition, weighed
from attend.keys import NONE, Candidates, Drawn, Near, at_places
from attend.keys.snapshot import DRAWN
from attend.search.focus import Focus
from attend.timings import timed
from attend.types import Bool, Float32, Float64, Int64

PROPOSED = 320
"""Keys near a part by which it is known what it proposes. (50 parts, 1,000,000 grown keys: its sum
is known to 0.015 of its log with 32,768 drawn, to 0.023 with half of them, and 0.99 and 0.94 of
the exact ten are found.)"""

SCORED = 64
"""Documents of each part that are scored for all. (With sums as they truly are, 0.94 of the exact
ten are found with 32, all with 64.)"""

FOUND = 0.65
"""Of its nearest, what each of many parts is to find: what it misses others propose, or the draw
stands for."""

MANY = 16
"""Fewer parts find what the index was built to find."""

BLOCK = 2048
"""Documents drawn that meet the parts at once: their scores stay in the cache."""

KEPT = 100_000
"""Parts of which it is kept what they give those drawn: some 20 MB. A history is asked for again,
and what many met is in many."""

SHARED = 4
"""What the parts have scored together is so many times what is kept: some propose the same."""

WIDER = 4
"""Where too few are left without those that are masked, so many times more are proposed."""

SCAN_SHARE = 4
"""Candidates that are more than one in so many documents are not worth finding."""

TOLD_APART = 1e-30
"""Weights below have lost digits in single precision: there only their logs have an order."""


def worth_estimating(focus: Focus, rows: Int64 | None, keep: int, recall: float | None) -> bool:
    """Whether a mixture is one of which the index knows the parts, over keys that it quantised."""
    keys = focus.view.keys
    if focus.parts is None or not focus.indexed or keys.promises(recall or FOUND) >= 1:
        return False
    if focus.overlaps is not None and any(len(each.rows) for each in focus.overlaps):
        return False
    documents = keys.documents if rows is None else len(rows)
    candidates = len(focus.heads[0]) * max(PROPOSED, _scored(focus, keep)) + DRAWN
    return candidates * SCAN_SHARE < documents


class _Parts(NamedTuple):
    """Parts as they meet keys: logits over the temperature are queries · keys + shift.

    In single precision: what a draw errs by is a thousand times what rounding does.
    """

    queries: Float32  # (H, d)
    factor: Float32  # (H,) by which `queries` are longer than the index is asked with
    shift: Float32  # (H,)

    @classmethod
    def of(cls, focus: Focus) -> _Parts:
        mechanism = focus.mechanism
        factor = mechanism.scale / mechanism.temperature
        queries = (focus.heads[0] * factor[:, None]).astype(np.float32)
        shift = focus.shift[0] / mechanism.temperature
        return cls(queries, factor.astype(np.float32), shift.astype(np.float32))

    def some(self, at: Int64) -> _Parts:
        return _Parts(self.queries[at], self.factor[at], self.shift[at])

    def logits(self, keys: Float32, starts: Int64) -> Float32:
        """Of documents with all of their keys: (H, n)."""
        z: Float32 = self.queries @ keys.T  # (H, d) @ (d, m) -> (H, m)
        if len(starts) < len(keys):
            z = np.maximum.reduceat(z, starts, axis=1)
        z += self.shift[:, None]
        return z


def estimated(focus: Focus, rows: Int64 | None, keep: int, recall: float | None) -> Attended:
    """The `keep` best documents of a mixture; weights are shares of estimated sums over all."""
    keys, parts = focus.view.keys, _Parts.of(focus)
    masked = np.empty(0, np.int64) if focus.masked is None else np.sort(keys.living(focus.masked))
    count = _scored(focus, keep)
    with timed("search"):
        near = _proposed(focus, rows, masked, keep, recall)
        scored = keys.lookup(_known(near.rows[:, :count]))
    z = parts.logits(scored.keys, scored.starts)  # (H, n)
    drawn = keys.drawn if rows is None else keys.drawn_of(rows)
    whole = join(_partition(z), _beyond(parts, near, drawn, np.sort(scored.documents), masked))
    best = _best(z, whole, focus.mechanism.gates, keep)
    logits = Logits(scored.documents[best], z[:, best] * np.float64(focus.mechanism.temperature))
    return weighed(logits, whole, focus.mechanism, drawn.of - len(masked))


def _proposed(
    focus: Focus, rows: Int64 | None, masked: Int64, keep: int, recall: float | None
) -> Near:
    """Documents near each part that are not masked, `keep` different ones at least in all."""
    keys, queries = focus.view.keys, focus.index_queries()
    asked = queries.reshape(-1, queries.shape[-1])
    wanted, some = max(PROPOSED, _scored(focus, keep)), rows
    found = FOUND if recall is None and len(asked) >= MANY else recall
    while True:
        near = keys.near(asked, some, wanted, found, roughly=found == FOUND)
        lost = _found_in(masked, near.rows).there
        if some is rows and lost.sum(axis=1).max(initial=0) * 2 > wanted:
            # The index looks elsewhere for what is rare nearby only if it knows what is masked.
            some = np.setdiff1d(keys.rows if rows is None else rows, masked)
            continue
        left = _without(near, lost)
        if len(_known(left.rows[:, : _scored(focus, keep)])) >= keep or wanted >= keys.keys:
            return left
        wanted *= WIDER


def _without(near: Near, lost: Bool) -> Near:
    """What is left, still best first, and then nothing."""
    order = np.argsort(lost | (near.rows == NONE), axis=1, kind="stable")
    rows, scores = np.where(lost, NONE, near.rows), np.where(lost, -np.inf, near.scores)
    scores = scores.astype(np.float32, copy=False)
    return Near(*(np.take_along_axis(each, order, axis=1) for each in (rows, scores)))


def _known(rows: Int64) -> Int64:
    """The documents among some rows, ascending."""
    found = np.unique(rows)
    return found[np.searchsorted(found, NONE, side="right") :]


def _scored(focus: Focus, keep: int) -> int:
    """Documents of each part, or each head of one, that are scored for all."""
    shared = -(-keep * SHARED // len(focus.heads[0]))
    return max(SCORED, min(keep, shared))


def _beyond(parts: _Parts, near: Near, drawn: Drawn, scored: Int64, masked: Int64) -> Partition:
    """(H,) what documents add to each part's sum that are not among the `scored` (n,), ascending.

    What the part proposed counts by the index's own scores, the rest by those drawn.
    """
    proposed = (near.rows != NONE) & ~_found_in(scored, near.rows).there
    scores = np.where(proposed, near.scores, np.float32(-np.inf))
    z: Float32 = parts.factor[:, None] * scores + parts.shift[:, None]
    known = len(scored) + len(masked) + np.count_nonzero(proposed, axis=1)  # (H,)
    rows = np.where(proposed, near.rows, NONE)
    return join(_partition(z), _drawn(parts, drawn, rows, np.union1d(scored, masked), known))


def _drawn(parts: _Parts, drawn: Drawn, rows: Int64, others: Int64, known: Int64) -> Partition:
    """(H,) the sums over all documents but those known, by those drawn that are not.

    Args:
        rows: (H, k) what is known to one part, `others` to all; `known` (H,) how many that is.
    """
    whole, some = _sums(parts, drawn), drawn.some
    at, met = _found_in(some.documents, rows)
    place = np.union1d(at[met], np.flatnonzero(_found_in(others, some.documents).there))
    found = at_places(some, place)
    within = np.zeros((len(rows), len(place)), dtype=bool)
    within[:, _found_in(others, found.documents).there] = True
    within[np.nonzero(met)[0], np.searchsorted(place, at[met])] = True
    z = parts.logits(found.keys, found.starts)  # (H, c)
    taken = np.where(within, np.exp(z - whole.maximum[:, None]), 0).sum(axis=1)
    # What is known outweighs by far what rounding leaves of the rest, if that is little.
    rest = np.maximum(whole.total - taken, 0)
    left = len(some.documents) - np.count_nonzero(within, axis=1)
    return Partition(whole.maximum, rest * np.maximum(drawn.of - known, 0) / np.maximum(left, 1))


class _Found(NamedTuple):
    """Where each of some documents stands among others, and whether it does."""

    at: Int64
    there: Bool


def _found_in(ascending: Int64, documents: Int64) -> _Found:
    """A search for each: where all are sorted already, twice as fast as NumPy's `isin`."""
    if not len(ascending):
        return _Found(np.zeros(documents.shape, np.int64), np.zeros(documents.shape, dtype=bool))
    at = np.minimum(np.searchsorted(ascending, documents), len(ascending) - 1)
    return _Found(at, ascending[at] == documents)


def _sums(parts: _Parts, drawn: Drawn) -> Partition:
    """(H,) the sums over all that are drawn; of parts that came before, as kept."""
    names = [
        blake2b(query.tobytes() + shift.tobytes(), digest_size=16).digest()
        for query, shift in zip(parts.queries, parts.shift, strict=True)
    ]
    new = np.array([at for at, name in enumerate(names) if name not in drawn.kept], dtype=np.int64)
    if len(drawn.kept) + len(new) > KEPT:
        drawn.kept.clear()
        new = np.arange(len(names))
    found = _summed(parts.some(new), drawn.some)
    told = zip(new.tolist(), found.maximum.tolist(), found.total.tolist(), strict=True)
    fresh = {names[at]: (maximum, total) for at, maximum, total in told}
    drawn.kept.update(fresh)
    # Others may have cleared them meanwhile.
    pairs = [fresh.get(name) or drawn.kept.get(name) for name in names]
    if None in pairs:
        return _summed(parts, drawn.some)
    maximum, total = np.array(pairs).T
    return Partition(maximum, total)


def _summed(parts: _Parts, some: Candidates) -> Partition:
    """(H,) in blocks."""
    whole = Partition(np.full(len(parts.queries), -np.inf), np.zeros(len(parts.queries)))
    ends = np.append(some.starts[1:], len(some.keys))
    for at in range(0, len(some.documents) if len(parts.queries) else 0, BLOCK):
        starts = some.starts[at : at + BLOCK]
        keys = some.keys[starts[0] : ends[at + len(starts) - 1]]
        whole = join(whole, _partition(parts.logits(keys, starts - starts[0])))
    return whole


def _partition(z: Float32) -> Partition:
    """Of logits (H, n), summed in their own precision."""
    found = partition(z)
    return Partition(*(np.asarray(each, dtype=np.float64) for each in found))


def _best(z: Float32, whole: Partition, gates: Float64, keep: int) -> Int64:
    """Places of the `keep` largest weights, of equals the first."""
    shares = np.exp(z - whole.maximum.astype(np.float32)[:, None])
    weights = (gates / whole.total).astype(np.float32) @ shares  # (H,) @ (H, n) -> (n,)
    order = np.argsort(-weights, kind="stable")[:keep]
    if weights[order[-1]] > TOLD_APART:
        return order
    return np.argsort(-log_mix(z - whole.log[:, None], gates), kind="stable")[:keep]
