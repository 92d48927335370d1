"""A library on a Milvus server, and its collections as searches see them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from attend.collection.versions import Version
from attend.core.errors import Conflict
from attend.core.settings import Settings
from attend.engines.engine import Finding, OpenedCollection
from attend.projection import identity
from attend_milvus import writing
from attend_milvus.client import Client, Table, reading
from attend_milvus.keys import RemoteSnapshots
from attend_milvus.server import CAPABILITIES, Address
from attend_milvus.store import RemoteStore, version_body
from attend_milvus.tables import (
    DOCUMENTS,
    IDENTITY,
    RAW,
    Head,
    Known,
    Registry,
    Tables,
    documents_table,
    examples_table,
    key_fields,
    keys_table,
    make_table,
)
from attend_milvus.writing import UNFINISHED_SECONDS, version_at

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
        folder, checks = Path("milvus") / opened.uuid, RemoteChecks(opened)
        return OpenedCollection(folder, settings, store, views, CAPABILITIES, checks, reading)

    def make(self, name: str, settings: Settings) -> None:
        """Make the tables first: a collection that has a record is whole."""
        uuid = secrets.token_hex(6)
        cosine_of_raw = settings.scorer == "cosine" and not settings.unit_embeddings
        projection = identity(settings.dimension, normalize=cosine_of_raw)
        first = Version(1, projection.form_for(settings.scorer))
        widths = {RAW: settings.dimension, first.layout: first.width}
        layouts = {layout: (1, True) for layout in widths if layout != RAW}
        fields = {documents_table(self._client, uuid).name: DOCUMENTS}
        for layout, width in widths.items():
            fields[keys_table(self._client, uuid, layout).name] = key_fields(width)
        body = version_body(projection.kind, projection.fingerprint, {}, {}, {})
        with self._registry.changing(name), reading("strong"):
            if self._registry.known(name, fresh=True) is not None:
                return  # another process was first
            if self._registry.target(name) is not None:
                raise Conflict(f"{name!r} has become an alias meanwhile; choose another name.")
            with ThreadPoolExecutor() as together:  # a table takes seconds, most of it waiting
                make = partial(make_table, self._client, shards=SHARDS)
                list(together.map(make, fields, fields.values()))
            self._registry.add_version(uuid, 1, body, projection.to_bytes())
            self._registry.put_record(Known(name, uuid, settings.stored(), (1,), layouts, SHARDS))

    def drop(self, name: str) -> None:
        """Delete the record first: tables that are left behind then belong to no collection."""
        with self._registry.changing(name):
            record = self._registry.known(name, fresh=True)
            if record is None:
                return
            self._registry.forget(record)
        for table in (
            documents_table(self._client, record.uuid),
            examples_table(self._client, record.uuid),
            *(keys_table(self._client, record.uuid, layout) for layout in (RAW, *record.layouts)),
        ):
            table.drop()

    def exchange(self, name: str, other: str) -> None:
        raise CAPABILITIES.lacking("reindex")

    def close(self) -> None:
        self._client.close()


# A writer that was killed leaves keys that no document names: new ones, if it had not written the
# document yet, or those before. Readers pass over them, but search through them. A key is one of
# these if its document names others or is gone, provided that no living writer may be about to
# write that document or to delete that key: it is older than any write lasts, and is still there
# when all that was retired before has gone.

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
            named = list(dict.fromkeys(row["document"] for row in rows))
            stored = self._tables.documents.by_keys(named, ["version"], consistency="strong")
            versions = {row["row"]: row["version"] for row in stored}
            for row in rows:
                if row["version"] < before and versions.get(row["document"]) != row["version"]:
                    yield row["key"]


def _there(table: Table, keys: Sequence[int]) -> set[int]:
    return {row["key"] for row in table.by_keys(keys, [], consistency="strong")}
