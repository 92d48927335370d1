"""A library on a Milvus server, and its collections as searches see them."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from attend.api.search import Mask, SearchOptions
from attend.engines.engine import OpenedCollection
from attend.engines.milvus import schema, tables
from attend.engines.milvus.address import Address
from attend.engines.milvus.capabilities import CAPABILITIES, MAX_ATTENDED
from attend.engines.milvus.checks import RemoteChecks
from attend.engines.milvus.client import Client
from attend.engines.milvus.consistency import reading
from attend.engines.milvus.keys import RemoteKeys, Size
from attend.engines.milvus.registry import Known, Registry, RemoteAliases
from attend.engines.milvus.store import RemoteStore
from attend.engines.milvus.tables import Tables
from attend.engines.milvus.versions import RemoteVersions
from attend.engines.milvus.writing import GRACE_SECONDS
from attend.errors import InvalidRequest
from attend.keys import IndexTarget
from attend.projection import RAW_KEYS, identity
from attend.search.queries import rows_by_id
from attend.settings import Settings
from attend.store import Role, compile_filter
from attend.types import Float32, OnStage
from attend.versions import Selected, Version, View

COUNTED_SECONDS = 10.0
"""For so long a count of documents and keys is good enough to plan a search with."""


class RemoteSnapshots:
    """As `attend.views.Views`, over a server's tables: there is nothing to bring up to date."""

    def __init__(self, tables: Tables, store: RemoteStore, versions: RemoteVersions) -> None:
        self.target = IndexTarget()
        self._tables = tables
        self._store = store
        self._versions = versions
        self._size: tuple[float, Size] | None = None
        self._sizing = threading.Lock()

    def current(self, version: int | None = None, role: Role = "search") -> View:
        """Return the view of a version, or of the active one; write its keys first if need be."""
        if role != "search":
            CAPABILITIES.check("recommend")
        number = version or self._tables.known().version
        self._versions.prepare(number)
        prepared = self._versions.of(number)
        return View(prepared, self._keys(prepared), self._store.generation)

    def _keys(self, version: Version, **passing: Any) -> RemoteKeys:
        """Return the keys of a version that pass; see `RemoteKeys` for the arguments."""
        size = self.size()
        graph = self._versions.graphs.of(version, size.keys)
        return RemoteKeys(self._tables, version.layout, version.width, size, graph=graph, **passing)

    def select(self, options: SearchOptions, query_rows: tuple[int, ...]) -> Selected:
        """Return the snapshot of one search; see `attend.versions`."""
        _check(options)
        there = self._tables.known()
        version = self._versions.of(options.projection or there.version)
        if not self._versions.is_ready(version, there):
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
        keys = self._keys(version, passing=passing, exclude=sorted(exclude), only=only)
        view = View(version, keys, self._store.generation)
        return Selected(view, None, self._store.with_documents(keys.documents_read))

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
            self._tables.client.flush(table)
        began = time.monotonic()
        while self._store.retires:
            on_stage("keys before", min(1.0, (time.monotonic() - began) / GRACE_SECONDS))
            time.sleep(0.5)
        self._versions.graphs.ensure(self._active(), on_stage)
        return self.current()

    def merge_if_due(self) -> None:
        """Begin to make an HNSW table in the background if the keys are many enough."""
        version = self._active()
        if self._versions.graphs.is_due(version, self.size().keys):
            self._versions.graphs.start(version)

    def has_fresh(self) -> bool:
        """Return whether the process has something to finish before it ends."""
        keys = self._store.counts()[1]
        return self._store.retires or self._versions.graphs.is_due(self._active(), keys)

    def _active(self) -> Version:
        return self._versions.of(self._tables.known().version)

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
    if options.facets is not None:
        CAPABILITIES.check("facets", field="facets")


SHARDS = 2
"""Of each table: as many write in parallel, and a cluster searches them side by side."""


class Milvus:
    """Collections on a Milvus server; any number of processes may use them at once."""

    capabilities = CAPABILITIES

    def __init__(self, address: Address, *, read_only: bool = False) -> None:
        self.address = address
        self._read_only = read_only
        self._client = Client(address)
        self._registry = Registry(self._client)
        self.aliases = RemoteAliases(self._registry)

    @classmethod
    def at(cls, written: str, *, read_only: bool = False) -> Milvus:
        """The library at an address; it is connected to when it is first used."""
        return cls(Address.of(written), read_only=read_only)

    def names(self) -> list[str]:
        return self._registry.names()

    def identity(self, name: str) -> object | None:
        record = self._registry.known(name)
        return None if record is None else record.uuid

    def open(self, name: str) -> OpenedCollection:
        opened = Tables(self._client, self._registry, name)
        settings = Settings.of(opened.known().settings)
        versions = RemoteVersions(opened, settings.scorer)
        store = RemoteStore(opened, versions, read_only=self._read_only)
        views = RemoteSnapshots(opened, store, versions)
        return OpenedCollection(
            Path("milvus") / opened.uuid,
            settings,
            store,
            views,
            views.select,
            CAPABILITIES,
            RemoteChecks(opened),
        )

    def make(self, name: str, settings: Settings) -> None:
        """The tables first: a collection that is told of is whole."""
        uuid = secrets.token_hex(6)
        cosine_of_raw = settings.scorer == "cosine" and not settings.unit_embeddings
        projection = identity(settings.dimension, normalize=cosine_of_raw)
        documents = tables.documents_table(self._client, uuid)
        raw = tables.keys_table(self._client, uuid, schema.RAW)
        with ThreadPoolExecutor() as both:  # a table takes seconds, most of which are waiting
            calls = [
                both.submit(schema.make_documents, self._client, documents, SHARDS),
                both.submit(schema.make_keys, self._client, raw, settings.dimension, SHARDS),
            ]
            for call in calls:
                call.result()
        details = {
            "kind": projection.kind,
            "fingerprint": projection.fingerprint,
            "created": "",
            "note": {},
            "tuning": {},
            "report": {},
        }
        self._registry.add_version(uuid, 1, details, projection.to_bytes())
        layouts: Mapping[str, Any] = {}
        form = projection.form_for(settings.scorer)
        if form.key_fingerprint != RAW_KEYS:
            first = Version(1, form)
            table = tables.keys_table(self._client, uuid, first.layout)
            schema.make_keys(self._client, table, first.width, SHARDS)
            layouts = {first.layout: (1, True)}
        self._registry.put(Known(name, uuid, settings.stored(), (1,), layouts, SHARDS))

    def drop(self, name: str) -> None:
        """Delete the record first: tables that are left behind then belong to no collection."""
        record = self._registry.known(name, fresh=True)
        if record is None:
            return
        self._registry.forget(record)
        for table in (
            tables.documents_table(self._client, record.uuid),
            f"{self._client.address.library}_{record.uuid}_examples",
            *(
                tables.keys_table(self._client, record.uuid, layout)
                for layout in (schema.RAW, *record.layouts)
            ),
        ):
            self._client.drop(table)

    def close(self) -> None:
        self._client.close()
