"""A library on a Milvus server, and its collections as searches see them."""

from __future__ import annotations

import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attend.api.search import Mask, SearchOptions
from attend.collection.versions import Version, View
from attend.core.errors import InvalidRequest
from attend.core.settings import Settings
from attend.core.types import Float32, OnStage
from attend.engines.engine import OnSettings, OpenedCollection
from attend.projection import identity
from attend.search.queries import rows_by_id
from attend.store import Role, compile_filter
from attend_milvus import schema, tables
from attend_milvus.checks import RemoteChecks
from attend_milvus.client import Client, read_block, reading
from attend_milvus.keys import RemoteKeys, Scope, Size
from attend_milvus.registry import Known, Registry
from attend_milvus.server import CAPABILITIES, MAX_ATTENDED, Address
from attend_milvus.store import RemoteStore
from attend_milvus.tables import Tables
from attend_milvus.versions import version_body
from attend_milvus.writing import GRACE_SECONDS

COUNTED_SECONDS = 10.0
"""For so long a count of documents and keys is good enough to plan a search with."""


class RemoteSnapshots:
    """As `attend.engines.snapshots.Views`, over a server's tables, which are always up to date."""

    def __init__(self, tables: Tables, store: RemoteStore) -> None:
        self.on_settings: OnSettings = lambda settings: None
        self._settings = tables.known().settings
        self._tables = tables
        self._store = store
        self._size: tuple[float, Size] | None = None
        self._sizing = threading.Lock()

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

    def _keys(self, version: Version, scope: Scope = Scope()) -> RemoteKeys:  # noqa: B008 # frozen
        """Return the keys of a version that pass."""
        size = self.size()
        graph = self._store.graphs.of(version, size.keys)
        return RemoteKeys(self._tables, version, size, graph, scope)

    def select(self, options: SearchOptions, query_rows: tuple[int, ...]) -> tuple[View, None]:
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
        mask = options.mask or Mask()
        named = rows_by_id(self._store, [*mask.exclude, *(mask.only or [])], "mask")
        exclude = {named[id] for id in mask.exclude} | (
            set(query_rows) if mask.only is None else set()
        )
        only = None if mask.only is None else [named[id] for id in mask.only]
        filter = options.filter
        passing = self._store.passing(compile_filter(filter)) if filter else ""
        keys = self._keys(version, Scope(passing, sorted(exclude), only))
        if (block := read_block()) is not None:
            block.documents = keys.documents_read
        return View(version, keys, self._store.generation), None

    def size(self) -> Size:
        """Return the size of the collection, counted at most some seconds ago."""
        counted = self._size
        if counted is None or time.monotonic() - counted[0] > COUNTED_SECONDS:
            with self._sizing, reading("bounded"):
                self._size = counted = time.monotonic(), Size(*self._store.counts())
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
        if self._store.graphs.is_due(version, self.size().keys):
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
    if options.decode:
        CAPABILITIES.check("attend_all", field="decode")
    if options.lexical:
        CAPABILITIES.check("lexical", field="lexical")
    if options.memory:
        CAPABILITIES.check("memory", field="memory")
    if options.facets is not None:
        CAPABILITIES.check("facets", field="facets")


SHARDS = 2
"""Of each table: as many write in parallel, and a cluster searches them side by side."""


class Milvus:
    """Collections on a Milvus server; any number of processes may use them at once.

    The entry point `milvus` of the group `attend.engines` names this class.

    Args:
        address: see `attend_milvus.server.Address`.
    """

    capabilities = CAPABILITIES

    def __init__(self, address: str) -> None:
        self.address = Address.of(address)
        self._client = Client(self.address)
        self._registry = Registry(self._client)
        self.aliases = self._registry

    def names(self) -> list[str]:
        return self._registry.names()

    def identity(self, name: str) -> object | None:
        record = self._registry.known(name)
        return None if record is None else record.uuid

    def open(self, name: str) -> OpenedCollection:
        opened = Tables(self._client, self._registry, name)
        settings = Settings.of(opened.known().settings)
        store = RemoteStore(opened, settings.scorer)
        views = RemoteSnapshots(opened, store)
        return OpenedCollection(
            Path("milvus") / opened.uuid,
            settings,
            store,
            views,
            CAPABILITIES,
            RemoteChecks(opened),
            reading,
        )

    def make(self, name: str, settings: Settings) -> None:
        """Make the tables first: a collection that has a record is whole."""
        uuid = secrets.token_hex(6)
        cosine_of_raw = settings.scorer == "cosine" and not settings.unit_embeddings
        projection = identity(settings.dimension, normalize=cosine_of_raw)
        widths = {schema.RAW: settings.dimension}
        layouts: dict[str, tuple[int, bool]] = {}
        first = Version(1, projection.form_for(settings.scorer))
        if first.layout != schema.RAW:
            widths[first.layout], layouts[first.layout] = first.width, (1, True)
        fields = {tables.documents_table(self._client, uuid).name: schema.DOCUMENTS}
        for layout, width in widths.items():
            fields[tables.keys_table(self._client, uuid, layout).name] = schema.key_fields(width)
        with ThreadPoolExecutor() as together:  # a table takes seconds, most of which are waiting
            calls = [
                together.submit(schema.make_table, self._client, table, columns, SHARDS)
                for table, columns in fields.items()
            ]
            for call in calls:
                call.result()
        body = version_body(projection.kind, projection.fingerprint, {}, {}, {})
        self._registry.add_version(uuid, 1, body, projection.to_bytes())
        self._registry.put_record(Known(name, uuid, settings.stored(), (1,), layouts, SHARDS))

    def drop(self, name: str) -> None:
        """Delete the record first: tables that are left behind then belong to no collection."""
        record = self._registry.known(name, fresh=True)
        if record is None:
            return
        self._registry.forget(record)
        for table in (
            tables.documents_table(self._client, record.uuid),
            tables.examples_table(self._client, record.uuid),
            *(
                tables.keys_table(self._client, record.uuid, layout)
                for layout in (schema.RAW, *record.layouts)
            ),
        ):
            table.drop()

    def exchange(self, name: str, other: str) -> None:
        raise CAPABILITIES.lacking("reindex")

    def close(self) -> None:
        self._client.close()
