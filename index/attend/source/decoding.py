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
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TextIO

from attend.core.errors import InvalidRequest, SourceError
from attend.source.rows import unreadable

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


@dataclass(frozen=True, slots=True)
class Decoding:
    """The encoding of a file's text, and whether it was guessed."""

    encoding: str = UTF_8
    guessed: bool = False

    @property
    def is_utf8(self) -> bool:
        return codecs.lookup(self.encoding).name.startswith("utf-8")


@contextmanager
def open_text(path: Path, encoding: str | None = None) -> Iterator[TextIO]:
    """Open a text file, in the encoding that is named or detected.

    Bytes that are not valid become surrogates: one is a problem of its row, not of the file.

    Raises:
        SourceError: the file cannot be opened, is no text, or ends within a character.
    """
    decoding = detect_encoding(read_head(path), path, encoding)
    try:
        with path.open(encoding=decoding.encoding, errors="surrogateescape", newline="") as file:
            yield file
    except UnicodeError as error:  # UTF-16 has bytes that no surrogate stands for
        reason = getattr(error, "reason", str(error))
        raise SourceError(f"{path} is not {decoding.encoding}: {reason}. {SAVE_AS}") from None
    except OSError as error:
        raise unreadable(path, error) from error


def read_head(path: Path) -> bytes:
    """Return the first mebibyte of a file; raises SourceError with the system's reason."""
    try:
        with path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except OSError as error:
        raise unreadable(path, error) from error


def detect_encoding(head: bytes, path: Path, encoding: str | None = None) -> Decoding:
    """Return the encoding of a file from its beginning, or the one that is named.

    Raises:
        SourceError: the file is binary, or is not in the encoding that its mark declares.
    """
    if encoding is not None:
        return Decoding(UTF_8 if codecs.lookup(encoding).name == "utf-8" else encoding)
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            _check_mark(head, name, path)
            return Decoding(name)
    _check_text(head, path)
    decoder = codecs.getincrementaldecoder(UTF_8)("surrogateescape")
    text = decoder.decode(head, final=len(head) < HEAD_BYTES)
    broken = sum("\udc80" <= character <= "\udcff" for character in text)
    valid = sum(character > "\x7f" for character in text) - broken
    # A few broken bytes in a file of UTF-8 are problems of their rows.
    guess = None if broken <= valid else _guess(head)
    return Decoding() if guess is None else Decoding(guess, guessed=True)


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


def _check_mark(head: bytes, name: str, path: Path) -> None:
    try:
        codecs.getincrementaldecoder(name)().decode(head, final=len(head) < HEAD_BYTES)
    except UnicodeDecodeError as error:
        if name != UTF_8:  # broken bytes of UTF-8 are problems of their rows
            raise SourceError(
                f"{path} begins with the byte order mark of {name.upper()}, but byte "
                f"{error.start + 1} is not. {SAVE_AS}"
            ) from None


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
