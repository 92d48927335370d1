"""What a check of one collection on a server finds: keys without document, and the reverse.

A writer that was killed leaves keys that no document names: new ones, if it had not written the
document yet, or those before. Readers pass over them, but search through them. A key is one of
these if its document names others or is gone, provided that no living writer may be about to
write that document or to delete that key: it is older than any write lasts, and is still there
when all that was retired before has gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attend.engines.engine import Finding
from attend.engines.milvus import writing
from attend.engines.milvus.tables import Head, Tables
from attend.engines.milvus.writing import UNFINISHED_SECONDS, version_at

STRAYS, LACKING = "strays", "keys"

SWEPT = "The keys that no document names were deleted."
RESEND = "Delete the documents and send them again."

BLOCK = 5000
"""Rows read at once."""


class RemoteChecks:
    """As `attend.engines.engine.Checks`."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._strays: dict[str, list[int]] = {}

    def find(self) -> list[Finding]:
        self._strays = self.strays()
        results = [
            Finding(STRAYS, f"{len(keys)} keys of {table} are named by no document.", True, SWEPT)
            for table, keys in self._strays.items()
            if keys
        ]
        for table, ids in self.lacking().items():
            if ids:
                details = f"{len(ids)} documents lack keys in {table}, {ids[0]!r} first."
                results.append(Finding(LACKING, details, False, RESEND))
        return results

    def repair(self, names: set[str]) -> None:
        if STRAYS in names:
            for table, keys in self._strays.items():
                self._tables.client.delete(table, keys)

    def strays(self) -> dict[str, list[int]]:
        """Keys that no document names, and that nobody needs, by table."""
        results = {table: list(self._unnamed(table)) for table in self._tables.of_keys()}
        if any(results.values()):
            # Some may just have been retired: those go by themselves.
            time.sleep(writing.GRACE_SECONDS + writing.TOGETHER_SECONDS)
            results = {table: sorted(self._there(table, keys)) for table, keys in results.items()}
        return results

    def lacking(self) -> dict[str, list[str]]:
        """Ids of documents some of whose keys are not there, by table."""
        tables = self._tables.of_keys(complete=True)
        results: dict[str, list[str]] = {table: [] for table in tables}
        for rows in self._blocks(self._tables.documents, "row", ["id", "version", "keys"]):
            heads = [
                Head(row["row"], row["id"], row["version"], row["keys"], "", "") for row in rows
            ]
            for table, ids in results.items():
                ids += self._lacking(table, heads)
        return results

    def _lacking(self, table: str, heads: Sequence[Head]) -> list[str]:
        there = self._there(table, [key for head in heads for key in head.key_ids()])
        results = {head.id: head for head in heads if not there.issuperset(head.key_ids())}
        # Written again or deleted meanwhile, they have others.
        now = self._tables.heads(list(results), "strong")
        return [id for id in results if id in now and now[id].version == results[id].version]

    def _unnamed(self, table: str) -> Iterator[int]:
        """Keys of which no document's row has the version, older than a write may last."""
        before = version_at(time.time() - UNFINISHED_SECONDS)
        for rows in self._blocks(table, "key", ["document", "version"]):
            versions = self._versions([row["document"] for row in rows])
            for row in rows:
                if row["version"] < before and versions.get(row["document"]) != row["version"]:
                    yield row["key"]

    def _versions(self, rows: Sequence[int]) -> Mapping[int, int]:
        tables, distinct = self._tables, list(dict.fromkeys(rows))
        results = tables.client.by_keys(
            tables.documents, "row", distinct, ["row", "version"], consistency="strong"
        )
        return {row["row"]: row["version"] for row in results}

    def _there(self, table: str, keys: Sequence[int]) -> set[int]:
        results = self._tables.client.by_keys(table, "key", keys, ["key"], consistency="strong")
        return {row["key"] for row in results}

    def _blocks(
        self, table: str, primary: str, fields: Sequence[str]
    ) -> Iterator[list[dict[str, Any]]]:
        """All rows of a table, by their primary keys."""
        after = 0
        while rows := self._tables.client.query(
            table, f"{primary} > {after}", [primary, *fields], BLOCK, "strong"
        ):
            after = max(row[primary] for row in rows)
            yield rows
