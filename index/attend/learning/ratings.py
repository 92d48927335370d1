"""The ratings objective: from what users gave documents to what they would give others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from attend.core.settings import Tuning
from attend.core.types import Bool, Float32, Float64, Int64, Json
from attend.engines.engine import StoredCollection
from attend.learning.data import Ratings
from attend.learning.fit import Watch, minimise, run_parallel
from attend.learning.rating_net import RECIPES, Baseline, Shape, fit_ratings
from attend.learning.selection import SPLITS, TOLERANCE, Criterion, Split, decide
from attend.learning.task import (
    FEWEST_QUESTIONS,
    Look,
    NewVersion,
    NothingToLearn,
    PromotionVerdict,
    Task,
    Trained,
)
from attend.recommend.predict import TERMS
from attend.recommend.ratings import (
    BOUND,
    FEATURES,
    Own,
    Rated,
    RatingModel,
    coverage,
    deviations,
    predict,
)
from attend.store import Terms

MOST_RATINGS = 1_000_000
"""Users and ratings that are learned from; of more, those of some of the users."""


class RatingMaterial(NamedTuple):
    """Ratings, with the documents that have one.

    Attributes:
        rows: (n,) of the documents; embeddings: (n, d), the mean of each one's keys, of which
            `last_key` is the last.
    """

    ratings: Ratings
    rows: Int64
    embeddings: Float32
    last_key: int
    figures: Mapping[str, Json]


def read_ratings(collection: StoredCollection, seed: int) -> RatingMaterial:
    """Read the interactions that have a number, and the texts they are about."""
    with collection.store.reading():  # all of one moment
        stored = collection.store.interactions()
        rated = np.flatnonzero(np.isfinite(stored.values))
        users, items, values = stored.user_indices[rated], stored.rows[rated], stored.values[rated]
        members = np.arange(len(users))
        if len(users) > MOST_RATINGS:  # those of some users
            names, counts = np.unique(users, return_counts=True)
            order = np.random.default_rng(seed).permutation(len(names))
            drawn = names[order[np.cumsum(counts[order]) <= MOST_RATINGS]]
            members = np.flatnonzero(np.isin(users, drawn))
        keys = collection.store.own_keys(np.unique(items[members]))
    rows, embeddings = keys.rows, np.asarray(keys.means(), dtype=np.float32)
    members = members[np.isin(items[members], rows)]  # of documents without keys nothing is said
    places = np.searchsorted(rows, items[members])
    ratings = Ratings(users[members], places, values[members], len(stored.users), len(rows))
    figures: dict[str, Json] = {
        "interactions": len(stored.rows),
        "ratings": len(rated),
        "users": len(np.unique(users)),
        "documents": len(rows),
    }
    return RatingMaterial(ratings, rows, embeddings, int(keys.ids.max(initial=0)), figures)


HELD_RATINGS = 0.1
"""The share of documents, and of the other ratings, that is held out."""


def rating_fold(ratings: Ratings, seed: int) -> tuple[Bool, dict[Split, Bool]]:
    """Hold out a tenth of the documents with all their ratings, and a tenth of the others.

    One fit is then judged where a document was rated before and where none of its ratings is known.

    Returns: what is learned from (r,), and the ratings that judge by split (r,).
    """
    random = np.random.default_rng(seed)
    unseen = (random.random(ratings.item_count) < HELD_RATINGS)[ratings.items]
    chance = random.random(len(ratings)) < HELD_RATINGS
    return ~unseen & ~chance, {"random": chance & ~unseen, "unseen": unseen}


# -- judging ---------------------------------------------------------------------------------------


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
    fitted: tuple[RatingModel, Own], embeddings: Float32, training: Ratings, judging: Ratings
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


def judge_ratings(held_out: HeldOutRatings, seed: int = 0) -> RatingJudgement:
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
    look: Look,
    tolerance: float = TOLERANCE,
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
            significance=look.level,
        )

    criteria = [compare(split, LABELS[split], split, held_out.before) for split in splits]
    baseline = compare("baseline", "against μ + b_i + b_u", splits[0], held_out.baseline)
    return decide([*criteria, baseline], look, measure="RMSE", units="ratings")


# -- the objective ---------------------------------------------------------------------------------


SHAPE = Shape()

SAME = "All ratings are the same, and nothing is left to predict."

TOO_FEW = "Too few ratings could be held out to prove anything; store more interactions."


class RatingsTrainer:
    """Ratings, of which some are held out.

    What is learned must predict them better than μ + b_i + b_u does, and than what predicts now.
    """

    lesson: ClassVar[str] = "ratings what users would give documents"

    def __init__(self, task: Task) -> None:
        """
        Raises:
            NothingToLearn: too little is stored.
        """
        self.task, self.request = task, task.request
        self.material = read_ratings(task.collection, self.request.seed)
        ratings, figures = self.material.ratings, self.material.figures
        if ratings.several < FEWEST_QUESTIONS:
            raise NothingToLearn(
                f"{FEWEST_QUESTIONS} users who gave two documents or more a number are the fewest "
                f"from which a gain can be proved, and this collection has {ratings.several}; "
                f"store more interactions with a value.",
                figures,
            )
        if ratings.values.min() == ratings.values.max():
            raise NothingToLearn(SAME, figures)
        training, self.judging = rating_fold(ratings, 0)
        self.known = ratings.some(training)
        if self.judging["random"].sum() < FEWEST or not self.known.several:
            raise NothingToLearn(TOO_FEW, figures)

    def cross_validate(self) -> HeldOutRatings:
        """Fit every recipe to what is not held out, and the active version as it came about.

        That one has seen the held-out ratings, and cannot be asked about them: it is fitted by
        its recipe, without them, to as large a share of the ratings as it had.
        """
        report, ratings, choices = self.task.active.report, self.material.ratings, self.task.chosen
        recipe, trust = str(choices.get("recipe")), choices.get("trust") or {}
        share = min(1.0, int(report.get("ratings", 0)) / max(1, len(ratings)))
        random = np.random.default_rng(0)
        then = self.known.some(random.random(len(self.known)) < share)
        jobs = [partial(self._fit, name, self.known, 0) for name in RECIPES]
        if recipe in RECIPES and then.several:
            jobs.append(partial(self._fit, recipe, then, 0))
        fits = run_parallel(jobs, self.task.watching("trying"))
        masks = {split: mask for split, mask in self.judging.items() if mask.sum() >= FEWEST}
        judging = ratings.some(np.concatenate([np.flatnonzero(mask) for mask in masks.values()]))
        predicted = [
            predictions(fitted, self.material.embeddings, self.known, judging) for fitted in fits
        ]
        ends = float(ratings.values.min()), float(ratings.values.max())
        base = np.clip(Baseline(self.known)(judging.users, judging.items), *ends)
        places = [np.full(mask.sum(), SPLITS.index(split)) for split, mask in masks.items()]
        columns = np.concatenate(places), judging.users, judging.values, base, base
        held_out = HeldOutRatings(*columns, dict(zip(RECIPES, predicted, strict=False)), ends)
        if len(fits) == len(RECIPES):
            return held_out
        return held_out._replace(before=held_out.trusted(predicted[-1], trust))

    def judge(self, held_out: HeldOutRatings) -> Trained:
        """Choose, and put the choice to the promotion test."""
        judgement = judge_ratings(held_out)
        look = self.task.look(len(np.unique(held_out.users)))
        verdict = decide_ratings(held_out, judgement.after, look, self.request.tolerance)
        seen, figures = held_out.of("random"), verdict.views["random"]
        sides = {"before": held_out.before, "after": judgement.after}
        before, after = (
            {"rmse": figures[side], "mae": float(np.abs(values - held_out.truth)[seen].mean())}
            for side, values in sides.items()
        )
        choices: dict[str, Json] = {"objective": "ratings", **judgement.choice._asdict()}
        fit = partial(self.fit, judgement)
        return Trained(verdict, self.material.figures, before, after, choices, fit)

    def fit(self, judgement: RatingJudgement) -> NewVersion:
        """Fit a choice to everything."""
        material, choice = self.material, judgement.choice
        job = partial(self._fit, choice.recipe, material.ratings, self.request.seed)
        ((model, terms),) = run_parallel([job], self.task.watching("fitting"))
        self.task.watch("calibrating", 0.0)
        trust = np.array([choice.trust.get(split, 0.0) for split in ("unseen", "random")])
        shown: dict[str, Json] = {str(split): far for split, far in choice.trust.items()}
        return NewVersion(
            replace(model, trust=trust, spread=judgement.spread),
            Tuning(),
            {"coverage": dict(judgement.coverage), "trust": shown},
            terms={TERMS: Terms(material.rows, terms.packed())},
            last_key=material.last_key,
        )

    def _fit(
        self, recipe: str, ratings: Ratings, seed: int, watch: Watch
    ) -> tuple[RatingModel, Own]:
        return fit_ratings(
            ratings, self.material.embeddings, RECIPES[recipe], shape=SHAPE, seed=seed, watch=watch
        )
