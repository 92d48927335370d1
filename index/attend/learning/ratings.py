"""The ratings objective: from what users gave documents to what they would give others."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from attend.core.settings import Tuning
from attend.core.types import Json
from attend.learning.data import Ratings
from attend.learning.fit import Watch
from attend.learning.held_out import SPLITS, RatingFold, rating_fold
from attend.learning.material import RatingMaterial, read_ratings
from attend.learning.rating_batches import baseline
from attend.learning.rating_judge import (
    FEWEST,
    HeldOutRatings,
    RatingJudgement,
    decide_ratings,
    judge_ratings,
    predictions,
)
from attend.learning.rating_net import RECIPES, FittedRatings, Shape, fit_ratings
from attend.learning.selection import cross_validate
from attend.learning.task import FEWEST_QUESTIONS, NothingToLearn
from attend.learning.version import NewVersion, ObjectiveRun, TrainingOutcome
from attend.recommend.predict import TERMS
from attend.store import Terms

SHAPE = Shape()

SAME = "All ratings are the same, and nothing is left to predict."

TOO_FEW = "Too few ratings could be held out to prove anything; store more interactions."


class RatingsObjective(ObjectiveRun):
    """Learns what a user would give a document.

    It must predict held-out ratings better than μ + b_i + b_u does, and than what predicts now.
    """

    material: RatingMaterial
    judgement: RatingJudgement
    fitted: FittedRatings

    def read(self) -> None:
        self.material = read_ratings(self.task.collection, self.request.seed)
        self.figures, ratings = self.material.figures, self.material.ratings
        if ratings.several < FEWEST_QUESTIONS:
            raise NothingToLearn(
                f"{ratings.several} users have given two documents or more a number, and "
                f"{FEWEST_QUESTIONS} are the fewest from which a gain can be proved; store more "
                f"interactions with a value.",
                self.figures,
            )
        if ratings.values.min() == ratings.values.max():
            raise NothingToLearn(SAME, self.figures)
        self.fold = rating_fold(ratings, self.request.seed)
        self.known = ratings.some(self.fold.training)
        if self.fold.held_out["random"].sum() < FEWEST or not self.known.several:
            raise NothingToLearn(TOO_FEW, self.figures)

    def cross_validate(self, watch: Watch) -> None:
        """Fit every recipe to what is not held out, and the active version as it came about.

        That one has seen the held-out ratings, and cannot be asked about them: it is fitted by
        its recipe, without them, to as large a share of the ratings as it had.
        """
        report, ratings = self.task.active.report, self.material.ratings
        choices = report.get("chosen") or {}
        recipe, trust = str(choices.get("recipe")), choices.get("trust") or {}
        share = min(1.0, int(report.get("ratings", 0)) / max(1, len(ratings)))
        random = np.random.default_rng(self.request.seed)
        then = self.known.some(random.random(len(self.known)) < share)
        tries = [partial(self._fit, name, name, self.known) for name in RECIPES]
        if recipe in RECIPES and then.several:
            tries.append(partial(self._fit, None, recipe, then))
        fits = cross_validate([self.fold], tries, watch)[0]
        masks = {split: mask for split, mask in self.fold.held_out.items() if mask.sum() >= FEWEST}
        judging = ratings.some(np.concatenate([np.flatnonzero(mask) for mask in masks.values()]))
        after = {
            name: predictions(fitted, self.material.embeddings, self.known, judging)
            for name, fitted in fits.items()
        }
        ends = float(ratings.values.min()), float(ratings.values.max())
        base = np.clip(baseline(self.known)(judging.users, judging.items), *ends)
        held_out = HeldOutRatings(
            split=np.concatenate(
                [np.full(masks[name].sum(), SPLITS.index(name)) for name in masks]
            ),
            users=judging.users,
            truth=judging.values,
            before=base,
            baseline=base,
            after={name: item for name, item in after.items() if name is not None},
            ends=ends,
        )
        if None in after:
            held_out = held_out._replace(before=held_out.trusted(after[None], trust))
        self.held_out = held_out

    def judge(self) -> TrainingOutcome:
        held_out = self.held_out
        self.judgement = judge_ratings(held_out, self.request.seed)
        verdict = decide_ratings(
            held_out, self.judgement.after, self.request.tolerance, self.significance
        )
        seen, figures = held_out.of("random"), verdict.views["random"]
        sides = {"before": held_out.before, "after": self.judgement.after}
        before, after = (
            {"rmse": figures[side], "mae": float(np.abs(values - held_out.truth)[seen].mean())}
            for side, values in sides.items()
        )
        choices: dict[str, Json] = {"objective": "ratings", **self.judgement.choice._asdict()}
        return TrainingOutcome(verdict, before, after, choices)

    def fit(self, watch: Watch) -> None:
        choice, spread = self.judgement.choice, self.judgement.spread
        fits = self._fit(None, choice.recipe, self.material.ratings, self.fold, watch)
        trust = np.array([choice.trust.get(split, 0.0) for split in ("unseen", "random")])
        fitted = fits[None]
        self.fitted = fitted._replace(model=replace(fitted.model, trust=trust, spread=spread))

    def version(self) -> NewVersion:
        material, judgement = self.material, self.judgement
        trust: dict[str, Json] = {str(split): far for split, far in judgement.choice.trust.items()}
        return NewVersion(
            self.fitted.model,
            Tuning(),
            {"coverage": dict(judgement.coverage), "trust": trust},
            terms={TERMS: Terms(material.rows, self.fitted.terms.packed())},
            last_key=material.last_key,
        )

    def _fit(
        self, name: str | None, recipe: str, ratings: Ratings, fold: RatingFold, watch: Watch
    ) -> dict[str | None, FittedRatings]:
        embeddings = self.material.embeddings
        fitted = fit_ratings(
            ratings,
            embeddings,
            RECIPES[recipe],
            shape=SHAPE,
            seed=self.request.seed,
            watch=watch,
        )
        return {name: fitted}
