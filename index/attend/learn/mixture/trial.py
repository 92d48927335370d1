"""Trying mixtures over histories on what is withheld: one fit for each recipe and view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from attend.learn.choose import PART_COST, Judged, weights
from attend.learn.data import Memory, Sparse
from attend.learn.fit import Watch
from attend.learn.mixture.fit import MixtureRecipe, fit
from attend.learn.mixture.histories import lengths
from attend.learn.mixture.model import Mixture, untrained
from attend.learn.mixture.next_items import Asking, Measured, measured
from attend.learn.mixture.withheld import Withheld
from attend.learn.together import together
from attend.types import Bool

RECIPES: Mapping[str, MixtureRecipe] = {
    each.name: each
    for each in (
        MixtureRecipe("near the text"),
        MixtureRecipe("far from the text", offset_rate=8e-3, drop_offsets=0.3, drop=0.3),
    )
}
"""What is tried: with offsets that stay small, and with such as many interactions can carry."""

SHARES = (0.5, 0.75, 1.0)
"""How far from the start to what was learned: part of the way often serves new documents best."""

HALVES = 2
"""Users judge in halves: each by what the other would choose."""


class Way(NamedTuple):
    """One way to recommend: a recipe (None: untrained), how far to go its way, and whether keys
    are moved by offsets."""

    recipe: str | None
    share: float = 1.0
    offsets: bool = True

    @property
    def cost(self) -> float:
        """Of nDCG: what the parts that take part must be worth together."""
        return 0.0 if self.recipe is None else PART_COST * (1 + self.offsets)

    def of(self, mixture: Mixture) -> Mixture:
        """That much of what was learned."""
        return mixture.mixed(self.share) if self.offsets else mixture.mixed(self.share).bare()


WAYS = (
    Way(None),
    *(Way(name, share, moved) for name in RECIPES for share in SHARES for moved in (False, True)),
)


@dataclass(frozen=True)
class Standing:
    """What recommends now, in a form that can stand trial.

    Attributes:
        way: how it came about, to be fitted again without what is withheld; None if not so.
        known: sparse (u, n), the interactions that it learned from.
        asking: what it is, if no interaction went into it.
    """

    way: Way | None = None
    known: Sparse | None = None
    asking: Asking | None = None


class _Task(NamedTuple):
    """One recipe on one view; None is what needs no fit."""

    view: int
    recipe: str | None


@dataclass
class MixtureTrial:
    """Withheld interactions under every way, and under what recommends now.

    Attributes:
        views: both, or the one that there is.
        found: of each view and way, the users' figures; by None what recommends now.
    """

    memory: Memory
    views: Sequence[Withheld]
    standing: Standing
    seed: int
    found: list[dict[Way | None, Measured]] = field(default_factory=list)

    def run(self, watch: Watch) -> None:
        """Judge every way on every view."""
        tasks = [_Task(at, name) for name in (*RECIPES, None) for at in range(len(self.views))]
        jobs = [partial(self._tried, task) for task in tasks]
        self.found = [{} for _ in self.views]
        for task, measures in zip(tasks, together(jobs, watch), strict=True):
            self.found[task.view] |= measures

    def judged(self) -> list[Judged[Way]]:
        """Each view in halves of its users, by nDCG; a user is in one half, whatever the view."""
        half = np.random.default_rng(self.seed).integers(
            HALVES, size=self.views[0].training.shape[0]
        )
        return [
            self._half(view, at, half[view.users] == part)
            for at, view in enumerate(self.views)
            for part in range(HALVES)
            if (half[view.users] == part).any()
        ]

    def recalls(self, way: Way, share_seen: float) -> tuple[float, float]:
        """Recall@10 on the mix of the views, of what recommends now and of a way."""
        shares = weights({view.view: view for view in self.views}, share_seen)
        now, then = (
            sum(
                shares[view.view] * float(found[each].recall.mean())
                for view, found in zip(self.views, self.found, strict=True)
            )
            for each in (None, way)
        )
        return now, then

    def _half(self, view: Withheld, at: int, chosen: Bool) -> Judged[Way]:
        values = {way: each.ndcg[chosen] for way, each in self.found[at].items()}
        after = {way: each for way, each in values.items() if way is not None}
        return Judged(view.view, view.users[chosen], values[None], after)

    def _tried(self, task: _Task, watch: Watch) -> dict[Way | None, Measured]:
        view = self.views[task.view]
        if task.recipe is None:
            return self._without_fit(view, watch)
        mixture = self.fitted(RECIPES[task.recipe], view.training, watch)
        ways = [way for way in WAYS if way.recipe == task.recipe]
        return {way: self._measured(view, Asking.of(way.of(mixture), self.memory)) for way in ways}

    def _without_fit(self, view: Withheld, watch: Watch) -> dict[Way | None, Measured]:
        """The untrained way, and what recommends now."""
        plain = self._measured(view, Asking.of(untrained(self.memory), self.memory))
        return {WAYS[0]: plain, None: self._measured(view, self._now(view, watch))}

    def _now(self, view: Withheld, watch: Watch) -> Asking:
        if self.standing.asking is not None:
            return self.standing.asking
        way, known = self.standing.way, self.standing.known
        assert way is not None  # it came about somehow, or is what it is
        assert known is not None
        # Of what it learned from, what is not withheld.
        training = known.multiply(view.training).tocsr()
        if way.recipe is None or not (lengths(training) >= 2).any():
            return Asking.of(untrained(self.memory), self.memory)
        mixture = self.fitted(RECIPES[way.recipe], training, watch)
        return Asking.of(way.of(mixture), self.memory)

    def fitted(self, recipe: MixtureRecipe, training: Sparse, watch: Watch) -> Mixture:
        return fit(self.memory, training, recipe, seed=self.seed, watch=watch)

    def _measured(self, view: Withheld, asking: Asking) -> Measured:
        return measured(asking, self.memory, view.given, view.asked, view.candidates)
