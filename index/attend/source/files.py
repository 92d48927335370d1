"""Text files of any encoding and delimiter: detect both, or refuse a file that is no text.

UTF-8 and byte order marks are certain. Other encodings are guessed by charset-normalizer, among
those in use today and from the lines that are not ASCII, if these have ten such letters and read
as a language: of fewer letters it takes one table of characters for another. The delimiter is the
one that splits the header and most rows into the same number of cells; csv.Sniffer refuses ragged
tables, and CleverCSV splits prose.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, zip_longest
from pathlib import Path
from typing import BinaryIO, NoReturn, TextIO

from attend.core.errors import InvalidRequest, SourceError
from attend.source.rows import (
    LOOKAHEAD_ROWS,
    CellFormat,
    Replay,
    Row,
    RowProblem,
    Source,
    cell_format,
    is_unicode,
    kind,
    listed,
    scalar,
    unreadable,
)

HEAD_BYTES = 1 << 20
"""Bytes from which encoding and delimiter are detected."""

GUESS_BYTES = 1 << 14
"""Bytes of the lines that are not UTF-8 from which their encoding is guessed."""

GUESS_LETTERS = 10
"""Bytes that are not ASCII, at least, for a guess."""

GUESSED = [
    *("cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257"),
    *("cp932", "euc_jp", "gb18030", "big5", "cp949"),
]
"""Encodings that files have today; with those of DOS and old Macs, German becomes Baltic."""

DIALECT_ROWS = 100
"""Rows that must agree with the header on the number of cells."""

DELIMITERS = ",;\t|"
MAX_CONTROL_SHARE = 0.05
COHERENT = 0.2
"""The least share of a language's letters in a text whose encoding is guessed."""

UTF_8 = "utf-8-sig"
"""UTF-8, with a byte order mark or without."""

SAVE_AS = "Save the file as UTF-8, or name its encoding with --encoding (Excel's is often cp1252)."

_MARKS = {
    codecs.BOM_UTF8: UTF_8,
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_KINDS = {
    b"PK\x03\x04": "a ZIP archive or an Office file; save the sheet as CSV, or unpack it",
    b"\x1f\x8b": "compressed by gzip; unpack it",
    b"PAR1": "Parquet; give it the ending .parquet",
    b"SQLite format 3": "a SQLite database; give it the ending .db and name a table: file.db:table",
    b"%PDF": "a PDF; give it the ending .pdf",
}
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class TableFormat:
    """The format of text files, where it is not to be detected.

    Attributes:
        delimiter: the character between cells; None: detected.
        encoding: a codec's name such as "cp1252"; None: detected.
        header: the first line names the columns; else they are column_1, column_2, …

    Raises:
        InvalidRequest: the delimiter is no single character, or no codec has that name.
    """

    delimiter: str | None = None
    encoding: str | None = None
    header: bool = True

    def __str__(self) -> str:
        """Describe what is not to be detected, as the command line names it."""
        parts = [f"delimiter: {self.delimiter!r}" if self.delimiter else ""]
        parts.append(f"encoding: {self.encoding}" if self.encoding else "")
        parts.append("" if self.header else "no header")
        return " · ".join(filter(None, parts))

    def __post_init__(self) -> None:
        for field, check in (("delimiter", delimiter_of), ("encoding", encoding_of)):
            try:
                check(getattr(self, field))
            except ValueError as error:
                raise InvalidRequest(f"{error}.", field=field) from None


def delimiter_of(name: str | None) -> str | None:
    r"""Return a delimiter as it is written on a command line; raises ValueError.

    >>> delimiter_of(";"), delimiter_of("tab"), delimiter_of(r"\t")
    (';', '\t', '\t')
    """
    if name in ("tab", r"\t"):
        return "\t"
    if name is not None and (len(name) != 1 or name in '"\r\n' or not name.isascii()):
        raise ValueError(f"The delimiter is {name!r}, but one character such as ';' is expected")
    return name


def encoding_of(name: str | None) -> str | None:
    """Return the name of an encoding if a codec has it; raises ValueError.

    >>> encoding_of("Windows-1252")
    'Windows-1252'
    """
    try:
        "".encode(name or UTF_8)
    except (LookupError, ValueError):
        raise ValueError(
            f"The encoding {name!r} is not known; use a name such as utf-8, cp1252 or utf-16"
        ) from None
    return name


DETECTED = TableFormat()


def detect_encoding(head: bytes, path: Path, encoding: str | None = None) -> tuple[str, bool]:
    """Return the encoding of a file, as it is named or its beginning has it; whether it is a guess.

    Raises:
        SourceError: the file is binary, or is not in the encoding that its mark declares.
    """
    if encoding is not None:
        is_utf8 = codecs.lookup(encoding).name in ("utf-8", UTF_8)
        return UTF_8 if is_utf8 else encoding, False
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            try:
                codecs.getincrementaldecoder(name)().decode(head, final=len(head) < HEAD_BYTES)
            except UnicodeDecodeError as error:
                if name != UTF_8:  # broken bytes of UTF-8 are problems of their rows
                    raise SourceError(
                        f"{path} begins with the byte order mark of {name.upper()}, but byte "
                        f"{error.start + 1} is not. {SAVE_AS}"
                    ) from None
            return name, False
    _check_text(head, path)
    decoder = codecs.getincrementaldecoder(UTF_8)("surrogateescape")
    text = decoder.decode(head, final=len(head) < HEAD_BYTES)
    broken = len(text) - len(text.encode(UTF_8, "ignore").decode(UTF_8))
    valid = len(text) - broken - len(text.encode("ascii", "ignore"))
    # A few broken bytes in a file of UTF-8 are problems of their rows.
    guess = None if broken <= valid else _guess(head)
    return guess or UTF_8, guess is not None


def _guess(head: bytes) -> str | None:
    """Return the encoding in which the lines that are not ASCII read as a language, or None."""
    from charset_normalizer import from_bytes  # here: most files are UTF-8

    lines = b"".join(line for line in head.splitlines(keepends=True) if not line.isascii())
    lines = lines[:GUESS_BYTES]
    if sum(byte > 0x7F for byte in lines) < GUESS_LETTERS:
        return None
    matches = list(from_bytes(lines, cp_isolation=GUESSED))
    best = max((match.coherence for match in matches), default=0.0)
    if best < COHERENT:
        return None
    close = [match for match in matches if match.coherence >= best - 0.05]
    # Tables of western and central Europe share most letters, and the western one is frequent.
    if any("cp1252" in (match.encoding, *match.could_be_from_charset) for match in close):
        return "cp1252"
    return max(close, key=lambda match: match.coherence).encoding


def _check_text(head: bytes, path: Path) -> None:
    """Raise SourceError for a binary file: NUL, or too many other control characters."""
    start = head[: 1 << 16]
    controls = len(_CONTROL.findall(start))
    if b"\0" not in start and controls <= MAX_CONTROL_SHARE * len(start):
        return
    kind = next((kind for magic, kind in _KINDS.items() if start.startswith(magic)), None)
    if kind is not None:
        raise SourceError(f"{path} is no text: it seems to be {kind}.")
    for name, zeros in (("utf-16-le", start[1::2]), ("utf-16-be", start[::2])):
        if len(start) >= 16 and zeros.count(0) > 0.4 * len(start) / 2:
            raise SourceError(
                f"{path} seems to be UTF-16 without a byte order mark. Save the file as UTF-8, or "
                f"give --encoding {name}."
            )
    line = start.count(b"\n", 0, _CONTROL.search(start).start()) + 1  # type: ignore[union-attr]
    raise SourceError(
        f"{path} is no text: its line {line} holds control characters such as NUL. Export the "
        f"data as CSV or JSONL, or name a text file."
    )


def detect_delimiter(path: Path, text: str, default: str) -> str:
    """Return the delimiter of a table from the text of its first rows.

    Raises:
        SourceError: the default does not split the header, and another does, but not the rows.

    >>> detect_delimiter(Path("a.csv"), "id;price\\n1;3,50\\n2;4,20\\n", ",")
    ';'
    """
    shares: dict[str, tuple[float, int]] = {}
    for delimiter in dict.fromkeys(default + DELIMITERS):
        widths = [len(cells) for cells in first_records(text, delimiter)]
        if widths and widths[0] > 1:
            shares[delimiter] = widths.count(widths[0]) / len(widths), widths[0]
    best = max(shares, key=shares.__getitem__, default=default)  # of equals, the default is first
    if not shares or shares[best][0] > 0.5:
        return best
    if default in shares:
        return default
    raise SourceError(
        f"The header of {path} has one column, {text.splitlines()[0][:60]!r}. It seems to be "
        f"separated by {best!r}, but most rows are not. Name the character with --delimiter."
    )


def first_records(text: str, delimiter: str) -> list[list[str]]:
    """Return the cells of the first rows of a table that are not blank."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    records: list[list[str]] = []
    with suppress(csv.Error):  # such as a cell that is too large: the rows before it are enough
        records += islice(filter(None, reader), DIALECT_ROWS + 1)
    return records


MAX_LINE_BYTES = 64 << 20
"""A longer line is skipped and reported: it is a file without line ends, not a row."""

MAX_ARRAY_BYTES = 256 << 20
"""A `.json` list has to be parsed in one piece, so its size is bounded."""

DIALECT_CHARACTERS = 1 << 16
"""Characters from which the delimiter is detected."""

CLOSE_QUOTES = "Close the quote, and write a quote within a quoted cell twice."

MAX_CELL_CHARACTERS = 64 << 20
"""A larger cell is an unclosed quote that swallows the file, not a text."""


class FileSource(Source):
    """A source in one file or folder, named like it, whose format the caller names or not."""

    def __init__(self, path: Path, name: str | None = None, format: TableFormat = DETECTED) -> None:
        self.path = path
        self.name = name or path.name
        self.format = format

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open the file. Raises SourceError with the system's reason."""
        try:
            with self.path.open("rb") as file:
                yield file
        except OSError as error:
            raise unreadable(self.path, error) from error

    @cached_property
    def head(self) -> bytes:
        """Its first mebibyte. Raises SourceError if the file cannot be opened."""
        with self.opened() as file:
            return file.read(HEAD_BYTES)


class TextFile(FileSource):
    """A text file whose encoding is named by the caller or detected."""

    @cached_property
    def decoding(self) -> tuple[str, bool]:
        """The encoding, and whether it is a guess. Raises SourceError if the file is no text."""
        return detect_encoding(self.head, self.path, self.format.encoding)

    @contextmanager
    def decoded(self, file: BinaryIO) -> Iterator[TextIO]:
        """Read the file, or its beginning, as text.

        Bytes that are not valid become surrogates: one is a problem of its row, not of the file.

        Raises:
            SourceError: it is no text, or ends within a character.
        """
        encoding, _ = self.decoding
        try:
            with io.TextIOWrapper(file, encoding, errors="surrogateescape", newline="") as text:
                yield text
        except UnicodeError as error:  # UTF-16 has bytes that no surrogate stands for
            reason = getattr(error, "reason", str(error))
            raise SourceError(f"{self.path} is not {encoding}: {reason}. {SAVE_AS}") from None

    def detected(self) -> str:
        encoding, is_guess = self.decoding
        return f"read as {encoding} (say --encoding to choose)" if is_guess else ""


class JsonLinesFile(TextFile):
    """A `.jsonl` or `.ndjson` file: one JSON object a line; blank lines are skipped."""

    def rows(self) -> Iterator[Row | RowProblem]:
        encoding, _ = self.decoding
        with self.opened() as file:
            if encoding == UTF_8:
                yield from json_rows(bounded_lines(file), self.name)
                return
            with self.decoded(file) as text:
                lines = (line.encode("utf-8", "surrogatepass") for line in text)
                yield from json_rows(lines, self.name)


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
            items = parse(self.path.read_bytes(), self.decoding[0])
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
        if not line.strip():
            continue
        place = f"{name}:{number}"
        try:
            if len(line) <= MAX_LINE_BYTES:
                yield as_row(parse(line.rstrip(b"\r\n")), place)
                continue
            fault = f"The line is longer than {MAX_LINE_BYTES >> 20} MiB. Write one object in each."
        except UnicodeDecodeError as error:
            fault = f"Byte {error.start + 1} of the line is not UTF-8. {SAVE_AS}"
        except json.JSONDecodeError as error:
            fault = (
                f"The JSON is broken at character {error.colno}: {error.msg}. Write one whole "
                f"object in each line."
            )
        except (ValueError, RecursionError) as error:
            fault = f"The JSON cannot be read: {error}."
        yield RowProblem(place, fault)


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
        with self.decoded(io.BytesIO(self.head)) as text:
            return text.read(DIALECT_CHARACTERS)

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
        for position, (note, _) in self._formats.items():
            columns.setdefault(note, []).append(names[position])
        notes += [f"{note} ({listed(names)})" for note, names in columns.items()]
        return ", ".join(filter(None, notes))

    def rows(self) -> Iterator[Row | RowProblem]:
        csv.field_size_limit(MAX_CELL_CHARACTERS)
        with self.opened() as file, self.decoded(file) as text:
            reader = csv.reader(text, delimiter=self.delimiter, strict=True)
            try:
                cells = next(reader, None)
            except csv.Error as error:
                raise SourceError(
                    f"The first line of {self.path} cannot be read: {error}. {CLOSE_QUOTES}"
                ) from error
            if not cells:
                raise SourceError(f"{self.path} has no header. Name the columns in its first line.")
            header = self._header(cells)
            if not self.format.header:  # the first line is a row
                yield self._record(f"{self.name}:1", header, cells)
            while True:
                place = f"{self.name}:{reader.line_num + 1}"  # where the record begins
                try:
                    if cells := next(reader):  # a blank line is no record
                        yield self._record(place, header, cells)
                except StopIteration:
                    return
                except csv.Error as error:
                    fault = f"The quotes of the row that begins here fail: {error}. {CLOSE_QUOTES}"
                    yield RowProblem(place, fault)

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
            encoding = "UTF-8" if self.decoding[0] == UTF_8 else self.decoding[0]
            return RowProblem(place, f"The row holds bytes that are not {encoding}. {SAVE_AS}")
        for position, (_, plain) in self._formats.items():
            cells[position] = plain(cells[position])
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
