"""Write the documents of a collection to a Parquet file, which a build reads again.

The documents are read twice, page by page: first for the types of the columns, then to write them.
The metadata of the file has their kinds, by which a build undoes what Arrow has no type for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attend.collection.collection import Collection
from attend.core.frames import METADATA, Cells, Kind, arrow_type, encode
from attend.core.types import WHOLE, Json, OnStage
from attend.exchange.backup import document_pages, placed

PARTS = ("id", "fields", "value", "payload")
VECTOR = pa.list_(pa.float32())


def export_parquet(
    collection: Collection,
    target: Path,
    filter: Mapping[str, Json] | None = None,
    *,
    embeddings: bool = False,
    force: bool = False,
    on_progress: OnStage = lambda stage, share: None,
) -> int:
    """Write the documents that pass a filter to a Parquet file, and return their number.

    The columns are `id`, `fields` (the texts by name), `value`, `payload`, and `vector` or
    `vectors` if documents brought their own. The file is of one moment, and appears once it is
    whole.

    Args:
        embeddings: add the column `embeddings`, all keys of each document; a build leaves it out.
        force: replace an existing file.

    Raises:
        Conflict: the target exists.
        InvalidRequest: a wrong filter.

    >>> import tempfile
    >>> export_parquet(books, Path(tempfile.mkdtemp()) / "books.parquet")
    3
    """
    with placed(target, force=force) as path, collection.store.reading():
        total = max(collection.page(filter, limit=0).total, 1)
        kinds, schema = _schema(collection, filter, lambda n: on_progress("types", n / total))
        if embeddings:
            schema = schema.append(pa.field("embeddings", pa.list_(VECTOR)))
        count = 0
        with pq.ParquetWriter(path, schema, compression="zstd") as file:
            for page, brought in document_pages(collection, filter):
                batch = {
                    name: [encode(getattr(document, name), kind) for document in page]
                    for name, kind in kinds.items()
                }
                vectors = [brought.get(document.row, {}) for document in page]
                batch["vector"] = [named.get(WHOLE, [None])[0] for named in vectors]
                batch["vectors"] = [[*named.items()] or None for named in vectors]
                if embeddings:
                    rows = np.array([document.row for document in page], dtype=np.int64)
                    keys = collection.store.own_keys(rows)
                    split = np.split(keys.vectors, keys.starts[1:-1])
                    by_row = dict(zip(keys.rows.tolist(), map(list, split), strict=True))
                    batch["embeddings"] = [by_row.get(row) for row in rows.tolist()]
                arrays = [pa.array(batch[field.name], field.type) for field in schema]
                file.write_batch(pa.record_batch(arrays, schema=schema))
                count += len(page)
                on_progress("write", count / total)
        path.chmod(0o600)  # it holds all documents
    return count


def _schema(
    collection: Collection, filter: Mapping[str, Json] | None, report: Callable[[int], object]
) -> tuple[dict[str, Kind], pa.Schema]:
    """Read all documents for the kinds of their parts, and the schema of the file."""
    columns, has_vectors, is_single, count = {n: Cells(exact=True) for n in PARTS}, False, True, 0
    for page, brought in document_pages(collection, filter):
        for document in page:
            for name, cells in columns.items():
                cells.add(getattr(document, name))
        for named in brought.values():
            has_vectors = True
            is_single = is_single and {n: len(named[n]) for n in named} == {WHOLE: 1}
        count += len(page)
        report(count)
    kinds = {name: cells.kind() for name, cells in columns.items()}
    types = {name: arrow_type(kind) for name, kind in kinds.items()}
    if has_vectors and is_single:
        types["vector"] = VECTOR
    elif has_vectors:
        types["vectors"] = pa.map_(pa.string(), pa.list_(VECTOR))
    return kinds, pa.schema(types, metadata={METADATA: json.dumps(kinds)})
