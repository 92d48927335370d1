"""Files as rows: JSON, CSV and TSV."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from attend.errors import SourceError
from attend.source.cells import is_unicode, kind
from attend.source.rows import (
    LOOKAHEAD_ROWS,
    FileSource,
    Row,
    RowProblem,
    Source,
    listed,
    open_text,
    unreadable,
)

if TYPE_CHECKING:
    from _csv import Reader

MAX_LINE_BYTES = 64 << 20
"""A longer line is skipped and reported: it is a file without line ends, not a row."""

MAX_ARRAY_BYTES = 256 << 20
"""A `.json` list has to be parsed in one piece, so its size is bounded."""

MAX_CELL_CHARACTERS = 64 << 20
"""A larger cell is an unclosed quote that swallows the file, not a text."""


class JsonLinesFile(FileSource):
    """A `.jsonl` or `.ndjson` file: one JSON object a line; blank lines are skipped."""

    def rows(self) -> Iterator[Row | RowProblem]:
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise unreadable(self.path, error) from error
        with file:
            yield from json_rows(bounded_lines(file), self.name)


class StandardInput(Source):
    """JSONL on standard input, which can be read only once.

    The first 10,000 rows are stored and replayed, so that a sample consumes nothing. Once the
    reading is past them they are dropped, and a second reading raises SourceError.
    """

    name = "stdin"

    def __init__(self, stream: BinaryIO | None = None) -> None:
        lines = bounded_lines(stream if stream is not None else sys.stdin.buffer)
        self._rest = json_rows(lines, self.name)
        self._head: list[Row | RowProblem] = []
        self._spent = False

    def rows(self) -> Iterator[Row | RowProblem]:
        if self._spent:
            raise SourceError("Standard input can be read only once. Save it to a file first.")
        yield from self._head
        for row in self._rest:
            if len(self._head) < LOOKAHEAD_ROWS and not self._spent:
                self._head.append(row)
            else:
                self._spent = True
                self._head.clear()
            yield row


class JsonArray(FileSource):
    """A `.json` file that holds one list of objects; places count its items from 1."""

    def rows(self) -> Iterator[Row | RowProblem]:
        try:
            if self.path.stat().st_size > MAX_ARRAY_BYTES:
                raise SourceError(
                    f"{self.path} is a JSON list of more than {MAX_ARRAY_BYTES >> 20} MiB. "
                    "Write it as JSONL, one object a line, which is read as a stream."
                )
            items = parse(self.path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise unreadable(self.path, error) from error
        if not isinstance(items, list):
            raise SourceError(
                f"{self.path} holds {kind(items)}, but a list of objects is expected. "
                "Wrap the objects in [ ], or write one a line into a .jsonl file."
            )
        for number, item in enumerate(items, start=1):
            yield as_row(item, f"{self.name}:{number}")


def bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield lines of at most `MAX_LINE_BYTES + 1` bytes; the rest of a longer one is dropped."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        yield line
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES + 1)


def json_rows(lines: Iterable[bytes], name: str) -> Iterator[Row | RowProblem]:
    """Parse lines one by one; a line that fails becomes a problem and the next is read."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _json_row(line, f"{name}:{number}")


def _json_row(line: bytes, place: str) -> Row | RowProblem:
    if len(line) > MAX_LINE_BYTES:
        return RowProblem(place, f"The line is longer than {MAX_LINE_BYTES >> 20} MiB.")
    try:
        return as_row(parse(line.rstrip(b"\r\n")), place)
    except UnicodeDecodeError as error:
        return RowProblem(
            place, f"Byte {error.start + 1} of the line is not UTF-8. Save the file as UTF-8."
        )
    except json.JSONDecodeError as error:
        return RowProblem(place, f"The JSON is broken at character {error.colno}: {error.msg}.")
    except (ValueError, RecursionError) as error:
        return RowProblem(place, f"The JSON cannot be read: {error}.")


def parse(data: bytes) -> object:
    """Parse strict JSON in UTF-8, with or without a byte order mark; raises ValueError."""
    return json.loads(data.decode("utf-8-sig"), parse_constant=_reject_constant)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number; write null or leave the field out")


def as_row(item: object, place: str) -> Row | RowProblem:
    """Return a parsed object as a row, anything else as a problem."""
    if isinstance(item, dict):
        return Row(place, item)
    return RowProblem(place, f"The row is {kind(item)}, but an object of fields is expected.")


class Delimited(FileSource):
    """A file with a header line, cells separated by commas (or tabs) and quoted with `\"`.

    Quoting is checked strictly: an unclosed quote would otherwise silently swallow the rows
    after it into one cell.
    """

    untyped = True
    delimiter = ","

    def rows(self) -> Iterator[Row | RowProblem]:
        csv.field_size_limit(MAX_CELL_CHARACTERS)
        with open_text(self.path) as file:
            reader = csv.reader(file, delimiter=self.delimiter, strict=True)
            header = self._header(reader)
            yield from self._records(reader, header)

    def _header(self, reader: Reader) -> list[str]:
        try:
            header = next(reader, None)
        except csv.Error as error:
            raise SourceError(f"The header of {self.path} cannot be read: {error}.") from error
        if not header:
            raise SourceError(f"{self.path} has no header. Name the columns in its first line.")
        if not is_unicode("".join(header)):
            raise SourceError(f"The header of {self.path} is not UTF-8. Save the file as UTF-8.")
        # Data frames write their index under an empty name.
        names = [name.strip() or f"column_{i}" for i, name in enumerate(header, start=1)]
        check_names(self, names)
        return names

    def _records(self, reader: Reader, header: list[str]) -> Iterator[Row | RowProblem]:
        while True:
            place = f"{self.name}:{reader.line_num + 1}"  # where the record begins
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield RowProblem(place, f"The quotes of the row that begins here fail: {error}.")
            else:
                if cells:  # a blank line is no record
                    yield _record(place, header, cells)


class TabDelimited(Delimited):
    """A `.tsv` file."""

    delimiter = "\t"


def _record(place: str, header: list[str], cells: list[str]) -> Row | RowProblem:
    if len(cells) != len(header):
        return RowProblem(
            place, f"The row has {len(cells)} cells, but the header names {len(header)} columns."
        )
    if not is_unicode("".join(cells)):
        return RowProblem(place, "The row holds bytes that are not UTF-8. Save the file as UTF-8.")
    return Row(place, dict(zip(header, cells, strict=True)))


def check_names(source: FileSource, names: list[str]) -> None:
    """Raise SourceError if several columns have one name."""
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise SourceError(
            f"{source.path} has several columns named {listed(repeated)}. Give each its own name."
        )
