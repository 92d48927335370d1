"""Tables in SQLite, in Parquet files and in memory; only reading them needs their libraries."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import compute, types

from attend.core.errors import SourceError
from attend.core.types import Floats, Json
from attend.source.cells import to_json
from attend.source.columns import ID_NAMES, matching
from attend.source.files import check_names
from attend.source.rows import FileSource, Replay, Row, RowProblem, Source, listed, unreadable

ROWID = "rowid"

BATCH_ROWS = 1024
LOOKAHEAD_BATCHES = 16

NO_DATABASE = "Name a SQLite database, or restore it from a backup."

Convert = Callable[[object], Json]


@dataclass(frozen=True)
class SqliteTable(Source):
    """One table or view.

    Bytes that read as float32 numbers, as sqlite-vec and `llm` write them, are vectors; other
    cells that hold bytes are left out, and a notice names their column. A table with neither a
    primary key of one column nor a column named like an id gets its `rowid` as one more cell, so
    that its documents keep their ids between builds.
    """

    path: Path
    table: str
    name: str
    columns: tuple[str, ...]
    natural_id: str | None
    natural_vector: str | None = None
    width: int = 0
    faults: Mapping[str, str] = field(default_factory=dict)

    def detected(self) -> str:
        if self.natural_vector is None:
            return ""
        return f"{self.natural_vector} has {self.width} numbers (float32, little-endian)"

    def rows(self) -> Iterator[Row | RowProblem]:
        columns = ", ".join(quoted(column) for column in self.columns)
        selection = f"SELECT {columns} FROM {quoted(self.table)}"
        rejected: dict[str, str] = {}  # column -> where its first bytes are
        try:
            with closing(connect(self.path)) as database:
                for number, values in enumerate(database.execute(selection), start=1):
                    place = f"{self.name}:{number}"
                    cells = dict(zip(self.columns, values, strict=True))
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
            if len(vector) != 4 * self.width:
                return RowProblem(
                    place,
                    f"The column {self.natural_vector!r} has {len(vector)} bytes here, but "
                    f"{4 * self.width} are expected, for {self.width} float32 numbers. Embed the "
                    f"row again with the model of the others.",
                )
            cells = {**cells, str(self.natural_vector): floats(vector).tolist()}
        return Row(place, cells)  # type: ignore[arg-type]  # SQLite has no other types


def left_out(place: str, column: str, reason: str | None = None) -> RowProblem:
    """Return the notice that the rows are read without a column of bytes."""
    reason = reason or f"The column {column!r} holds bytes, which are not JSON. They are left out."
    return RowProblem(place, reason, rejects=False)


def open_table(path: Path, table: str) -> SqliteTable:
    """Open a table with its columns, its key, and the column of its vectors.

    Raises:
        SourceError: the file is no SQLite database, or has no such table; it lists the tables.
    """
    listing = "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
    try:
        with closing(connect(path)) as database:
            kinds = dict(database.execute(listing))
            if table not in kinds:
                there = f"It has {listed(list(kinds))}" if kinds else "It has no tables"
                fault = f"has no table {table!r}" if table else "needs the name of a table"
                raise SourceError(f"{path} {fault}. {there}; write {path.name}:TABLE.")
            about = database.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
            columns = tuple(name for _, name, *_ in about)
            keys = [name for _, name, *_, position in about if position]
            key = keys[0] if len(keys) == 1 else None
            if key is None and not matching(columns, ID_NAMES) and kinds[table] == "table":
                key = _rowid(database, table)
            vector, width, faults = _vectors(database, table, columns)
    except sqlite3.Error as error:
        raise unreadable(path, error, NO_DATABASE) from error
    except UnicodeDecodeError:  # Python reads the names of columns as UTF-8
        raise SourceError(
            f"{path} has a column in {table!r} whose name is not UTF-8. Give it another name."
        ) from None
    if key == ROWID and ROWID not in columns:
        columns = (ROWID, *columns)
    name = f"{path.name}:{table}"
    return SqliteTable(path, table, name, columns, key, vector, width, faults)


def _vectors(
    database: sqlite3.Connection, table: str, columns: Sequence[str]
) -> tuple[str | None, int, dict[str, str]]:
    """Return the column of vectors, their width, and the faults of columns that are named so."""
    rows = database.execute(f"SELECT * FROM {quoted(table)} LIMIT {BATCH_ROWS}").fetchall()
    vector, width, faults = None, 0, {}
    for position, name in enumerate(columns):
        blobs = [row[position] for row in rows if isinstance(row[position], bytes)]
        if not blobs:
            continue
        fault = vector_fault(blobs)
        if fault is None and vector is None:
            vector, width = name, len(blobs[0]) // 4
        elif fault is not None and re.search("vec|embed", name, re.IGNORECASE):
            faults[name] = f"The column {name!r} {fault} It is left out."
    return vector, width, faults


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


def _rowid(database: sqlite3.Connection, table: str) -> str | None:
    """Return the name of a table's row ids; None for a table created WITHOUT ROWID."""
    try:
        database.execute(f"SELECT {ROWID} FROM {quoted(table)} LIMIT 0")
    except sqlite3.OperationalError:
        return None
    return ROWID


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
    """A `.parquet` file. Columns that hold bytes are left out; a notice names them."""

    def rows(self) -> Iterator[Row | RowProblem]:
        try:
            with pq.ParquetFile(self.path) as file:
                columns, rejected = _columns(str(self.path), file.schema_arrow)
                batches = file.iter_batches(BATCH_ROWS, columns=list(columns))
                yield from _rows(self.name, batches, columns)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise unreadable(self.path, error, "Write the file again.") from error
        for column in rejected:
            yield left_out(self.name, column)


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
            columns, rejected = _columns(self.name, schema)
            yield from _rows(self.name, _slices(batches), columns)
        except (pa.ArrowException, TypeError, ValueError, RuntimeError) as error:
            raise SourceError(
                f"The {self.name} cannot be read as an Arrow stream: {error}. Give each column one "
                f"type."
            ) from error
        for column in rejected:
            yield left_out(self.name, column)


def _slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut batches into short ones: a frame is often one batch, and its rows become Python lists."""
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(start, BATCH_ROWS)


def _columns(name: str, schema: pa.Schema) -> tuple[dict[str, Convert], list[str]]:
    """Return column → conversion to JSON, and the columns that are left out as bytes."""
    check_names(name, schema.names)
    rejected = [column.name for column in schema if holds_bytes(column.type)]
    columns = {c.name: converter(c.type) for c in schema if c.name not in rejected}
    return columns, rejected


def _rows(
    name: str, batches: Iterable[pa.RecordBatch], columns: Mapping[str, Convert]
) -> Iterator[Row | RowProblem]:
    start = 1
    for batch in batches:
        try:
            rows = _row_cells(batch, columns)
        except (ValueError, OverflowError):  # Python has no such time: find its row
            rows = [_one_row(batch.slice(row, 1), columns) for row in range(batch.num_rows)]
        for number, cells in enumerate(rows, start):
            place = f"{name}:{number}"
            yield RowProblem(place, cells) if isinstance(cells, str) else Row(place, cells)
        start += batch.num_rows


def _row_cells(
    batch: pa.RecordBatch, columns: Mapping[str, Convert]
) -> list[Mapping[str, Json] | str]:
    lists = [
        [convert(cell) for cell in whole_microseconds(batch.column(column)).to_pylist()]
        for column, convert in columns.items()
    ]
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*lists, strict=True)]


def _one_row(batch: pa.RecordBatch, columns: Mapping[str, Convert]) -> Mapping[str, Json] | str:
    """Return the cells of a batch of one row, or the reason why it cannot be used."""
    try:
        return _row_cells(batch, columns)[0]
    except (ValueError, OverflowError) as error:
        return (
            f"The row cannot be read: {str(error).rstrip('.')}. Write times between the years 1 "
            f"and 9999, in a zone that exists."
        )


def holds_bytes(kind: pa.DataType) -> bool:
    """Return whether a cell of this type is, or contains, raw bytes."""
    if types.is_dictionary(kind):
        return holds_bytes(kind.value_type)
    kinds = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    if any(is_kind(kind) for is_kind in (*kinds, types.is_binary_view)):
        return True
    return any(holds_bytes(kind.field(i).type) for i in range(kind.num_fields))


def converter(kind: pa.DataType) -> Convert:
    """Return the function from a cell of this type to JSON; vectors and texts pass at no cost."""
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    inner = kind.value_type if is_list else kind
    # A lone float may be NaN for "missing"; in a list it is a coordinate, checked later.
    is_json = is_list and types.is_floating(inner)
    for is_kind in (types.is_integer, types.is_boolean, types.is_string, types.is_large_string):
        is_json = is_json or is_kind(inner)
    return _unchanged if is_json else to_json


def _unchanged(cell: object) -> Json:
    return cell  # type: ignore[return-value]  # the caller looked at the column's Arrow type


def whole_microseconds(column: pa.Array) -> pa.Array:
    """Drop nanoseconds, which Python's datetime cannot hold."""
    kind = column.type
    if getattr(kind, "unit", None) != "ns":
        return column
    if types.is_timestamp(kind):
        shorter = pa.timestamp("us", tz=kind.tz)
    else:
        shorter = pa.duration("us") if types.is_duration(kind) else pa.time64("us")
    return compute.call_function("cast", [column], compute.CastOptions.unsafe(shorter))
