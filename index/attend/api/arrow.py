"""Documents in tables of Arrow: data frames, and streams of its IPC format.

The columns `id`, `text`, `fields`, `vector`, `vectors`, `value` and `payload` are what they are in
`DocumentRequest`; every other column is a field of the payload. Vectors stay numbers of Arrow's and
never become Python's, of which one takes eight times the memory.

A stream from outside may be small and become large: shared parts of texts, dictionaries, lists of
nothing. It is measured before any of it is read (`_check_size`), and is taken uncompressed only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute, types

from attend.api.base import MAX_DOCUMENTS, parse
from attend.api.documents import DocumentRequest, located
from attend.core.errors import InvalidRequest
from attend.core.types import WHOLE, Document, Vectors
from attend.source.tables import holds_bytes, json_cells

KEYS = ("text", "fields", "vector", "vectors")
"""Columns of which a table has one at least: a table without would have a misspelt one."""

CONTENT = ("id", "text", "fields", "value", "payload")

MAX_CELLS = 5_000_000
"""Values in the cells of one stream, those in lists counted singly and those of vectors not."""

MAX_CHARACTERS = 256 * 1024 * 1024
"""Bytes of all texts of one stream, a part that several cells share counted for each."""


def arrow_documents(table: Any) -> list[Document]:
    """Return the documents of an object with `__arrow_c_stream__`.

    Raises:
        InvalidRequest: a column that is missing or of a wrong type, a row that is no document, or
            more rows than are taken at once.

    >>> table = pa.table({"id": ["a"], "vector": [[0.6, 0.8]], "year": [1851]})
    >>> document = arrow_documents(table)[0]
    >>> document.vectors["vector"].tolist(), document.payload
    ([0.6000000238418579, 0.800000011920929], {'year': 1851})
    """
    try:
        return _documents(pa.RecordBatchReader.from_stream(table))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidRequest(
            f"The {type(table).__name__} cannot be read as an Arrow stream ({error}).",
            field="documents",
        ) from error


def stream_documents(body: bytes) -> list[Document]:
    """Return the documents of a stream in Arrow's IPC format, which a stranger may have sent.

    Raises:
        InvalidRequest: it is damaged, compressed or too large, or as `arrow_documents`.
    """
    try:
        for message in _messages(body):
            if _is_compressed(message):
                raise InvalidRequest(
                    "The Arrow stream is compressed; write it uncompressed.", field="body"
                )
        return _documents(pa.ipc.open_stream(body), untrusted=True)
    except (pa.ArrowException, TypeError, ValueError, IndexError, struct.error, OSError) as error:
        raise InvalidRequest(
            f"The body is no stream of Arrow's IPC format ({error}).", field="body"
        ) from error


def _documents(reader: pa.RecordBatchReader, *, untrusted: bool = False) -> list[Document]:
    _check_columns(reader.schema)
    documents: list[Document] = []
    cells = characters = rows = 0
    for batch in reader:
        rows += batch.num_rows
        if rows > MAX_DOCUMENTS:
            raise InvalidRequest(
                f"The table has {rows:,} rows or more; at most {MAX_DOCUMENTS:,} are taken at "
                f"once. Send it in parts, or build the collection from a file.",
                field="documents",
            )
        if untrusted:
            batch.validate(full=True)
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                size = _size(column, is_vector=name in (WHOLE, "vectors"))
                cells, characters = cells + size[0], characters + size[1]
                _check_size(cells, characters)
        documents += _batch_documents(batch, len(documents))
    return documents


def _check_columns(schema: pa.Schema) -> None:
    names = schema.names
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidRequest(
            f"The table has the column {repeated[0]!r} more than once; rename one.",
            field="documents",
        )
    if "id" not in names or not set(KEYS) & set(names):
        raise InvalidRequest(
            f"The table has the columns {', '.join(names)[:200]}, but a column 'id' and one of "
            f"{', '.join(KEYS)} were expected; rename those that hold them.",
            field="documents",
        )
    for field in schema:
        if holds_bytes(field.type):
            raise InvalidRequest(
                f"The column {field.name!r} holds bytes, which JSON cannot say; leave it out, or "
                f"send numbers or texts.",
                field="documents",
            )


def _batch_documents(batch: pa.RecordBatch, first: int) -> Iterator[Document]:
    """Yield the documents of a batch; `first` is the position of its first row."""
    names, columns = batch.schema.names, dict(zip(batch.schema.names, batch.columns, strict=True))
    vectors = _vectors(columns.pop(WHOLE, None), columns.pop("vectors", None), batch.num_rows)
    lists = {name: json_cells(column) for name, column in columns.items()}
    others = [name for name in names if name in lists and name not in CONTENT]
    for row in range(batch.num_rows):
        cells: dict[str, Any] = {name: lists[name][row] for name in lists if name in CONTENT}
        payload = {name: lists[name][row] for name in others} | (cells.pop("payload", None) or {})
        if isinstance(cells.get("fields"), Mapping):
            cells["fields"] = {n: text for n, text in cells["fields"].items() if text} or None
        content = {name: cell for name, cell in cells.items() if cell not in (None, "")}
        with located(first + row, content.get("id")):
            document = parse(DocumentRequest, content | {"payload": payload}).document()
        yield replace(document, vectors=vectors[row])


def _vectors(one: pa.Array | None, several: pa.Array | None, rows: int) -> list[dict[str, Vectors]]:
    """Return the vectors of each row by name."""
    named: list[dict[str, Vectors]] = [{} for _ in range(rows)]
    columns: dict[str, pa.Array] = {} if several is None else {WHOLE: several}
    if several is not None and types.is_struct(several.type):
        columns = {several.type.field(n).name: field for n, field in enumerate(several.flatten())}
    if one is not None:
        if WHOLE in columns:
            raise InvalidRequest(
                "The table has a column 'vector' and lists in 'vectors'; send one of them.",
                field="vectors",
            )
        columns = {**columns, WHOLE: one}
    for name, column in columns.items():
        for row, vectors in enumerate(_numbers(column, name)):
            if vectors is not None:
                named[row][name] = vectors
    return named


def _numbers(column: pa.Array, name: str) -> Iterator[Any]:
    """Yield the vector (d,), or the vectors, of each cell; None for a cell without."""
    kind = column.type
    if types.is_fixed_size_list(kind):
        # Cells without numbers have room among the values, too.
        offsets = (column.offset + np.arange(len(column) + 1)) * kind.list_size
    elif types.is_list(kind) or types.is_large_list(kind):
        offsets = column.offsets.to_numpy()
    else:
        raise InvalidRequest(
            f"The vectors {name!r} are of the type {kind}, but lists of numbers were expected.",
            field=name,
        )
    inner, is_valid = kind.value_type, column.is_valid().to_numpy(zero_copy_only=False)
    if types.is_integer(inner) or types.is_floating(inner):
        values: Any = column.values.to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    else:
        values = list(_numbers(column.values, name))
    for row in range(len(column)):
        yield values[offsets[row] : offsets[row + 1]] if is_valid[row] else None


# -- streams of strangers -------------------------------------------------------------------


def _messages(body: bytes) -> Iterator[bytes]:
    """Yield the metadata of each message of a stream, a Flatbuffer."""
    reader = pa.ipc.MessageReader.open_stream(body)
    while True:
        try:
            yield reader.read_next_message().metadata.to_pybytes()
        except StopIteration:
            return


def _is_compressed(message: bytes) -> bool:
    """Read from a message whether its buffers are compressed (format/Message.fbs of Arrow)."""
    root = struct.unpack_from("<I", message)[0]
    kind, header = _member(message, root, 1), _member(message, root, 2)
    if not (kind and header) or message[kind] not in (2, 3):  # dictionary and record batches
        return False
    batch = _target(message, header)
    if message[kind] == 2:
        batch = _target(message, _member(message, batch, 1))
    return _member(message, batch, 3) != 0


def _member(message: bytes, table: int, number: int) -> int:
    """Return the place of a table's member in a Flatbuffer; 0 if it is absent."""
    directory = table - struct.unpack_from("<i", message, table)[0]
    size = struct.unpack_from("<H", message, directory)[0]
    slot = 4 + 2 * number
    offset = struct.unpack_from("<H", message, directory + slot)[0] if slot < size else 0
    return table + offset if offset else 0


def _target(message: bytes, place: int) -> int:
    return place + int(struct.unpack_from("<I", message, place)[0])


def _check_size(cells: int, characters: int) -> None:
    if cells > MAX_CELLS or characters > MAX_CHARACTERS:
        raise InvalidRequest(
            f"The table has {cells:,} values in its cells and {characters:,} bytes of text, but at "
            f"most {MAX_CELLS:,} and {MAX_CHARACTERS:,} are taken at once; send it in parts.",
            field="documents",
        )


def _size(column: pa.Array, *, is_vector: bool = False) -> tuple[int, int]:
    """Return the number of values, and the bytes of text, that a column becomes."""
    kind, count = column.type, len(column)
    if types.is_dictionary(kind):
        lengths = _lengths(column.dictionary)
        used = column.indices.drop_null().to_numpy()
        return count, int(lengths[used].sum())
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return count, int(_lengths(column).sum())
    if types.is_fixed_size_list(kind) and not is_vector:
        _check_size(count * kind.list_size, 0)  # before it is written out: it may be of nothing
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = _size(column.flatten(), is_vector=is_vector)
        return (0 if is_vector else count) + inner[0], inner[1]
    if types.is_struct(kind):
        sizes = [_size(column.field(n), is_vector=is_vector) for n in range(kind.num_fields)]
        return count + sum(size[0] for size in sizes), sum(size[1] for size in sizes)
    if kind.num_fields or types.is_run_end_encoded(kind):
        raise InvalidRequest(
            f"The type {kind} is not read; send lists and structs.", field="documents"
        )
    is_number = types.is_integer(kind) or types.is_floating(kind)
    return (0 if is_vector and is_number else count), 0


def _lengths(texts: pa.Array) -> Any:
    """Return the bytes of each text (n,)."""
    if types.is_string_view(texts.type):  # 16 bytes for each, which begin with the length
        views = np.frombuffer(texts.buffers()[1], dtype=np.int32).reshape(-1, 4)
        return views[texts.offset : texts.offset + len(texts), 0].astype(np.int64)
    if types.is_string(texts.type) or types.is_large_string(texts.type):
        lengths = compute.call_function("binary_length", [texts])
        return lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if texts.type.num_fields:
        raise InvalidRequest(
            f"Dictionaries of {texts.type} are not read; send texts.", field="documents"
        )
    return np.zeros(len(texts), dtype=np.int64)
