"""Text files as rows: JSON, and tables with delimiters."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from attend.core.errors import SourceError
from attend.source.cells import CellFormat, cell_format, is_unicode, kind, scalar
from attend.source.decoding import (
    DETECTED,
    SAVE_AS,
    UTF_8,
    Decoding,
    TableFormat,
    delimiter_of,
    detect_delimiter,
    detect_encoding,
    first_records,
    open_text,
    read_head,
)
from attend.source.rows import (
    LOOKAHEAD_ROWS,
    FileSource,
    Replay,
    Row,
    RowProblem,
    Source,
    listed,
    unreadable,
)

if TYPE_CHECKING:
    from _csv import Reader

MAX_LINE_BYTES = 64 << 20
"""A longer line is skipped and reported: it is a file without line ends, not a row."""

MAX_ARRAY_BYTES = 256 << 20
"""A `.json` list has to be parsed in one piece, so its size is bounded."""

DIALECT_CHARACTERS = 1 << 16
"""Characters from which the delimiter is detected."""

CLOSE_QUOTES = "Close the quote, and write a quote within a quoted cell twice."

MAX_CELL_CHARACTERS = 64 << 20
"""A larger cell is an unclosed quote that swallows the file, not a text."""


class TextFile(FileSource):
    """A text file whose format is named by the caller or detected."""

    def __init__(self, path: Path, name: str | None = None, format: TableFormat = DETECTED) -> None:
        super().__init__(path, name)
        self.format = format

    @cached_property
    def decoding(self) -> Decoding:
        """The encoding. Raises SourceError if the file is no text."""
        return detect_encoding(read_head(self.path), self.path, self.format.encoding)

    def detected(self) -> str:
        if not self.decoding.guessed:
            return ""
        return f"read as {self.decoding.encoding} (say --encoding to choose)"


class JsonLinesFile(TextFile):
    """A `.jsonl` or `.ndjson` file: one JSON object a line; blank lines are skipped."""

    def rows(self) -> Iterator[Row | RowProblem]:
        if not self.decoding.is_utf8:
            with open_text(self.path, self.decoding.encoding) as text:
                lines = (line.encode("utf-8", "surrogatepass") for line in text)
                yield from json_rows(lines, self.name)
            return
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise unreadable(self.path, error) from error
        with file:
            yield from json_rows(bounded_lines(file), self.name)


class StandardInput(Source):
    """JSONL on standard input, which can be read only once, but for its first 10,000 rows."""

    name = "stdin"

    def __init__(self, stream: BinaryIO | None = None) -> None:
        lines = bounded_lines(stream if stream is not None else sys.stdin.buffer)
        fault = "Standard input can be read only once. Save it to a file first."
        self._rows = Replay(json_rows(lines, self.name), LOOKAHEAD_ROWS, fault)

    def rows(self) -> Iterator[Row | RowProblem]:
        return iter(self._rows)


class JsonArray(TextFile):
    """A `.json` file that holds one list of objects; places count its items from 1."""

    def rows(self) -> Iterator[Row | RowProblem]:
        try:
            if self.path.stat().st_size > MAX_ARRAY_BYTES:
                raise SourceError(
                    f"{self.path} is a JSON list of more than {MAX_ARRAY_BYTES >> 20} MiB. "
                    "Write it as JSONL, one object a line, which is read as a stream."
                )
            items = parse(self.path.read_bytes(), self.decoding.encoding)
        except (OSError, ValueError, RecursionError) as error:
            remedy = "Write a list of objects, or one object a line into a .jsonl file."
            raise unreadable(self.path, error, remedy) from error
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
        return RowProblem(
            place, f"The line is longer than {MAX_LINE_BYTES >> 20} MiB. Write one object in each."
        )
    try:
        return as_row(parse(line.rstrip(b"\r\n")), place)
    except UnicodeDecodeError as error:
        return RowProblem(place, f"Byte {error.start + 1} of the line is not UTF-8. {SAVE_AS}")
    except json.JSONDecodeError as error:
        return RowProblem(
            place,
            f"The JSON is broken at character {error.colno}: {error.msg}. Write one whole object "
            f"in each line.",
        )
    except (ValueError, RecursionError) as error:
        return RowProblem(place, f"The JSON cannot be read: {error}.")


def parse(data: bytes, encoding: str = UTF_8) -> object:
    """Parse strict JSON, with or without a byte order mark; raises ValueError."""
    return json.loads(data.decode(encoding), parse_constant=_reject_constant)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number; write null or leave the field out")


def as_row(item: object, place: str) -> Row | RowProblem:
    """Return a parsed object as a row, anything else as a problem."""
    if isinstance(item, dict):
        return Row(place, item)
    return RowProblem(
        place,
        f'The row is {kind(item)}, but an object of fields is expected, such as {{"text": "…"}}.',
    )


class Delimited(TextFile):
    """A table with a line for each row, cells between delimiters and quoted with `\"`.

    Quoting is checked strictly: an unclosed quote would otherwise silently swallow the rows
    after it into one cell.
    """

    untyped = True
    default = ","

    @cached_property
    def _start(self) -> str:
        with open_text(self.path, self.decoding.encoding) as file:
            return file.read(DIALECT_CHARACTERS)

    @cached_property
    def delimiter(self) -> str:
        """The character between cells. Raises SourceError if it cannot be detected."""
        delimiter = delimiter_of(self.format.delimiter)
        return delimiter or detect_delimiter(self.path, self._start, self.default)

    @cached_property
    def _formats(self) -> dict[int, CellFormat]:
        """The positions of the columns whose numbers or dates are not spelled plainly."""
        rows = first_records(self._start, self.delimiter)[int(self.format.header) :]
        if len(self._start) == DIALECT_CHARACTERS:  # the last one may be cut off
            rows = rows[:-1] or rows
        columns = zip_longest(*rows, fillvalue="")
        # European Excel separates cells by semicolons, as commas are decimal.
        is_european = self.delimiter == ";"
        formats = [cell_format(cells, decimal_comma=is_european) for cells in columns]
        return {n: format for n, format in enumerate(formats) if format is not None}

    def detected(self) -> str:
        notes = [super().detected()]
        if self.format.delimiter is None and self.delimiter != self.default:
            notes.append(f"cells are separated by {self.delimiter!r} (say --delimiter to choose)")
        names = self._header(first_records(self._start, self.delimiter)[0]) if self._formats else []
        columns: dict[str, list[str]] = {}
        for position, format in self._formats.items():
            columns.setdefault(format.note, []).append(names[position])
        notes += [f"{note} ({listed(names)})" for note, names in columns.items()]
        return ", ".join(filter(None, notes))

    def rows(self) -> Iterator[Row | RowProblem]:
        csv.field_size_limit(MAX_CELL_CHARACTERS)
        with open_text(self.path, self.decoding.encoding) as file:
            reader = csv.reader(file, delimiter=self.delimiter, strict=True)
            yield from self._rows(reader)

    def _rows(self, reader: Reader) -> Iterator[Row | RowProblem]:
        """Yield the rows; without a header, the first line is one of them."""
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise SourceError(
                f"The first line of {self.path} cannot be read: {error}. {CLOSE_QUOTES}"
            ) from error
        if not cells:
            raise SourceError(f"{self.path} has no header. Name the columns in its first line.")
        header = self._header(cells)
        if not self.format.header:
            yield self._record(f"{self.name}:1", header, cells)
        while True:
            place = f"{self.name}:{reader.line_num + 1}"  # where the record begins
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield RowProblem(
                    place, f"The quotes of the row that begins here fail: {error}. {CLOSE_QUOTES}"
                )
            else:
                if cells:  # a blank line is no record
                    yield self._record(place, header, cells)

    def _header(self, cells: list[str]) -> list[str]:
        if not self.format.header:
            return [f"column_{number}" for number in range(1, len(cells) + 1)]
        if not is_unicode("".join(cells)):
            raise SourceError(f"The header of {self.path} is not UTF-8. {SAVE_AS}")
        # Data frames write their index under an empty name.
        names = [name.strip() or f"column_{i}" for i, name in enumerate(cells, start=1)]
        check_names(str(self.path), names)
        return names

    def _record(self, place: str, header: list[str], cells: list[str]) -> Row | RowProblem:
        if len(cells) != len(header):
            first = "header names" if self.format.header else "first row has"
            return RowProblem(
                place,
                f"The row has {len(cells)} cells, but the {first} {len(header)} columns. "
                f"Quote cells that contain {self.delimiter!r}, or add the missing ones.",
            )
        if not is_unicode("".join(cells)):
            encoding = "UTF-8" if self.decoding.is_utf8 else self.decoding.encoding
            return RowProblem(place, f"The row holds bytes that are not {encoding}. {SAVE_AS}")
        for position, format in self._formats.items():
            cells[position] = format.plain(cells[position])
        return Row(place, dict(zip(header, cells, strict=True)))


class TabDelimited(Delimited):
    """A `.tsv` file."""

    default = "\t"


def check_names(source: str, names: list[str]) -> None:
    """Raise SourceError if several columns have one name."""
    if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
        raise SourceError(
            f"{source} has several columns named {listed(repeated)}. Give each its own name."
            f"{headless(names)}"
        )


def headless(columns: Iterable[str]) -> str:
    """Return the advice for a table whose header looks like a row; or nothing.

    >>> headless(["user", "item"]), headless(["196", "242"])
    ('', ' Its header looks like a row: for a table without a header, give --no-header.')
    """
    if any(scalar(name) is not None for name in columns):
        return " Its header looks like a row: for a table without a header, give --no-header."
    return ""
