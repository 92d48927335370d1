"""Candidates, or all keys, to weights: score, scale, reduce, softmax, mix."""

from __future__ import annotations

from attend.attention.logits import Allowed, block_logits, only, score_keys, without
from attend.attention.reduce import POOLS
from attend.attention.scorers import SCORERS, Additive, score, scorer
from attend.attention.settings import Mechanism, default_scale, mechanism, resolve_scale
from attend.attention.softmax import (
    Partition,
    Softmax,
    join,
    log_mix,
    mix,
    partition,
    softmax,
)
from attend.attention.streamed import Blocks, Weights, attend_all, attend_many, weights_by_block
from attend.attention.top import Logits, attend_logits, attend_top, check_attend, weighed
from attend.attention.types import Attended, Block, pieces

__all__ = [
    "POOLS",
    "SCORERS",
    "Additive",
    "Allowed",
    "Attended",
    "Block",
    "Blocks",
    "Logits",
    "Mechanism",
    "Partition",
    "Softmax",
    "Weights",
    "attend_all",
    "attend_logits",
    "attend_many",
    "attend_top",
    "block_logits",
    "check_attend",
    "default_scale",
    "join",
    "log_mix",
    "mechanism",
    "mix",
    "only",
    "partition",
    "pieces",
    "resolve_scale",
    "score",
    "score_keys",
    "scorer",
    "softmax",
    "weighed",
    "weights_by_block",
    "without",
]
