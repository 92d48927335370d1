"""Which kind of index a collection gets, and with what parameters: by measuring its own keys.

Exact search answers as long as it is fast enough on this machine. Beyond that keys are
quantised, and the parameters are those that find the share asked for of the ten nearest,
measured against exact search with queries held out: questions that were asked, or else keys
moved away from where they lie.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attend.keys import quantising
from attend.keys.measuring import NEAREST, tuned
from attend.keys.quantised import Point, QuantisedVectors
from attend.keys.vectors import FlatVectors, Vectors
from attend.types import Float32, Json, OnStage

log = logging.getLogger("attend")

FEW_KEYS = 20_000
"""Up to so many keys nothing is measured: exact search takes a millisecond or two."""

LEAST_KEYS = 1000
"""Fewer keys train no index, whatever is asked for."""

EXACT_SECONDS = 0.010
"""What one exact search may take at most."""

FILES = (quantising.LISTS, quantising.CODES)


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


class IndexChoice(NamedTuple):
    """The kind of an index, as its manifest says it, and its files."""

    description: dict[str, Json]
    files: tuple[str, ...]


class Verdict(NamedTuple):
    """Whether keys are searched exactly, and why."""

    exact: bool
    why: str


FLAT: dict[str, Json] = {"type": "flat", "recall": 1.0}


def choose(folder: Path, vectors: Float32, target: Wanted, on_stage: OnStage) -> IndexChoice:
    """Decide for keys (n, d), and write what is to lie beside them into the folder."""
    verdict = _verdict(vectors, target)
    if verdict.exact:
        return _flat(vectors, verdict.why)
    started = time.perf_counter()
    index = _quantised(folder, vectors, on_stage)
    points = tuned(index, target.recall, target.questions, on_stage)
    fit = next((point for point in points if point.recall >= target.recall), None)
    if fit is None:
        for file in FILES:
            (folder / file).unlink()
        best = max(point.recall for point in points)
        reason = f"quantised, at most {best:.3f} of the nearest are found, and not {target.recall}"
        return _flat(vectors, reason)
    size = sum((folder / file).stat().st_size for file in FILES)
    description: dict[str, Json] = {
        "type": f"IVF{index.lists.nlist},PQ{index.lists.pq.M}x4fs,Refine(SQ8)",
        "why": verdict.why,
        "recall": fit.recall,
        "target": target.recall,
        "measured_on": "keys" if target.questions is None else "questions",
        "bytes_per_key": round(size / len(vectors), 1),
        "seconds": round(time.perf_counter() - started, 1),
        "points": [list(point) for point in points],
    }
    return IndexChoice(description, FILES)


def _flat(vectors: Float32, why: str) -> IndexChoice:
    return IndexChoice({**FLAT, "why": why, "bytes_per_key": 4 * vectors.shape[1]}, ())


def opened(folder: Path, vectors: Float32, description: Mapping[str, Any]) -> Vectors:
    """Keys (n, d) with the index that was chosen for them.

    Raises:
        Damaged: its files are not what was written.
    """
    if description["type"] == FLAT["type"]:
        return FlatVectors(vectors)
    points = [Point(*numbers) for numbers in description["points"]]
    return quantising.read(folder, vectors, points, float(description["target"]))


def _verdict(vectors: Float32, target: Wanted) -> Verdict:
    keys, least = len(vectors), target.exact_below
    if target.recall >= 1:
        return Verdict(True, "all of the nearest are to be found")
    few = FEW_KEYS if least is None else max(least, LEAST_KEYS)
    if keys < few:
        return Verdict(True, f"fewer than {few} keys")
    if least is not None:
        return Verdict(False, f"not fewer than {least} keys")
    seconds = exact_seconds(vectors)
    return Verdict(seconds <= EXACT_SECONDS, f"an exact search takes {seconds * 1000:.1f} ms")


def exact_seconds(vectors: Float32) -> float:
    """Return the processor time of one exact search among keys (n, d), the best of three."""
    flat, query = FlatVectors(vectors), np.ascontiguousarray(vectors[:1])
    return min(_seconds(lambda: flat.search(query, NEAREST, None)) for _ in range(3))


def _quantised(folder: Path, vectors: Float32, on_stage: OnStage) -> QuantisedVectors:
    keys, lists = len(vectors), quantising.list_count(len(vectors))
    rng = np.random.default_rng(keys)
    sample = np.sort(rng.choice(keys, min(keys, lists * quantising.SAMPLE), replace=False))
    log.info("quantising %d keys: %d lists are trained on %d of them", keys, lists, len(sample))
    on_stage("training lists", 0.0)
    index = quantising.trained(vectors[sample], lists)
    tenths = 0
    for done in quantising.write(folder, index, vectors):
        on_stage("quantising", done / keys)
        if done * 10 // keys > tenths:
            tenths = done * 10 // keys
            log.info("quantising %d keys: %d %% are in the lists", keys, tenths * 10)
    return quantising.read(folder, vectors, (), 1.0)


def _seconds(call: Callable[[], object]) -> float:
    started = time.thread_time()
    call()
    return time.thread_time() - started
