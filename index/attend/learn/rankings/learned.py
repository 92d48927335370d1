"""One way from questions to what was learned, and to the candidates that it finds."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from attend.learn.data import Memory, Part, Questions
from attend.learn.fit import Fitted, Watch, fit, unlearned
from attend.learn.rankings import additive as additive_scorer
from attend.learn.rankings.additive import Additive
from attend.learn.rankings.candidates import parts
from attend.learn.rankings.ranking import FACTORS, Parts
from attend.learn.rankings.reranking import reranked
from attend.learn.rankings.ways import Way, recipe_of
from attend.learn.space import space_of
from attend.types import Float32


class Learned(NamedTuple):
    """What a way came to: matrices, or the additive scorer on what the start projects."""

    fitted: Fitted
    additive: Additive | None = None

    def mixed(self, start: Float32, share: float) -> Learned:
        """On the straight line from the start to what was learned."""
        if self.additive is not None:
            return Learned(self.fitted, self.additive.mixed(share))
        return Learned(self.fitted.mixed(start, share))


def learn(
    memory: Memory,
    questions: Questions,
    way: Way,
    parts: Collection[Part],
    *,
    start: Float32,
    seed: int,
    watch: Watch,
) -> Learned:
    """Learn from questions, each with at least one relevant document, in one way."""
    recipe = recipe_of(way, parts)
    if recipe is not None:
        return Learned(fit(memory, questions, recipe, start=start, seed=seed, watch=watch))
    as_is = unlearned(memory, start)
    if not way.additive:
        return Learned(as_is)
    space = space_of(memory, as_is)
    found = additive_scorer.fit(
        memory, questions, space, additive_scorer.RECIPE, seed=seed, watch=watch
    )
    return Learned(as_is, found)


def candidates(
    memory: Memory,
    learned: Learned,
    known: Questions,
    asked: Questions,
    factors: tuple[float, ...] = FACTORS,
) -> Parts:
    """The candidates of held-out questions (see `attend.learn.rankings.candidates.parts`)."""
    space = space_of(memory, learned.fitted)
    found = parts(memory, space, known, asked, asked.relevant, factors)
    if learned.additive is None:
        return found
    return reranked(found, memory, space, asked, learned.additive)
