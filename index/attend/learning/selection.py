"""Cross-validation of a parameter grid, the choice it leads to, and the promotion test.

Units are held out in up to three splits. In the random split documents may be known from others;
where interactions have times, the latest split has its place. In the unseen split nothing is known
of the documents that judge, and all documents are ranked. In the new split such documents are
ranked among documents of which nothing is known either: a gain that comes from pushing known
documents down shows there as none.

Each fold's units are judged by what the other folds would choose: a choice made on the same
units that judge it looks better than it is (Cawley and Talbot 2010).

What was learned answers only if held-out units leave no doubt. A gain is proved by the paired
randomisation test (Smucker, Allan and Carterette 2007). Safety is proved, too: a loss larger than
the tolerance must be ruled out by the bound of an interval (non-inferiority; Schuirmann 1987).
Units of one group, such as questions in other words or the ratings of one user, are one
observation: they gain and lose together. A large loss of few units may be one that nobody has seen
yet: each split counts one more unit that lost half of the measure (after the rule of succession).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import NormalDist
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from attend.api.learning import TrainRequest
from attend.core.types import Float64, Int64
from attend.learning.fit import Watch, run_parallel
from attend.learning.task import FIRST_LOOK, SIGNIFICANCE, Look, PromotionVerdict
from attend.measure.statistics import LEVEL, by_group, difference_intervals, paired_randomisation

Split = Literal["random", "latest", "unseen", "new"]

SPLITS: tuple[Split, ...] = ("random", "unseen", "new", "latest")

FAMILIAR: tuple[Split, ...] = ("random", "latest")
"""Splits whose documents may be known from other units."""


def fold_numbers(groups: Int64, count: int, random: np.random.Generator) -> Int64:
    """Return the fold of each unit (n,), in folds of equal size that never divide a group (n,)."""
    names, members, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = random.permutation(len(names))
    fold_of = np.empty(len(names), dtype=np.int64)
    fold_of[order] = (np.cumsum(sizes[order]) - 1) * count // max(1, sizes.sum())
    return np.asarray(np.minimum(fold_of, count - 1)[members])


def sampled(members: Int64, most: int, random: np.random.Generator) -> Int64:
    """Return a sample, ascending; all if there are no more than `most`."""
    if len(members) <= most:
        return members
    return np.sort(random.choice(members, most, replace=False))


PART_COST = 0.0005
"""The gain in nDCG that each further part of the mechanism must be worth."""

DOUBTS = 2.5, 2.0, 0.0
"""Standard errors by which a choice must be clear of the largest loss that is tolerated: more than
the promotion test asks for, since the best of many choices looks better than it is; and less, where
that leaves none that gains anything."""

LEAD = 1.0
"""Standard errors by which a choice must be ahead of the best that goes less far from the start, up
to the tolerance: a fit has more numbers to follow chance with, and the nearer it stays to what it
began with, the less it loses where questions change (after the rule of one standard error, Breiman
et al. 1984; Wortsman et al. 2022)."""

Fold = TypeVar("Fold")

Key = TypeVar("Key", bound=Hashable)

Value = TypeVar("Value")


class Choice(Protocol):
    """A point of a parameter grid."""

    @property
    def cost(self) -> float:
        """The gain that its parts must be worth together."""

    @property
    def reach(self) -> float:
        """The way that it goes from the start, 0 for a plain one: it has to lead what goes less
        far."""

    def __hash__(self) -> int: ...


C = TypeVar("C", bound=Choice)


class Judged(NamedTuple, Generic[C]):
    """The held-out units of one fold: values of what answers now, and under every choice."""

    split: Split
    units: Int64  # (h,)
    before: Float64  # (h,)
    after: Mapping[C, Float64]  # (h,) each

    @classmethod
    def of(cls, split: Split, units: Int64, values: Mapping[C | None, Float64]) -> Judged[C]:
        """Return a fold by the values of every choice, and of what answers now by None."""
        after = {choice: value for choice, value in values.items() if choice is not None}
        return cls(split, units, values[None], after)

    def learned(self) -> Judged[C]:
        """Return the same without the plain choices."""
        after = {choice: values for choice, values in self.after.items() if choice.reach}
        return self._replace(after=after)


class Outcome(NamedTuple):
    """The units of a split (u,), ascending, and their values before (u,) and after (..., u)."""

    units: Int64
    before: Float64
    after: Float64


def cross_validate(
    folds: Sequence[Fold],
    tries: Sequence[Callable[[Fold, Watch], Mapping[Key, Value]]],
    watch: Watch,
) -> list[dict[Key, Value]]:
    """Run every try on every fold in parallel; return what they give by key, for each fold."""
    jobs = [partial(attempt, fold) for attempt in tries for fold in folds]
    results = run_parallel(jobs, watch)
    by_fold: list[dict[Key, Value]] = [{} for _ in folds]
    for index, result in enumerate(results):
        by_fold[index % len(folds)].update(result)
    return by_fold


def best(judged: Sequence[Judged[C]], share_seen: float, tolerance: float = math.inf) -> C:
    """Return the choice with the best mix of all splits; a loss on new documents counts twice.

    New documents come unannounced, and who adds them did not choose to lose by it. A choice that
    may lose more than the tolerance on a split is taken only where no safe one gains anything, and
    one that does lose it only where all do: the promotion test then says how many more questions
    could tell. One that loses more than the
    tolerance on known documents against a plain one is taken only where no other gains anything: a
    gain on new documents is no reason to lose where most of the use is. One that goes further from
    the start has to lead the best that goes less far by one standard error, or by the tolerance
    where that is less.
    """
    # Of few questions a fold may leave out what it cannot fit.
    choices = [name for name in judged[0].after if all(name in fold.after for fold in judged)]
    every = [np.stack([fold.after[name] for name in choices]) for fold in judged]  # (c, h)
    samples = outcomes_of(judged, every)
    shares = weights(samples, share_seen)
    costs = [choice.cost for choice in choices]
    totals = -np.array(costs)
    now, level, clear = 0.0, np.ones(len(choices), dtype=bool), np.full(len(choices), math.inf)
    reach = np.array([choice.reach for choice in choices])
    plain = reach == 0
    for split, (_, before, after) in samples.items():
        now += shares[split] * before.mean()
        totals += shares[split] * after.mean(axis=1)
        if split not in FAMILIAR:
            totals -= shares[split] * np.maximum(0.0, before.mean() - after.mean(axis=1))
        elif plain.any():
            behind = after[plain][after[plain].mean(axis=1).argmax()] - after
            level &= behind.mean(axis=1) <= tolerance
        gains = after - before
        errors = np.maximum(_errors(gains), 1e-12)
        clear = np.minimum(clear, (gains.mean(axis=1) + tolerance) / errors)
    for doubt, levels in product(DOUBTS, (level, np.ones_like(level))):
        allowed = (clear > doubt) & levels
        if allowed.any() and totals[allowed].max() > now:
            totals[~allowed] = -np.inf
            break
    order = sorted(range(len(choices)), key=lambda index: (-totals[index], costs[index]))
    nearest, *farther = [next(i for i in order if reach[i] == far) for far in np.unique(reach)]
    for index in farther:
        # By the standard error of the difference between the two in the mix.
        against = [fold._replace(before=fold.after[choices[nearest]]) for fold in judged]
        outcomes = outcomes_of(against, [fold.after[choices[index]] for fold in judged])
        mix = mixed(outcomes, share_seen)
        error = len(mix.units) * float(_errors(mix.after - mix.before))
        if totals[index] > -np.inf and (
            totals[nearest] == -np.inf
            or totals[index] - totals[nearest] >= min(LEAD * error, tolerance)
        ):
            nearest = index
    return choices[nearest]


def nested_choices(
    judged: Sequence[Judged[C]], share_seen: float, tolerance: float = math.inf
) -> list[C]:
    """Return the choice of all other units for each fold of a split.

    All splits hold out the same units: those of a fold have no say in it by way of another split
    either.
    """
    choices = []
    for fold in judged:
        others = []
        for other in judged:
            left = ~np.isin(other.units, fold.units)
            if left.all():
                others.append(other)
            elif left.any():
                apart = {choice: column[left] for choice, column in other.after.items()}
                others.append(Judged(other.split, other.units[left], other.before[left], apart))
        choices.append(best(others or judged, share_seen, tolerance))
    return choices


def nested_outcomes(
    judged: Sequence[Judged[C]], share_seen: float, tolerance: float = math.inf
) -> dict[Split, Outcome]:
    """Return each split's held-out values, each fold under the choice of all other units."""
    choices = nested_choices(judged, share_seen, tolerance)
    return outcomes_of(judged, [fold.after[one] for fold, one in zip(judged, choices, strict=True)])


def contest(
    judged: Sequence[Judged[C]],
    request: TrainRequest,
    look: Look,
    *,
    by_use: bool = False,
    **test: Any,
) -> tuple[C, list[Criterion], list[C]]:
    """Return the best choice, what nested choices must show of it (see `compare_splits`), and the
    nested choice of each fold.

    Args:
        by_use: the units are of what was used. That stood on a page already, and only live lists
            can tell what else is gained: no plain choice is taken.
    """
    share_seen, tolerance = request.share_seen, request.tolerance
    learned = [fold.learned() for fold in judged]
    if by_use and set.intersection(*(set(fold.after) for fold in learned)):
        judged = learned
    choices = nested_choices(judged, share_seen, tolerance)
    after = [fold.after[choice] for fold, choice in zip(judged, choices, strict=True)]
    outcomes = outcomes_of(judged, after)
    test |= {"tolerance": tolerance, "significance": look.level}
    criteria = compare_splits(outcomes, share_seen, **test)
    return best(judged, share_seen, tolerance), criteria, choices


def means_of(judged: Sequence[Judged[C]], choice: C, share_seen: float) -> dict[str, float] | None:
    """Return the mean of each split and of their mix under one choice for all folds, held out;
    None where it was not tried."""
    if any(choice not in fold.after for fold in judged):
        return None
    outcomes = outcomes_of(judged, [fold.after[choice] for fold in judged])
    means = {str(split): float(outcome.after.mean()) for split, outcome in outcomes.items()}
    return {**means, "mix": float(mixed(outcomes, share_seen).after.sum())}


def outcomes_of(judged: Sequence[Judged[C]], after: Sequence[Float64]) -> dict[Split, Outcome]:
    """Return each split's values before, and after by fold: (h,) and (..., h) each.

    A unit that several divisions hold out has the mean of its values.
    """
    outcomes: dict[Split, Outcome] = {}
    for split in SPLITS:
        rows = [
            (fold.units, fold.before, values)
            for fold, values in zip(judged, after, strict=True)
            if fold.split == split
        ]
        if rows:
            units, *sides = (np.concatenate(column, axis=-1) for column in zip(*rows, strict=True))
            order = np.argsort(units, kind="stable")
            names, starts, counts = np.unique(units[order], return_index=True, return_counts=True)
            means = [np.add.reduceat(side[..., order], starts, axis=-1) / counts for side in sides]
            outcomes[split] = Outcome(names, *means)
    return outcomes


def weights(outcomes: Mapping[Split, object], share_seen: float) -> dict[Split, float]:
    """Return how much each split counts in the mix: those of known documents share one part evenly
    and those of new documents the rest; all of it where there are splits of one kind only."""
    known = [split in FAMILIAR for split in outcomes]
    shares: dict[Split, float] = {
        split: share_seen / sum(known) if is_known else (1 - share_seen) / known.count(False)
        for split, is_known in zip(outcomes, known, strict=True)
    }
    total = sum(shares.values())
    return {split: share / total if total else 1 / len(shares) for split, share in shares.items()}


def mixed(outcomes: Mapping[Split, Outcome], share_seen: float) -> Outcome:
    """Return the mix that mirrors use, by unit: sums of (before, after) are the mixed means.

    A unit that several splits hold out counts once, with all of its values: its differences are not
    independent.
    """
    units = np.unique(np.concatenate([outcome.units for outcome in outcomes.values()]))
    before, after = np.zeros(len(units)), np.zeros(len(units))
    for split, weight in weights(outcomes, share_seen).items():
        outcome = outcomes[split]
        index = np.searchsorted(units, outcome.units)
        np.add.at(before, index, weight * outcome.before / len(outcome.before))
        np.add.at(after, index, weight * outcome.after / len(outcome.after))
    return Outcome(units, before, after)


def _errors(gains: Float64) -> Float64:
    """Return the standard errors of means over the last axis: (..., h) to (...)."""
    return np.asarray(gains.std(axis=-1) / math.sqrt(max(1, gains.shape[-1] - 1)))


# -- the promotion test ----------------------------------------------------------------------------


POWER = 0.8
"""The chance that the number of units in a sentence shows a true difference (Cohen 1988)."""

MOST_UNITS = 1e8

TOLERANCE = 0.01
"""The loss, in units of the measure, that has to be ruled out."""

LEAST_GAIN = 0.005
"""The gain in nDCG that a ranking must show. Where labels are shuffled, so that no document is
nearer to its question than any other, more of the questions' side of the collection is found: a
significant 0.001, for which all that the embeddings mean is given up."""

UNSEEN_LOSS = 0.5
"""What the unit lost that each split counts besides, in units of the measure; of errors as a share
of the one before. (Of 2 % of the questions that lose all, 50 show none in 36 % of all draws.)"""

QUESTION_LABELS = {
    "random": "random questions",
    "unseen": "unseen documents",
    "new": "new documents among new ones",
    "mix": "the mix",
}


@dataclass
class Criterion:
    """Values of held-out units before and after, (h,) each, what they must show, and show.

    Attributes:
        label: the name in a sentence.
        groups: (h,) the group of each unit; None where each is its own.
        errors: whether less is better.
        squares: whether values are squared errors, shown by the roots of their means.
        gain: whether a significant gain is needed, and `least` how large it must be; of errors as a
            share of the one before. `smallest` is that in units of the measure.
        tolerance: the loss that has to be ruled out; of errors, which have units of their own, as a
            share of the one before. None where any loss may be.
        significance: the chance of an error that the test may have.
        figures: the label, both means, their difference with its interval, and the p-value: where
            a gain is needed that of no gain, else that of no difference; whether less is better,
            and whether a gain in it decides.
        change: the difference of the means, above zero where what was learned is better.
        gained: whether the gain leaves no doubt, however small it is.
        worst: the largest change for the worse that is not ruled out, neither by the interval of
            what was seen nor by the normal one with the unit besides; NaN of one group.
        limit: the loss that has to be ruled out, in units of the measure.
        beyond: the loss of the unit that is counted besides, in the same units.
        safe: whether a larger loss is ruled out.
        lost: whether a loss leaves no doubt, and more than the limit is not ruled out.
        spread: the standard deviation of the differences of groups; NaN of one group.
        detectable: the true difference that as many groups as there are show with a power of 0.8.
    """

    name: str
    label: str
    before: Float64
    after: Float64
    groups: Int64 | None = None
    errors: bool = False
    squares: bool = False
    gain: bool = False
    least: float = 0.0
    tolerance: float | None = TOLERANCE
    significance: float = FIRST_LOOK

    def __post_init__(self) -> None:
        earlier, later, means = self.before, self.after, [self.before.mean(), self.after.mean()]
        if self.groups is not None:  # one observation of each
            earlier, later = by_group(earlier, self.groups), by_group(later, self.groups)
        unit = 1.0
        if self.squares:  # a² − b² = (a − b)(a + b) gives the interval of roots
            means = [np.sqrt(mean) for mean in means]
            unit = max(float(sum(means)), 1e-12)
        before, after = map(float, means)
        scale = before if self.errors else 1.0
        self.limit, self.beyond, self.smallest = math.inf, 0.0, self.least * scale
        if self.tolerance is not None:
            self.limit, self.beyond = self.tolerance * scale, UNSEEN_LOSS * scale
        # The usual interval, and the one that the test looks at.
        levels = [LEVEL, 1 - 2 * self.significance]
        usual, tested = difference_intervals(later, earlier, levels)
        bounds = [usual.low / unit, usual.high / unit]
        difference = after - before if self.squares else usual.mean
        better = (earlier, later) if self.errors else (later, earlier)
        self.figures: dict[str, Any] = {
            "label": self.label,
            "before": before,
            "after": after,
            "difference": difference,
            "interval": None if np.isnan(bounds).any() else bounds,
            "p": paired_randomisation(*better, greater=self.gain),
            "queries": len(self.before),
            "groups": len(earlier),
            "errors": self.errors,
            "decides": self.gain,
        }
        self.change = -difference if self.errors else difference
        self.gained = self.figures["p"] < self.significance and self.change > 0
        gains = (later - earlier) * (-1 if self.errors else 1) / unit
        self.spread = float(gains.std(ddof=1)) if len(gains) > 1 else math.nan
        self.worst = (-tested.high if self.errors else tested.low) / unit
        if self.beyond:
            more = np.append(gains, -self.beyond)
            clear = NormalDist().inv_cdf(1 - self.significance)
            self.worst = min(self.worst, float(more.mean() - clear * _errors(more)))
        self.safe = math.isinf(self.limit) or self.worst > -self.limit
        self.lost = not self.safe and self.change < 0 and self.figures["p"] < SIGNIFICANCE
        self.detectable = float(self._error(np.array(len(gains), dtype=np.float64)))

    def _error(self, groups: Float64) -> Float64:
        """Return the true difference that so many groups show with a power of 0.8."""
        clear = NormalDist().inv_cdf(1 - self.significance) + NormalDist().inv_cdf(POWER)
        spread = np.sqrt(self.spread**2 + self.beyond**2 / groups)
        return np.asarray(clear * spread / np.sqrt(groups) + self.beyond / groups)

    def units_for(self, difference: float) -> int | None:
        """Return about how many units show a true mean difference with a power of 0.8; None where
        the measured ones cannot tell (topic set size design: Webber, Moffat and Zobel 2008; Sakai
        2016).

        Args:
            difference: for a gain from zero; else from the limit.
        """
        sizes = np.geomspace(2, MOST_UNITS, 4000)
        enough = sizes[self._error(sizes) <= difference]  # none where the spread is NaN
        if not len(enough) or not self.spread + self.beyond > 0:
            return None
        units = enough[0] * len(self.before) / self.figures["groups"]
        return int(float(f"{math.ceil(units):.2g}"))

    def sentence(self) -> str:
        """Name both means, and what the test looks at: the p-value, or the loss ruled out."""
        before, after, p = (self.figures[name] for name in ("before", "after", "p"))
        tested = f"p = {p:.4f}"
        if not self.gain and not np.isnan(self.worst):
            tested = "no loss" if self.worst >= 0 else f"loss at most {-self.worst:.4f}"
        return f"{self.label} {before:.4f} → {after:.4f} ({tested})"


def decide(
    criteria: Sequence[Criterion], look: Look, *, measure: str, units: str, note: str = ""
) -> PromotionVerdict:
    """Promote by a significant gain where one is needed, and a loss that is ruled out elsewhere.

    Args:
        look: at the held-out units; by one that does not count nothing is promoted.
        measure: the name of what has to gain; units: of what was held out, in the plural.
        note: what could not be measured, for the reason of a promotion.
    """
    needed = [criterion for criterion in criteria if criterion.gain]
    lost = [criterion.label for criterion in criteria if criterion.lost]
    unsafe = [criterion for criterion in criteria if not criterion.safe]
    gained = all(criterion.gained for criterion in needed)
    small = [criterion for criterion in needed if criterion.change < criterion.smallest]
    significant = f"The gain in {measure} is significant at the level {needed[0].significance:.4f}"
    if lost:
        why = f"It loses on {' and '.join(lost)}"
    elif gained and small:
        least = small[0].smallest
        why = f"{significant}, but below {least:g}: labels without meaning can do that"
    elif gained and unsafe:
        why = f"{significant}, but {_untold(unsafe, units)}"
    elif gained and not look.counts:
        why = f"{significant}, but {look.repeats(units)}"
    elif gained:
        guarded = [criterion.label for criterion in criteria if criterion.tolerance is not None]
        safe = f", and a loss is ruled out on {' and '.join(guarded)}" if guarded else ""
        why = f"{significant}{safe}{note}"
    else:
        unproved = next(criterion for criterion in needed if not criterion.gained)
        why = _unproved(unproved, measure, units)
        why += f". Besides, {_untold(unsafe, units)}" if unsafe else ""
        why += "" if look.counts else f". Besides, {look.repeats(units)}"
    summary = "; ".join(criterion.sentence() for criterion in criteria)
    if measure not in [criterion.label for criterion in criteria]:
        summary = f"{measure}: {summary}"
    views = {criterion.name: criterion.figures for criterion in criteria}
    promote = look.counts and gained and not (lost or unsafe or small)
    more = None if promote or lost else _further(needed, unsafe, look)
    return PromotionVerdict(promote, f"{why} ({summary}).", views, look, more)


def _further(needed: Sequence[Criterion], unsafe: Sequence[Criterion], look: Look) -> int | None:
    """Return about how many more units would prove such a gain, and no loss, as the reason says;
    None where nothing is gained, or the measured units cannot tell."""
    counts: list[int | None] = [0 if look.counts else look.due - look.groups]
    if any(criterion.change <= max(criterion.smallest, 0.0) for criterion in needed):
        return None
    counts += [_gain_missing(criterion) for criterion in needed if not criterion.gained]
    if unsafe:
        counts.append(_unsafe_missing(unsafe))
    estimates = [count for count in counts if count is not None]
    return max(estimates) or None if len(estimates) == len(counts) else None


def _unproved(criterion: Criterion, measure: str, units: str) -> str:
    """Return a sentence on a gain that is not shown, and on how many units would show it."""
    count = f"{len(criterion.before):,} held-out {units}"
    if criterion.change <= criterion.smallest:
        least = f" by more than {criterion.smallest:g}" if criterion.least else ""
        detectable = criterion.detectable
        shown = f", which would show a gain of about {detectable:.2g}" if detectable > 0 else ""
        return f"Nothing was found that is better{least} on {count}{shown}"
    p, level = criterion.figures["p"], criterion.significance
    return (
        f"The gain in {measure} may be chance: p is {p:.4f} on {count}, and has to be below "
        f"{level:.4f}; {_more(_gain_missing(criterion))} would show such a gain"
    )


def _more(missing: int | None) -> str:
    """Return how many more units are needed than there are, for a sentence."""
    return "many more" if missing is None else f"about {missing:,} more"


def _missing(enough: Sequence[int | None], criterion: Criterion) -> int | None:
    """Return how many more units are needed than there are; None where that cannot be told."""
    most = max((count for count in enough if count), default=0)
    if None in enough or not most:
        return None
    return max(1, round(most - len(criterion.before)))


def _gain_missing(criterion: Criterion) -> int | None:
    """Return how many more units would show a gain as large as the measured one."""
    return _missing([criterion.units_for(criterion.change)], criterion)


def _unsafe_missing(unsafe: Sequence[Criterion]) -> int | None:
    """Return how many more units would rule losses out, if nothing is lost."""
    enough = [item.units_for(item.limit + max(item.change, 0.0)) for item in unsafe]
    return _missing(enough, min(unsafe, key=lambda item: len(item.before)))


def _untold(unsafe: Sequence[Criterion], units: str) -> str:
    """Return a clause on the losses that held-out units do not rule out yet."""
    label, limit = " and ".join(item.label for item in unsafe), unsafe[0].limit
    fewest = min(unsafe, key=lambda item: len(item.before))
    return (
        f"a loss of more than {limit:.3g} is not ruled out on {label}: that takes "
        f"{_more(_unsafe_missing(unsafe))} held-out {units} if nothing is lost, and there are "
        f"{len(fewest.before):,}"
    )


def compare_splits(
    outcomes: Mapping[Split, Outcome],
    share_seen: float,
    *,
    groups: Int64 | None = None,
    labels: Mapping[str, str] = QUESTION_LABELS,
    tolerance: float = TOLERANCE,
    significance: float = FIRST_LOOK,
    least: float = 0.0,
) -> list[Criterion]:
    """Compare each split, where a loss has to be ruled out, and their mix, which needs a
    significant gain.

    Args:
        groups: (q,) of all units; None where each is its own.
        tolerance: the loss on a split that has to be ruled out.
        significance: the chance of an error that each test may have.
        least: the gain of the mix that is needed.
    """
    mix = mixed(outcomes, share_seen)
    scaled = Outcome(mix.units, mix.before * len(mix.units), mix.after * len(mix.units))

    def criterion(name: str, outcome: Outcome, **test: Any) -> Criterion:
        members = None if groups is None else groups[outcome.units]
        sides = outcome.before, outcome.after
        return Criterion(name, labels[name], *sides, members, significance=significance, **test)

    splits = [criterion(split, outcome, tolerance=tolerance) for split, outcome in outcomes.items()]
    return [*splits, criterion("mix", scaled, gain=True, least=least, tolerance=None)]
