"""Judging predictions of held-out ratings: which recipe, how far to trust it, how far off it is.

What is chosen or fitted by held-out ratings is judged on those of the other half of users.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from attend.core.types import Bool, Float32, Float64, Int64
from attend.learning.data import Ratings
from attend.learning.fit import minimise
from attend.learning.held_out import SPLITS, Split
from attend.learning.promotion import (
    SIGNIFICANCE,
    TOLERANCE,
    Criterion,
    PromotionVerdict,
    decide,
)
from attend.learning.rating_net import FittedRatings
from attend.recommend.ratings import BOUND, FEATURES, Rated, coverage, deviations, predict

FEWEST = 10
"""Held-out ratings of a split; fewer say nothing, and the split is left out."""

RIDGE = 1.0
"""On what is not the constant: as if one more rating were against it."""

LABELS = {"random": "documents that others rated", "unseen": "unrated documents"}


class Predictions(NamedTuple):
    """A model's predictions of held-out ratings (h,).

    Attributes:
        baseline: what the model would predict without attention.
        features: (h, f) see `attend.recommend.ratings`.
    """

    raw: Float64
    baseline: Float64
    features: Float64

    def trusted(self, share: float | Float64) -> Float64:
        """(h,) the point on the way from the baseline to the predictions."""
        return self.baseline + share * (self.raw - self.baseline)

    def trust(self, truth: Float64, mask: Bool) -> float:
        """Return how far to go from the baseline, 0 to 1: least squares on some ratings."""
        moved = (self.raw - self.baseline)[mask]
        size = float(moved @ moved)
        if size == 0 or mask.sum() < FEWEST:
            return 0.0
        return float(np.clip(moved @ (truth - self.baseline)[mask] / size, 0.0, 1.0))


class HeldOutRatings(NamedTuple):
    """Held-out ratings (h,) of both splits, with predictions.

    Attributes:
        split: (h,) the place of each one's split in `SPLITS`.
        before: (h,) by what answers until now; baseline: (h,) μ + b_i + b_u.
        after: by recipe.
        ends: of the range of ratings.
    """

    split: Int64
    users: Int64
    truth: Float64
    before: Float64
    baseline: Float64
    after: Mapping[str, Predictions]
    ends: tuple[float, float]

    def of(self, split: Split) -> Bool:
        """(h,) which ratings are of a split."""
        return np.asarray(self.split == SPLITS.index(split))

    def trusted(self, predictions: Predictions, trust: Mapping[Split, float]) -> Float64:
        """(h,) predictions that are trusted by split, within the range of ratings."""
        shares = np.array([trust.get(split, 0.0) for split in SPLITS])[self.split]
        return np.clip(predictions.trusted(shares), *self.ends)

    @property
    def splits(self) -> list[Split]:
        """The splits that there are ratings of."""
        return [split for split in SPLITS if self.of(split).any()]


class RatingChoice(NamedTuple):
    """A recipe, and how far to trust it by split."""

    recipe: str
    trust: Mapping[Split, float]


def predictions(
    fitted: FittedRatings, embeddings: Float32, training: Ratings, judging: Ratings
) -> Predictions:
    """Predict ratings as they are served, each user's history being what is known of them."""
    model, terms = fitted
    items = model.items(embeddings, terms)
    raw, base = np.empty(len(judging)), np.empty(len(judging))
    features = np.empty((len(judging), FEATURES))
    for user in np.unique(judging.users):
        targets, history = judging.of_user(int(user)), training.of_user(int(user))
        targeted, rated = judging.items[targets], training.items[history]
        result = predict(
            model,
            items.some(targeted),
            Rated.evenly(items.some(rated), training.values[history]),
            targeted[:, None] == rated[None, :],
        )
        raw[targets], base[targets] = result.raw, result.baseline
        features[targets] = result.features
    return Predictions(raw, base, features)


def choose(held_out: HeldOutRatings, mask: Bool) -> RatingChoice:
    """Return the recipe of least squared error on some ratings (h,) of documents that others rated,
    trusted as far as it is best in each split."""
    seen = held_out.of("random") & mask
    if not seen.any():  # as where all users are in the other half
        return RatingChoice(next(iter(held_out.after)), dict.fromkeys(held_out.splits, 0.0))

    def loss(name: str) -> float:
        answers = held_out.after[name]
        errors = answers.trusted(answers.trust(held_out.truth, seen)) - held_out.truth
        return float((errors[seen] ** 2).mean())

    recipe = min(held_out.after, key=loss)
    trust = {
        split: held_out.after[recipe].trust(held_out.truth, held_out.of(split) & mask)
        for split in held_out.splits
    }
    return RatingChoice(recipe, trust)


class RatingJudgement(NamedTuple):
    """Nested errors, and what to go by when everything is fitted again.

    Attributes:
        after: (h,) predictions, each by a choice in which its user had no part.
        spread: of the deviation of errors, by all held-out ratings.
        coverage: of the central intervals of each level, measured likewise.
    """

    choice: RatingChoice
    after: Float64
    spread: Float64
    coverage: Mapping[str, float]


def judge_ratings(held_out: HeldOutRatings, seed: int) -> RatingJudgement:
    """Choose on all held-out ratings, and judge by choices made on the other half of users."""
    first = np.random.default_rng(seed).random(int(held_out.users.max(initial=0)) + 1) < 0.5
    halves = [first[held_out.users], ~first[held_out.users]]
    after, features = np.empty(len(held_out.truth)), np.empty((len(held_out.truth), FEATURES))
    for mine, others in (halves, halves[::-1]):
        choice = choose(held_out, others)
        by_recipe = held_out.after[choice.recipe]
        after[mine] = held_out.trusted(by_recipe, choice.trust)[mine]
        features[mine] = by_recipe.features[mine]
    errors, sigmas = after - held_out.truth, np.empty(len(after))
    for mine, others in (halves, halves[::-1]):
        sigmas[mine] = deviations(fit_spread(features[others], errors[others]), features[mine])
    everything = choose(held_out, np.ones(len(after), dtype=bool))
    return RatingJudgement(
        everything, after, fit_spread(features, errors), coverage(sigmas, errors)
    )


def fit_spread(features: Float64, errors: Float64) -> Float64:
    """(f,) by the likelihood of a normal distribution of errors (n,), given features (n, f).

    Zeros, which is a deviation of one, where there are no errors.
    """
    start = np.zeros(features.shape[1])
    if not len(errors):
        return start
    squares = errors**2
    start[0] = 0.5 * np.log(max(float(squares.mean()), 1e-12))

    def loss(free: Float64) -> tuple[float, Float64]:
        log_sigma = np.clip(features @ free, -BOUND, BOUND)
        scaled = squares * np.exp(-2 * log_sigma)
        value = float((log_sigma + scaled / 2).sum() + RIDGE / 2 * (free[1:] ** 2).sum())
        slope = features.T @ (1 - scaled)
        slope[1:] += RIDGE * free[1:]
        return value, slope

    return minimise(loss, start.tolist())[0]


def decide_ratings(
    held_out: HeldOutRatings,
    after: Float64,
    tolerance: float = TOLERANCE,
    significance: float = SIGNIFICANCE,
) -> PromotionVerdict:
    """Test for a gain over what answers now and over the baseline, and no loss on new documents.

    The test is on squared errors by user: a user's ratings are no independent observations.
    """
    splits = held_out.splits

    def compare(name: str, label: str, split: Split, before: Float64) -> Criterion:
        mask = held_out.of(split)
        earlier, later = ((side - held_out.truth)[mask] ** 2 for side in (before, after))
        return Criterion(
            name,
            label,
            earlier,
            later,
            held_out.users[mask],
            errors=True,
            squares=True,
            gain=split == splits[0],
            tolerance=tolerance if split == "unseen" else None,
            significance=significance,
        )

    criteria = [compare(split, LABELS[split], split, held_out.before) for split in splits]
    baseline = compare("baseline", "against μ + b_i + b_u", splits[0], held_out.baseline)
    return decide([*criteria, baseline], measure="RMSE", units="ratings")
