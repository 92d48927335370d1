"""Documents as JSON lines, which a build reads again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from attend.collection.collection import Collection
from attend.core.errors import Conflict
from attend.core.types import WHOLE, Float32, Json, OnStage
from attend.keys.files import scratch_beside, sync_folder, synced
from attend.store import StoredDocument, compile_filter
from attend.store.filters import by_value

PAGE = 1000
"""Documents that are read at a time."""


def export_documents(
    collection: Collection,
    target: Path,
    filter: Mapping[str, Json] | None = None,
    *,
    force: bool = False,
    on_progress: OnStage = lambda stage, share: None,
) -> int:
    """Write the documents that pass a filter as JSON lines, and return their number.

    The file is of one moment, while others write, and appears once it is whole.

    Args:
        force: replace an existing file.

    Raises:
        Conflict: the target exists.
        InvalidRequest: a wrong filter.
    """
    if target.exists() and not force:
        raise Conflict(f"{target} exists; choose another file, or add --force to replace it.")
    with scratch_beside(target) as staging:
        path = staging / target.name
        with synced(path) as file:
            count = write_documents(collection, file, filter, on_progress)
        path.chmod(0o600)  # it holds all documents
        os.replace(path, target)
    sync_folder(target.absolute().parent)
    return count


def write_documents(
    collection: Collection,
    file: BinaryIO,
    filter: Mapping[str, Json] | None = None,
    on_progress: OnStage = lambda stage, share: None,
) -> int:
    """Write the documents that pass a filter to an open file, and return their number.

    A line has `id`, `fields` (the texts by name), `value` and `payload`; and `vector`, or `vectors`
    by name, if the document brought its own.
    """
    filter = by_value(filter, collection.settings.value_name)
    predicate = compile_filter(filter) if filter else None
    count = last = 0
    with collection.store.reading():
        if predicate is None:
            total, _ = collection.store.counts()
        else:
            total = collection.store.count(predicate)
        while page := collection.store.scroll(last, PAGE, predicate):
            vectors = _vectors(collection, page)
            for document in page:
                file.write(_line(document, vectors.get(document.row)))
            last = page[-1].row
            count += len(page)
            on_progress("write", count / max(total, 1))
    return count


def _vectors(
    collection: Collection, documents: list[StoredDocument]
) -> dict[int, dict[str, list[Float32]]]:
    """Return the vectors that documents brought, by row and name."""
    rows = np.array([document.row for document in documents], dtype=np.int64)
    keys = collection.store.own_keys(rows)
    sources = collection.store.keys_of(keys.ids)
    brought: dict[int, dict[str, list[Float32]]] = {}
    for id, vector in zip(keys.ids.tolist(), keys.vectors, strict=True):
        source = sources[id]
        if source.stop == 0:  # the key of a text has the part that it was made of
            brought.setdefault(source.document, {}).setdefault(source.field, []).append(vector)
    return brought


def _line(document: StoredDocument, vectors: Mapping[str, list[Float32]] | None) -> bytes:
    row: dict[str, Any] = {"id": document.id}
    if document.fields:
        row["fields"] = document.fields
    if vectors is not None:
        row |= _named(vectors)
    row |= {"value": document.value, "payload": document.payload}
    try:
        options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
        return orjson.dumps(row, option=options)
    except TypeError:  # whole numbers beyond 64 bits, and halves of surrogate pairs
        return json.dumps(row, default=np.ndarray.tolist).encode() + b"\n"


def _named(vectors: Mapping[str, list[Float32]]) -> dict[str, Any]:
    """Return vectors as a document has them: `vector` for one, else `vectors`."""
    if vectors.keys() != {WHOLE}:
        return {"vectors": vectors}
    several = vectors[WHOLE]
    return {"vector": several[0]} if len(several) == 1 else {"vectors": several}
