"""The protocol of the keys that one search looks at, in any engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from attend.key_table import KeyTable
from attend.keys.nearest import Near, Proposed
from attend.keys.snapshot import Drawn
from attend.types import Float32, Int64, Json


class SearchableKeys(Protocol):
    """Keys under one projection in one state of a collection; `Snapshot` documents the methods.

    An engine that reads only candidates raises Unsupported in `rows`, `living`, `near`, `drawn`,
    `drawn_of` and `blocks(None)`.
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
    def width(self) -> int: ...
    @property
    def scans(self) -> bool: ...
    @property
    def most_keys(self) -> int: ...
    @property
    def largest_block(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def index(self) -> Mapping[str, Json]: ...
    @property
    def rows(self) -> Int64: ...
    @property
    def drawn(self) -> Drawn: ...

    def search(
        self, queries: Float32, rows: Int64 | None, attend: int, recall: float | None = None
    ) -> Proposed: ...

    def near(
        self,
        queries: Float32,
        rows: Int64 | None,
        keys: int,
        recall: float | None = None,
        *,
        roughly: bool = False,
    ) -> Near: ...

    def promises(self, recall: float | None = None) -> float: ...
    def blocks(self, rows: Int64 | None) -> Iterator[KeyTable]: ...
    def lookup(self, rows: Int64) -> KeyTable: ...
    def living(self, rows: Int64) -> Int64: ...
    def drawn_of(self, rows: Int64 | None) -> Drawn: ...
