"""What is tried: recipes, with one head or several, and the grid of what stands beside them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from attend.learn.choose import Choice
from attend.learn.data import Part, Pool
from attend.learn.fit import Recipe
from attend.learn.rankings.ranking import FACTORS, Weights

RECIPES: Mapping[str, Recipe] = {
    each.name: each
    for each in (
        Recipe("known documents", unlabelled=0.0),
        Recipe("known documents, far", unlabelled=0.0, batch=256, rate=3e-3, offset_rate=1e-2),
        Recipe("all documents", unlabelled=1.0),
    )
}
"""What is tried. The first pushes nothing away that no example speaks of, the second does."""

SHARES = (0.3, 0.6, 1.0)
EXAMPLES: tuple[tuple[float, Pool], ...] = (
    (0.0, "max"),
    *((factor, "max") for factor in FACTORS),
    *((factor, "sum") for factor in FACTORS),
)
LEXICAL = (
    *((0.0, 0.0), (0.1, 0.0), (0.2, 0.0), (0.3, 0.0), (0.5, 0.0)),
    *((0.25, 1.0), (0.5, 1.0), (0.75, 1.0), (1.0, 1.0), (1.5, 1.0)),
)
"""The grid: how far from the start to what was learned, α with its pool, and λ with γ."""


class Way(NamedTuple):
    """What is fitted: a recipe, with so many heads; nothing if None, or the additive scorer."""

    recipe: str | None
    heads: int = 1
    additive: bool = False


NOTHING = Way(None)

SEVERAL = Way("known documents, far", 2)
"""Several heads where no number was asked for: by the recipe of fewest steps, as each head costs
as much again."""

ADDITIVE = Way(None, additive=True)
"""On keys as they are: those of matrices fitted to the same questions have nothing left to tell,
and what was learned from them on CoNaLa's training queries lost three points on held-out ones."""


def ways(parts: Collection[Part], heads: int | None) -> list[Way]:
    """Every recipe with the heads asked for; where none were, with one, and one with several."""
    tried = [NOTHING]
    if "matrices" in parts:
        tried += [Way(name, heads or 1) for name in RECIPES]
        tried += [SEVERAL] if heads is None and SEVERAL.recipe in RECIPES else []
    return [*tried, ADDITIVE] if "additive" in parts else tried


def recipe_of(way: Way, parts: Collection[Part]) -> Recipe | None:
    """How to fit, without offsets where they may not take part; None for nothing at all."""
    if way.recipe is None:
        return None
    recipe = RECIPES[way.recipe]
    return replace(recipe, offsets=recipe.offsets and "offsets" in parts, heads=way.heads)


def way_of(choice: Choice) -> Way:
    """What a choice is fitted by."""
    return Way(choice.recipe, choice.heads, choice.additive)


def weights_of(choice: Choice) -> Weights:
    """How a choice puts the parts of a score together."""
    return Weights(choice.examples, choice.lexical, choice.coverage, choice.pool)


def choices(way: Way, share: float, parts: Collection[Part], *, worded: bool) -> list[Choice]:
    """All that is looked at of one fit, gone so far."""
    # A query and an example of its like are no pair that the additive scorer was fitted to.
    examples = EXAMPLES if "examples" in parts and not way.additive else EXAMPLES[:1]
    lexical = LEXICAL if worded and "words" in parts else LEXICAL[:1]
    return [
        Choice(way.recipe, share, factor, *each, pool, way.heads, way.additive)
        for factor, pool in examples
        for each in lexical
    ]
