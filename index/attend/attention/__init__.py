"""Attention: queries and keys → scores, logits of documents, softmax, weights.

The one softmax. `attend_logits` weighs candidates, `attend_many` all keys; `Softmax.of` and
`log_mix` serve whoever has logits of another kind, and `log_shares` and `log_total` losses.
"""

from __future__ import annotations

from attend.attention.mechanism import (
    POOLS,
    SCORERS,
    Additive,
    Mechanism,
    default_scale,
)
from attend.attention.softmax import (
    Attended,
    Logits,
    Partition,
    Softmax,
    attend_logits,
    join,
    log_mix,
    log_shares,
    log_total,
    partition,
    runners_up,
    weighed,
)
from attend.attention.streamed import Bias, Blocks, BlockWeights, attend_many, weights_by_block

__all__ = [
    "POOLS",
    "SCORERS",
    "Additive",
    "Attended",
    "Bias",
    "BlockWeights",
    "Blocks",
    "Logits",
    "Mechanism",
    "Partition",
    "Softmax",
    "attend_logits",
    "attend_many",
    "default_scale",
    "join",
    "log_mix",
    "log_shares",
    "log_total",
    "partition",
    "runners_up",
    "weighed",
    "weights_by_block",
]
