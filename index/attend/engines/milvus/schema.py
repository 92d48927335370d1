"""The tables of one library on a Milvus server.

```
LIBRARY_meta                 settings, versions, aliases: few rows, by name
LIBRARY_UUID_documents       a row a document; its version says which keys are its own
LIBRARY_UUID_keys_LAYOUT     a row a key, with the version of the document that it was made of
LIBRARY_UUID_examples        a row for each question that a document answers
```
Milvus has no transaction over several rows. So keys are written first, under a version of their
own; then the document's row, which names that version: with it the document is another. The keys
of the version before go later (`attend.engines.milvus.writing`), so that every search that was
asked meanwhile finds the document, by these keys or by those. A reader passes over keys whose
version is not their document's, and reads the document's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from attend.engines.milvus.capabilities import MAX_TEXT_BYTES
from attend.engines.milvus.client import Client, DataType

RAW = "raw"
"""The layout of the embeddings as they are: the truth, of which all others can be made."""

ID_BYTES = 2048
"""Of 512 characters."""

NOTHING = b"\0"
"""Milvus 2.3 takes no table without a vector."""


class KeyIndex(NamedTuple):
    """How a table of keys is searched, in Milvus's words (https://milvus.io/docs/index.md)."""

    name: str
    params: Mapping[str, int]


FLAT = KeyIndex("FLAT", {})
HNSW = KeyIndex("HNSW", {"M": 16, "efConstruction": 200})


def row_of(id: str) -> int:
    """A document's row: 63 bits of a hash, so that every process knows it without asking."""
    return hashed("document", id)


def key_of(row: int, version: int, place: int) -> int:
    """The primary key of a document's key, by its place among them."""
    return hashed("key", str(row), str(version), str(place))


def hashed(*parts: str) -> int:
    """63 bits of a hash, never 0."""
    # "surrogatepass": ids may hold what no UTF-8 does, and are refused elsewhere.
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    results = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) & (2**63 - 1)
    return results or 1  # 0 stands for no document


def make_meta(client: Client, name: str) -> None:
    def create(milvus: Any) -> None:
        schema = milvus.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("name", DataType.VARCHAR, is_primary=True, max_length=1024)
        schema.add_field("body", DataType.VARCHAR, max_length=MAX_TEXT_BYTES)
        _create(client, milvus, name, _with_nothing(milvus, schema), 1)

    client.call(create)


def make_documents(client: Client, name: str, shards: int) -> None:
    def create(milvus: Any) -> None:
        schema = milvus.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("row", DataType.INT64, is_primary=True)
        schema.add_field("id", DataType.VARCHAR, max_length=ID_BYTES)
        schema.add_field("version", DataType.INT64)
        schema.add_field("keys", DataType.INT64)
        schema.add_field("key_hash", DataType.VARCHAR, max_length=64)
        schema.add_field("value_hash", DataType.VARCHAR, max_length=64)
        schema.add_field("texts", DataType.VARCHAR, max_length=MAX_TEXT_BYTES)
        schema.add_field("content", DataType.VARCHAR, max_length=MAX_TEXT_BYTES)
        schema.add_field("facts", DataType.JSON)
        _create(client, milvus, name, _with_nothing(milvus, schema), shards)

    client.call(create)


def make_keys(client: Client, name: str, width: int, shards: int, by: KeyIndex = FLAT) -> None:
    def create(milvus: Any) -> None:
        schema = milvus.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("key", DataType.INT64, is_primary=True)
        schema.add_field("document", DataType.INT64)
        schema.add_field("version", DataType.INT64)
        schema.add_field("id", DataType.VARCHAR, max_length=ID_BYTES)
        schema.add_field("place", DataType.VARCHAR, max_length=MAX_TEXT_BYTES)
        schema.add_field("facts", DataType.JSON)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=width)
        index = milvus.prepare_index_params()
        index.add_index("vector", index_type=by.name, metric_type="IP", params=dict(by.params))
        _create(client, milvus, name, (schema, index), shards)

    client.call(create)


def make_examples(client: Client, name: str, width: int) -> None:
    def create(milvus: Any) -> None:
        schema = milvus.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("example", DataType.INT64, is_primary=True)
        for field in ("id", "question", "document", "position"):
            schema.add_field(field, DataType.INT64)
        for field, size in (("text", MAX_TEXT_BYTES), ("name", ID_BYTES), ("key_hash", 64)):
            schema.add_field(field, DataType.VARCHAR, max_length=size)
        for field in ("source", "created"):
            schema.add_field(field, DataType.VARCHAR, max_length=ID_BYTES)
        schema.add_field("weight", DataType.DOUBLE)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=width)
        index = milvus.prepare_index_params()
        index.add_index("vector", index_type="FLAT", metric_type="IP")
        _create(client, milvus, name, (schema, index), 1)

    client.call(create)


def _with_nothing(milvus: Any, schema: Any) -> tuple[Any, Any]:
    schema.add_field("nothing", DataType.BINARY_VECTOR, dim=8 * len(NOTHING))
    index = milvus.prepare_index_params()
    index.add_index("nothing", index_type="BIN_FLAT", metric_type="HAMMING")
    return schema, index


def _create(
    client: Client, milvus: Any, name: str, definition: tuple[Any, Any], shards: int
) -> None:
    """Each step again, where it was interrupted, is the same step."""
    schema, index = definition
    if not milvus.has_collection(name):
        milvus.create_collection(
            name, schema=schema, num_shards=shards, consistency_level="Bounded"
        )
    milvus.create_index(name, index)
    milvus.load_collection(name, replica_number=client.address.replicas)
