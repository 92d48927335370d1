"""What searches of an HNSW table find, measured against the exact table of the same keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attend.consistency import reading
from attend.engines.milvus.client import Client
from attend.keys.measuring import ENOUGH, FETCHED, NEAREST, share_found
from attend.types import Float32, Int64, Json, OnStage

EFS = (24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Candidates that HNSW keeps while it searches (Malkov and Yashunin 2016), from `FETCHED` on:
Milvus refuses fewer than are fetched."""

TOGETHER = 16
"""Queries of one call: exact ones of a large table take a tenth of a second each."""


class Point(NamedTuple):
    """A search parameter, and the share of the ten nearest that is to be relied on with it."""

    ef: int
    recall: float


class Graph(NamedTuple):
    """An HNSW table of keys, as it answers one version.

    Attributes:
        layout: that names the table.
        points: the fastest first.
        target: the share to find where a search asks for none.
        told: how it was chosen and measured.
    """

    layout: str
    points: tuple[Point, ...]
    target: float
    told: Mapping[str, Json]

    def point(self, recall: float | None = None) -> Point | None:
        """The fastest that found so much; None where none did: then the exact table is asked."""
        wanted = self.target if recall is None else recall
        return next((point for point in self.points if point.recall >= wanted), None)

    def promises(self, recall: float | None = None) -> float:
        """What was asked for, and no more: what was measured beyond it, other queries may lack."""
        asked = self.target if recall is None else recall
        return 1.0 if self.point(recall) is None else asked


def measured(
    client: Client, exact: str, graph: str, queries: Float32, recall: float, on_stage: OnStage
) -> list[Point]:
    """What each `ef` finds of the nearest keys of queries (q, d).

    Args:
        exact, graph: tables of the same keys.
        recall: beyond it, and beyond `ENOUGH`, nothing is measured.
    """
    points: list[Point] = []
    with reading("strong"):
        truth = _ids(client, exact, queries, NEAREST, {})
        for number, ef in enumerate(EFS):
            on_stage("measuring", number / len(EFS))
            points.append(
                Point(ef, _relied(_ids(client, graph, queries, FETCHED, {"ef": ef}), truth))
            )
            if points[-1].recall >= max(ENOUGH, recall):
                break
    return points


def _relied(found: Int64, truth: Int64) -> float:
    """One standard error less than the mean share: what is promised is to be found."""
    shares = share_found(found, truth)
    return round(float(shares.mean() - shares.std() / np.sqrt(len(shares))), 4)


def _ids(
    client: Client,
    table: str,
    queries: Float32,
    limit: int,
    params: Mapping[str, int],
) -> Int64:
    """(q, limit) primary keys, -1 where there are no more."""
    found = np.full((len(queries), limit), -1, dtype=np.int64)
    for at in range(0, len(queries), TOGETHER):
        part = list(queries[at : at + TOGETHER])
        hits: Sequence[Sequence[Mapping[str, int]]] = client.search(
            table, part, limit, "", [], params
        )
        for row, each in enumerate(hits, at):
            found[row, : len(each)] = [hit["id"] for hit in each]
    return found
