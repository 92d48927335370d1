"""What many keys need, by arithmetic from what one machine was measured to take.

Two parts: how recall and latency of shards become those of the merged answer, and a plan. Both are
plain formulas with their assumptions beside them; `sizing` measures what goes in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

from attend.core.types import Float64

HOUR = 3600.0
GIB = 2**30


# -- merging ------------------------------------------------------------------------------------


def merged_recall(by_rank: Sequence[float] | Float64, shards: int) -> float:
    """The expected share of the k nearest that is among the best of what all shards list.

    Keys are spread over shards at random, as a hash of the id spreads them. So of the g − 1 that
    are nearer than the g-th nearest, B(g − 1, 1/n) lie on its shard and rank before it there. As a
    shard misses its far neighbours more often than its near ones, and the k nearest of all are near
    ones on every shard, the merged answer has more of them than any shard has of its own.

    Args:
        by_rank: (k,) how often a shard finds its own nearest, second nearest, …; 0 from the rank on
            that it does not list.

    >>> merged_recall([1.0] * 10, 16)
    1.0
    >>> round(merged_recall([1.0, 1.0] + [0.0] * 8, 16), 3)  # each shard lists two
    0.962
    """
    found, k = np.asarray(by_rank, dtype=np.float64), len(by_rank)
    before = np.arange(k)
    # (g, j): the chance that the g-th nearest ranks j-th on its shard
    chance = stats.binom.pmf(before[None, :], before[:, None], 1 / shards)
    return float((chance @ found).mean())


def slowest(latencies: Sequence[float] | Float64, shards: int, quantile: float) -> float:
    """A quantile of the slowest of n shards whose latencies are those measured of one.

    Where shards are slow independently, P(max ≤ t) = F(t)^n; the quantile q of the slowest is the
    quantile q^(1/n) of one (Dean and Barroso 2013, "The tail at scale"). Queries that are hard are
    so on every shard, for which this is an upper bound.

    >>> slowest([1.0, 2.0, 3.0, 4.0], 1, 0.5)
    2.0
    """
    return float(np.quantile(latencies, quantile ** (1 / shards), method="inverted_cdf"))


# -- the plan -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What was measured, of keys with one width.

    Attributes:
        memory_bytes, disk_bytes: a key, in memory where it is searched and on disk.
        segment_keys: how many keys a segment has, which is searched as one.
        search_seconds: of one processor, for a search of one segment.
        store_seconds: of one processor, to take in and index a million keys.
        encoded_a_second: texts, on a machine of `encoder_cores`.
        latencies: seconds of one search each, of one segment.
    """

    memory_bytes: float
    disk_bytes: float
    segment_keys: int
    search_seconds: float
    store_seconds: float
    encoded_a_second: float
    encoder_cores: int = 2


@dataclass(frozen=True)
class Node:
    """A machine for searching. Of its memory a share is for keys: the rest is for what is fresh,
    for a segment that is being replaced, and for the system."""

    memory: float = 64 * GIB
    cores: int = 16
    share: float = 0.7


class Plan(NamedTuple):
    """What `keys` keys need, with `replicas` copies in memory."""

    keys: int
    replicas: int
    memory: float
    nodes_a_replica: int
    shards: int
    disk: float
    searches_a_second: float
    store_hours: float
    encoding_hours: float


CHANNEL_KEYS = 50_000_000
"""A write channel's keys: its log is read again when its node is lost."""


def plan(keys: int, measured: Measured, node: Node, replicas: int = 2) -> Plan:
    """Nodes by memory; searches a second by the seconds that all processors together have.

    A search reads every segment once, on one replica; a store keeps one copy on disk, for object
    storage makes its own. Hours are those of one node; n nodes divide them by n.
    """
    memory = keys * measured.memory_bytes * replicas
    nodes = math.ceil(memory / replicas / (node.memory * node.share))
    segments = math.ceil(keys / measured.segment_keys)
    return Plan(
        keys,
        replicas,
        memory,
        nodes,
        max(2, math.ceil(keys / CHANNEL_KEYS)),
        keys * measured.disk_bytes,
        replicas * nodes * node.cores / (segments * measured.search_seconds),
        keys / 1e6 * measured.store_seconds / node.cores / HOUR,
        keys / measured.encoded_a_second * measured.encoder_cores / node.cores / HOUR,
    )
