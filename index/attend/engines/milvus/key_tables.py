"""Key tables besides the raw one: filled beside searches and writes, then marked as complete."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from attend.engines.milvus.consistency import reading
from attend.engines.milvus.tables import Tables
from attend.engines.milvus.writing import projected
from attend.types import OnStage
from attend.versions import Version

BLOCK = 500
"""Keys read, projected and written at once: facts may take 64 KiB a key."""

CHECKED = 10_000
"""Keys after which it is asked which of them were deleted while they were written."""

FIELDS = ["key", "document", "version", "id", "place", "facts", "vector"]


class KeyTables:
    """The key tables of one collection. Any process may fill one, or continue where one stopped."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def is_complete(self, name: str) -> bool:
        return self._tables.known().layouts.get(name, (0, False))[1]

    def fill(
        self,
        name: str,
        version: Version,
        make: Callable[[str], None],
        on_stage: OnStage = lambda stage, done: None,
    ) -> None:
        """Write the keys of a version into a table, unless they are there.

        Args:
            make: makes the table of a name, unless it is there.
            on_stage: told how far it is; what it raises interrupts.
        """
        if self._tables.known(fresh=True).layouts.get(name, (0, False))[1]:
            return
        make(self._tables.keys(name))
        details = False
        while not details:
            self._tell(name, version, False)
            # Who writes asks for the layouts after its raw keys are stored: whatever it stored
            # before it could know of this one is read here.
            self._write(name, version, on_stage)
            # Another process may have told of something else at the same moment.
            details = name in self._tables.known(fresh=True).layouts
        self._tell(name, version, True)

    def _tell(self, name: str, version: Version, complete: bool) -> None:
        self._tables.change(
            lambda record: replace(
                record, layouts={**record.layouts, name: (version.number, complete)}
            )
        )

    def _write(self, name: str, version: Version, on_stage: OnStage) -> None:
        """Project those of all keys that the table lacks."""
        client, table = self._tables.client, self._tables.keys(name)
        unchecked: list[int] = []
        with reading("strong"):
            for rows in self._raw():
                # Keys are hashes: the last one's place among all numbers says how many are done.
                on_stage("keys", rows[-1]["key"] / 2**63)
                ids = [row["key"] for row in rows]
                there = {row["key"] for row in client.by_keys(table, "key", ids, ["key"])}
                lacking = [row for row in rows if row["key"] not in there]
                if lacking:
                    client.insert(table, projected(lacking, version))
                    unchecked += [row["key"] for row in lacking]
                if len(unchecked) >= CHECKED:
                    self._delete_gone(table, unchecked)
                    unchecked = []
        self._delete_gone(table, unchecked)

    def _delete_gone(self, table: str, keys: list[int]) -> None:
        """Those that were deleted after they were read and before they were written."""
        client = self._tables.client
        results = client.by_keys(self._tables.keys(), "key", keys, ["key"], consistency="strong")
        gone = set(keys) - {row["key"] for row in results}
        if gone:
            client.delete(table, sorted(gone))

    def _raw(self) -> Iterator[list[dict[str, Any]]]:
        """All keys as embeddings, in blocks, ascending."""
        client, table, after = self._tables.client, self._tables.keys(), 0
        while rows := client.query(table, f"key > {after}", FIELDS, BLOCK):
            rows.sort(key=lambda row: int(row["key"]))
            after = rows[-1]["key"]
            yield [_plain(row) for row in rows]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    facts = row["facts"]
    return {**row, "facts": json.loads(facts) if isinstance(facts, str | bytes) else facts}
