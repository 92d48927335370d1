"""Parquet, read batch by batch, with every cell turned into JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from attend.errors import SourceError
from attend.source.rows import Problem, Row, listed, unreadable
from attend.source.tables import left_out
from attend.types import Json

BATCH_ROWS = 1024
BINARY_TYPES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
LIST_TYPES = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
PLAIN_TYPES = (
    *(pa.types.is_integer, pa.types.is_boolean),
    *(pa.types.is_string, pa.types.is_large_string),
)


@dataclass(frozen=True)
class Parquet:
    """A `.parquet` file. Columns that hold bytes are left out; a notice names them."""

    path: Path
    name: str
    natural_id: str | None = None
    natural_text: tuple[str, ...] = ()
    untyped: bool = False

    def rows(self) -> Iterator[Row | Problem]:
        with self._open() as file:
            schema = file.schema_arrow
            refused = [field.name for field in schema if holds_bytes(field.type)]
            columns = {f.name: converter(f.type) for f in schema if f.name not in refused}
            for number, cells in enumerate(self._records(file, columns), start=1):
                yield Row(f"{self.name}:{number}", cells)
            for column in refused:
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


Convert = Callable[[object], Json]


def holds_bytes(kind: pa.DataType) -> bool:
    """Whether a cell of this type is, or contains, raw bytes."""
    if pa.types.is_dictionary(kind):
        return holds_bytes(kind.value_type)
    if any(is_binary(kind) for is_binary in BINARY_TYPES):
        return True
    return any(holds_bytes(kind.field(i).type) for i in range(kind.num_fields))


def converter(kind: pa.DataType) -> Convert:
    """What turns a cell of this type into JSON; vectors and texts pass at no cost."""
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
    """A Python value from Arrow as JSON: times in ISO 8601, durations in seconds.

    NaN becomes null, since data frames write a missing number so.

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
