"""CSV and TSV, as spreadsheets and data frames write them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attend.errors import SourceError
from attend.source.rows import Problem, Row, count_lines, listed, unreadable

if TYPE_CHECKING:
    from _csv import Reader

MAX_CELL_CHARACTERS = 64 << 20
"""A larger cell is an unclosed quote that swallows the file, not a text."""


@dataclass(frozen=True)
class Delimited:
    """A file with a header line, cells set apart by `delimiter` and quoted with `\"`.

    Quoting is checked strictly: an unclosed quote would otherwise swallow the rows
    after it into one cell without a word.
    """

    path: Path
    name: str
    delimiter: str = ","
    natural_id: str | None = None
    natural_text: tuple[str, ...] = ()
    untyped: bool = True

    def rows(self) -> Iterator[Row | Problem]:
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
        if undecodable(header):
            raise SourceError(f"The header of {self.path} is not UTF-8. Save the file as UTF-8.")
        # Data frames write their index under an empty name.
        names = [name.strip() or f"column_{i}" for i, name in enumerate(header, start=1)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SourceError(
                f"{self.path} has several columns named {listed(twice)}. Give each its own name."
            )
        return names

    def _records(self, reader: Reader, header: list[str]) -> Iterator[Row | Problem]:
        while True:
            place = f"{self.name}:{reader.line_num + 1}"  # where the record begins
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield Problem(place, f"The quotes of the row that begins here fail: {error}.")
            else:
                if cells:  # a blank line is no record
                    yield _record(place, header, cells)

    def size_hint(self) -> int | None:
        lines = count_lines(self.path)
        return None if lines is None else max(lines - 1, 0)


def _record(place: str, header: list[str], cells: list[str]) -> Row | Problem:
    if len(cells) != len(header):
        return Problem(
            place, f"The row has {len(cells)} cells, but the header names {len(header)} columns."
        )
    if undecodable(cells):
        return Problem(place, "The row holds bytes that are not UTF-8. Save the file as UTF-8.")
    return Row(place, dict(zip(header, cells, strict=True)))


def undecodable(cells: list[str]) -> bool:
    """Whether a cell holds a byte that surrogateescape let through."""
    line = "".join(cells)
    return not line.isascii() and any("\udc80" <= character <= "\udcff" for character in line)
