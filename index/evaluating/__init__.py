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
from index.evaluating.ratings import Errors, Predict, errors

__all__ = [
    "MEASURES",
    "Errors",
    "Evaluation",
    "Predict",
    "Protocol",
    "Recommend",
    "errors",
    "evaluate",
    "is_liked",
    "protocol_of",
    "read_ids",
]
