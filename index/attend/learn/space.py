"""Where queries meet keys, head by head."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from attend.learn.data import Memory, unit_vectors
from attend.learn.fit import Fitted
from attend.learn.heads import Heads
from attend.types import Float32


class Space(NamedTuple):
    """Where queries meet keys.

    Attributes:
        keys: (H, m, w).
        queries: takes raw embeddings (q, d) to (H, q, w).
        heads: how they are weighed against each other; of one alone the scale orders nothing,
            but where keys are summed.
    """

    keys: Float32
    queries: Callable[[Float32], Float32]
    heads: Heads


def space_of(memory: Memory, fitted: Fitted) -> Space:
    """What was fitted, as a space.

    One head is looked at by the scale of the memory: what was fitted orders nothing there, but
    for a sum over keys, which is measured as it will be used.
    """
    scales = fitted.scales if len(fitted.w_q) > 1 else np.array([memory.scale])
    return Space(
        keys_of(memory, fitted),
        lambda given: projected(memory, fitted.w_q, given),
        Heads.alike(scales),
    )


def keys_of(memory: Memory, fitted: Fitted) -> Float32:
    """All keys (H, m, d_k) of a memory under a fit."""
    embeddings = memory.embeddings
    if len(fitted.offset_keys):
        embeddings = embeddings.copy()
        embeddings[fitted.offset_keys] += fitted.offsets
    return projected(memory, fitted.w_k, embeddings)


def projected(memory: Memory, weights: Float32, embeddings: Float32) -> Float32:
    """(n, d) by (H, d_k, d) to (H, n, d_k), at length one where the memory is."""
    found: Float32 = embeddings @ weights.transpose(0, 2, 1)
    return unit_vectors(found) if memory.unit else found
