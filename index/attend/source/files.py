"""JSON on disk and on standard input: one object a line, or one list of objects."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

from attend.errors import SourceError
from attend.source.rows import (
    LOOKAHEAD_ROWS,
    Problem,
    Row,
    count_lines,
    open_bytes,
    unreadable,
)

MAX_LINE_BYTES = 64 << 20
"""A longer line is skipped and reported: it is a file without line ends, not a row."""

MAX_ARRAY_BYTES = 256 << 20
"""A `.json` list has to be parsed in one piece, so its size is bounded."""


@dataclass(frozen=True)
class JsonLines:
    """A `.jsonl` or `.ndjson` file: one JSON object a line; blank lines are skipped."""

    path: Path
    name: str
    natural_id: str | None = None
    natural_text: tuple[str, ...] = ()
    untyped: bool = False

    def rows(self) -> Iterator[Row | Problem]:
        with open_bytes(self.path) as file:
            yield from json_rows(bounded_lines(file), self.name)

    def size_hint(self) -> int | None:
        return count_lines(self.path)


class StandardInput:
    """JSONL on standard input, which can be read only once.

    The first 10,000 rows are kept and replayed, so that looking at them consumes nothing.
    Once the reading has gone past them they are let go, and a second one raises SourceError.
    """

    name = "stdin"
    natural_id: str | None = None
    natural_text: tuple[str, ...] = ()
    untyped = False

    def __init__(self, stream: BinaryIO | None = None) -> None:
        lines = bounded_lines(stream if stream is not None else sys.stdin.buffer)
        self._rest = json_rows(lines, self.name)
        self._head: list[Row | Problem] = []
        self._spent = False

    def rows(self) -> Iterator[Row | Problem]:
        if self._spent:
            raise SourceError("Standard input can be read only once. Save it to a file first.")
        yield from self._head
        for row in self._rest:
            if not self._spent:
                self._keep(row)
            yield row

    def _keep(self, row: Row | Problem) -> None:
        if len(self._head) < LOOKAHEAD_ROWS:
            self._head.append(row)
        else:
            self._spent = True
            self._head.clear()

    def size_hint(self) -> int | None:
        return None


@dataclass(frozen=True)
class JsonArray:
    """A `.json` file that holds one list of objects; places count its items from 1."""

    path: Path
    name: str
    natural_id: str | None = None
    natural_text: tuple[str, ...] = ()
    untyped: bool = False

    def rows(self) -> Iterator[Row | Problem]:
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

    def size_hint(self) -> int | None:
        return None


def bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines of at most `MAX_LINE_BYTES + 1` bytes; the rest of a longer one is dropped."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        yield line
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES + 1)


def json_rows(lines: Iterable[bytes], name: str) -> Iterator[Row | Problem]:
    """Parse lines one by one; a line that fails becomes a Problem and the next is read."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _json_row(line, f"{name}:{number}")


def _json_row(line: bytes, place: str) -> Row | Problem:
    if len(line) > MAX_LINE_BYTES:
        return Problem(place, f"The line is longer than {MAX_LINE_BYTES >> 20} MiB.")
    try:
        return as_row(parse(line.rstrip(b"\r\n")), place)
    except UnicodeDecodeError as error:
        return Problem(
            place, f"Byte {error.start + 1} of the line is not UTF-8. Save the file as UTF-8."
        )
    except json.JSONDecodeError as error:
        return Problem(place, f"The JSON is broken at character {error.colno}: {error.msg}.")
    except (ValueError, RecursionError) as error:
        return Problem(place, f"The JSON cannot be read: {error}.")


def parse(data: bytes) -> object:
    """Parse strict JSON in UTF-8, with or without a byte order mark; raises ValueError."""
    return json.loads(data.decode("utf-8-sig"), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number; write null or leave the field out")


def as_row(item: object, place: str) -> Row | Problem:
    """A parsed object as a row; anything else as a problem."""
    if isinstance(item, dict):
        return Row(place, item)
    return Problem(place, f"The row is {kind(item)}, but an object of fields is expected.")


def kind(item: object) -> str:
    """The JSON name of a parsed value's type, for a sentence.

    >>> kind([1, 2]), kind(True), kind(4.5)
    ('a list', 'a boolean', 'a number')
    """
    if item is None:
        return "null"
    if isinstance(item, bool):
        return "a boolean"
    if isinstance(item, int | float):
        return "a number"
    if isinstance(item, str):
        return "a string"
    return "a list" if isinstance(item, list | tuple) else "an object"
