"""Which kind of index a collection gets, and with what parameters: by measuring its own keys.

Exact search answers as long as it is fast enough on this machine. Beyond that keys are
quantised, and the parameters are those that find the share asked for of the ten nearest,
measured against exact search with queries held out: questions that were asked, or else keys
moved away from where they lie.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from index.keys import quantising
from index.keys.quantised import Point, QuantisedVectors
from index.keys.segment import FlatVectors, Vectors
from index.types import Float32, Int64, Json

log = logging.getLogger("attend")

FEW_KEYS = 20_000
"""Up to so many keys nothing is measured: exact search takes a millisecond or two."""

LEAST_KEYS = 1000
"""Fewer keys train no index, whatever is asked for."""

EXACT_SECONDS = 0.010
"""What one exact search may take at most."""

NEAREST = 10
"""The nearest keys of which a share is promised."""

FETCHED = 23
"""Keys fetched to find them: what a search that attends to ten documents fetches, and scores
again by the keys themselves."""

QUERIES = 256
"""Held-out queries."""

FACTORS = (2, 4, 8, 16, 32, 64)

ENOUGH = 0.995
"""Beyond this share no further parameters are measured, unless more was asked for."""


@dataclass(frozen=True)
class Wanted:
    """What an index is to be.

    Attributes:
        recall: share of the ten nearest keys that a search finds at least; 1 for exact search.
        exact_below: fewer keys than this are searched exactly; None for as many as this
            machine searches in `EXACT_SECONDS`.
        questions: queries (q, d) in the space of the keys, to measure with; None for some that
            are made of the keys.
    """

    recall: float = 0.95
    exact_below: int | None = None
    questions: Float32 | None = None


class Chosen(NamedTuple):
    """The kind of an index, as its manifest says it, and its files."""

    told: dict[str, Json]
    files: tuple[str, ...]


class Verdict(NamedTuple):
    """Whether keys are searched exactly, and why."""

    exact: bool
    why: str


FLAT: dict[str, Json] = {"type": "flat", "recall": 1.0}


def choose(folder: Path, vectors: Float32, wanted: Wanted) -> Chosen:
    """Decide for keys (n, d), and write what is to lie beside them into the folder."""
    verdict = _verdict(vectors, wanted)
    if verdict.exact:
        return _flat(vectors, verdict.why)
    started = time.perf_counter()
    made = _quantised(folder, vectors)
    points = tuned(made, wanted)
    fit = next((point for point in points if point.recall >= wanted.recall), None)
    files = (quantising.LISTS, quantising.CODES)
    if fit is None:
        for file in files:
            (folder / file).unlink()
        best = max(point.recall for point in points)
        reason = f"quantised, at most {best:.3f} of the nearest are found, and not {wanted.recall}"
        return _flat(vectors, reason)
    size = sum((folder / file).stat().st_size for file in files)
    told: dict[str, Json] = {
        "type": f"IVF{made.lists.nlist},PQ{made.lists.pq.M}x4fs,Refine(SQ8)",
        "why": verdict.why,
        "recall": fit.recall,
        "target": wanted.recall,
        "measured_on": "keys" if wanted.questions is None else "questions",
        "bytes_per_key": round(size / len(vectors), 1),
        "seconds": round(time.perf_counter() - started, 1),
        "points": [list(point) for point in points],
    }
    return Chosen(told, files)


def _flat(vectors: Float32, why: str) -> Chosen:
    return Chosen({**FLAT, "why": why, "bytes_per_key": 4 * vectors.shape[1]}, ())


def opened(folder: Path, vectors: Float32, told: Mapping[str, Any]) -> Vectors:
    """Keys (n, d) with the index that was chosen for them.

    Raises:
        Damaged: its files are not what was written.
    """
    if told["type"] == FLAT["type"]:
        return FlatVectors(vectors)
    points = [Point(*each) for each in told["points"]]
    return quantising.read(folder, vectors, points, float(told["target"]))


def _verdict(vectors: Float32, wanted: Wanted) -> Verdict:
    keys, least = len(vectors), wanted.exact_below
    if wanted.recall >= 1:
        return Verdict(True, "all of the nearest are to be found")
    few = FEW_KEYS if least is None else max(least, LEAST_KEYS)
    if keys < few:
        return Verdict(True, f"fewer than {few} keys")
    if least is not None:
        return Verdict(False, f"not fewer than {least} keys")
    seconds = exact_seconds(vectors)
    return Verdict(seconds <= EXACT_SECONDS, f"an exact search takes {seconds * 1000:.1f} ms")


def exact_seconds(vectors: Float32) -> float:
    """Of this processor for one exact search among keys (n, d); the best of three."""
    flat, query = FlatVectors(vectors), np.ascontiguousarray(vectors[:1])
    return min(_seconds(lambda: flat.search(query, NEAREST, None)) for _ in range(3))


def _quantised(folder: Path, vectors: Float32) -> QuantisedVectors:
    keys, lists = len(vectors), quantising.list_count(len(vectors))
    rng = np.random.default_rng(keys)
    sample = np.sort(rng.choice(keys, min(keys, lists * quantising.SAMPLE), replace=False))
    log.info("quantising %d keys: %d lists are trained on %d of them", keys, lists, len(sample))
    index = quantising.trained(vectors[sample], lists)
    told = 0
    for done in quantising.write(folder, index, vectors):
        if done * 10 // keys > told:
            told = done * 10 // keys
            log.info("quantising %d keys: %d %% are in the lists", keys, told * 10)
    return quantising.read(folder, vectors, (), 1.0)


# -- measuring ------------------------------------------------------------------------------


def tuned(made: QuantisedVectors, wanted: Wanted) -> list[Point]:
    """The parameters worth having, the fastest first, each with the recall to be relied on."""
    queries = held_out(made.all(), wanted.questions)
    truth = made.exact.search(queries, NEAREST, None).positions
    points: list[Point] = []
    for factor in FACTORS:
        for probes in _doubling(made.lists.nlist):
            points.append(_measured(made, probes, factor, queries, truth))
            # More lists find nothing more where the codes are what loses it.
            if len(points) > 1 and points[-2].factor == factor and _levelled(*points[-2:]):
                break
        if points[-1].recall >= max(ENOUGH, wanted.recall):
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
        chosen = rng.permutation(len(questions))[:QUERIES]
        return np.ascontiguousarray(questions[chosen], dtype=np.float32)
    drawn = vectors[np.sort(rng.integers(len(vectors), size=AMID * QUERIES))]
    amid = drawn[rng.permutation(len(drawn))].reshape(AMID, QUERIES, -1).mean(axis=0)
    noise = rng.standard_normal(amid.shape, dtype=np.float32)
    lengths = np.linalg.norm(amid, axis=1, keepdims=True)
    noise *= NOISE * lengths / np.linalg.norm(noise, axis=1, keepdims=True)
    moved: Float32 = amid + noise
    return moved


AMID = 8
"""Keys that a query lies amid. With noise of half its length, questions of SciFact, CoNaLa,
banking77 and goodbooks were found as well as they to a hundredth, wherever they were found well
enough; amid fewer keys, or without noise, not always."""

NOISE = 0.5


def share_found(found: Int64, truth: Int64) -> Float32:
    """(q,) the share of each query's true nearest among what was found (q, k)."""
    shares = [np.isin(true, row).mean() for true, row in zip(truth, found, strict=True)]
    return np.array(shares, dtype=np.float32)


def _measured(
    made: QuantisedVectors, probes: int, factor: int, queries: Float32, truth: Int64
) -> Point:
    started = time.thread_time()
    found = made.search_at(Point(probes, factor, 0.0, 0.0), queries, FETCHED)
    seconds = (time.thread_time() - started) / len(queries)
    shares = share_found(found.positions, truth)
    # One standard error less: what is promised is to be found.
    relied = float(shares.mean() - shares.std() / np.sqrt(len(shares)))
    return Point(probes, factor, round(relied, 4), round(seconds, 7))


def _doubling(lists: int) -> list[int]:
    return [2**power for power in range(2, lists.bit_length()) if 2**power <= lists]


def _levelled(before: Point, after: Point) -> bool:
    return after.recall - before.recall < LEVEL


LEVEL = 0.002
"""Twice the lists for less than so much more is not worth going on."""


def _worth_having(points: Sequence[Point]) -> list[Point]:
    """Those that nothing faster equals."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda each: (each.seconds, -each.recall)):
        if not kept or point.recall > kept[-1].recall:
            kept.append(point)
    return kept


def _seconds(call: Callable[[], object]) -> float:
    started = time.thread_time()
    call()
    return time.thread_time() - started
