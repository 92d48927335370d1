"""The times of documents as a part of a ranking: which fields may count, and their half-lives.

The share of questions whose answer is older by so many days falls with them as the weights do, so
that a half-life is fitted as a scale is: by the likelihood of the relevant documents. In scores
(logits at scale 1) it is a rate ρ, and a document that is a days older than the newest has -ρ·a.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from attend.api.base import HALF_LIFE
from attend.core.types import Float32, Float64, Int64, Json
from attend.engines.engine import StoredCollection
from attend.learning.data import Memory, Questions, stacked
from attend.learning.fit import minimise, unlearned
from attend.learning.ranking_model import Candidates, QuestionFold, find_candidates
from attend.search.queries import RecencyScores
from attend.search.values import field_names, value_of
from attend.store import StoredDocument
from attend.store.filters import VALUE, is_date

LOOKED_AT = 1000
"""Documents whose fields are looked at for times."""

MOST_FIELDS = 2
LEAST_SHARE, FEWEST_TIMES = 0.5, 20
"""Fields with times are tried, the fullest first: so many, each in at least this share of the
documents, with so many different times among those looked at."""

NUMBERS = 1e8, 5e9
"""Numbers that look like seconds since 1970: those of the years 1973 to 2128."""

CLEAR = 5.0
"""The least gain in log likelihood by which a half-life is tried. (By chance one in 1,300 fits to
times that say nothing has it: Wilks 1938.)"""

STEEPEST = 100.0
"""Times the scale until now: the largest scale of a fit; beyond, every softmax is one-hot."""


def with_ages(collection: StoredCollection, memory: Memory) -> Memory:
    """Return a memory with the ages of its documents in days, by each field that looks like times.

    The newest document has the age 0, and one without a time the median of all others.
    """
    sample, now = collection.store.sample(LOOKED_AT), time.time()
    fields: dict[str, tuple[int, int]] = {}
    for name in _names(sample):
        times = [value for one in sample if _is_time(value := value_of(one, name))]
        counts = len(times), len(set(map(str, times)))
        if counts[0] >= LEAST_SHARE * len(sample) and counts[1] >= FEWEST_TIMES:
            fields[name] = counts
    best = sorted(fields, key=lambda name: fields[name], reverse=True)[:MOST_FIELDS]
    by_field = {name: RecencyScores.of(collection.store.times(name), 1.0, now) for name in best}
    ages = {
        name: (times.newest - times.scores.of(memory.rows)) / math.log(2)
        for name, times in by_field.items()
    }
    return replace(memory, ages=ages)


def _names(sample: Sequence[StoredDocument]) -> list[str]:
    """Return the names of fields, of those within an object with a dot."""
    names = dict.fromkeys([VALUE, *field_names(sample)])
    for one, name in product(sample, list(names)):
        inner = value_of(one, name)
        if name != VALUE and isinstance(inner, Mapping):
            names |= dict.fromkeys(f"{name}.{key}" for key in inner)
    return [name for name in names if all(name.split(".")) and not {'"', "\x00"} & {*name}]


def _is_time(value: Json) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return NUMBERS[0] <= value <= NUMBERS[1] if is_number else is_date(value)  # type: ignore[operator]


class HalfLives:
    """The rates of a training's fields, fitted before anything else is learned.

    Args:
        questions: all of them.
        members: the places of those that rates are fitted to.
        start: (d_k, d), where W_Q and W_K begin.
        words: λ and γ, by which words count meanwhile.
    """

    def __init__(
        self,
        memory: Memory,
        questions: Questions,
        members: Int64,
        start: Float32,
        words: tuple[float, float],
    ) -> None:
        self._memory, self._members, self._words = memory, members, words
        self._candidates: Candidates | None = None
        if memory.ages:
            nothing = questions.some(members[:0])
            fitted, some = unlearned(memory, start), questions.some(members)
            (self._candidates,) = find_candidates(memory, fitted, nothing, some)

    def biases(self, fold: QuestionFold) -> dict[str, Float32]:
        """Return what the times of documents (n,) add to scores, by each field that clearly counts
        for the questions that a fold learns from."""
        if self._candidates is None:
            return {}
        candidates = self._candidates.some(np.flatnonzero(fold.trained[self._members]))
        scores = candidates.attendable(0.0, *self._words)
        hidden = (candidates.documents >= 0) & fold.blocked[candidates.documents]
        grades = np.where(hidden, 0.0, candidates.grades)
        rates = {
            field: fit_rate(scores, ages[candidates.documents], grades, self._memory.scale)
            for field, ages in self._memory.ages.items()
        }
        return {
            field: bias_of(self._memory.ages[field], rate) for field, rate in rates.items() if rate
        }


def bias_of(ages: Float64, rate: float) -> Float32:
    """Return what ages (n,) in days add to scores: -ρ·a."""
    return (-rate * ages).astype(np.float32)


def half_life(field: str, rate: float) -> tuple[str, float] | None:
    """Return a field with the days in which weights halve, by its rate in logits; None without."""
    return (field, min(math.log(2) / float(rate), HALF_LIFE)) if field and rate > 0 else None


def fit_rate(
    scores: Float64, ages: Float64, grades: Float64, scale: float, clear: float = CLEAR
) -> float:
    """Return the rate ρ of the largest likelihood of the relevant documents, with the scale that
    suits it; 0 where that is not clearly larger than without one.

    The loss is that of a conditional logit (McFadden 1974), which is convex.

    Args:
        scores: (q, c) of candidates at scale 1, -inf where there is none.
        ages: (q, c), in days.
        grades: (q, c), above 0 for the relevant ones.
        scale: until now.
        clear: the least gain in log likelihood.
    """
    target = np.where(np.isfinite(scores), np.maximum(grades, 0.0), 0.0)
    answered = target.any(axis=1)
    if not answered.any():
        return 0.0
    target = target[answered] / target[answered].sum(axis=1, keepdims=True)
    x, there = scores[answered], np.isfinite(scores[answered])
    unit = float(ages[answered][there].std())
    if not unit > 0:
        return 0.0
    x, a = np.where(there, x, 0.0), np.where(there, ages[answered] / unit, 0.0)

    def loss(point: Float64) -> tuple[float, Float64]:
        z = np.where(there, point[0] * x - point[1] * a, -np.inf)
        z -= z.max(axis=1, keepdims=True)
        exps = np.exp(z)
        sums = exps.sum(axis=1, keepdims=True)
        logs = np.where(there, z - np.log(sums), 0.0)
        away = target - exps / sums
        return -float((target * logs).sum()), np.array([-(away * x).sum(), (away * a).sum()])

    steepest = 1e-3 * scale, STEEPEST * scale
    _, without = minimise(loss, (scale, 0.0), [steepest, (0.0, 0.0)])
    (fitted, rate), with_times = minimise(loss, (scale, 0.1), [steepest, (0.0, math.inf)])
    return rate / fitted / unit if without - with_times >= clear else 0.0


def held_out_rate(
    memory: Memory,
    field: str,
    factors: Sequence[Any],
    sets: Sequence[Candidates],
    tried: Sequence[Float32],
) -> float:
    """Return the rate of a field by held-out questions of several fits; 0 without sets.

    Args:
        factors: those of the scores of candidates, without times.
        sets: the candidates of each fit.
        tried: (n,) what times added to the scores of each: their mean is the rate where the
            likelihood has none.
    """
    if not sets:
        return 0.0
    ages = memory.ages[field]
    rate = fit_rate(
        stacked([one.attendable(*factors) for one in sets], -np.inf),
        stacked([ages[one.documents] for one in sets], 0),
        stacked([one.grades for one in sets], 0),
        memory.scale,
        clear=0.0,
    )
    return rate or -float(np.mean([biases.min() for biases in tried]) / ages.max())
