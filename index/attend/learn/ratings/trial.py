"""Trying recipes on held-out ratings, and judging what they would have said.

A tenth of the documents is held out with all their ratings, and of the other ratings a tenth: one
fit is judged in both views, where a document was rated before and where none of its ratings is
known. What is chosen or fitted by held-out ratings is judged on those of the other half of users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from attend.learn.fit import Watch
from attend.learn.folds import View
from attend.learn.ratings.data import Ratings
from attend.learn.ratings.fit import Recipe, fit_ratings
from attend.learn.ratings.net import Drops, FittedRatings
from attend.learn.together import together
from attend.ratings import Rated, predict
from attend.types import Bool, Float32, Float64

HELD = 0.1
"""The share of documents, and of the other ratings, that is held out."""

# On simulated ratings the first is the better one where items have dozens of ratings (RMSE 0.921
# against 0.929 with 60 each), the second where they have few (0.936 against 0.947 with 30 each).
RECIPES: Mapping[str, Recipe] = {
    each.name: each
    for each in (
        Recipe("usual"),
        Recipe("careful", drops=Drops(inputs=0.5, unknown=0.05), factor_decay=1.0),
    )
}


class Division(NamedTuple):
    """(r,) each: what is learned from, and what is held out in each view."""

    training: Bool
    held: Mapping[View, Bool]

    def known(self, ratings: Ratings) -> Ratings:
        """What is learned from."""
        return ratings.some(self.training)


class Job(NamedTuple):
    """A recipe, and what to fit it to."""

    recipe: Recipe
    ratings: Ratings


class Said(NamedTuple):
    """What a model said of held-out ratings (h,).

    Attributes:
        baseline: what the model would say without attention.
        telling: (h, f) see `attend.ratings.spread`.
    """

    raw: Float64
    baseline: Float64
    telling: Float64

    def trusted(self, share: float) -> Float64:
        """(h,) so far from the baseline to what was said."""
        return self.baseline + share * (self.raw - self.baseline)


def divided(ratings: Ratings, seed: int) -> Division:
    """Hold out documents, and ratings of the others."""
    random = np.random.default_rng(seed)
    items = random.random(ratings.item_count) < HELD
    unseen = items[ratings.items]
    chance = random.random(len(ratings)) < HELD
    return Division(~unseen & ~chance, {"random": chance & ~unseen, "unseen": unseen})


def tried(jobs: Sequence[Job], embeddings: Float32, seed: int, watch: Watch) -> list[FittedRatings]:
    """Each job's fit, side by side."""
    return together(
        [partial(_fitted, job.ratings, embeddings, job.recipe, seed) for job in jobs],
        watch,
    )


def _fitted(
    ratings: Ratings, embeddings: Float32, recipe: Recipe, seed: int, watch: Watch
) -> FittedRatings:
    return fit_ratings(ratings, embeddings, recipe, seed=seed, watch=watch)


def said(fitted: FittedRatings, embeddings: Float32, known: Ratings, asked: Ratings) -> Said:
    """What the model says of ratings, each user's history being what is known of them."""
    model, own = fitted
    items = model.items(embeddings, own)
    raw, base, telling = (
        np.empty((len(asked), *shape)) for shape in ((), (), (len(model.spread),))
    )
    for user in np.unique(asked.users):
        targets, history = asked.of(int(user)), known.of(int(user))
        of_targets, of_history = asked.items[targets], known.items[history]
        found = predict(
            model,
            items.some(of_targets),
            Rated.evenly(items.some(of_history), known.values[history]),
            of_targets[:, None] == of_history[None, :],
        )
        raw[targets], base[targets], telling[targets] = found.raw, found.baseline, found.spread
    return Said(raw, base, telling)
