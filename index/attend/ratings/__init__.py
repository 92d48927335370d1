"""What a user would think of an item: the model of ratings, and attention over a user's own."""

from __future__ import annotations

from attend.ratings.model import FEATURES, Items, Own, RatingModel, centred
from attend.ratings.prediction import (
    BOUND,
    PredictedRatings,
    Rated,
    Shrunk,
    attended,
    coverage,
    deviations,
    predict,
    shrunk,
)

__all__ = [
    "BOUND",
    "FEATURES",
    "Items",
    "Own",
    "PredictedRatings",
    "Rated",
    "RatingModel",
    "Shrunk",
    "attended",
    "centred",
    "coverage",
    "deviations",
    "predict",
    "shrunk",
]
