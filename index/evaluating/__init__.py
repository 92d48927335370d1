"""Evaluation: what users met later, against what was recommended to them."""

from index.evaluating.interactions import (
    MEASURES,
    Evaluation,
    Protocol,
    Recommend,
    evaluate,
    is_liked,
    protocol_of,
    read_ids,
)
from index.evaluating.ratings import RatingErrors, rating_errors

__all__ = [
    "MEASURES",
    "Evaluation",
    "Protocol",
    "RatingErrors",
    "Recommend",
    "evaluate",
    "is_liked",
    "protocol_of",
    "rating_errors",
    "read_ids",
]
