"""Choosing among ways to answer by held-out questions, and measuring the choice honestly.

Each fold's questions are judged by what the other folds would choose: a choice made on the
same questions that judge it looks better than it is (Cawley and Talbot 2010).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from attend.learn.data import Pool
from attend.learn.folds import VIEWS, View
from attend.types import Float64, Int64

PART_COST = 0.0005
"""Of nDCG: what each further part of the mechanism must be worth."""

HEAD_COST = 0.01
"""Of nDCG: what each further head must be worth. It widens all keys by as much again, and an index
does not know several heads, so that every search scores all keys."""


class Way(Protocol):
    """What may be chosen: hashable, and made of parts that each must be worth their cost."""

    @property
    def cost(self) -> float: ...

    def __hash__(self) -> int: ...


W = TypeVar("W", bound=Way)


class Choice(NamedTuple):
    """One way to answer: a recipe, how far to go its way, and the weights of the other parts."""

    recipe: str | None
    share: float
    examples: float
    lexical: float
    coverage: float = 0.0
    pool: Pool = "max"
    heads: int = 1
    additive: bool = False

    @property
    def cost(self) -> float:
        """Of nDCG: what all that takes part must be worth together."""
        learned = (self.recipe is not None) + self.additive
        parts = learned + (self.examples > 0) + (self.lexical > 0)
        return PART_COST * parts + HEAD_COST * (self.heads - 1)


class Judged(NamedTuple, Generic[W]):
    """The held-out questions of one fold under every choice."""

    view: View
    questions: Int64  # (h,)
    before: Float64  # (h,)
    after: Mapping[W, Float64]  # (h,) each


class Outcome(NamedTuple):
    """What a view says: values for each of its questions, and which questions those are."""

    questions: Int64
    before: Float64
    after: Float64


def best(judged: Sequence[Judged[W]], share_seen: float) -> W:
    """The choice with the best mix of both views; a loss where documents are new counts twice.

    What is new comes unannounced, and who adds documents did not choose to lose by it.
    """
    choices = list(judged[0].after)
    means = {view: _means(judged, view, choices) for view in VIEWS if _some(judged, view)}
    shares = weights(means, share_seen)
    costs = [choice.cost for choice in choices]
    totals = -np.array(costs)
    for view, (before, after) in means.items():
        totals += shares[view] * after
        if view == "unseen":
            totals -= shares[view] * np.maximum(0.0, before - after)
    return choices[max(range(len(choices)), key=lambda at: (totals[at], -costs[at]))]


def honest(judged: Sequence[Judged[W]], share_seen: float) -> dict[View, Outcome]:
    """Every view's held-out values, each fold under the choice made by all other questions.

    Both views hold out the same questions: those of a fold have no say in it by way of the
    other view either.
    """
    after = []
    for fold in judged:
        others = [_without(each, fold.questions) for each in judged]
        chosen = best([each for each in others if len(each.questions)] or judged, share_seen)
        after.append(fold.after[chosen])
    return {
        view: _joined(
            [
                (fold, values)
                for fold, values in zip(judged, after, strict=True)
                if fold.view == view
            ]
        )
        for view in VIEWS
        if _some(judged, view)
    }


def _some(judged: Sequence[Judged[W]], view: View) -> bool:
    return any(fold.view == view for fold in judged)


def _means(judged: Sequence[Judged[W]], view: View, choices: Sequence[W]) -> tuple[float, Float64]:
    """A view's mean before, and after under each choice (c,)."""
    folds = [fold for fold in judged if fold.view == view]
    before = np.concatenate([fold.before for fold in folds])
    after = [np.stack([fold.after[choice] for choice in choices]) for fold in folds]
    return float(before.mean()), np.concatenate(after, axis=1).mean(axis=1)


def _without(judged: Judged[W], questions: Int64) -> Judged[W]:
    kept = ~np.isin(judged.questions, questions)
    if kept.all():
        return judged
    after = {choice: values[kept] for choice, values in judged.after.items()}
    return Judged(judged.view, judged.questions[kept], judged.before[kept], after)


def weights(outcomes: Mapping[View, object], share_seen: float) -> dict[View, float]:
    """How much each view counts in the mix; all where there is one view only."""
    given = {"random": share_seen, "unseen": 1 - share_seen}
    kept = {view: given[view] for view in outcomes}
    total = sum(kept.values())
    return {view: weight / total if total else 1 / len(kept) for view, weight in kept.items()}


def mixed(outcomes: Mapping[View, Outcome], share_seen: float) -> Outcome:
    """The mix that mirrors use, by question: sums of (before, after) are the mixed means.

    A question that both views hold out counts once, with both of its values: its two
    differences are not independent.
    """
    ids = np.unique(np.concatenate([each.questions for each in outcomes.values()]))
    before, after = np.zeros(len(ids)), np.zeros(len(ids))
    for view, weight in weights(outcomes, share_seen).items():
        found = outcomes[view]
        at = np.searchsorted(ids, found.questions)
        np.add.at(before, at, weight * found.before / len(found.before))
        np.add.at(after, at, weight * found.after / len(found.after))
    return Outcome(ids, before, after)


def _joined(folds: Sequence[tuple[Judged[W], Float64]]) -> Outcome:
    return Outcome(
        np.concatenate([fold.questions for fold, _ in folds]),
        np.concatenate([fold.before for fold, _ in folds]),
        np.concatenate([values for _, values in folds]),
    )
