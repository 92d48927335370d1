"""The ratings objective: from what users gave documents to what they would give others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from attend.learn.folds import View
from attend.learn.gate import Verdict
from attend.learn.ratings.data import Ratings, baseline
from attend.learn.ratings.fit import Recipe
from attend.learn.ratings.judge import HeldOut, Judgement, completed, decided, judged
from attend.learn.ratings.net import FittedRatings
from attend.learn.ratings.trial import RECIPES, Division, Job, divided, said, tried
from attend.ratings import RatingModel
from attend.recommend.trained import TERMS
from attend.store import StoredProjection
from attend.training.publish import Found, Learned, nothing, publish, report
from attend.training.ratings_material import Material, gathered, nothing_in
from attend.training.request import Task
from attend.tuning import Tuning
from attend.types import Float64, Json

FEWEST_HELD = 10
"""Ratings of a view; of fewer it is left out."""

TOO_FEW = "Too few ratings could be held out to prove anything; store more interactions."


def train_ratings(task: Task) -> dict[str, Json]:
    """Learn what a user would give a document, and predict by it if that is better beyond doubt.

    A tenth of the documents is held out, and a tenth of the other ratings. What is learned must
    predict those better than μ + b_i + b_u does, and than what predicts now.

    Returns: the report (see `training.train`).
    """
    watch, request = task.watch, task.request
    watch("reading", 0.0)
    material = gathered(task.collection, request.seed)
    reason = nothing_in(material.ratings)
    if reason is not None:
        return nothing(task, reason, material.figures)
    division = divided(material.ratings, request.seed)
    if division.held["random"].sum() < FEWEST_HELD or not division.known(material.ratings).several:
        return nothing(task, TOO_FEW, material.figures)
    held, model = _tried(task, material, division)
    judgement = judged(held, model, request.seed)
    found = _found(decided(held, judgement), judgement, held, material)
    if not found.verdict.promote and request.promote:
        return report(task, found)
    fitted = _final(task, material, list(RECIPES.values())[judgement.chosen.recipe])
    fitted = fitted._replace(model=completed(fitted.model, judgement))
    return publish(task, found, _learned(fitted, material, judgement))


def _tried(
    task: Task, material: Material, division: Division
) -> tuple[dict[View, HeldOut], RatingModel]:
    """Every recipe on held-out ratings, by view; and one of the models."""
    ratings, seed = material.ratings, task.request.seed
    known = division.known(ratings)
    jobs = [Job(recipe, known) for recipe in RECIPES.values()]
    before = _as_before(task.active, known, len(ratings), seed)
    fits = tried(
        [*jobs, *([] if before is None else [before.job])],
        material.embeddings,
        seed,
        lambda done: task.watch("trying", done),
    )
    task.watch("judging", 0.0)
    plain = baseline(known)
    held: dict[View, HeldOut] = {}
    for view, chosen in division.held.items():
        asked = ratings.some(chosen)
        if len(asked) < FEWEST_HELD:
            continue
        heard = [said(each, material.embeddings, known, asked) for each in fits]
        base = now = _cut(plain(asked.users, asked.items), ratings)
        if before is not None:
            now = _cut(heard[-1].trusted(before.trust.get(view, 0.0)), ratings)
        held[view] = HeldOut(asked.users, asked.values, now, base, heard[: len(jobs)])
    return held, fits[0].model


def _cut(said: Float64, ratings: Ratings) -> Float64:
    """Predictions within the range of ratings."""
    return np.asarray(np.clip(said, ratings.values.min(), ratings.values.max()))


class _Before(NamedTuple):
    """The active version as it came about, and how far it is trusted by view."""

    job: Job
    trust: Mapping[str, float]


def _as_before(active: StoredProjection, known: Ratings, ratings: int, seed: int) -> _Before | None:
    """How to try the active version; None where none was trained.

    It has seen the held-out ratings, and cannot be asked about them. It stands trial as it came
    about: fitted by its recipe, without them, to as large a share of the ratings as it had.
    """
    chosen = active.report.get("chosen") or {}
    if chosen.get("recipe") not in RECIPES:
        return None
    share = min(1.0, int(active.report.get("ratings", 0)) / max(1, ratings))
    some = known.some(np.random.default_rng(seed).random(len(known)) < share)
    if not some.several:
        return None
    return _Before(Job(RECIPES[chosen["recipe"]], some), chosen.get("trust") or {})


def _final(task: Task, material: Material, recipe: Recipe) -> FittedRatings:
    """The recipe, fitted to all ratings."""
    task.watch("fitting", 0.0)
    job = Job(recipe, material.ratings)
    return tried(
        [job],
        material.embeddings,
        task.request.seed,
        lambda done: task.watch("fitting", done),
    )[0]


def _found(
    verdict: Verdict, judgement: Judgement, held: Mapping[View, HeldOut], material: Material
) -> Found:
    figures = verdict.views["random"]
    before, after = (
        {"rmse": figures[side], "mae": figures[f"mae_{side}"]} for side in ("before", "after")
    )
    chosen: dict[str, Json] = {
        "objective": "ratings",
        "recipe": list(RECIPES)[judgement.chosen.recipe],
        "trust": _trust(judgement),
    }
    return Found(verdict, before, after, chosen, material.figures)


def _trust(judgement: Judgement) -> dict[str, Json]:
    return {str(view): share for view, share in judgement.chosen.trust.items()}


def _learned(fitted: FittedRatings, material: Material, judgement: Judgement) -> Learned:
    width = material.embeddings.shape[1]
    return Learned(
        projection=fitted.model,
        tuning=Tuning(),
        offsets=(np.empty(0, dtype=np.int64), np.empty((0, width), dtype=np.float32)),
        calibration={"coverage": dict(judgement.coverage), "trust": _trust(judgement)},
        terms={TERMS: (material.rows, fitted.own.packed())},
        last_key=material.last_key,
    )
