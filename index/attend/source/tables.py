"""Tables in SQLite and Parquet files; reading them needs their libraries, the rest does not."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import compute, types

from attend.errors import SourceError
from attend.source.columns import ID_NAMES, matching
from attend.source.files import check_names
from attend.source.rows import FileSource, Row, RowProblem, Source, listed, unreadable
from attend.types import Json

ROWID = "rowid"

BATCH_ROWS = 1024

Convert = Callable[[object], Json]


@dataclass(frozen=True)
class SqliteTable(Source):
    """One table or view. Cells that hold bytes are left out; a notice names their column.

    A table with neither a primary key of one column nor a column named like an id gets
    its `rowid` as one more cell, so that its documents keep their ids between builds.
    """

    path: Path
    table: str
    name: str
    columns: tuple[str, ...]
    natural_id: str | None

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
                        rejected.setdefault(name, place)
                        del cells[name]
                    yield Row(place, cells)
        except sqlite3.Error as error:
            raise unreadable(self.path, error) from error
        for name, place in rejected.items():
            yield left_out(place, name)


def left_out(place: str, column: str) -> RowProblem:
    """Return the notice that the rows are read without a column of bytes."""
    reason = f"The column {column!r} holds bytes, which are not JSON. They are left out."
    return RowProblem(place, reason, rejects=False)


def open_table(path: Path, table: str) -> SqliteTable:
    """Open a table with its columns and key.

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
    except sqlite3.Error as error:
        raise unreadable(path, error) from error
    if key == ROWID and ROWID not in columns:
        columns = (ROWID, *columns)
    return SqliteTable(path, table, f"{path.name}:{table}", columns, key)


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
                schema = file.schema_arrow
                check_names(self, schema.names)
                rejected = [field.name for field in schema if holds_bytes(field.type)]
                columns = {f.name: converter(f.type) for f in schema if f.name not in rejected}
                for number, cells in enumerate(_records(file, columns), start=1):
                    yield Row(f"{self.name}:{number}", cells)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise unreadable(self.path, error) from error
        for column in rejected:
            yield left_out(self.name, column)


def _records(file: pq.ParquetFile, columns: Mapping[str, Convert]) -> Iterator[dict[str, Json]]:
    for batch in file.iter_batches(BATCH_ROWS, columns=list(columns)):
        lists = [
            [convert(cell) for cell in whole_microseconds(column).to_pylist()]
            for column, convert in zip(batch.columns, columns.values(), strict=True)
        ]
        for cells in zip(*lists, strict=True):
            yield dict(zip(columns, cells, strict=True))


def holds_bytes(kind: pa.DataType) -> bool:
    """Return whether a cell of this type is, or contains, raw bytes."""
    if types.is_dictionary(kind):
        return holds_bytes(kind.value_type)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
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


def to_json(cell: object) -> Json:
    """Convert a Python value from Arrow to JSON: times in ISO 8601, durations in seconds.

    NaN becomes null, since data frames write missing numbers as NaN.

    >>> to_json({"on": date(2024, 2, 29), "paid": Decimal("1.50")})
    {'on': '2024-02-29', 'paid': 1.5}
    """
    if isinstance(cell, datetime | date | time):
        return cell.isoformat()
    if isinstance(cell, timedelta):
        return cell.total_seconds()
    if isinstance(cell, float | Decimal):
        return None if math.isnan(cell) else float(cell)
    if isinstance(cell, Mapping):
        return {str(name): to_json(item) for name, item in cell.items()}
    if isinstance(cell, list | tuple):
        return [to_json(item) for item in cell]
    if cell is None or isinstance(cell, bool | int | str):
        return cell
    return str(cell)  # such as a UUID


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
