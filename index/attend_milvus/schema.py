"""The tables of one library on a Milvus server.

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

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from attend_milvus.client import Client, DataType
from attend_milvus.server import MAX_TEXT_BYTES

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


class KeyIndex(NamedTuple):
    """How a table of keys is searched, in Milvus's words (https://milvus.io/docs/index.md)."""

    name: str
    params: Mapping[str, int]


FLAT = KeyIndex("FLAT", {})
HNSW = KeyIndex("HNSW", {"M": 16, "efConstruction": 200})


def make_table(
    client: Client, name: str, fields: Mapping[str, Field], shards: int = 1, by: KeyIndex = FLAT
) -> None:
    """Make a table unless it is there; each step, if interrupted before, is the same step again.

    Args:
        by: the index of the vectors.
    """

    def make(milvus: Any) -> None:
        schema, index = (
            milvus.create_schema(auto_id=False, enable_dynamic_field=False),
            milvus.prepare_index_params(),
        )
        for number, (field, (type, limits)) in enumerate(fields.items()):
            schema.add_field(field, type, is_primary=number == 0, **limits)
        if "vector" in fields:
            index.add_index("vector", index_type=by.name, metric_type="IP", params=dict(by.params))
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
