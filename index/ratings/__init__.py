"""What a user would think of an item: the model of ratings, and attention over a user's own."""

from __future__ import annotations

from index.ratings.attend import Predicted, Rated, predict
from index.ratings.model import Items, Own, RatingModel, centred
from index.ratings.persist import KIND, fingerprint, from_bytes, to_bytes
from index.ratings.spread import FEATURES, coverage, deviations, fit_spread
from index.ratings.untrained import Attention, Shrunk, attended, shrunk

__all__ = [
    "FEATURES",
    "KIND",
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
    "fingerprint",
    "fit_spread",
    "from_bytes",
    "predict",
    "shrunk",
    "to_bytes",
]
