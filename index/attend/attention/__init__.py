"""Candidates, or all keys, to weights: score, scale, reduce, softmax, mix."""

from __future__ import annotations

from attend.attention.logits import Allowed, Block, block_logits, only, pieces, score_keys, without
from attend.attention.mechanism import POOLS, Mechanism, default_scale, mechanism, resolve_scale
from attend.attention.scorers import SCORERS, Additive, score, scorer
from attend.attention.softmax import (
    Partition,
    Softmax,
    join,
    log_mix,
    mix,
    partition,
    softmax,
)
from attend.attention.streamed import Blocks, BlockWeights, attend_many, weights_by_block
from attend.attention.top import Attended, Logits, attend_logits, weighed

__all__ = [
    "POOLS",
    "SCORERS",
    "Additive",
    "Allowed",
    "Attended",
    "Block",
    "BlockWeights",
    "Blocks",
    "Logits",
    "Mechanism",
    "Partition",
    "Softmax",
    "attend_logits",
    "attend_many",
    "block_logits",
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
