"""Candidates, or all keys, to weights: score, scale, reduce, softmax, mix."""

from __future__ import annotations

from index.attention.logits import Allowed, block_logits, only, score_keys, without
from index.attention.reduce import POOLS
from index.attention.scorers import SCORERS, Additive, score, scorer
from index.attention.settings import Mechanism, default_scale, mechanism, resolve_scale
from index.attention.softmax import (
    Partition,
    Softmax,
    join,
    log_mix,
    mix,
    partition,
    softmax,
)
from index.attention.streamed import Blocks, Weights, attend_all, attend_many, weights_by_block
from index.attention.top import Logits, attend_logits, attend_top, check_attend, weighed
from index.attention.types import Attended, Block, pieces

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
