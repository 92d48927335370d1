"""What a user would think of an item: the model of ratings, and attention over a user's own."""

from __future__ import annotations

from attend.ratings.attend import Predicted, Rated, predict
from attend.ratings.model import Items, Own, RatingModel, centred
from attend.ratings.spread import FEATURES, coverage, deviations
from attend.ratings.untrained import Attention, Shrunk, attended, shrunk

__all__ = [
    "FEATURES",
    "Attention",
    "Items",
    "Own",
    "Predicted",
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
