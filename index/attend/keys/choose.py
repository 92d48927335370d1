"""The kind of index that a collection gets, and its parameters, by measuring its own keys.

Exact search answers as long as it is fast enough on this machine. Beyond that keys are
quantised, and the parameters are those that find the required share of the ten nearest,
measured against exact search with held-out queries: questions of the examples, or else keys
moved away from where they lie.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attend.core.arrays import unit
from attend.core.types import Float32, Int64, Json, OnStage
from attend.keys import quantised
from attend.keys.quantised import CODES, LISTS, Point, QuantisedVectors
from attend.keys.vectors import FlatVectors

log = logging.getLogger("attend")

FEW_KEYS = 20_000
"""Below this number of keys nothing is measured: exact search takes a millisecond or two."""

LEAST_KEYS = 1000
"""Fewer keys train no index, whatever the target says."""

EXACT_SECONDS = 0.010
"""The most seconds that one exact search may take."""

NEAREST = 10
"""The nearest keys of which a share is promised."""

FETCHED = 23
"""Keys fetched to find them: the number that a search that attends to ten documents fetches, and
scores again by the keys themselves."""

QUERIES = 256
"""Held-out queries."""

FACTORS = (2, 4, 8, 16, 32, 64, 128, 256)
"""Candidates by their codes for each key fetched. Of a million keys, 64 times as many found 0.942
of the nearest to queries made of the keys, 128 times as many 0.965 in half as long again."""

SHARE = 8
"""Candidates that are more than one key in eight cost the same as an exact search."""

ENOUGH = 0.995
"""Beyond this share no further parameters are measured, unless the target is higher."""

LEVEL = 0.002
"""A gain below this is not worth twice the lists, or twice the candidates."""

AMID = 8
"""Keys that a query lies amid. With noise of half its length, questions of SciFact, CoNaLa,
banking77 and goodbooks were found as well as they to a hundredth, wherever they were found well
enough; amid fewer keys, or without noise, not always."""

NOISE = 0.5


@dataclass(frozen=True)
class IndexTarget:
    """The requirements on an index.

    Attributes:
        recall: share of the ten nearest keys that a search finds at least; 1 for exact search.
        exact_below: fewer keys than this are searched exactly; None for the number that this
            machine searches in `EXACT_SECONDS`.
        questions: queries (q, d) in the space of the keys, to measure with; None for some that
            are made of the keys.
    """

    recall: float = 0.95
    exact_below: int | None = None
    questions: Float32 | None = None


class IndexChoice(NamedTuple):
    """The kind of an index as its manifest describes it, and its files."""

    description: dict[str, Json]
    files: tuple[str, ...] = ()


FLAT: dict[str, Json] = {"type": "flat", "recall": 1.0}


def choose(folder: Path, vectors: Float32, target: IndexTarget, on_stage: OnStage) -> IndexChoice:
    """Choose the index of keys (n, d), and write its files, if it has any, into the folder."""
    exact, why = _exact_suffices(vectors, target)
    if exact:
        return _flat(vectors, why)
    started = time.perf_counter()
    index = _quantise(folder, vectors, on_stage)
    points = tune(index, target.recall, target.questions, on_stage)
    files = LISTS, CODES
    fit = next((point for point in points if point.recall >= target.recall), None)
    if fit is None:
        for file in files:
            (folder / file).unlink()
        best = max(point.recall for point in points)
        reason = f"quantised, at most {best:.3f} of the nearest are found, and not {target.recall}"
        return _flat(vectors, reason)
    size = sum((folder / file).stat().st_size for file in files)
    description: dict[str, Json] = {
        "type": f"IVF{index.lists.nlist},PQ{index.lists.pq.M}x4fs,Refine(SQ8)",
        "why": why,
        "recall": fit.recall,
        "target": target.recall,
        "measured_on": "keys" if target.questions is None else "questions",
        "bytes_per_key": round(size / len(vectors), 1),
        "seconds": round(time.perf_counter() - started, 1),
        "points": [list(point) for point in points],
    }
    return IndexChoice(description, files)


def _flat(vectors: Float32, why: str) -> IndexChoice:
    return IndexChoice({**FLAT, "why": why, "bytes_per_key": 4 * vectors.shape[1]})


def open_index(folder: Path, vectors: Float32, description: Mapping[str, Any]) -> FlatVectors:
    """Open the index that was chosen for keys (n, d).

    Raises:
        Damaged: its files are not what was written.
    """
    if description["type"] == FLAT["type"]:
        return FlatVectors(vectors)
    points = [Point(*numbers) for numbers in description["points"]]
    return quantised.read(folder, vectors, points, float(description["target"]))


def _exact_suffices(vectors: Float32, target: IndexTarget) -> tuple[bool, str]:
    """Return whether the keys are searched exactly, and why."""
    keys, least = len(vectors), target.exact_below
    if target.recall >= 1:
        return True, "all of the nearest are to be found"
    few = FEW_KEYS if least is None else max(least, LEAST_KEYS)
    if keys < few:
        return True, f"fewer than {few} keys"
    if least is not None:
        return False, f"not fewer than {least} keys"
    seconds = exact_seconds(vectors)
    return seconds <= EXACT_SECONDS, f"an exact search takes {seconds * 1000:.1f} ms"


def exact_seconds(vectors: Float32) -> float:
    """Return the processor time of one exact search among keys (n, d), the best of three."""
    flat, seconds = FlatVectors(vectors), []
    for _ in range(3):
        started = time.thread_time()
        flat.search(vectors[:1], NEAREST)
        seconds.append(time.thread_time() - started)
    return min(seconds)


def _quantise(folder: Path, vectors: Float32, on_stage: OnStage) -> QuantisedVectors:
    keys = len(vectors)
    log.info("quantising %d keys", keys)
    on_stage("training lists", 0.0)
    for done in quantised.write(folder, quantised.train(vectors), vectors):
        on_stage("quantising", done / keys)
    return quantised.read(folder, vectors)


def tune(
    index: QuantisedVectors, recall: float, questions: Float32 | None, on_stage: OnStage
) -> list[Point]:
    """Measure search parameters, and return the useful ones, the fastest first.

    The recall of each is one to rely on.

    Args:
        recall: the target; beyond it, and beyond `ENOUGH`, nothing is measured.
        questions: queries (q, d) to measure with; None for some made of the keys.
    """
    on_stage("measuring", 0.0)
    queries = held_out(index.vectors, questions)
    truth = FlatVectors(index.vectors).search(queries, NEAREST).positions
    points: list[Point] = []
    last: dict[int, Point] = {}
    lists = int(index.lists.nlist)
    worth = [2**power for power in range(2, lists.bit_length()) if 2**power <= lists]
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
    useful: list[Point] = []
    for point in sorted(points, key=lambda point: (point.seconds, -point.recall)):
        if not useful or point.recall > useful[-1].recall:
            useful.append(point)
    return useful


def held_out(vectors: Float32, questions: Float32 | None) -> Float32:
    """Return queries (q, d) to measure parameters with.

    Those made of keys (n, d) are harder than questions: they lie amid several keys, where many
    lists are equally near, and have noise, which asks much of the codes. Keys moved a little
    would promise a recall that no question gets.
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


def share_found(results: Int64, truth: Int64) -> Float32:
    """(q,) the share of each query's true nearest in its results (q, k)."""
    shares = [np.isin(true, row).mean() for true, row in zip(truth, results, strict=True)]
    return np.array(shares, dtype=np.float32)


def _measured(
    index: QuantisedVectors, probes: int, factor: int, queries: Float32, truth: Int64
) -> Point:
    started = time.thread_time()
    results = index.search_at(Point(probes, factor, 0.0, 0.0), queries, FETCHED)
    seconds = (time.thread_time() - started) / len(queries)
    shares = share_found(results.positions, truth)
    # One standard error less: a promise must hold.
    relied = float(shares.mean() - shares.std() / np.sqrt(len(shares)))
    return Point(probes, factor, round(relied, 4), round(seconds, 7))


def _levelled(before: Point, after: Point) -> bool:
    return after.recall - before.recall < LEVEL
