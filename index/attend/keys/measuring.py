"""Search parameters of quantised keys, by measuring what they find of the true nearest."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from attend.arrays import unit
from attend.keys.quantised import Point, QuantisedVectors
from attend.types import Float32, Int64, OnStage

NEAREST = 10
"""The nearest keys of which a share is promised."""

FETCHED = 23
"""Keys fetched to find them: what a search that attends to ten documents fetches, and scores
again by the keys themselves."""

QUERIES = 256
"""Held-out queries."""

FACTORS = (2, 4, 8, 16, 32, 64, 128, 256)
"""Candidates by their codes for each key fetched. Of a million keys, 64 times as many found 0.942
of the nearest to queries made of the keys, 128 times as many 0.965 in half as long again."""

SHARE = 8
"""More candidates than one key in so many cost what an exact search does."""

ENOUGH = 0.995
"""Beyond this share no further parameters are measured, unless more was asked for."""


def tuned(
    index: QuantisedVectors, recall: float, questions: Float32 | None, on_stage: OnStage
) -> list[Point]:
    """The parameters worth having, the fastest first, each with the recall to be relied on.

    Args:
        recall: the share that is asked for; beyond it, and beyond `ENOUGH`, nothing is measured.
        questions: queries (q, d) to measure with; None for some made of the keys.
    """
    on_stage("measuring", 0.0)
    queries = held_out(index.all(), questions)
    truth = index.exact.search(queries, NEAREST, None).positions
    points: list[Point] = []
    last: dict[int, Point] = {}
    worth = _doubling(index.lists.nlist)
    factors = [factor for factor in FACTORS if factor * FETCHED * SHARE <= index.lists.ntotal]
    for number, factor in enumerate(factors or FACTORS[:1], 1):
        for probes in list(worth):
            points.append(_measured(index, probes, factor, queries, truth))
            # More candidates find nothing more where the lists are what loses it,
            if probes in last and _levelled(last[probes], points[-1]):
                worth.remove(probes)
            last[probes] = points[-1]
            # and more lists find nothing more where the codes are.
            if len(points) > 1 and points[-2].factor == factor and _levelled(*points[-2:]):
                break
        on_stage("measuring", number / max(len(factors), 1))
        if points[-1].recall >= max(ENOUGH, recall):
            break
    return _worth_having(points)


def held_out(vectors: Float32, questions: Float32 | None) -> Float32:
    """Queries (q, d) that the parameters are measured with.

    Of keys (n, d) they are made so that they are harder than questions: amid several keys, where
    many lists are equally near, and with noise, which asks much of the codes. Keys moved a little
    would promise what no question gets.
    """
    rng = np.random.default_rng(len(vectors))
    if questions is not None:
        places = rng.permutation(len(questions))[:QUERIES]
        return np.ascontiguousarray(questions[places], dtype=np.float32)
    sample = vectors[np.sort(rng.integers(len(vectors), size=AMID * QUERIES))]
    amid = sample[rng.permutation(len(sample))].reshape(AMID, QUERIES, -1).mean(axis=0)
    noise = rng.standard_normal(amid.shape, dtype=np.float32)
    lengths = np.linalg.norm(amid, axis=1)[:, None]
    moved: Float32 = amid + NOISE * lengths * unit(noise)
    return moved


AMID = 8
"""Keys that a query lies amid. With noise of half its length, questions of SciFact, CoNaLa,
banking77 and goodbooks were found as well as they to a hundredth, wherever they were found well
enough; amid fewer keys, or without noise, not always."""

NOISE = 0.5


def share_found(results: Int64, truth: Int64) -> Float32:
    """(q,) the share of each query's true nearest among what was found (q, k)."""
    shares = [np.isin(true, row).mean() for true, row in zip(truth, results, strict=True)]
    return np.array(shares, dtype=np.float32)


def _measured(
    index: QuantisedVectors, probes: int, factor: int, queries: Float32, truth: Int64
) -> Point:
    started = time.thread_time()
    results = index.search_at(Point(probes, factor, 0.0, 0.0), queries, FETCHED)
    seconds = (time.thread_time() - started) / len(queries)
    shares = share_found(results.positions, truth)
    # One standard error less: what is promised is to be found.
    relied = float(shares.mean() - shares.std() / np.sqrt(len(shares)))
    return Point(probes, factor, round(relied, 4), round(seconds, 7))


def _doubling(lists: int) -> list[int]:
    return [2**power for power in range(2, lists.bit_length()) if 2**power <= lists]


def _levelled(before: Point, after: Point) -> bool:
    return after.recall - before.recall < LEVEL


LEVEL = 0.002
"""Twice the lists, or the candidates, for less than so much more is not worth going on."""


def _worth_having(points: Sequence[Point]) -> list[Point]:
    """Those that nothing faster equals."""
    frontier: list[Point] = []
    for point in sorted(points, key=lambda point: (point.seconds, -point.recall)):
        if not frontier or point.recall > frontier[-1].recall:
            frontier.append(point)
    return frontier
