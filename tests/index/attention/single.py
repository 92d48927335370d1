"""Attention of one query, by the functions for many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from attend.attention import (
    Attended,
    Block,
    Logits,
    Mechanism,
    attend_logits,
    attend_many,
    block_logits,
)


def attend_all(
    query: Any,
    blocks: Iterable[Block],
    mechanism: Mechanism,
    keep: int,
    *,
    allowed: Any = None,
    shift: Any = None,
) -> Attended:
    """Attention of a query (H, d) over every document, of which the `keep` best are listed."""
    shifts = None if shift is None else shift[None]
    return attend_many(query[None], blocks, mechanism, keep, allowed=allowed, shift=shifts)[0]


def attend_top(
    query: Any,
    blocks: Iterable[Block],
    mechanism: Mechanism,
    attend: int,
    *,
    allowed: Any = None,
    shift: Any = None,
) -> Attended:
    """Attention of a query (H, d) over the `attend` best documents, scored in float64."""
    one, shifts = query[None].astype(np.float64), None if shift is None else shift[None]
    parts = [Logits(np.zeros(0, np.int64), np.zeros((mechanism.heads, 0)))]
    for block in blocks:
        z = block_logits(one, block, mechanism, allowed=allowed, shift=shifts)[0]
        parts.append(Logits(block.documents, z))
    rows, z = zip(*parts, strict=True)
    return attend_logits(Logits(np.concatenate(rows), np.concatenate(z, 1)), mechanism, attend)
