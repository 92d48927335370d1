"""Key tables besides the raw one: filled beside searches and writes, then marked as complete."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attend.collection.versions import Version
from attend.core.types import OnStage
from attend_milvus.client import reading
from attend_milvus.rows import Table
from attend_milvus.tables import Tables
from attend_milvus.writing import projected

BLOCK = 500
"""Keys read, projected and written at once: filter fields may take 64 KiB a key."""

CHECKED = 10_000
"""Keys after which it is asked which of them were deleted while they were written."""

FIELDS = ["document", "version", "id", "place", "facts", "vector"]


def fill(
    tables: Tables,
    layout: str,
    version: Version,
    make: Callable[[str], None],
    on_stage: OnStage = lambda stage, done: None,
) -> None:
    """Write the keys of a version into the table of a layout, unless they are there.

    Any process may fill one, or continue where one stopped.

    Args:
        make: makes the table of a name, unless it is there.
        on_stage: gets the progress; what it raises interrupts.
    """
    if tables.known(fresh=True).is_complete(layout):
        return
    make(tables.keys(layout).name)
    is_listed = False
    while not is_listed:
        _record(tables, layout, version, False)
        # Who writes reads the layouts after its raw keys are stored: whatever it stored before it
        # could know of this one is read here.
        _write(tables, tables.keys(layout), version, on_stage)
        # Another process may have changed the record at the same moment.
        is_listed = layout in tables.known(fresh=True).layouts
    _record(tables, layout, version, True)


def _record(tables: Tables, layout: str, version: Version, complete: bool) -> None:
    tables.change(
        lambda record: replace(
            record, layouts={**record.layouts, layout: (version.number, complete)}
        )
    )


def _write(tables: Tables, table: Table, version: Version, on_stage: OnStage) -> None:
    """Project those of all keys that the table lacks."""
    unchecked: list[int] = []
    with reading("strong"):
        for rows in tables.keys().pages(FIELDS, BLOCK):
            # Keys are hashes: the last one's place among all numbers says how many are done.
            on_stage("keys", rows[-1]["key"] / 2**63)
            there = {row["key"] for row in table.by_keys([row["key"] for row in rows], [])}
            lacking = [_plain(row) for row in rows if row["key"] not in there]
            if lacking:
                table.insert(projected(lacking, version))
                unchecked += [row["key"] for row in lacking]
            if len(unchecked) >= CHECKED:
                _delete_gone(tables, table, unchecked)
                unchecked = []
    _delete_gone(tables, table, unchecked)


def _delete_gone(tables: Tables, table: Table, keys: list[int]) -> None:
    """Delete keys that were deleted after they were read and before they were written."""
    there = {row["key"] for row in tables.keys().by_keys(keys, [], consistency="strong")}
    table.delete([key for key in keys if key not in there])


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    facts = row["facts"]
    return {**row, "facts": json.loads(facts) if isinstance(facts, str | bytes) else facts}
