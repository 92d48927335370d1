"""Files and folders as rows: JSON, CSV and TSV, text files, and BEIR's layout."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from attend.errors import SourceError
from attend.source.cells import is_unicode, kind
from attend.source.rows import (
    LOOKAHEAD_ROWS,
    Row,
    RowProblem,
    Source,
    count_lines,
    listed,
    open_bytes,
    unreadable,
)
from attend.types import Json

if TYPE_CHECKING:
    from _csv import Reader

MAX_LINE_BYTES = 64 << 20
"""A longer line is skipped and reported: it is a file without line ends, not a row."""

MAX_ARRAY_BYTES = 256 << 20
"""A `.json` list has to be parsed in one piece, so its size is bounded."""

MAX_CELL_CHARACTERS = 64 << 20
"""A larger cell is an unclosed quote that swallows the file, not a text."""

MAX_TEXT_BYTES = 64 << 20
TEXT_SUFFIXES = frozenset({".md", ".markdown", ".txt", ".rst"})
BEIR_CORPUS = "corpus.jsonl"

_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#*)?$")
_UNDERLINE = re.compile(r"={3,}[ \t]*$")
_FENCE = re.compile(r" {0,3}(?:```|~~~)")


@dataclass(frozen=True)
class JsonLinesFile(Source):
    """A `.jsonl` or `.ndjson` file: one JSON object a line; blank lines are skipped."""

    path: Path
    name: str

    def rows(self) -> Iterator[Row | RowProblem]:
        with open_bytes(self.path) as file:
            yield from json_rows(bounded_lines(file), self.name)

    def size_hint(self) -> int | None:
        return count_lines(self.path)


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
            if not self._spent:
                self._keep(row)
            yield row

    def _keep(self, row: Row | RowProblem) -> None:
        if len(self._head) < LOOKAHEAD_ROWS:
            self._head.append(row)
        else:
            self._spent = True
            self._head.clear()


@dataclass(frozen=True)
class JsonArray(Source):
    """A `.json` file that holds one list of objects; places count its items from 1."""

    path: Path
    name: str

    def rows(self) -> Iterator[Row | RowProblem]:
        for number, item in enumerate(self._items(), start=1):
            yield as_row(item, f"{self.name}:{number}")

    def _items(self) -> list[object]:
        if self.path.stat().st_size > MAX_ARRAY_BYTES:
            raise SourceError(
                f"{self.path} is a JSON list of more than {MAX_ARRAY_BYTES >> 20} MiB. "
                "Write it as JSONL, one object a line, which is read as a stream."
            )
        try:
            with open_bytes(self.path) as file:
                items = parse(file.read())
        except (ValueError, RecursionError) as error:
            raise unreadable(self.path, error) from error
        if not isinstance(items, list):
            raise SourceError(
                f"{self.path} holds {kind(items)}, but a list of objects is expected. "
                "Wrap the objects in [ ], or write one a line into a .jsonl file."
            )
        return items


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


@dataclass(frozen=True)
class Delimited(Source):
    """A file with a header line, cells separated by `delimiter` and quoted with `\"`.

    Quoting is checked strictly: an unclosed quote would otherwise silently swallow the rows
    after it into one cell.
    """

    path: Path
    name: str
    delimiter: str = ","
    untyped = True

    def rows(self) -> Iterator[Row | RowProblem]:
        csv.field_size_limit(MAX_CELL_CHARACTERS)
        try:
            # surrogateescape: one undecodable byte is a problem of its row, not of the file.
            file = self.path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")
        except OSError as error:
            raise unreadable(self.path, error) from error
        with file:
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
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SourceError(
                f"{self.path} has several columns named {listed(twice)}. Give each its own name."
            )
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

    def size_hint(self) -> int | None:
        lines = count_lines(self.path)
        return None if lines is None else max(lines - 1, 0)


def _record(place: str, header: list[str], cells: list[str]) -> Row | RowProblem:
    if len(cells) != len(header):
        return RowProblem(
            place, f"The row has {len(cells)} cells, but the header names {len(header)} columns."
        )
    if not is_unicode("".join(cells)):
        return RowProblem(place, "The row holds bytes that are not UTF-8. Save the file as UTF-8.")
    return Row(place, dict(zip(header, cells, strict=True)))


@dataclass(frozen=True)
class TextFolder(Source):
    """Every Markdown or text file under a folder; hidden files and folders are left out.

    Each row has `id` (the path below the folder, with `/`), `title` (the first heading,
    else the file's name without its suffix) and `text` (the whole file).
    """

    path: Path
    name: str
    natural_id = "id"
    natural_text = ("title", "text")

    def rows(self) -> Iterator[Row | RowProblem]:
        for path in self._files():
            yield _file_row(path, path.relative_to(self.path))

    def _files(self) -> list[Path]:
        """Return the readable files in a stable order; raises SourceError if there are none."""
        paths = sorted(path for path in self.path.rglob("*") if _is_text(path, self.path))
        if not paths:
            raise SourceError(
                f"The folder {self.path} holds neither {BEIR_CORPUS} nor a text file "
                f"({' '.join(sorted(TEXT_SUFFIXES))}). Name a data file in it, or another folder."
            )
        return paths

    def size_hint(self) -> int | None:
        return len(self._files())


def _is_text(path: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return not hidden and path.suffix.lower() in TEXT_SUFFIXES and path.is_file()


def _file_row(path: Path, relative: PurePath) -> Row | RowProblem:
    place = relative.as_posix()
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            return RowProblem(
                place, f"The file is larger than {MAX_TEXT_BYTES >> 20} MiB. Split it."
            )
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return RowProblem(f"{place}:{line}", "The line is not UTF-8. Save the file as UTF-8.")
    except OSError as error:
        return RowProblem(place, f"The file cannot be read: {error.strerror}.")
    if not text.strip():
        return RowProblem(place, "The file is empty.")
    return Row(place, {"id": place, "title": heading(text) or path.stem, "text": text})


def heading(text: str) -> str | None:
    """Return the first heading: a line that begins with `#`, or one underlined with `===`.

    Lines in fenced code are skipped: a comment there looks like a heading.

    >>> heading("intro\\n```\\n# a comment\\n```\\n## Setup ##\\n")
    'Setup'
    """
    fenced, previous = False, ""
    for line in text.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            if (match := _HEADING.match(line)) and match[1]:
                return match[1]
            if _UNDERLINE.match(line) and previous.strip():
                return previous.strip()
        previous = line
    return None


@dataclass(frozen=True)
class BeirFolder(Source):
    """A folder with `corpus.jsonl` of `_id`, `title` and `text`.

    `text` becomes title and text joined by a space, since that is what BEIR results are
    measured on. The title stays a cell of its own, to be shown or returned.
    """

    path: Path
    name: str
    natural_id = "_id"
    natural_text = ("text",)

    def rows(self) -> Iterator[Row | RowProblem]:
        for row in self._corpus().rows():
            yield Row(row.place, _joined(row.cells)) if isinstance(row, Row) else row

    def size_hint(self) -> int | None:
        return self._corpus().size_hint()

    def _corpus(self) -> JsonLinesFile:
        return JsonLinesFile(self.path / BEIR_CORPUS, f"{self.name}/{BEIR_CORPUS}")


def _joined(cells: Mapping[str, Json]) -> Mapping[str, Json]:
    """Join title and text. Cells of a wrong type are left for the mapping to report."""
    title, text = cells.get("title") or "", cells.get("text") or ""
    if not (isinstance(title, str) and isinstance(text, str)):
        return cells
    rest = {name: cell for name, cell in cells.items() if name != "title" or title.strip()}
    return {**rest, "text": f"{title} {text}".strip()}
