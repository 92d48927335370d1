"""Rows of "no answer": intents that the memory lacks are told from the others by confidence.

Beside it stand frozen similarity, the largest share of a logistic regression at a fitted
temperature (Hendrycks and Gimpel 2017, "A baseline for detecting misclassified and
out-of-distribution examples") and the Mahalanobis distance to the nearest class (Lee et al. 2018,
"A simple unified framework for detecting out-of-distribution samples"), with its shrinkage, and
whether it is relative to that of all texts, chosen on other intents, withheld from a part of the
memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from learning_answers import Labelled, asked_of, banking, embedded, remembered, tempered
from learning_rows import Row, row_of
from learning_sets import HELD_OUT, SEED, Bench, trained
from scipy.stats import norm

from attend.core.types import Bool, Float32, Float64
from attend.learn.no_answer import SHARES
from attend.measure.statistics import Interval, calibration_error

WITHHELD = 15
"""Of banking77's intents, in each of DRAWS."""

DRAWS = 3

SHRINKAGES = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Of the shared covariance towards the same variance in all directions."""


class Shape(NamedTuple):
    """How distances are measured."""

    shrinkage: float
    relative: bool


def no_answer(bench: Bench) -> Iterator[Row]:
    """Confidence on queries whose intent the memory lacks, and on the others."""
    memory, asked = banking(bench)
    intents = sorted(set(memory.labels))
    draws = 1 if bench.options.quick else DRAWS
    areas: dict[str, list[Interval]] = {
        name: [] for name in ("frozen", "logistic", "mahalanobis", "confidence")
    }
    errors, refused, notes = list[tuple[float, float]](), list[float](), list[str]()
    known, wanted = embedded(memory.texts), embedded(asked.texts)
    shape = _chosen(memory, known)
    for seed in range(draws):
        hidden = np.random.default_rng(seed).choice(intents, WITHHELD, replace=False)
        absent, left = np.isin(asked.labels, hidden), ~np.isin(memory.labels, hidden)
        with remembered(bench, memory) as collection:
            collection.delete([str(at) for at in np.flatnonzero(~left)])
            untrained = collection.store.state().projection
            similar = {"projection": untrained, "lexical": False, "scale": 1.0}
            scores = [a.hits[0].score for a in asked_of(collection, asked.texts, similar)]
            run = trained(collection, objective="answers")
            answers = list(asked_of(collection, asked.texts, {"min_confidence": None}))
        notes.append("promoted" if run.report["promoted"] else "not promoted")
        sure = np.array([answer.confidence for answer in answers], dtype=np.float64)
        distances = _distances(memory.some(left).labels, known[left], wanted, shape)
        largest = tempered(_logistic(), known[left], memory.some(left).labels, wanted).max(axis=1)
        told = {
            "frozen": np.array(scores),
            "logistic": largest,
            "mahalanobis": -distances,
            "confidence": sure,
        }
        for name, values in told.items():
            areas[name].append(auroc(values[~absent], values[absent]))
        errors.append((_error(np.ones(len(sure)), absent), _error(sure, absent)))
        refused.append(float(np.mean([not answers[at].answered for at in np.flatnonzero(~absent)])))
    what = f"No answer, {WITHHELD} intents withheld, AUROC: "
    yield row_of("no-answer.frozen", what + "frozen similarity", _pooled(areas["frozen"]))
    title = what + "logistic regression at its temperature"
    yield row_of("no-answer.logistic", title, _pooled(areas["logistic"]))
    row = row_of("no-answer.mahalanobis", what + "Mahalanobis", _pooled(areas["mahalanobis"]))
    relative = ", relative" if shape.relative else ""
    yield row._replace(note=f"shrinkage {shape.shrinkage:g}{relative}")
    row = row_of("no-answer.confidence", what + "confidence", _pooled(areas["confidence"]))
    yield row.wanted(">=", 0.94)._replace(note=f"{draws} draws: {', '.join(notes)}")
    yield Row("no-answer.own", "  at 5%: own questions refused", float(np.mean(refused)))
    before, after = np.mean(errors, axis=0).tolist()
    yield Row("no-answer.error_before", "  calibration error of the confidence before", before)
    yield Row("no-answer.error_after", "  after a training", after).wanted("<=", before)


def _error(sure: Float64, absent: Bool) -> float:
    """The calibration error of the confidence, where one query in ten has no answer."""
    counts = np.where(absent, SHARES[1] / absent.mean(), SHARES[0] / (~absent).mean())
    return calibration_error(sure, (~absent).astype(np.float64), counts)


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=2000, C=10)


# -- the Mahalanobis distance ---------------------------------------------------------------


def _chosen(memory: Labelled, known: Float32) -> Shape:
    """The shape that tells withheld intents best in a division of the memory."""
    random = np.random.default_rng(SEED)
    labels = np.array(memory.labels)
    held = random.random(len(labels)) < HELD_OUT
    absent = np.isin(labels, random.choice(np.unique(labels), WITHHELD, replace=False))
    part = ~held & ~absent

    def area(shape: Shape) -> float:
        values = -_distances(labels[part].tolist(), known[part], known[held], shape)
        return auroc(values[~absent[held]], values[absent[held]])[0]

    shapes = itertools.starmap(Shape, itertools.product(SHRINKAGES, (False, True)))
    return max(shapes, key=area)


def _distances(labels: Sequence[str], known: Float32, wanted: Float32, shape: Shape) -> Float64:
    """The squared distance of each query (q, d) from the nearest class mean of texts (m, d)."""
    names, place = np.unique(labels, return_inverse=True)
    means = np.stack([known[place == at].mean(axis=0) for at in range(len(names))])
    nearest = _squared(known - means[place], wanted, means, shape.shrinkage).min(axis=1)
    if not shape.relative:
        return nearest
    middle = known.mean(axis=0, keepdims=True)
    return nearest - _squared(known - middle, wanted, middle, shape.shrinkage)[:, 0]


def _squared(residuals: Float32, wanted: Float32, means: Float32, shrinkage: float) -> Float64:
    """(q, c): squared distances under the covariance of residuals (m, d)."""
    covariance = residuals.T.astype(np.float64) @ residuals / len(residuals)
    width = len(covariance)
    usual = np.trace(covariance) / width * np.eye(width)
    inverse = np.linalg.inv((1 - shrinkage) * covariance + shrinkage * usual)
    by_query = np.einsum("qd,qd->q", wanted @ inverse, wanted)
    by_class = np.einsum("cd,cd->c", means @ inverse, means)
    return np.asarray(by_query[:, None] - 2 * wanted @ inverse @ means.T + by_class)


# -- telling apart --------------------------------------------------------------------------


def auroc(higher: Float64, lower: Float64, level: float = 0.95) -> Interval:
    """The chance that one of `higher` (m,) exceeds one of `lower` (n,), ties half.

    The interval is DeLong's (DeLong, DeLong and Clarke-Pearson 1988).
    """
    above = _placements(higher, lower)
    below = 1 - _placements(lower, higher)
    area = float(above.mean())
    spread = above.var(ddof=1) / len(above) + below.var(ddof=1) / len(below)
    reach = float(norm.ppf((1 + level) / 2) * np.sqrt(spread))
    return Interval(area, max(0.0, area - reach), min(1.0, area + reach))


def _placements(values: Float64, others: Float64) -> Float64:
    """For each value the share of the others that it exceeds, ties half."""
    ordered = np.sort(others)
    under, upto = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return np.asarray((under + upto) / (2 * len(others)))


def _pooled(found: Sequence[Interval]) -> Interval:
    """The mean; its bounds are the means of theirs, as if all draws erred alike."""
    return Interval(*(float(np.mean(part)) for part in zip(*found, strict=True)))
