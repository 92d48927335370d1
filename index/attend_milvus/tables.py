"""The tables of one library on a Milvus server; its collections, and one of them.

```
LIBRARY_meta                 settings, versions, aliases: few rows, by name
LIBRARY_UUID_documents       a row a document; its version says which keys are its own
LIBRARY_UUID_keys_LAYOUT     a row a key, with the version of the document that it was made of
LIBRARY_UUID_examples        a row for each question that a document answers
```
Milvus has no transaction over several rows. So keys are written first, under a version of their
own; then the document's row, which names that version: with it the document is another. The keys
of the version before go later (`attend_milvus.writing`), so that every search that was
asked meanwhile finds the document, by these keys or by those. A reader passes over keys whose
version is not their document's, and reads the document's own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from attend.api.base import Consistency
from attend.core.errors import Conflict, Unavailable, UnknownProjection
from attend.core.types import Float32
from attend.engines.engine import name_taken
from attend.store import StoredDocument
from attend_milvus.client import LOOKED_AGAIN, Client, DataType, Row, Table, both, reading
from attend_milvus.server import MAX_TEXT_BYTES, MESSAGE_BYTES

RAW = "raw"
"""The layout of the embeddings as they are: the truth, of which all others can be made."""

ID_BYTES = 2048
"""Of 512 characters."""

NOTHING = b"\0"
"""Milvus 2.3 takes no table without a vector."""

Field = tuple[DataType, dict[str, int]]
"""The type of a field, and its limits."""

INT: Field = (DataType.INT64, {})
ID: Field = (DataType.VARCHAR, {"max_length": ID_BYTES})
NAME: Field = (DataType.VARCHAR, {"max_length": 1024})
HASH: Field = (DataType.VARCHAR, {"max_length": 64})
TEXT: Field = (DataType.VARCHAR, {"max_length": MAX_TEXT_BYTES})
JSON: Field = (DataType.JSON, {})
FLAG: Field = (DataType.BINARY_VECTOR, {"dim": 8 * len(NOTHING)})

META = {"name": NAME, "body": TEXT, "nothing": FLAG}
DOCUMENTS = {
    "row": INT,
    "id": ID,
    "version": INT,
    "keys": INT,
    "key_hash": HASH,
    "value_hash": HASH,
    "texts": TEXT,
    "content": TEXT,
    "facts": JSON,
    "nothing": FLAG,
}
"""The first field of each table is its primary key."""


def key_fields(width: int) -> dict[str, Field]:
    """Return the fields of a table of keys of a width."""
    place = {"id": ID, "place": TEXT, "facts": JSON}
    return {"key": INT, "document": INT, "version": INT, **place, "vector": _vector(width)}


def example_fields(width: int) -> dict[str, Field]:
    """Return the fields of a table of examples whose questions have a width."""
    numbers = dict.fromkeys(("example", "id", "question", "document", "position"), INT)
    texts = {"text": TEXT, "name": ID, "key_hash": HASH, "source": ID, "created": ID}
    return {**numbers, **texts, "weight": (DataType.DOUBLE, {}), "vector": _vector(width)}


def _vector(width: int) -> Field:
    return DataType.FLOAT_VECTOR, {"dim": width}


KeyIndex: TypeAlias = tuple[str, Mapping[str, int]]
"""How a table of keys is searched, in Milvus's words (https://milvus.io/docs/index.md)."""

FLAT: KeyIndex = ("FLAT", {})
HNSW: KeyIndex = ("HNSW", {"M": 16, "efConstruction": 200})


def make_table(
    client: Client, name: str, fields: Mapping[str, Field], shards: int = 1, by: KeyIndex = FLAT
) -> None:
    """Make a table unless it is there; each step, if interrupted before, is the same step again.

    Args:
        by: the index of the vectors.
    """

    def make(milvus: Any) -> None:
        schema = milvus.create_schema(auto_id=False, enable_dynamic_field=False)
        index = milvus.prepare_index_params()
        for number, (column, (type, limits)) in enumerate(fields.items()):
            schema.add_field(column, type, is_primary=number == 0, **limits)
        if "vector" in fields:
            kind, params = by
            index.add_index("vector", index_type=kind, metric_type="IP", params=dict(params))
        else:
            index.add_index("nothing", index_type="BIN_FLAT", metric_type="HAMMING")
        if not milvus.has_collection(name):
            milvus.create_collection(
                name, schema=schema, num_shards=shards, consistency_level="Bounded"
            )
        milvus.create_index(name, index)
        milvus.load_collection(name, replica_number=client.address.replicas)

    client.call(make)


def row_of(id: str) -> int:
    """Return a document's row: 63 bits of a hash, so that every process knows it."""
    return hashed("document", id)


def key_ids(row: int, version: int, count: int) -> list[int]:
    """Return the primary keys of a document's keys under a version, in their order."""
    return [hashed("key", str(row), str(version), str(place)) for place in range(count)]


def hashed(*parts: str) -> int:
    """Return 63 bits of a hash, never 0."""
    # "surrogatepass": ids may hold what no UTF-8 does, and are refused elsewhere.
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return int.from_bytes(digest) & (2**63 - 1) or 1  # 0 stands for no document


PART_BYTES = 48_000
"""Of matrices in one row: 64,000 letters of base64."""

KNOWN_SECONDS = 1.0
"""Age up to which a collection's record is not read again."""


@dataclass(frozen=True)
class Known:
    """The record of one collection, as every process sees it.

    Attributes:
        active: the versions that were activated, the one that answers last.
        layouts: those that writes must enter besides the raw one: by name the version that makes
            their keys, and True once they are complete.
        shards: of each table.
        graphs: by version what was measured of the HNSW table of its keys, which is complete
            (`attend_milvus.graphs`).
    """

    name: str
    uuid: str
    settings: Mapping[str, Any]
    active: tuple[int, ...]
    layouts: Mapping[str, tuple[int, bool]]
    shards: int = 1
    graphs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def version(self) -> int:
        return self.active[-1]

    def is_complete(self, layout: str) -> bool:
        """Return whether the keys of a layout can be searched."""
        return layout == RAW or self.layouts.get(layout, (0, False))[1]

    def body(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, body: str) -> Known:
        value = json.loads(body)
        layouts = {name: (item[0], item[1]) for name, item in value.pop("layouts").items()}
        return cls(**{**value, "active": tuple(value["active"]), "layouts": layouts})


class Registry:
    """Named texts of one library, shared by all processes; any thread may use it.

    It is also the `AliasNames` of the library.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._rows = Table(client, f"{client.address.library}_meta", "name")
        self._known: dict[str, tuple[float, Known]] = {}
        self._is_made = False
        self._making = threading.Lock()
        self._changing = threading.Lock()

    # -- collections ------------------------------------------------------------------------

    def names(self) -> list[str]:
        return sorted(name.removeprefix("collection/") for name in self._like("collection/"))

    def known(self, name: str, *, fresh: bool = False) -> Known | None:
        """Return a collection's record, at most a second old or fresh; None for an unknown name."""
        stored = self._known.get(name)
        if stored is not None and not fresh and time.monotonic() - stored[0] < KNOWN_SECONDS:
            return stored[1]
        body = None if fresh else self._one(f"collection/{name}")
        # Another process may have just made it, and a known one may be replaced at this moment:
        # only a strong read says that it is gone.
        for pause in (0.0, *LOOKED_AGAIN) if stored else (0.0,):
            if body is None:
                time.sleep(pause)
                body = self._one(f"collection/{name}", "strong")
        if body is None:
            self._known.pop(name, None)
            return None
        record = Known.of(body)
        self._known[name] = time.monotonic(), record
        return record

    @contextmanager
    def changing(self, name: str) -> Iterator[None]:
        """Let nobody else, in this process or another, change what has a name within the block.

        Raises:
            Unavailable: others are at it for too long.
        """
        end = time.monotonic() + 2 * LEASE_SECONDS
        with self._changing, Lease(self, f"name/{hashed('name', name)}") as lease:
            while not lease.take():
                if time.monotonic() > end:
                    raise Unavailable(f"Other processes are changing {name!r}; ask again later.")
            yield

    def put_record(self, record: Known) -> None:
        self._put({f"collection/{record.name}": record.body()})
        self._known[record.name] = time.monotonic(), record

    def forget(self, record: Known) -> None:
        """Remove a collection with its versions; its tables are another's to drop."""
        self._known.pop(record.name, None)
        rest = [*self._like(f"version/{record.uuid}/"), *self._like(f"weights/{record.uuid}/")]
        self._rows.delete([f"collection/{record.name}", *rest])

    # -- versions ---------------------------------------------------------------------------

    def versions(self, uuid: str) -> dict[int, dict[str, Any]]:
        """Return the record of each version, by number."""
        bodies = self._like(f"version/{uuid}/")
        numbered = {int(name.rsplit("/", 1)[1]): json.loads(body) for name, body in bodies.items()}
        return dict(sorted(numbered.items()))

    def add_version(
        self, uuid: str, number: int, details: Mapping[str, Any], weights: bytes
    ) -> None:
        """Store the matrices first: a version that is there is whole."""
        starts = range(0, max(len(weights), 1), PART_BYTES)
        self._put(
            {
                f"weights/{uuid}/{number}/{place:04d}": base64.b64encode(
                    weights[start : start + PART_BYTES]
                ).decode()
                for place, start in enumerate(starts)
            }
        )
        self._put({f"version/{uuid}/{number}": json.dumps({**details, "parts": len(starts)})})

    def put_report(self, uuid: str, number: int, report: Mapping[str, Any]) -> None:
        """Replace a version's report."""
        details, _ = self.version(uuid, number)
        self._put({f"version/{uuid}/{number}": json.dumps({**details, "report": dict(report)})})

    def drop_version(self, uuid: str, number: int) -> None:
        """Remove a version and its matrices."""
        self._rows.delete([f"version/{uuid}/{number}", *self._like(f"weights/{uuid}/{number}/")])

    def version(self, uuid: str, number: int) -> tuple[dict[str, Any], bytes]:
        """Return the record of a version, and its matrices.

        Raises:
            UnknownProjection: an unknown number.
        """
        name = f"version/{uuid}/{number}"
        body = self._one(name) or self._one(name, "strong")
        if body is None:
            raise UnknownProjection(
                f"There is no projection {number}; 'attend projections' lists those there are.",
                field="projection",
            )
        parts = self._like(f"weights/{uuid}/{number}/", "strong")
        return json.loads(body), b"".join(base64.b64decode(parts[name]) for name in sorted(parts))

    # -- aliases ----------------------------------------------------------------------------

    def all(self) -> dict[str, str]:
        """Return the collection of each alias, in alphabetical order."""
        bodies = self._like("alias/")
        return {name.removeprefix("alias/"): bodies[name] for name in sorted(bodies)}

    def target(self, name: str) -> str | None:
        """Return the collection that an alias leads to, there or not; None for no alias."""
        stored = self._known.get(name)
        if stored is not None and time.monotonic() - stored[0] < KNOWN_SECONDS:
            return None  # a collection
        return self._one(f"alias/{name}")

    def put(self, name: str, collection: str) -> None:
        """Let an alias lead to a collection. Raise CollectionExists where one has its name."""
        with self.changing(name):
            if self.known(name, fresh=True) is not None:
                raise name_taken(name)
            self._put({f"alias/{name}": collection})

    def remove(self, name: str) -> bool:
        """Delete an alias, and return whether there was one; its collection stays."""
        is_there = self._one(f"alias/{name}", "strong") is not None
        if is_there:
            self._rows.delete([f"alias/{name}"])
        return is_there

    # -- the table --------------------------------------------------------------------------

    def _like(self, prefix: str, consistency: Consistency | None = None) -> dict[str, str]:
        return self._read(f"name like {json.dumps(prefix + '%')}", consistency)

    def _one(self, name: str, consistency: Consistency | None = None) -> str | None:
        return self._read(f"name in [{json.dumps(name)}]", consistency).get(name)

    def _read(self, filter: str, consistency: Consistency | None) -> dict[str, str]:
        self._make()
        rows = self._rows.query(filter, ["name", "body"], None, consistency)
        return {row["name"]: row["body"] for row in rows}

    def _put(self, bodies: Mapping[str, str]) -> None:
        self._make()
        self._rows.upsert(
            [{"name": name, "body": body, "nothing": NOTHING} for name, body in bodies.items()]
        )

    def _make(self) -> None:
        if not self._is_made:
            with self._making:
                make_table(self._client, self._rows.name, META)
                self._is_made = True


LEASE_SECONDS = 120.0
"""After which the work of a process that says nothing of it is anybody's; by their clocks."""

MET_SECONDS = 1.0
"""At most, drawn by chance: the pause of those who claimed at the same moment."""


class Lease(AbstractContextManager["Lease"]):
    """A claim to a piece of work, held from `take` until the `with` is left.

    Milvus cannot compare and set. So each who claims inserts a row of its own, and then reads
    those of all: who is alone has the lease, because all who come later see its row.
    """

    def __init__(self, registry: Registry, work: str) -> None:
        self._registry = registry
        self._prefix = f"claim/{work}/"
        self._claims: list[str] = []
        self._renewed = 0.0

    def give_back(self, *error: object) -> None:
        self._registry._rows.delete(self._claims)
        self._claims.clear()

    __exit__ = give_back

    def take(self) -> bool:
        """Try to take the lease. Return whether this holder has it."""
        self._renew()
        claims = self._registry._like(self._prefix, "strong")
        expired = [claim for claim, until in claims.items() if float(until) < time.time()]
        self._registry._rows.delete(expired)
        if set(claims) <= {*expired, *self._claims}:
            return True
        self.give_back()
        time.sleep(random.uniform(0, MET_SECONDS))
        return False

    def keep(self) -> None:
        """Renew the lease when it is time; its holder calls this again and again."""
        if time.monotonic() - self._renewed > LEASE_SECONDS / 4:
            self._renew()

    def _renew(self) -> None:
        # By another row: one that is replaced is gone for a moment.
        self._claims.append(f"{self._prefix}{secrets.token_hex(8)}")
        # Between two renewals a holder makes few calls that may need patience.
        seconds = LEASE_SECONDS + 4 * self._registry._client.address.patience
        self._registry._put({self._claims[-1]: str(time.time() + seconds)})
        self._registry._rows.delete(self._claims[:-1])
        del self._claims[:-1]
        self._renewed = time.monotonic()


PAGE = MESSAGE_BYTES // (3 * MAX_TEXT_BYTES)
"""Documents that fit into a message, whatever their texts."""

IDENTITY = ("row", "id", "version", "keys")


class Head(NamedTuple):
    """A document's row without its contents."""

    row: int
    id: str
    version: int
    keys: int
    key_hash: str = ""
    value_hash: str = ""

    def key_ids(self) -> list[int]:
        """Return the ids of the document's own keys, in their order."""
        return key_ids(self.row, self.version, self.keys)


class Read(NamedTuple):
    """A document, and the version and number of its keys."""

    document: StoredDocument
    version: int
    keys: int

    def key_ids(self) -> list[int]:
        return key_ids(self.document.row, self.version, self.keys)


class Tables:
    """The tables of one collection.

    Raises:
        Conflict: the collection went while it was opened.
    """

    def __init__(self, client: Client, registry: Registry, name: str) -> None:
        self.client = client
        self.registry = registry
        self.name = name
        record = registry.known(name)
        if record is None:
            raise Conflict(f"The collection {name!r} went while it was opened; ask again.")
        self.uuid = record.uuid
        self.documents = documents_table(client, self.uuid)
        self.examples = examples_table(client, self.uuid)
        self.dimension = int(record.settings["dimension"])

    def keys(self, layout: str = RAW) -> Table:
        return keys_table(self.client, self.uuid, layout)

    def of_keys(self, *, complete: bool = False) -> list[Table]:
        """Return the tables of keys that writes enter, the raw one first.

        Args:
            complete: leave out those that are being made.
        """
        layouts = self.known(fresh=True).layouts
        named = [name for name, (_, is_complete) in layouts.items() if is_complete or not complete]
        return [self.keys(layout) for layout in (RAW, *named)]

    def known(self, *, fresh: bool = False) -> Known:
        """Return the collection's record, which all processes share.

        Raises:
            Conflict: it was dropped, and perhaps made again.
        """
        record = self.registry.known(self.name, fresh=fresh)
        if record is None or record.uuid != self.uuid:
            raise Conflict(f"The collection {self.name!r} was dropped meanwhile; open it again.")
        return record

    def change(self, change: Callable[[Known], Known]) -> Known:
        """Change the record for every process, one change after another."""
        with self.registry.changing(self.name), reading("strong"):
            record = change(self.known(fresh=True))
            self.registry.put_record(record)
            return record

    # -- documents --------------------------------------------------------------------------

    def heads(self, ids: Sequence[str], consistency: Consistency | None = None) -> dict[str, Head]:
        """Return the heads of documents by id.

        Raises:
            Conflict: a row is another document's: their ids have the same hash.
        """
        by_row = {row_of(id): id for id in ids}
        fields = [*IDENTITY, "key_hash", "value_hash"]
        heads = {}
        for row in self.documents.by_keys(list(by_row), fields, consistency=consistency):
            if row["id"] != by_row[row["row"]]:
                raise Conflict(
                    f"The ids {row['id']!r} and {by_row[row['row']]!r} have the same hash of 63 "
                    f"bits, so that only one of the documents can be stored; rename the other.",
                    field="id",
                )
            heads[row["id"]] = Head(*(row[name] for name in fields))
        return heads

    def read(
        self, rows: Iterable[int], *, texts: bool = True, passing: str = ""
    ) -> dict[int, Read]:
        """Return documents by row; those that are gone, or do not pass, are absent."""
        absent, reads = list(rows), dict[int, Read]()
        for pause in (0.0, *LOOKED_AGAIN):
            time.sleep(pause)
            stored = self.documents.by_keys(absent, _contents(texts), passing)
            reads |= {row["row"]: _read_of(row) for row in stored}
            absent = [row for row in absent if row not in reads]
            if not absent:
                break
        return reads

    def scroll(
        self, after: int, limit: int, passing: str = "", *, texts: bool = True
    ) -> list[Read]:
        """Return the next documents after a row, ascending."""
        reads: list[Read] = []
        for page in self.documents.pages(
            _contents(texts), min(PAGE, limit), both(f"row > {after}", passing)
        ):
            reads += map(_read_of, page)
            if len(reads) >= limit or len(page) < PAGE:
                break
        return reads[:limit]

    def pages(self) -> Iterator[list[Read]]:
        """Yield all documents without their texts, by row."""
        for page in self.documents.pages(_contents(texts=False), PAGE):
            yield [_read_of(row) for row in page]

    # -- keys -------------------------------------------------------------------------------

    def vectors(
        self, ids: Sequence[int], layout: str = RAW, consistency: Consistency | None = None
    ) -> dict[int, Float32]:
        """Return keys by their ids; those that are gone are absent."""
        rows = self.keys(layout).by_keys(ids, ["vector"], consistency=consistency)
        return {row["key"]: np.asarray(row["vector"], dtype=np.float32) for row in rows}

    def places(
        self, ids: Sequence[int], consistency: Consistency | None = None
    ) -> dict[int, tuple[int, str, int, int]]:
        """Return where keys come from: document, field, start, stop."""
        rows = self.keys().by_keys(ids, ["document", "place"], consistency=consistency)
        return {row["key"]: (row["document"], *json.loads(row["place"])) for row in rows}


def documents_table(client: Client, uuid: str) -> Table:
    return Table(client, f"{client.address.library}_{uuid}_documents", "row")


def keys_table(client: Client, uuid: str, layout: str) -> Table:
    return Table(client, f"{client.address.library}_{uuid}_keys_{layout}", "key")


def examples_table(client: Client, uuid: str) -> Table:
    return Table(client, f"{client.address.library}_{uuid}_examples", "example")


def _contents(texts: bool) -> list[str]:
    return [*IDENTITY, "texts", "content"] if texts else [*IDENTITY, "content"]


def _read_of(row: Row) -> Read:
    value, payload = json.loads(row["content"])
    fields = json.loads(row["texts"]) if "texts" in row else {}
    document = StoredDocument(row["row"], row["id"], fields, value, payload)
    return Read(document, row["version"], row["keys"])
