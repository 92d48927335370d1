"""Mixtures over quantised keys: what the parts propose, and an estimate of all the rest.

Each part proposes the documents nearest to it, and what any of them proposes is scored for all. A
part's weights are shares of its sum over all documents, though: over the proposed alone, parts that
are near to everything would count too much. What the rest adds to that sum is estimated from
documents drawn at random (Rastogi and Van Durme 2015, "Sublinear partition estimation").
"""

from __future__ import annotations

import numpy as np

from index.attention import Attended, Partition, attend_many, join, partition
from index.keys import Drawn
from index.keys.snapshot import DRAWN
from index.search.focus import Focus
from index.timings import timed
from index.types import Int64

PROPOSED = 256
"""Documents that a part proposes at least. What is first for the mixture may be far down for each
part, and what is scored is not estimated. (50 parts, 1,000,000 grown keys: of the exact ten 0.96
are found with 256, 0.84 to 0.93 with 128.)"""


FOUND = 0.65
"""Of its nearest, what a part is to find: what it misses others propose, or the draw stands for.
(50 parts, 200,000 and 1,000,000 keys: the same recall of the list as with 0.95 and more.)"""

BLOCK = 2048
"""Documents drawn that meet the parts at once: their scores stay in the cache."""

SHARED = 4
"""What the parts propose together is so many times what is kept: some propose the same."""

WIDER = 4
"""Where too few are left without those that are masked, so many times more are proposed."""

SCAN_SHARE = 4
"""Candidates that are more than one in so many documents are not worth finding."""


def worth_estimating(focus: Focus, rows: Int64 | None, keep: int, recall: float | None) -> bool:
    """Whether a mixture is one of which the index knows the parts, over keys that it quantised."""
    keys = focus.view.keys
    if focus.parts is None or not focus.indexed or keys.promises(recall or FOUND) >= 1:
        return False
    if focus.overlaps is not None and any(len(each.rows) for each in focus.overlaps):
        return False
    documents = keys.documents if rows is None else len(rows)
    candidates = len(focus.heads[0]) * _wanted(focus, keep) + DRAWN
    return candidates * SCAN_SHARE < documents


def estimated(focus: Focus, rows: Int64 | None, keep: int, recall: float | None) -> Attended:
    """The `keep` best documents of a mixture; weights are shares of estimated sums over all."""
    keys = focus.view.keys
    masked = np.empty(0, np.int64) if focus.masked is None else keys.living(focus.masked)
    with timed("search"):
        proposed = _proposed(focus, rows, masked, keep, recall or FOUND)
    drawn = keys.drawn if rows is None else keys.drawn_of(rows)
    documents = drawn.of - len(masked)
    [found] = attend_many(
        focus.heads,
        focus.blocks(proposed),
        focus.mechanism,
        keep,
        shift=focus.shift,
        beyond=_beyond(focus, drawn, np.union1d(proposed, masked)),
    )
    return found._replace(total_documents=documents)


def _proposed(focus: Focus, rows: Int64 | None, masked: Int64, keep: int, recall: float) -> Int64:
    """At least `keep` documents that are not masked, some of them near to each part; ascending."""
    keys, queries = focus.view.keys, focus.index_queries()
    by_part = queries.reshape(-1, 1, queries.shape[-1])
    wanted = _wanted(focus, keep)
    while True:
        found = keys.search(by_part, rows, wanted, recall).rows
        every = np.concatenate(found)
        lost = np.isin(every, masked)
        starts = np.cumsum([0, *map(len, found[:-1])])
        near = np.unique(every[~lost])
        # Counted is what is lost: what is left may be all of another segment, however far off.
        enough = np.add.reduceat(lost, starts, dtype=np.int64).max() * 2 <= wanted
        if (enough and len(near) >= keep) or wanted >= keys.documents:
            return near
        wanted *= WIDER


def _wanted(focus: Focus, keep: int) -> int:
    """Documents that each part, or each head of one, is to propose."""
    shared = -(-keep * SHARED // len(focus.heads[0]))
    return max(PROPOSED, min(keep, shared))


def _beyond(focus: Focus, drawn: Drawn, known: Int64) -> Partition:
    """(1, H) what documents add to each head's sum that are not `known`: those drawn, for all.

    In single precision: what a draw errs by is a thousand times what rounding does.
    """
    mechanism, outside = focus.mechanism, np.isin(drawn.some.documents, known, invert=True)
    each = (drawn.of - len(known)) / max(1, int(np.count_nonzero(outside)))
    factor = mechanism.scale / mechanism.temperature
    queries = (focus.heads[0] * factor[:, None]).astype(np.float32)  # (H, d)
    ends = np.append(drawn.some.starts[1:], len(drawn.some.keys))
    whole = Partition(np.full(len(queries), -np.inf), np.zeros(len(queries)))
    for at in range(0, len(outside), BLOCK):
        first, last = drawn.some.starts[at], ends[min(at + BLOCK, len(ends)) - 1]
        z = queries @ drawn.some.keys[first:last].T  # (H, d) @ (d, m) -> (H, m)
        if last - first > len(outside[at : at + BLOCK]):
            z = np.maximum.reduceat(z, drawn.some.starts[at : at + BLOCK] - first, axis=1)
        z[:, ~outside[at : at + BLOCK]] = -np.inf
        whole = join(whole, partition(z))
    shifted = whole.maximum + focus.shift[0] / mechanism.temperature
    return Partition(shifted[None], whole.total[None] * each)
