"""Attention: queries and keys → scores, logits of documents, softmax, weights.

The one softmax outside of training. `attend_logits` weighs candidates, `attend_many` all keys;
`softmax` and `log_mix` serve whoever has logits of another kind.
"""

from __future__ import annotations

from attend.attention.logits import Allowed, Block, block_logits, pieces, score_keys, without
from attend.attention.mechanism import POOLS, Mechanism, default_scale, mechanism, resolve_scale
from attend.attention.scorers import SCORERS, Additive, scorer
from attend.attention.softmax import (
    Partition,
    Softmax,
    join,
    log_mix,
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
    "partition",
    "pieces",
    "resolve_scale",
    "score_keys",
    "scorer",
    "softmax",
    "weighed",
    "weights_by_block",
    "without",
]
