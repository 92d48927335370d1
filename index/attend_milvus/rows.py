"""Rows of one table on a Milvus server: written, read by their keys, searched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

from pymilvus.client import ts_utils

from attend.api.base import Consistency
from attend_milvus.client import TRY_SECONDS, Client, MilvusClient, now
from attend_milvus.server import MESSAGE_BYTES

Row = Mapping[str, Any]

BLOCK = 10_000
"""Rows that one call names by their keys."""

FIELD_BYTES = {"texts": 100_000, "content": 100_000, "vector": 36_000, "place": 36_000}
"""The most that the long fields take in a message."""

LOOKED_AGAIN = (0.002, 0.02)
"""Seconds after which a row that was not there is looked for again. Milvus 2.3 replaces a row by a
deletion and an insertion that take effect one after the other: for a moment there is neither."""


@dataclass(frozen=True)
class Table:
    """Rows on a server, by a primary key.

    Attributes:
        primary: the name of the primary key.
    """

    client: Client
    name: str
    primary: str

    def insert(self, rows: Sequence[Row]) -> None:
        """Store rows with new keys; where an attempt may have been stored, they replace it."""
        for batch in batches(rows):
            self.client.write(self.name, _Insertion(self.name, [dict(row) for row in batch]))

    def upsert(self, rows: Sequence[Row]) -> None:
        for batch in batches(rows):
            value = [dict(row) for row in batch]
            self.client.write(self.name, partial(_upsert, collection=self.name, rows=value))

    def delete(self, keys: Sequence[int | str]) -> None:
        """Delete rows by their primary keys."""
        for place in range(0, len(keys), BLOCK):
            ids = list(keys[place : place + BLOCK])
            self.client.write(self.name, partial(_delete, collection=self.name, ids=ids))

    def query(
        self,
        filter: str,
        fields: Sequence[str],
        limit: int | None = None,
        consistency: Consistency | None = None,
    ) -> list[dict[str, Any]]:
        """Return rows that pass; with a limit, those of the smallest primary keys."""
        bound = {} if limit is None else {"limit": limit}
        rows = self.client.call(
            lambda client: client.query(
                self.name,
                filter=filter,
                output_fields=list(dict.fromkeys(fields)),
                timeout=TRY_SECONDS,
                **self.client.level(client, self.name, consistency),
                **bound,
            )
        )
        return list(rows)

    def pages(
        self,
        fields: Sequence[str],
        size: int,
        passing: str = "",
        consistency: Consistency | None = None,
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield all rows that pass, `size` at a time, in the order of their primary keys."""
        after = 0
        while rows := self.query(
            both(f"{self.primary} > {after}", passing), [self.primary, *fields], size, consistency
        ):
            rows.sort(key=itemgetter(self.primary))
            after = rows[-1][self.primary]
            yield rows

    def by_keys(
        self,
        keys: Sequence[int],
        fields: Sequence[str],
        passing: str = "",
        consistency: Consistency | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows of primary keys that pass."""
        row_bytes = 4096 + sum(FIELD_BYTES.get(field, 0) for field in fields)
        step = min(BLOCK, MESSAGE_BYTES // row_bytes)
        for place in range(0, len(keys), step):
            yield from self.query(
                both(among(self.primary, keys[place : place + step]), passing),
                [self.primary, *fields],
                None,
                consistency,
            )

    def count(self, filter: str = "") -> int:
        return int(self.query(filter, ["count(*)"])[0]["count(*)"])

    def search(
        self,
        vectors: Sequence[Any],
        limit: int,
        filter: str,
        fields: Sequence[str],
        params: Mapping[str, Any],
    ) -> list[list[Any]]:
        """Return for each vector the rows of the largest inner products, best first."""
        hits = self.client.call(
            lambda client: client.search(
                self.name,
                data=list(vectors),
                filter=filter,
                limit=limit,
                output_fields=list(fields),
                search_params={"metric_type": "IP", "params": dict(params)},
                timeout=TRY_SECONDS,
                **self.client.level(client, self.name, None),
            )
        )
        return [list(item) for item in hits]

    def flush(self) -> None:
        """Write what is in memory to the server's storage."""
        self.client.call(lambda client: client.flush(self.name, timeout=6 * TRY_SECONDS))

    def indexed(self) -> float:
        """Return the share of its rows that searches find by an index, and not by a scan."""
        loaded = self.client.call(
            lambda client: client.list_loaded_segments(self.name, timeout=TRY_SECONDS)
        )
        # By their ids: each replica loads them all.
        rows = {
            item.segment_id: item.num_rows
            for item in loaded
            if item.state_name == "Sealed" and item.index_name
        }
        return min(1.0, float(sum(rows.values())) / max(1, self.count()))

    def drop(self) -> None:
        self.client.call(lambda client: client.drop_collection(self.name, timeout=TRY_SECONDS))


def both(*expressions: str) -> str:
    """Join expressions that must all hold; empty ones let everything pass."""
    return " and ".join(f"({item})" for item in expressions if item)


def among(field: str, numbers: Sequence[int]) -> str:
    """Return the expression that a field is one of some numbers."""
    return f"{field} in [{', '.join(map(str, numbers))}]"


def _upsert(client: MilvusClient, collection: str, rows: list[dict[str, Any]]) -> None:
    client.upsert(collection, rows, timeout=TRY_SECONDS)


def _delete(client: MilvusClient, collection: str, ids: list[int | str]) -> None:
    client.delete(collection, ids=ids, timeout=TRY_SECONDS)
    # Milvus 2.3 tells of no deletion when it was (its answer's time is 0), so that reads of this
    # process would not wait for it. Any time after it will do.
    address = client._get_connection().server_address
    ts_utils.update_collection_ts(collection, now(client), address)


class _Insertion:
    """Inserts at the first attempt, and replaces at each other."""

    def __init__(self, collection: str, rows: list[dict[str, Any]]) -> None:
        self._collection = collection
        self._rows = rows
        self._tried = False

    def __call__(self, client: MilvusClient) -> None:
        write = client.upsert if self._tried else client.insert
        self._tried = True
        write(self._collection, self._rows, timeout=TRY_SECONDS)


def batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Rows in parts that fit into a message."""
    first, size = 0, 0
    for place, row in enumerate(rows):
        key_ids = sum(_bytes(value) for value in row.values())
        if size and size + key_ids > MESSAGE_BYTES:
            yield rows[first:place]
            first, size = place, 0
        size += key_ids
    if first < len(rows):
        yield rows[first:]


def _bytes(value: Any) -> int:
    """About what a field takes in a message."""
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if isinstance(value, str):
        return 3 * len(value)
    return len(str(value)) if isinstance(value, Mapping) else 8
