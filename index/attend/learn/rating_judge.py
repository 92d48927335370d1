"""Judging predictions of held-out ratings: which recipe, how far to trust it, how far off it is.

What is chosen or fitted by held-out ratings is judged on those of the other half of users.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from attend.learn.calibration import minimise
from attend.learn.data import Ratings
from attend.learn.held_out import SPLITS, Split
from attend.learn.promotion import Criterion, PromotionVerdict, decide
from attend.learn.rating_net import FittedRatings
from attend.learn.selection import select_nested
from attend.ratings import BOUND, Rated, coverage, deviations, predict
from attend.types import Bool, Float32, Float64, Int64

FEWEST = 10
"""Held-out ratings of a split; fewer say nothing, and the split is left out."""

NEGLIGIBLE = 0.005
"""The share of the error that may be lost where documents are new: with thousands of ratings a loss
of a thousandth is significant, and is no reason to do without what is gained elsewhere."""

RIDGE = 1.0
"""On what is not the constant: as if one more rating were against it."""

LABELS = {"random": "documents that others rated", "unseen": "unrated documents"}


class Predictions(NamedTuple):
    """A model's predictions of held-out ratings (h,).

    Attributes:
        baseline: what the model would predict without attention.
        features: (h, f) see `attend.ratings.prediction`.
    """

    raw: Float64
    baseline: Float64
    features: Float64

    def trusted(self, share: float) -> Float64:
        """(h,) the point on the way from the baseline to the predictions."""
        return self.baseline + share * (self.raw - self.baseline)

    def trust(self, truth: Float64, mask: Bool) -> float:
        """Return how far to go from the baseline, 0 to 1: least squares on some ratings."""
        moved = (self.raw - self.baseline)[mask]
        size = float(moved @ moved)
        if size == 0 or mask.sum() < FEWEST:
            return 0.0
        return float(np.clip(moved @ (truth - self.baseline)[mask] / size, 0.0, 1.0))


class HeldOut(NamedTuple):
    """One split: the users of held-out ratings (h,), the truth, and predictions.

    Attributes:
        before: (h,) by what answers until now; baseline: (h,) μ + b_i + b_u.
        after: by recipe.
    """

    users: Int64
    truth: Float64
    before: Float64
    baseline: Float64
    after: Mapping[str, Predictions]


class RatingChoice(NamedTuple):
    """A recipe, and how far to trust it by split."""

    recipe: str
    trust: Mapping[Split, float]

    def of(self, split: Split, held_out: HeldOut) -> Float64:
        """(h,) predictions of held-out ratings, within the range of ratings."""
        return held_out.after[self.recipe].trusted(self.trust[split])


def predictions(
    fitted: FittedRatings, embeddings: Float32, training: Ratings, judging: Ratings
) -> Predictions:
    """Predict ratings as they are served, each user's history being what is known of them."""
    model, terms = fitted
    items = model.items(embeddings, terms)
    raw, base = np.empty(len(judging)), np.empty(len(judging))
    features = np.empty((len(judging), len(model.spread)))
    for user in np.unique(judging.users):
        targets, history = judging.of_user(int(user)), training.of_user(int(user))
        targeted, rated = judging.items[targets], training.items[history]
        result = predict(
            model,
            items.some(targeted),
            Rated.evenly(items.some(rated), training.values[history]),
            targeted[:, None] == rated[None, :],
        )
        raw[targets], base[targets], features[targets] = (
            result.raw,
            result.baseline,
            result.features,
        )
    return Predictions(raw, base, features)


def choose(held_out: Mapping[Split, HeldOut], mask: Mapping[Split, Bool]) -> RatingChoice:
    """Return the recipe of least squared error on some ratings of documents that others rated."""
    seen, part = held_out["random"], mask["random"]
    if not part.any():  # as where all users are in the other half
        return RatingChoice(next(iter(seen.after)), dict.fromkeys(held_out, 0.0))

    def loss(name: str) -> float:
        answers = seen.after[name]
        errors = answers.trusted(answers.trust(seen.truth, part)) - seen.truth
        return float((errors[part] ** 2).mean())

    recipe = min(seen.after, key=loss)
    trust = {
        split: judged.after[recipe].trust(judged.truth, mask[split])
        for split, judged in held_out.items()
    }
    return RatingChoice(recipe, trust)


class RatingJudgement(NamedTuple):
    """Nested errors by split, and what to go by when everything is fitted again.

    Attributes:
        after: (h,) predictions, each by a choice in which its user had no part.
        spread: of the deviation of errors, by all held-out ratings.
        coverage: of the central intervals of each level, measured likewise.
    """

    choice: RatingChoice
    after: Mapping[Split, Float64]
    spread: Float64
    coverage: Mapping[str, float]


def judge_ratings(
    held_out: Mapping[Split, HeldOut], ends: tuple[float, float], seed: int
) -> RatingJudgement:
    """Choose on all held-out ratings, and judge by choices made on the other half of users.

    Args:
        ends: of the range of ratings.
    """
    half = {split: halves(judged.users, seed) for split, judged in held_out.items()}
    after = {split: np.empty(len(judged.truth)) for split, judged in held_out.items()}
    first = next(iter(held_out.values()))
    width = next(iter(first.after.values())).features.shape[1]
    features = {split: np.empty((len(judged.truth), width)) for split, judged in held_out.items()}

    def select(others: list[int]) -> RatingChoice:
        sides = [bool(side) for side in others]
        return choose(held_out, {split: np.isin(half[split], sides) for split in held_out})

    def judge(side: int, choice: RatingChoice) -> None:
        for split, judged in held_out.items():
            mine = half[split] == bool(side)
            after[split][mine] = np.clip(choice.of(split, judged), *ends)[mine]
            features[split][mine] = judged.after[choice.recipe].features[mine]

    select_nested(2, select, judge)
    errors = {split: after[split] - judged.truth for split, judged in held_out.items()}
    sigmas, spread = _spread(features, errors, half)
    everything = {
        split: np.ones(len(judged.truth), dtype=bool) for split, judged in held_out.items()
    }
    covered = coverage(sigmas, np.concatenate([*errors.values()]))
    return RatingJudgement(choose(held_out, everything), after, spread, covered)


def _spread(
    features: Mapping[Split, Float64], errors: Mapping[Split, Float64], half: Mapping[Split, Bool]
) -> tuple[Float64, Float64]:
    """Return deviations of all held-out ratings, each fitted to the other half; and the fit."""
    rows, left, first = (np.concatenate([*item.values()]) for item in (features, errors, half))
    sigmas = np.empty(len(left))
    for part in (first, ~first):
        sigmas[~part] = deviations(fit_spread(rows[part], left[part]), rows[~part])
    return sigmas, fit_spread(rows, left)


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
    held_out: Mapping[Split, HeldOut], judgement: RatingJudgement
) -> PromotionVerdict:
    """Test for a gain over what answers now and over the baseline, and no loss on new documents.

    The test is on squared errors by user: a user's ratings are no independent observations.
    """

    first = next(split for split in SPLITS if split in held_out)

    def compare(name: str, label: str, split: Split, before: Float64) -> Criterion:
        judged = held_out[split]
        return Criterion(
            name,
            label,
            (before - judged.truth) ** 2,
            (judgement.after[split] - judged.truth) ** 2,
            judged.users,
            errors=True,
            squares=True,
            gain=split == first,
            loss=NEGLIGIBLE if split == "unseen" else None,
        )

    comparisons = [
        compare(split, LABELS[split], split, judged.before) for split, judged in held_out.items()
    ]
    baseline = held_out[first].baseline
    comparisons.append(compare("baseline", "against μ + b_i + b_u", first, baseline))
    return decide(comparisons, measure="RMSE", units="ratings")


def halves(users: Int64, seed: int) -> Bool:
    """(h,) which half of all users each is in."""
    most = int(users.max(initial=0)) + 1
    return np.asarray(np.random.default_rng(seed).random(most) < 0.5)[users]
