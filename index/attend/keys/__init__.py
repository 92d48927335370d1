"""Keys: query → candidates. FAISS and its positions are known in here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from attend.core.arrays import KeyTable
from attend.core.types import Float32, Float64, Int64, Json


class Proposals(NamedTuple):
    """Documents for each query, ascending, and the share of the true nearest among them."""

    rows: list[Int64]
    recall: float


class SearchableKeys(Protocol):
    """Keys under one projection in one state of a collection.

    `attend.keys.snapshot.Snapshot` documents the methods. An engine that reads only
    candidates raises Unsupported in `rows`, `living`, `sample`, `drawn` and
    `blocks(None)`.
    """

    @property
    def keys(self) -> int: ...
    @property
    def indexed(self) -> int: ...
    @property
    def fresh(self) -> int: ...
    @property
    def documents(self) -> int: ...
    @property
    def scans(self) -> bool: ...
    @property
    def most_keys(self) -> int: ...
    @property
    def longest(self) -> float: ...
    @property
    def generation(self) -> int: ...
    @property
    def index(self) -> Mapping[str, Json]: ...
    @property
    def rows(self) -> Int64: ...

    def search(
        self, queries: Float32, rows: Int64 | None, attend: int, recall: float | None = None
    ) -> Proposals: ...

    def promises(self, recall: float | None = None) -> float: ...
    def blocks(self, rows: Int64 | None) -> Iterator[KeyTable]: ...
    def lookup(self, rows: Int64) -> KeyTable: ...
    def living(self, rows: Int64) -> Int64: ...
    def sample(self, rows: Int64 | None, most: int) -> tuple[KeyTable, int]: ...
    def drawn(
        self, queries: Float32, gates: Float64, rows: Int64 | None, most: int
    ) -> tuple[KeyTable, Float64]: ...
