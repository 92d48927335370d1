"""Tables in SQLite and Parquet files; reading them needs their libraries, the rest does not."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from attend.errors import SourceError
from attend.source.columns import ID_NAMES, matching
from attend.source.rows import Row, RowProblem, Source, listed, unreadable
from attend.types import Json

ROWID = "rowid"

BATCH_ROWS = 1024
BINARY_TYPES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
LIST_TYPES = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
PLAIN_TYPES = (
    *(pa.types.is_integer, pa.types.is_boolean),
    *(pa.types.is_string, pa.types.is_large_string),
)

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
        rejected: dict[str, str] = {}  # column -> where its first bytes are
        try:
            with closing(connect(self.path)) as database:
                for number, values in enumerate(database.execute(self._select()), start=1):
                    place = f"{self.name}:{number}"
                    cells = dict(zip(self.columns, values, strict=True))
                    blobs = [name for name, cell in cells.items() if isinstance(cell, bytes)]
                    for name in blobs:
                        rejected.setdefault(name, place)
                        del cells[name]
                    yield Row(place, cells)
        except sqlite3.Error as error:
            raise unreadable(self.path, error) from error
        for name, place in rejected.items():
            yield left_out(place, name)

    def _select(self) -> str:
        columns = ", ".join(quoted(column) for column in self.columns)
        return f"SELECT {columns} FROM {quoted(self.table)}"

    def size_hint(self) -> int | None:
        with closing(connect(self.path)) as database:
            (count,) = database.execute(f"SELECT count(*) FROM {quoted(self.table)}").fetchone()
        return int(count)


def left_out(place: str, column: str) -> RowProblem:
    """Return the notice that the rows are read without a column of bytes."""
    reason = f"The column {column!r} holds bytes, which are not JSON. They are left out."
    return RowProblem(place, reason, rejects=False)


def open_table(path: Path, table: str) -> SqliteTable:
    """Open a table with its columns and key.

    Raises:
        SourceError: the file is no SQLite database, or has no such table; it lists the tables.
    """
    try:
        with closing(connect(path)) as database:
            present = _tables(database)
            if table not in present:
                raise _unknown(path, table, present)
            columns, key = _columns(database, table)
    except sqlite3.Error as error:
        raise unreadable(path, error) from error
    if key == ROWID and ROWID not in columns:
        columns = (ROWID, *columns)
    return SqliteTable(path, table, f"{path.name}:{table}", columns, key)


def _unknown(path: Path, table: str, present: Sequence[str]) -> SourceError:
    there = f"It has {listed(present)}" if present else "It has no tables"
    fault = f"has no table {table!r}" if table else "needs the name of a table"
    return SourceError(f"{path} {fault}. {there}; write {path.name}:TABLE.")


def _tables(database: sqlite3.Connection) -> list[str]:
    listing = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
    return [name for (name,) in database.execute(listing)]


def _columns(database: sqlite3.Connection, table: str) -> tuple[tuple[str, ...], str | None]:
    """Return the column names, and the primary key of one column, or rowid, or None."""
    about = database.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
    names = tuple(name for _, name, *_ in about)
    keys = [name for _, name, *_, position in about if position]
    if len(keys) == 1:
        return names, keys[0]
    return names, ROWID if not matching(names, ID_NAMES) and _has_rowid(database, table) else None


def _has_rowid(database: sqlite3.Connection, table: str) -> bool:
    """Return false for a view, and for a table created WITHOUT ROWID."""
    kind = "SELECT type FROM sqlite_master WHERE name = ?"
    if database.execute(kind, (table,)).fetchone() != ("table",):
        return False
    try:
        database.execute(f"SELECT {ROWID} FROM {quoted(table)} LIMIT 0")
    except sqlite3.OperationalError:
        return False
    return True


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


@dataclass(frozen=True)
class ParquetFile(Source):
    """A `.parquet` file. Columns that hold bytes are left out; a notice names them."""

    path: Path
    name: str

    def rows(self) -> Iterator[Row | RowProblem]:
        with self._open() as file:
            schema = file.schema_arrow
            rejected = [field.name for field in schema if holds_bytes(field.type)]
            columns = {f.name: converter(f.type) for f in schema if f.name not in rejected}
            for number, cells in enumerate(self._records(file, columns), start=1):
                yield Row(f"{self.name}:{number}", cells)
            for column in rejected:
                yield left_out(self.name, column)

    def _records(
        self, file: pq.ParquetFile, columns: Mapping[str, Convert]
    ) -> Iterator[Mapping[str, Json]]:
        batches = file.iter_batches(BATCH_ROWS, columns=list(columns))
        try:
            for batch in batches:
                lists = [
                    [convert(cell) for cell in whole_microseconds(column).to_pylist()]
                    for column, convert in zip(batch.columns, columns.values(), strict=True)
                ]
                for cells in zip(*lists, strict=True):
                    yield dict(zip(columns, cells, strict=True))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise unreadable(self.path, error) from error

    def _open(self) -> pq.ParquetFile:
        try:
            file = pq.ParquetFile(self.path)
        except (pa.ArrowException, OSError) as error:
            raise unreadable(self.path, error) from error
        names = file.schema_arrow.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            file.close()
            raise SourceError(f"{self.path} has several columns named {listed(twice)}.")
        return file

    def size_hint(self) -> int | None:
        with self._open() as file:
            return int(file.metadata.num_rows)


def holds_bytes(kind: pa.DataType) -> bool:
    """Return whether a cell of this type is, or contains, raw bytes."""
    if pa.types.is_dictionary(kind):
        return holds_bytes(kind.value_type)
    if any(is_binary(kind) for is_binary in BINARY_TYPES):
        return True
    return any(holds_bytes(kind.field(i).type) for i in range(kind.num_fields))


def converter(kind: pa.DataType) -> Convert:
    """Return the function from a cell of this type to JSON; vectors and texts pass at no cost."""
    is_list = any(is_kind(kind) for is_kind in LIST_TYPES)
    inner = kind.value_type if is_list else kind
    # A lone float may be NaN for "missing"; in a list it is a coordinate, checked later.
    plain = any(is_kind(inner) for is_kind in PLAIN_TYPES) or (
        is_list and pa.types.is_floating(inner)
    )
    return _unchanged if plain else to_json


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
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return column.cast(pa.timestamp("us", tz=kind.tz), safe=False)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return column.cast(pa.duration("us"), safe=False)
    if pa.types.is_time(kind) and kind == pa.time64("ns"):
        return column.cast(pa.time64("us"), safe=False)
    return column
