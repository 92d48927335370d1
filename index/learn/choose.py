"""Choosing among ways to answer by held-out questions, and measuring the choice honestly.

Each fold's questions are judged by what the other folds would choose: a choice made on the
same questions that judge it looks better than it is (Cawley and Talbot 2010).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from index.learn.data import Pool
from index.learn.folds import VIEWS, View
from index.types import Float64, Int64

PART_COST = 0.0005
"""Of nDCG: what each further part of the mechanism must be worth."""


class Choice(NamedTuple):
    """One way to answer: a recipe, how far to go its way, and the weights of the other parts."""

    recipe: str | None
    share: float
    examples: float
    lexical: float
    coverage: float = 0.0
    pool: Pool = "max"

    @property
    def parts(self) -> int:
        """How many parts take part."""
        return sum((self.recipe is not None, self.examples > 0, self.lexical > 0))


class Judged(NamedTuple):
    """The held-out questions of one fold under every choice."""

    view: View
    questions: Int64  # (h,)
    before: Float64  # (h,)
    after: Mapping[Choice, Float64]  # (h,) each


class Outcome(NamedTuple):
    """What a view says: values for each of its questions, and which questions those are."""

    questions: Int64
    before: Float64
    after: Float64


def best(judged: Sequence[Judged], share_seen: float) -> Choice:
    """The choice with the best mix of both views."""
    totals = {
        choice: _mixed(judged, choice, share_seen) - PART_COST * choice.parts
        for choice in judged[0].after
    }
    return max(totals, key=lambda choice: (totals[choice], -choice.parts))


def honest(judged: Sequence[Judged], share_seen: float) -> dict[View, Outcome]:
    """Every view's held-out values, each fold under the choice of the other folds."""
    after = []
    for at, fold in enumerate(judged):
        others = [*judged[:at], *judged[at + 1 :]]
        after.append(fold.after[best(others or judged, share_seen)])
    return {
        view: _joined(
            [
                (fold, values)
                for fold, values in zip(judged, after, strict=True)
                if fold.view == view
            ]
        )
        for view in VIEWS
        if any(fold.view == view for fold in judged)
    }


def weights(outcomes: Mapping[View, Outcome], share_seen: float) -> dict[View, float]:
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


def _mixed(judged: Sequence[Judged], choice: Choice, share_seen: float) -> float:
    outcomes = {
        view: _joined([(fold, fold.after[choice]) for fold in judged if fold.view == view])
        for view in VIEWS
        if any(fold.view == view for fold in judged)
    }
    means = weights(outcomes, share_seen)
    return sum(weight * float(outcomes[view].after.mean()) for view, weight in means.items())


def _joined(folds: Sequence[tuple[Judged, Float64]]) -> Outcome:
    return Outcome(
        np.concatenate([fold.questions for fold, _ in folds]),
        np.concatenate([fold.before for fold, _ in folds]),
        np.concatenate([values for _, values in folds]),
    )
