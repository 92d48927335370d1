"""Tables in SQLite, in Parquet files and in memory; only reading them needs their libraries."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import compute, types

from attend.core.errors import SourceError
from attend.core.frames import METADATA, Kind, decode
from attend.core.types import Floats, Json
from attend.source.columns import ID_NAMES, matching
from attend.source.files import FileSource, check_names
from attend.source.rows import (
    Replay,
    Row,
    RowProblem,
    Source,
    listed,
    to_json,
    unreadable,
)

ROWID = "rowid"

BATCH_ROWS = 1024
LOOKAHEAD_BATCHES = 16

NO_DATABASE = "Name a SQLite database, or restore it from a backup."


class SqliteTable(FileSource):
    """One table or view.

    Bytes that read as float32 numbers, as sqlite-vec and `llm` write them, are vectors; other
    cells that hold bytes are left out, and a notice names their column. A table with neither a
    primary key of one column nor a column named like an id gets its `rowid` as one more cell, so
    that its documents keep their ids between builds.

    Raises:
        SourceError: the file is no SQLite database, or has no such table; it lists the tables.
    """

    def __init__(self, path: Path, table: str) -> None:
        super().__init__(path, f"{path.name}:{table}")
        self._table = table
        try:
            with closing(connect(path)) as database:
                kinds = dict(
                    database.execute(
                        "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') "
                        "ORDER BY name"
                    )
                )
                if table not in kinds:
                    there = f"It has {listed(list(kinds))}" if kinds else "It has no tables"
                    fault = f"has no table {table!r}" if table else "needs the name of a table"
                    raise SourceError(f"{path} {fault}. {there}; write {path.name}:TABLE.")
                about = database.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
                self._columns = [name for _, name, *_ in about]
                keys = [name for _, name, *_, position in about if position]
                self.natural_id = keys[0] if len(keys) == 1 else None
                faults = self._find_vectors(database)
                if not (
                    self.natural_id or matching(self._columns, ID_NAMES) or kinds[table] == "view"
                ):
                    with suppress(sqlite3.OperationalError):  # a table created WITHOUT ROWID
                        database.execute(f"SELECT {ROWID} FROM {quoted(table)} LIMIT 0")
                        self.natural_id = ROWID
        except sqlite3.Error as error:
            raise unreadable(path, error, NO_DATABASE) from error
        except UnicodeDecodeError:  # Python reads the names of columns as UTF-8
            raise SourceError(
                f"{path} has a column in {table!r} whose name is not UTF-8. Give it another name."
            ) from None
        self.faults = faults
        if self.natural_id == ROWID and ROWID not in self._columns:
            self._columns.insert(0, ROWID)

    def _find_vectors(self, database: sqlite3.Connection) -> dict[str, str]:
        """Find the column of vectors and its width; return the faults of others named so."""
        rows = database.execute(
            f"SELECT * FROM {quoted(self._table)} LIMIT {BATCH_ROWS}"
        ).fetchall()
        faults = {}
        for position, name in enumerate(self._columns):
            blobs = [row[position] for row in rows if isinstance(row[position], bytes)]
            fault = vector_fault(blobs) if blobs else None
            if blobs and fault is None and self.natural_vector is None:
                self.natural_vector, self._width = name, len(blobs[0]) // 4
            elif fault is not None and re.search("vec|embed", name, re.IGNORECASE):
                faults[name] = f"The column {name!r} {fault} It is left out."
        return faults

    def detected(self) -> str:
        if self.natural_vector is None:
            return ""
        return f"{self.natural_vector} has {self._width} numbers (float32, little-endian)"

    def rows(self) -> Iterator[Row | RowProblem]:
        columns = ", ".join(quoted(column) for column in self._columns)
        selection = f"SELECT {columns} FROM {quoted(self._table)}"
        rejected: dict[str, str] = {}  # column -> where its first bytes are
        try:
            with closing(connect(self.path)) as database:
                for number, values in enumerate(database.execute(selection), start=1):
                    place = f"{self.name}:{number}"
                    cells = dict(zip(self._columns, values, strict=True))
                    for name in [name for name, cell in cells.items() if isinstance(cell, bytes)]:
                        if name != self.natural_vector:
                            rejected.setdefault(name, place)
                            del cells[name]
                    yield self._row(place, cells)
        except sqlite3.Error as error:
            raise unreadable(self.path, error, NO_DATABASE) from error
        for name, place in rejected.items():
            yield left_out(place, name, self.faults.get(name))

    def _row(self, place: str, cells: dict[str, object]) -> Row | RowProblem:
        vector = cells.get(self.natural_vector or "")
        if isinstance(vector, bytes):
            if len(vector) != 4 * self._width:
                return RowProblem(
                    place,
                    f"The column {self.natural_vector!r} has {len(vector)} bytes here, but "
                    f"{4 * self._width} are expected, for {self._width} float32 numbers. Embed the "
                    f"row again with the model of the others.",
                )
            cells = {**cells, str(self.natural_vector): floats(vector).tolist()}
        return Row(place, cells)  # type: ignore[arg-type]  # SQLite has no other types


def left_out(place: str, column: str, reason: str | None = None) -> RowProblem:
    """Return the notice that the rows are read without a column of bytes."""
    reason = reason or f"The column {column!r} holds bytes, which are not JSON. They are left out."
    return RowProblem(place, reason, rejects=False)


def vector_fault(blobs: Sequence[bytes]) -> str | None:
    """Return why bytes are no vectors of float32 numbers in little-endian order, or None.

    >>> import struct
    >>> vector_fault([struct.pack("<4f", 0.1, -0.5, 0, 1)])
    >>> vector_fault([struct.pack(">4f", 0.1, -0.5, 0, 1)])[:42]
    'holds bytes that seem to be big-endian. St'
    """
    sizes = Counter(map(len, blobs))
    ((size, _),) = sizes.most_common(1)
    joined = b"".join(blob for blob in blobs if len(blob) == size)
    if size >= 8 and size % 4 == 0 and _plausible(floats(joined)):
        return None
    if size % 4 == 0 and _plausible(np.frombuffer(joined, ">f4")):
        return (
            "holds bytes that seem to be big-endian. Store float32 in little-endian order ('<f4')."
        )
    if size % 8 == 0 and _plausible(np.frombuffer(joined, "<f8")):
        return "holds bytes that seem to be float64. Store float32 in little-endian order."
    return (
        f"holds {size} bytes in a cell, which do not read as float32 numbers. Store four bytes for "
        f"each number, in little-endian order."
    )


def floats(data: bytes) -> NDArray[np.float32]:
    """Return the float32 numbers, shape (d,), of bytes in little-endian order."""
    return np.frombuffer(data, "<f4")


def _plausible(numbers: Floats) -> bool:
    """Return whether numbers look like coordinates; of random bytes, one in six does."""
    with np.errstate(invalid="ignore"):
        sizes = np.abs(numbers.astype(np.float64))
        return bool(np.mean((sizes == 0) | ((sizes > 1e-9) & (sizes < 1e4))) > 0.99)


def connect(path: Path) -> sqlite3.Connection:
    """Open read-only: a source is never changed, nor created by a misspelt name."""
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    # The mapping reports what is not UTF-8 by row; the default would end the whole read.
    database.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    return database


def quoted(name: str) -> str:
    """Quote a SQL identifier, since names cannot be bound as parameters.

    >>> print(quoted('my "new" table'))
    "my ""new"" table"
    """
    return '"' + name.replace('"', '""') + '"'


class ParquetFile(FileSource):
    """A `.parquet` file. Columns that hold bytes are left out; a notice names them.

    Of one that `attend export` wrote, the rows are the documents as they were.
    """

    def rows(self) -> Iterator[Row | RowProblem]:
        try:
            with pq.ParquetFile(self.path) as file:
                rows = _table(
                    self.name,
                    str(self.path),
                    file.schema_arrow,
                    lambda columns: file.iter_batches(BATCH_ROWS, columns=columns),
                )
                metadata = file.schema_arrow.metadata or {}
                if METADATA.encode() in metadata:
                    rows = _documents(rows, json.loads(metadata[METADATA.encode()]))
                yield from rows
        except (pa.ArrowException, OSError, ValueError, TypeError, LookupError) as error:
            raise unreadable(self.path, error, "Write the file again.") from error


def _documents(
    rows: Iterable[Row | RowProblem], kinds: dict[str, Kind]
) -> Iterator[Row | RowProblem]:
    """Undo what Arrow has no type for; see `attend.core.frames`."""
    for row in rows:
        if isinstance(row, Row):
            cells: dict[str, Any] = {
                name: decode(cell, kinds.get(name)) for name, cell in row.cells.items()
            }
            cells.pop("embeddings", None)
            if cells.get("vectors"):
                cells["vectors"] = dict(cells["vectors"])  # the items of a map
            absent = [n for n in ("fields", "vector", "vectors") if not cells.get(n)]
            row = Row(row.place, {n: cell for n, cell in cells.items() if n not in absent})
        yield row


class ArrowStream(Source):
    """An object with `__arrow_c_stream__`: a frame of pandas or Polars, a DuckDB relation.

    It is read in batches. A reader of record batches can be read only once, but for its first
    ones. Columns that hold bytes are left out; a notice names them.

    >>> source = ArrowStream(pa.table({"title": ["Emma", "Dune"]}))
    >>> [row.cells["title"] for row in source.rows()]
    ['Emma', 'Dune']
    """

    def __init__(self, data: Any) -> None:
        self.name = type(data).__name__
        self._data = data
        self._batches: Replay[pa.RecordBatch] | None = None
        if isinstance(data, pa.RecordBatchReader):
            fault = "A reader of record batches can be read only once. Give a table or a frame."
            self._batches = Replay(iter(data), LOOKAHEAD_BATCHES, fault)

    def rows(self) -> Iterator[Row | RowProblem]:
        try:
            if self._batches is None:
                reader = pa.RecordBatchReader.from_stream(self._data)
                schema, batches = reader.schema, iter(reader)
            else:
                schema, batches = self._data.schema, iter(self._batches)
            # A frame is often one batch, and its rows become Python lists: in short ones.
            short = (
                batch.slice(start, BATCH_ROWS)
                for batch in batches
                for start in range(0, batch.num_rows, BATCH_ROWS)
            )
            yield from _table(self.name, self.name, schema, lambda columns: short)
        except (pa.ArrowException, TypeError, ValueError, RuntimeError) as error:
            raise SourceError(
                f"The {self.name} cannot be read as an Arrow stream: {error}. Give each column one "
                f"type."
            ) from error


def _table(
    name: str,
    subject: str,
    schema: pa.Schema,
    batches_of: Callable[[list[str]], Iterable[pa.RecordBatch]],
) -> Iterator[Row | RowProblem]:
    """Yield the rows of a table, and a notice of each column that is left out as bytes.

    Args:
        subject: what an error of the columns is about.
        batches_of: returns the batches, which have some columns at least.
    """
    check_names(subject, schema.names)
    rejected = [column.name for column in schema if holds_bytes(column.type)]
    columns = [name for name in schema.names if name not in rejected]
    yield from _rows(name, batches_of(columns), columns)
    for column in rejected:
        yield left_out(name, column)


def _rows(
    name: str, batches: Iterable[pa.RecordBatch], columns: Sequence[str], start: int = 1
) -> Iterator[Row | RowProblem]:
    for batch in batches:
        try:
            lists = [json_cells(batch.column(column)) for column in columns]
        except (ValueError, OverflowError) as error:  # Python has no such time: find its row
            if batch.num_rows > 1:
                single = (batch.slice(row, 1) for row in range(batch.num_rows))
                yield from _rows(name, single, columns, start)
            else:
                yield RowProblem(
                    f"{name}:{start}",
                    f"The row cannot be read: {str(error).rstrip('.')}. Write times between the "
                    f"years 1 and 9999, in a zone that exists.",
                )
        else:
            for number, cells in enumerate(zip(*lists, strict=True), start):
                yield Row(f"{name}:{number}", dict(zip(columns, cells, strict=True)))
        start += batch.num_rows


def holds_bytes(kind: pa.DataType) -> bool:
    """Return whether a cell of this type is, or contains, raw bytes."""
    if types.is_dictionary(kind):
        return holds_bytes(kind.value_type)
    kinds = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    if any(is_kind(kind) for is_kind in (*kinds, types.is_binary_view)):
        return True
    return any(holds_bytes(kind.field(i).type) for i in range(kind.num_fields))


def json_cells(column: pa.Array) -> list[Json]:
    """Return the cells of a column as JSON; vectors and texts pass at no cost.

    Nanoseconds, which Python's datetime cannot hold, are cut off.
    """
    kind = column.type
    if getattr(kind, "unit", None) == "ns":
        if types.is_timestamp(kind):
            shorter = pa.timestamp("us", tz=kind.tz)
        else:
            shorter = pa.duration("us") if types.is_duration(kind) else pa.time64("us")
        column = compute.call_function("cast", [column], compute.CastOptions.unsafe(shorter))
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    inner = kind.value_type if is_list else kind
    plain = (types.is_integer, types.is_boolean, types.is_string, types.is_large_string)
    cells: list[Json] = column.to_pylist()
    # A lone float may be NaN for "missing"; in a list it is a coordinate, checked later.
    if (is_list and types.is_floating(inner)) or any(is_kind(inner) for is_kind in plain):
        return cells
    return [to_json(cell) for cell in cells]
