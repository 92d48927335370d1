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

from attend.engines.engine import Finding
from attend_milvus import writing
from attend_milvus.rows import Table
from attend_milvus.tables import IDENTITY, Head, Tables
from attend_milvus.writing import UNFINISHED_SECONDS, version_at

STRAYS, LACKING = "strays", "keys"

SWEPT = "The keys that no document names were deleted."
RESEND = "Delete the documents and send them again."

BLOCK = 5000
"""Rows read at once."""


class RemoteChecks:
    """As `attend.engines.engine.Checks`."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._strays: dict[Table, list[int]] = {}

    def find(self) -> list[Finding]:
        self._strays = self.strays()
        results = [
            Finding(
                STRAYS, f"{len(keys)} keys of {table.name} are named by no document.", True, SWEPT
            )
            for table, keys in self._strays.items()
            if keys
        ]
        for table, ids in self.lacking().items():
            if ids:
                details = f"{len(ids)} documents lack keys in {table.name}, {ids[0]!r} first."
                results.append(Finding(LACKING, details, False, RESEND))
        return results

    def repair(self, names: set[str]) -> None:
        if STRAYS in names:
            for table, keys in self._strays.items():
                table.delete(keys)

    def strays(self) -> dict[Table, list[int]]:
        """Return keys that no document names, and that nobody needs, by table."""
        results = {table: list(self._unnamed(table)) for table in self._tables.of_keys()}
        if any(results.values()):
            # Some may just have been retired: those go by themselves.
            time.sleep(writing.GRACE_SECONDS + writing.TOGETHER_SECONDS)
            results = {table: sorted(_there(table, keys)) for table, keys in results.items()}
        return results

    def lacking(self) -> dict[Table, list[str]]:
        """Return ids of documents some of whose keys are not there, by table."""
        tables = self._tables.of_keys(complete=True)
        results: dict[Table, list[str]] = {table: [] for table in tables}
        for rows in self._tables.documents.pages(IDENTITY, BLOCK, consistency="strong"):
            heads = [Head(*(row[name] for name in IDENTITY)) for row in rows]
            for table, ids in results.items():
                ids += self._lacking(table, heads)
        return results

    def _lacking(self, table: Table, heads: Sequence[Head]) -> list[str]:
        there = _there(table, [key for head in heads for key in head.key_ids()])
        results = {head.id: head for head in heads if not there.issuperset(head.key_ids())}
        # Written again or deleted meanwhile, they have others.
        now = self._tables.heads(list(results), "strong")
        return [id for id in results if id in now and now[id].version == results[id].version]

    def _unnamed(self, table: Table) -> Iterator[int]:
        """Yield keys of which no document's row has the version, older than a write may last."""
        before = version_at(time.time() - UNFINISHED_SECONDS)
        for rows in table.pages(["document", "version"], BLOCK, consistency="strong"):
            versions = self._versions([row["document"] for row in rows])
            for row in rows:
                if row["version"] < before and versions.get(row["document"]) != row["version"]:
                    yield row["key"]

    def _versions(self, rows: Sequence[int]) -> Mapping[int, int]:
        distinct = list(dict.fromkeys(rows))
        stored = self._tables.documents.by_keys(distinct, ["version"], consistency="strong")
        return {row["row"]: row["version"] for row in stored}


def _there(table: Table, keys: Sequence[int]) -> set[int]:
    return {row["key"] for row in table.by_keys(keys, [], consistency="strong")}
