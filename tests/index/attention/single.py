"""Attention of one query, by the functions for many; tables and mechanisms with few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attend.attention import (
    Additive,
    Attended,
    Logits,
    Mechanism,
    attend_logits,
    attend_many,
    default_scale,
)
from attend.core.arrays import KeyTable


def table(keys: Any, documents: Any = None, starts: Any = None) -> KeyTable:
    """Documents with keys (m, Hk, d) or (m, d); each has one key, unless `starts` (n,) says so."""
    vectors = np.asarray(keys)
    vectors = vectors[:, None, :] if vectors.ndim == 2 else vectors
    begins = np.arange(len(vectors)) if starts is None else np.asarray(starts)
    rows = np.arange(len(begins)) if documents is None else np.asarray(documents)
    return KeyTable(
        rows.astype(np.int64),
        np.append(begins, len(vectors)).astype(np.int64),
        vectors,
        np.arange(len(vectors)),
    )


def mechanism(
    scorer: str = "dot",
    *,
    d_k: int = 2,
    normalized: bool = False,
    scale: Any = None,
    pool: str = "max",
    temperature: float = 1.0,
    gates: Any = (1.0,),
    null: float | None = None,
    additive: Additive | None = None,
) -> Mechanism:
    """A mechanism with the untrained scale unless another is named."""
    heads = np.asarray(gates, dtype=np.float64)
    factor = default_scale(scorer, normalized, d_k) if scale is None else scale
    return Mechanism(
        scorer,
        np.broadcast_to(np.asarray(factor, dtype=np.float64), heads.shape),
        heads,
        pool,
        temperature,
        None if null is None else np.full(heads.shape, null),
        additive,
    )


def attend_all(
    query: Any, tables: Sequence[KeyTable], how: Mechanism, keep: int, bias: Any = None
) -> Attended:
    """Attention of a query (H, d) over every document, of which the `keep` best are listed."""
    return attend_many(query[None], lambda: tables, how, keep, bias)[0]


def attend_top(
    query: Any, tables: Sequence[KeyTable], how: Mechanism, attend: int, bias: Any = None
) -> Attended:
    """Attention of a query (H, d) over the `attend` best documents, scored in float64."""
    one = query[None].astype(np.float64)
    parts = [Logits(np.zeros(0, np.int64), np.zeros((how.heads, 0)))]
    for documents in tables:
        added = None if bias is None else bias(documents.rows)
        parts.append(Logits(documents.rows, how.logits(one, documents, added)[0]))
    rows, z = zip(*parts, strict=True)
    return attend_logits(Logits(np.concatenate(rows), np.concatenate(z, 1)), how, attend)
