"""A library on a Milvus server."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from attend.engines.engine import OpenedCollection
from attend.engines.milvus import schema, tables
from attend.engines.milvus.address import Address
from attend.engines.milvus.capabilities import CAPABILITIES
from attend.engines.milvus.client import Client
from attend.engines.milvus.registry import Aliases, Known, Registry
from attend.engines.milvus.store import RemoteStore
from attend.engines.milvus.sweeping import RemoteChecks
from attend.engines.milvus.tables import Tables
from attend.engines.milvus.versions import Versions
from attend.engines.milvus.views import RemoteViews
from attend.projection import RAW_KEYS, identity
from attend.settings import Settings
from attend.versions import Version

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
        self.aliases = Aliases(self._registry)

    @classmethod
    def at(cls, written: str, *, read_only: bool = False) -> Milvus:
        """The library at an address; it is connected to when it is first used."""
        return cls(Address.of(written), read_only=read_only)

    def names(self) -> list[str]:
        return self._registry.names()

    def identity(self, name: str) -> object | None:
        known = self._registry.known(name)
        return None if known is None else known.uuid

    def open(self, name: str) -> OpenedCollection:
        opened = Tables(self._client, self._registry, name)
        settings = Settings.of(opened.known().settings)
        versions = Versions(opened, settings.scorer)
        store = RemoteStore(opened, versions, read_only=self._read_only)
        views = RemoteViews(opened, store, versions)
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
            made = [
                both.submit(schema.make_documents, self._client, documents, SHARDS),
                both.submit(schema.make_keys, self._client, raw, settings.dimension, SHARDS),
            ]
            for each in made:
                each.result()
        told = {
            "kind": projection.kind,
            "fingerprint": projection.fingerprint,
            "created": "",
            "note": {},
            "tuning": {},
            "report": {},
        }
        self._registry.add_version(uuid, 1, told, projection.to_bytes())
        layouts: Mapping[str, Any] = {}
        form = projection.form_for(settings.scorer)
        if form.key_fingerprint != RAW_KEYS:
            first = Version(1, form)
            table = tables.keys_table(self._client, uuid, first.layout)
            schema.make_keys(self._client, table, first.width, SHARDS)
            layouts = {first.layout: (1, True)}
        self._registry.put(Known(name, uuid, settings.stored(), (1,), layouts, SHARDS))

    def drop(self, name: str) -> None:
        """What tells of it first: tables that are left behind are nobody's."""
        known = self._registry.known(name, fresh=True)
        if known is None:
            return
        self._registry.forget(known)
        for table in (
            tables.documents_table(self._client, known.uuid),
            f"{self._client.address.library}_{known.uuid}_examples",
            *(
                tables.keys_table(self._client, known.uuid, layout)
                for layout in (schema.RAW, *known.layouts)
            ),
        ):
            self._client.drop(table)

    def close(self) -> None:
        self._client.close()
