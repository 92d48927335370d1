"""Evaluation: what users met later, against what was recommended to them."""

from index.evaluating.interactions import (
    MEASURES,
    Evaluation,
    Protocol,
    Recommend,
    evaluate,
    protocol_of,
    read_ids,
)

__all__ = [
    "MEASURES",
    "Evaluation",
    "Protocol",
    "Recommend",
    "evaluate",
    "protocol_of",
    "read_ids",
]
