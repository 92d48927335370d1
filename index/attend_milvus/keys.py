"""What one search sees of a collection on the server: keys that are proposed, then read exactly."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attend.api.search import SearchOptions
from attend.collection.versions import Version, View
from attend.core.arrays import KeyTable
from attend.core.errors import InvalidRequest, Unsupported
from attend.core.settings import Settings
from attend.core.types import Float32, Float64, Int64, Json, OnStage
from attend.engines.engine import OnSettings, Selected, masked
from attend.keys import Proposals
from attend.keys.snapshot import EXTRA, OVERFETCH
from attend.store import Role, compile_filter
from attend_milvus.client import Table, among, both, read_block, reading
from attend_milvus.graphs import EFS, KeyGraph
from attend_milvus.server import CAPABILITIES, MAX_ATTENDED, MAX_RESULTS, MESSAGE_BYTES
from attend_milvus.store import RemoteStore
from attend_milvus.tables import Read, Tables
from attend_milvus.writing import GRACE_SECONDS

MAX_EF = EFS[-1]
"""More keys are found faster by a scan than by HNSW."""

READ_AGAIN = 4
"""Attempts to read a document that changes meanwhile; then the search skips it."""


class RemoteKeys:
    """The documents of a collection that a filter lets pass, under one version.

    Made for one request, which reads each document once: what is found, attended and returned is
    one state of it. Offers what `attend.keys.Snapshot` does, but for scans of everything.

    Args:
        counts: the numbers of documents and of keys, when they were last counted.
        graph: an HNSW table of the same keys; None for exact searches, as all behind a filter are.
        passing: returns the expression that lets documents pass, where a field has their rows.
    """

    scans = False
    """All keys are not read for one search."""
    generation = 0
    fresh = 0
    longest = math.inf
    """The lengths of keys are not known."""
    index: Mapping[str, Json]

    def __init__(
        self,
        tables: Tables,
        version: Version,
        counts: tuple[int, int],
        graph: KeyGraph | None,
        passing: Callable[[str], str],
    ) -> None:
        self._tables = tables
        self._layout = version.layout
        self.documents, self.keys = counts
        self.indexed = self.keys
        self._of_keys, self._of_documents = passing("document"), passing("row")
        self.width = version.width
        self._graph = graph
        details = {} if graph is None else graph.details
        self.index = {"kind": "flat" if graph is None else "hnsw", "engine": "milvus", **details}
        self.documents_read: dict[int, Read] = {}
        self._looked_for: set[int] = set()
        self._own: set[int] = set()
        self._vectors: dict[int, Float32] = {}

    @property
    def most_keys(self) -> int:
        """The largest number of keys of a document, of those that were read."""
        return max((read.keys for read in self.documents_read.values()), default=1)

    @property
    def rows(self) -> Int64:
        raise _reads_all()

    def living(self, rows: Int64) -> Int64:
        raise _reads_all()

    def sample(self, rows: Int64 | None, most: int) -> tuple[KeyTable, int]:
        raise _reads_all()

    def drawn(self, *_: object) -> tuple[KeyTable, Float64]:
        raise _reads_all()

    def promises(self, recall: float | None = None) -> float:
        """The share of the true nearest keys that searches find."""
        return 1.0 if self._graph is None else self._graph.promises(recall)

    def search(
        self, queries: Float32, rows: Int64 | None, attend: int, recall: float | None = None
    ) -> Proposals:
        """Search as `attend.keys.Snapshot.search` does; the server chooses the rows that filter and
        mask let pass."""
        q, heads, _ = queries.shape
        flat = queries.reshape(q * heads, -1)
        results = self._nearest(flat, attend + EXTRA, recall)
        by_query = [
            np.unique(np.concatenate(results[place : place + heads]))
            for place in range(0, len(results), heads)
        ]
        return Proposals(by_query, self.promises(recall))

    def lookup(self, rows: Int64) -> KeyTable:
        """Return the documents of `rows` that are there, with all of their keys."""
        alive = self._settled(rows.tolist())
        reads = [self.documents_read[row] for row in alive]
        ids = [key for read in reads for key in read.key_ids()]
        counts = np.array([read.keys for read in reads], dtype=np.int64)
        vectors = [self._vectors[key] for key in ids]
        keys = np.array(vectors, dtype=np.float32).reshape(len(ids), self.width)
        documents = np.array(alive, dtype=np.int64)
        starts = np.append(0, np.cumsum(counts))
        return KeyTable(documents, starts, keys, np.array(ids, dtype=np.int64))

    def blocks(self, rows: Int64 | None) -> Iterator[KeyTable]:
        """Yield the documents of `rows`, in one block."""
        if rows is None:
            raise _reads_all()
        results = self.lookup(rows)
        if len(results):
            yield results

    def _nearest(self, queries: Float32, target: int, recall: float | None) -> list[Int64]:
        """Return the rows of the documents of the best keys for each of the queries (n, d):
        `target` different ones or more, or all there are.

        A document that is found by an old key is one of them, since its own may not have been to
        be seen yet; but it takes the place of none that is found by a key of its own.
        """
        crowd = self.keys / self.documents if self.documents else 1.0
        fetch = min(MAX_RESULTS, int(target * crowd * OVERFETCH) + 1)
        results: list[Int64 | None] = [None] * len(queries)
        pending = list(range(len(queries)))
        while pending:
            hits = list(self._hits(queries[pending], fetch, recall))
            proposed = {hit["entity"]["document"] for item in hits for hit in item}
            alive = set(self._settled(sorted(proposed)))
            for place, item in zip(pending, hits, strict=True):
                rows = {hit["entity"]["document"] for hit in item}
                key_ids = {hit["entity"]["document"] for hit in item if hit["id"] in self._own}
                if len(key_ids) >= target or len(item) < fetch or fetch == MAX_RESULTS:
                    results[place] = np.array(sorted(rows & alive), dtype=np.int64)
            pending = [place for place in pending if results[place] is None]
            fetch = min(MAX_RESULTS, fetch * 2)
        return [item for item in results if item is not None]

    def _hits(self, queries: Float32, fetch: int, recall: float | None) -> Iterator[list[Any]]:
        """Yield the hits of each query; the keys among them are kept."""
        table, params = self._table(fetch, recall)
        row_bytes = 4 * self.width + 200
        step = max(1, min(64, MESSAGE_BYTES // (row_bytes * fetch)))
        for place in range(0, len(queries), step):
            part = list(queries[place : place + step])
            for hits in table.search(part, fetch, self._of_keys, ["document", "vector"], params):
                for hit in hits:
                    entity = hit["entity"]
                    if hit["id"] not in self._vectors:
                        self._vectors[hit["id"]] = np.asarray(entity["vector"], dtype=np.float32)
                yield hits

    def _table(self, fetch: int, recall: float | None) -> tuple[Table, dict[str, int]]:
        """Return the key table to search for `fetch` keys, and the parameters of its index."""
        point = None if self._graph is None else self._graph.point(recall)
        if self._graph is None or point is None or fetch > MAX_EF:
            return self._tables.keys(self._layout), {}
        return self._tables.keys(self._graph.layout), {"ef": max(point.ef, fetch)}

    def _settled(self, rows: Sequence[int]) -> list[int]:
        """Return those of the rows, ascending, whose documents are there and pass, read with keys.

        A key that was found under another version than its document's is not its document's. A
        document whose own keys are not there was read so late that it had others by then, and is
        read again.
        """
        late = [row for row in rows if row not in self._looked_for]
        self._looked_for.update(late)
        late = self._read_whole(late)
        for _ in range(READ_AGAIN):
            if not late:
                break
            with reading("strong"):
                late = self._read_whole(late)
        return sorted(row for row in rows if row in self.documents_read)

    def _read_whole(self, rows: Sequence[int]) -> list[int]:
        """Reads documents, then their keys. Returns those whose keys were not there."""
        read = self._tables.read(rows, passing=self._of_documents)
        keys = [key for item in read.values() for key in item.key_ids()]
        self._read_keys(keys)
        # Keys are written before the document that names them: a moment after it has seen them.
        with reading("strong"):
            self._read_keys(keys)
        complete = {
            row: item
            for row, item in read.items()
            if all(key in self._vectors for key in item.key_ids())
        }
        self.documents_read |= complete
        self._own.update(key for item in complete.values() for key in item.key_ids())
        return [row for row in read if row not in complete]

    def _read_keys(self, keys: Sequence[int]) -> None:
        """Return those that were not read yet."""
        missing = [key for key in keys if key not in self._vectors]
        if missing:
            self._vectors |= self._tables.vectors(missing, self._layout)


def _reads_all() -> Unsupported:
    return CAPABILITIES.lacking("attend_all", field="attend")


COUNTED_SECONDS = 10.0
"""For so long a count of documents and keys is good enough to plan a search with."""


class RemoteSnapshots:
    """As `attend.engines.snapshots.Views`, over a server's tables, which are always up to date."""

    def __init__(self, tables: Tables, store: RemoteStore) -> None:
        self.on_settings: OnSettings = lambda settings: None
        self._settings = tables.known().settings
        self._tables = tables
        self._store = store
        self._counted: tuple[float, tuple[int, int]] | None = None
        self._counting = threading.Lock()

    def current(self, version: int | None = None, role: Role = "search") -> View:
        """Return the view of a version, or of the active one; write its keys first if need be."""
        if role != "search":
            CAPABILITIES.check("recommend")
        self.refresh()
        number = version or self._tables.known().version
        self._store.prepare(number)
        prepared = self._store.version_of(number)
        return View(prepared, self._keys(prepared), self._store.generation)

    def refresh(self) -> None:
        """Take the settings that another process, or this one, has written."""
        stored = self._tables.known().settings
        if stored is not self._settings and stored != self._settings:
            self.on_settings(Settings.of(stored))
        self._settings = stored

    def _keys(
        self,
        version: Version,
        filter: str = "",
        exclude: Collection[int] = (),
        only: Sequence[int] | None = None,
    ) -> RemoteKeys:
        """Return the keys of a version that pass.

        Args:
            filter: as an expression, for keys and for documents alike.
            exclude, only: the mask, as rows.
        """
        counts = self.counts()
        # What HNSW finds behind a filter is not known; of a few that are masked it is.
        by_scan = filter or only is not None
        graph = None if by_scan else self._store.graphs.of(version, counts[1])

        def passing(field: str) -> str:
            return both(
                filter,
                f"not ({among(field, sorted(exclude))})" if exclude else "",
                "" if only is None else among(field, only),
            )

        return RemoteKeys(self._tables, version, counts, graph, passing)

    def select(self, options: SearchOptions, query_rows: tuple[int, ...]) -> Selected:
        """Return the snapshot of one search; see `attend.engines.engine`."""
        _check(options)
        self.refresh()
        there = self._tables.known()
        version = self._store.version_of(options.projection or there.version)
        if not there.is_complete(version.layout):
            raise InvalidRequest(
                f"Projection {version.number} has keys of its own, which are not written yet; "
                f"activate it first.",
                field="projection",
            )
        excluded, only = masked(self._store, options, query_rows)
        filter = options.filter
        passing = self._store.passing(compile_filter(filter)) if filter else ""
        keys = self._keys(version, passing, excluded, only)
        if (block := read_block()) is not None:
            block.documents = keys.documents_read
        return View(version, keys, self._store.generation), None, np.array((), np.int64)

    def counts(self) -> tuple[int, int]:
        """Return the numbers of documents and of keys, counted at most some seconds ago."""
        counted = self._counted
        if counted is None or time.monotonic() - counted[0] > COUNTED_SECONDS:
            with self._counting, reading("bounded"):
                self._counted = counted = time.monotonic(), self._store.counts()
        return counted[1]

    def publish(self, on_stage: OnStage = lambda stage, done: None) -> View:
        """Write what is in memory to the server's storage, which it does by itself in time; and
        wait until the keys of versions before are gone, for a process that ends leaves them."""
        for table in (self._tables.documents, *self._tables.of_keys()):
            table.flush()
        began = time.monotonic()
        while self._store.retires:
            on_stage("keys before", min(1.0, (time.monotonic() - began) / GRACE_SECONDS))
            time.sleep(0.5)
        self._store.graphs.ensure(self._active(), on_stage)
        return self.current()

    def merge_if_due(self) -> None:
        """Begin to make an HNSW table in the background if the keys are many enough."""
        version = self._active()
        if self._store.graphs.is_due(version, self.counts()[1]):
            self._store.graphs.start(version)

    damage = None
    """The server keeps the index, and checks it itself."""

    def has_fresh(self) -> bool:
        """Return whether the process has something to finish before it ends."""
        keys = self._store.counts()[1]
        return self._store.retires or self._store.graphs.is_due(self._active(), keys)

    def _active(self) -> Version:
        return self._store.version_of(self._tables.known().version)

    def mean(self) -> Float32:
        raise CAPABILITIES.lacking("train")


def _check(options: SearchOptions) -> None:
    """Raises Unsupported for what a search cannot ask here."""
    if options.attend == "all":
        CAPABILITIES.check("attend_all", field="attend")
    elif options.attend > MAX_ATTENDED:
        raise CAPABILITIES.unsupported(
            f"Attended sets of {options.attend:,} documents",
            f"attend to at most {MAX_ATTENDED:,}",
            field="attend",
        )
    for field in ("decode", "lexical", "recency", "memory", "facets"):
        if getattr(options, field) not in (None, False):
            CAPABILITIES.check("attend_all" if field == "decode" else field, field=field)
