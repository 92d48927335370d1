"""HNSW tables: made where a collection has more keys than are to be scanned for every search.

The exact table of the same keys stays beside each: it answers while the other is filled, indexed
and measured, and from then on whoever filters or asks for more recall than was measured. HNSW finds
less behind a filter (of a tenth of the keys .90 where .95 was measured, and the less the more the
filter follows the order in which keys came), and no measurement speaks for all filters.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attend.collection.versions import Version
from attend.core.errors import AttendError, Unavailable
from attend.core.settings import Settings
from attend.core.types import Float32, Int64, Json, OnStage
from attend.keys.vectors import AMID, ENOUGH, FETCHED, NEAREST, QUERIES, held_out, share_found
from attend_milvus.client import Table, reading
from attend_milvus.server import MESSAGE_BYTES
from attend_milvus.tables import FLAT, HNSW, KeyIndex, Known, Lease, Tables, key_fields, make_table
from attend_milvus.writing import projected

log = logging.getLogger("attend")

EFS = (24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Candidates that HNSW keeps while it searches (Malkov and Yashunin 2016), from `FETCHED` on:
Milvus refuses fewer than are fetched."""

TOGETHER = 16
"""Queries of one call: exact ones of a large table take a tenth of a second each."""


class EfPoint(NamedTuple):
    """A search parameter, and the share of the ten nearest that is to be relied on with it."""

    ef: int
    recall: float


class KeyGraph(NamedTuple):
    """An HNSW table of keys, as it answers one version.

    Attributes:
        layout: that names the table.
        points: the fastest first.
        target: the share to find where a search asks for none.
        details: how it was chosen and measured.
    """

    layout: str
    points: tuple[EfPoint, ...]
    target: float
    details: Mapping[str, Json]

    def point(self, recall: float | None = None) -> EfPoint | None:
        """Return the fastest point of a recall; None without one: then the exact table is searched.

        A recall of 1 has none: 256 queries that found all do not prove it of others.
        """
        target = self.target if recall is None else recall
        if target >= 1:
            return None
        return next((point for point in self.points if point.recall >= target), None)

    def promises(self, recall: float | None = None) -> float:
        """Return the requested recall, and no more: other queries may find less."""
        requested = self.target if recall is None else recall
        return 1.0 if self.point(recall) is None else requested


def measured(
    exact: Table, graph: Table, queries: Float32, recall: float, on_stage: OnStage
) -> list[EfPoint]:
    """Measure the share of the nearest keys of queries (q, d) that each `ef` finds.

    Args:
        exact, graph: tables of the same keys.
        recall: beyond it, and beyond `ENOUGH`, nothing is measured.
    """
    points: list[EfPoint] = []
    with reading("strong"):
        truth = _ids(exact, queries, NEAREST, {})
        for number, ef in enumerate(EFS):
            on_stage("measuring", number / len(EFS))
            hits = _ids(graph, queries, FETCHED, {"ef": ef})
            shares = share_found(hits, truth)
            # One standard error less than the mean: a search finds what is promised.
            reliable = float(shares.mean() - shares.std() / np.sqrt(len(shares)))
            points.append(EfPoint(ef, round(reliable, 4)))
            if points[-1].recall >= max(ENOUGH, recall):
                break
    return points


def _ids(table: Table, queries: Float32, limit: int, params: Mapping[str, int]) -> Int64:
    """Search for primary keys (q, limit), -1 where there are no more."""
    results = np.full((len(queries), limit), -1, dtype=np.int64)
    for place in range(0, len(queries), TOGETHER):
        part = list(queries[place : place + TOGETHER])
        hits: Sequence[Sequence[Mapping[str, int]]] = table.search(part, limit, "", [], params)
        for row, item in enumerate(hits, place):
            results[row, : len(item)] = [hit["id"] for hit in item]
    return results


EXACT_BELOW = 100_000
"""Keys that a scan of a FLAT table takes some 10 ms for, of 384 numbers; fewer are searched
exactly, unless the collection's settings say otherwise."""

LEAST_KEYS = 1000
"""Fewer keys get no index, whatever is asked for: Milvus makes none for a segment of less."""

GROWN = 2
"""Growth of the number of keys after which they are measured again."""

INDEXED = 0.9
"""The share of rows that Milvus has to search by the index before that is measured; it scans what
was written last."""

INDEXED_SECONDS = 3600.0

WAITING_SECONDS = 1.0
"""Between two looks at what another process does."""


class Interrupted(Exception):
    """The collection is closed meanwhile; whoever is next goes on."""


class Graphs:
    """The HNSW tables of one collection; any thread may use it."""

    def __init__(self, tables: Tables, questions: Callable[[], Float32]) -> None:
        self._tables = tables
        self._questions = questions
        self._making = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def of(self, version: Version, keys: int) -> KeyGraph | None:
        """Return the HNSW table of a version; None for the exact table."""
        record = self._tables.known()
        details = record.graphs.get(str(version.number))
        settings = Settings.of(record.settings)
        if details is None or keys < _least(settings):
            return None
        points = tuple(EfPoint(*item) for item in details["points"])
        return KeyGraph(_layout(version), points, settings.recall, details)

    def is_due(self, version: Version, keys: int) -> bool:
        """Return whether a version lacks an HNSW table that was measured for its target."""
        record = self._tables.known()
        settings = Settings.of(record.settings)
        # The keys of several heads lie side by side: as one vector they are near to nothing.
        if settings.recall >= 1 or keys < _least(settings) or version.key_heads > 1:
            return False
        details = record.graphs.get(str(version.number))
        return (
            details is None
            or details["target"] != settings.recall
            or keys > GROWN * int(details["measured_keys"])
        )

    def ensure(self, version: Version, on_stage: OnStage = lambda stage, done: None) -> None:
        """Make and measure what is due, or wait until another process has done so; searches are
        answered by the exact table meanwhile.

        Raises:
            Unavailable: Milvus does not answer, or indexes nothing.
        """
        lease = Lease(self._tables.registry, self._tables.uuid)

        def keep(stage: str, done: float) -> None:
            on_stage(stage, done)
            lease.keep()

        with self._making, lease:
            while self.is_due(version, self._count()):
                if lease.take():
                    self._make(version, keep)
                    return
                on_stage("another process", 0.0)
                time.sleep(WAITING_SECONDS)

    def attempt(self, version: Version, on_stage: OnStage = lambda stage, done: None) -> None:
        """The same; where it fails searches stay exact, and the next who writes tries again."""
        try:
            self.ensure(version, on_stage)
        except Interrupted:
            log.info("An HNSW table is filled in part; who writes next goes on.")
        except AttendError as error:
            log.warning("Searches stay exact, as no HNSW table could be made: %s", error)

    def start(self, version: Version) -> None:
        """The same in the background, unless this process is at it."""
        if self._stopping.is_set() or (self._thread is not None and self._thread.is_alive()):
            return

        def go_on(stage: str, done: float) -> None:
            if self._stopping.is_set():
                raise Interrupted

        self._thread = threading.Thread(target=self.attempt, args=[version, go_on], daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    # -- making -----------------------------------------------------------------------------

    def _make(self, version: Version, on_stage: OnStage) -> None:
        started, record = time.monotonic(), self._tables.known(fresh=True)
        tables, settings = self._tables, Settings.of(record.settings)
        recall = settings.recall
        fill(tables, _layout(version), version, HNSW, on_stage)
        table = tables.keys(_layout(version))
        table.flush()
        _wait_for_index(table, on_stage)
        keys = self._count()
        queries, of_what = self._queries(version)
        points = measured(tables.keys(version.layout), table, queries, recall, on_stage)
        fit = next((point for point in points if point.recall >= recall), points[-1])
        details: dict[str, Json] = {
            "type": f"HNSW{HNSW[1]['M']}",
            "why": f"not fewer than {_least(settings)} keys",
            "target": recall,
            "recall": fit.recall,
            "ef": fit.ef,
            "measured_on": of_what,
            "measured_keys": keys,
            "seconds": round(time.monotonic() - started, 1),
            "points": [list(point) for point in points],
        }
        log.info("keys are searched by HNSW: %s", details)
        tables.change(
            lambda record: replace(record, graphs={**record.graphs, str(version.number): details})
        )

    def _queries(self, version: Version) -> tuple[Float32, str]:
        """Held-out queries (q, d) as the version asks, and what they are."""
        questions = self._questions()
        if len(questions) >= QUERIES:
            requested, of_what = held_out(questions, questions), "questions"
        else:
            requested, of_what = held_out(self._sample(), None), "keys"
        heads = version.projection.queries(requested)  # (q, H, d)
        flat = heads.reshape(-1, heads.shape[-1])
        return np.ascontiguousarray(flat, dtype=np.float32), of_what

    def _sample(self) -> Float32:
        """Return embeddings (n, d) of keys from all over: those that came first are found best."""
        limit = min(2 * AMID * QUERIES, MESSAGE_BYTES // (4 * self._tables.dimension))
        step = 1 + self._count() // limit  # keys are hashes: their remainders are chance
        rows = self._tables.keys().query(f"key % {step} == 0", ["vector"], limit)
        return np.array([row["vector"] for row in rows], dtype=np.float32)

    def _count(self) -> int:
        return self._tables.keys().count()


def _layout(version: Version) -> str:
    return f"{version.layout}_hnsw"


def _least(settings: Settings) -> int:
    least = settings.exact_below
    return EXACT_BELOW if least is None else max(least, LEAST_KEYS)


def _wait_for_index(table: Table, on_stage: OnStage) -> None:
    """Wait until the server searches nearly all rows by the index."""
    end = time.monotonic() + INDEXED_SECONDS
    while (share := table.indexed()) < INDEXED:
        on_stage("indexing", share)
        if time.monotonic() > end:
            raise Unavailable(
                f"Milvus has indexed {share:.0%} of {table.name} in {INDEXED_SECONDS:.0f} seconds; "
                f"see to its index nodes, then build again."
            )
        time.sleep(0.5)


BLOCK = 500
"""Keys read, projected and written at once: filter fields may take 64 KiB a key."""

CHECKED = 10_000
"""Keys after which it is asked which of them were deleted while they were written."""

FIELDS = ["document", "version", "id", "place", "facts", "vector"]


def fill(
    tables: Tables,
    layout: str,
    version: Version,
    by: KeyIndex = FLAT,
    on_stage: OnStage = lambda stage, done: None,
) -> None:
    """Write the keys of a version into the table of a layout, unless they are there.

    Any process may fill one, or continue where one stopped.

    Args:
        by: the index of a new table.
        on_stage: gets the progress; what it raises interrupts.
    """
    record, table = tables.known(fresh=True), tables.keys(layout)
    if record.is_complete(layout):
        return
    make_table(tables.client, table.name, key_fields(version.width), record.shards, by)

    def mark(complete: bool) -> None:
        def listed(record: Known) -> Known:
            is_complete = complete or record.is_complete(layout)  # by another process, meanwhile
            layouts = {**record.layouts, layout: (version.number, is_complete)}
            return replace(record, layouts=layouts)

        tables.change(listed)

    mark(False)
    # Who writes reads the layouts after its raw keys are stored: whatever it stored before it could
    # know of this one is read here.
    _write(tables, table, version, on_stage)
    mark(True)


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
                table.upsert(projected(lacking, version), new=True)
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
