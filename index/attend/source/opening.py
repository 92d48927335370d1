"""Open a SOURCE as it is written on the command line; folders of text, and of BEIR's layout."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from attend.errors import SourceError
from attend.source.decoding import DETECTED, TableFormat
from attend.source.files import (
    Delimited,
    JsonArray,
    JsonLinesFile,
    StandardInput,
    TabDelimited,
    TextFile,
)
from attend.source.rows import FileSource, Row, RowProblem, Source
from attend.types import Json

KINDS = (
    "Readable are .jsonl, .ndjson, .json, .csv, .tsv and .parquet files, a SQLite table as "
    "file.db:table, a folder of Markdown or text, a folder with corpus.jsonl, and - for JSONL "
    "on standard input."
)

MAX_TEXT_BYTES = 64 << 20
TEXT_SUFFIXES = frozenset({".md", ".markdown", ".txt", ".rst"})
BEIR_CORPUS = "corpus.jsonl"

_TABLE = re.compile(r"(?P<file>.+?\.(?:db|sqlite3?)):(?P<table>.+)", re.IGNORECASE | re.DOTALL)
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#*)?$")
_UNDERLINE = re.compile(r"={3,}[ \t]*$")
_FENCE = re.compile(r" {0,3}(?:```|~~~)")


def _parquet(path: Path) -> Source:
    # Here: pyarrow takes long to import, and few sources need it.
    from attend.source.tables import ParquetFile

    return ParquetFile(path)


def _table(path: Path, table: str = "") -> Source:
    from attend.source.tables import open_table

    return open_table(path, table)


TEXT_READERS: dict[str, type[TextFile]] = {
    ".jsonl": JsonLinesFile,
    ".ndjson": JsonLinesFile,
    ".json": JsonArray,
    ".csv": Delimited,
    ".tsv": TabDelimited,
}
READERS: dict[str, Callable[[Path], Source]] = {
    **TEXT_READERS,
    ".parquet": _parquet,
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), _table),
}


def open_source(spec: str, format: TableFormat = DETECTED) -> Source:
    """Return the reader for a file, a folder, `file.db:table`, or `-` for standard input.

    Rows are read only later.

    Args:
        format: how text files are read, where it is not to be detected. With a delimiter, or
            without a header, a file of any other ending is a table, too.

    Raises:
        SourceError: the path does not exist, its kind is not readable, a folder has nothing to
            read, or a table does not exist.
    """
    if spec == "-":
        return StandardInput()
    path = Path(spec)
    if spec and path.is_dir():
        name = path.resolve().name
        corpus = path / BEIR_CORPUS
        if corpus.is_file():
            return BeirCorpus(corpus, f"{name}/{BEIR_CORPUS}", format)
        return TextFolder(path)
    if spec and path.exists():
        return _file(path, format)
    if (match := _TABLE.fullmatch(spec)) and Path(match["file"]).is_file():
        return _table(Path(match["file"]), match["table"])
    raise SourceError(f"There is no file or folder {spec!r}. {KINDS}")


def _file(path: Path, format: TableFormat) -> Source:
    ending = path.suffix.lower()
    is_table = format.delimiter is not None or not format.header
    if is_table and ending not in READERS:
        return Delimited(path, format=format)
    if (text_reader := TEXT_READERS.get(ending)) is not None:
        if is_table and not issubclass(text_reader, Delimited):
            raise SourceError(
                f"{path} is JSON, which has neither a delimiter nor a header. Leave --delimiter "
                f"and --no-header out."
            )
        return text_reader(path, format=format)
    if (reader := READERS.get(ending)) is not None:
        return reader(path)
    kind = f"files ending in {path.suffix}" if path.suffix else "files without an extension"
    raise SourceError(
        f"{path} cannot be read: {kind} are not known. {KINDS} For a table, give --delimiter or "
        f"--no-header."
    )


class BeirCorpus(JsonLinesFile):
    """A `corpus.jsonl` of `_id`, `title` and `text`.

    `text` becomes title and text joined by a space, since that is what BEIR results are
    measured on. The title stays a cell of its own, to be shown or returned.
    """

    natural_id = "_id"
    natural_text = ("text",)
    text_note = "title and text joined"

    def rows(self) -> Iterator[Row | RowProblem]:
        for row in super().rows():
            yield Row(row.place, _joined(row.cells)) if isinstance(row, Row) else row


def _joined(cells: Mapping[str, Json]) -> Mapping[str, Json]:
    """Join title and text. Cells of a wrong type are left for the mapping to report."""
    title, text = cells.get("title") or "", cells.get("text") or ""
    if not (isinstance(title, str) and isinstance(text, str)):
        return cells
    rest = {name: cell for name, cell in cells.items() if name != "title" or title.strip()}
    return {**rest, "text": f"{title} {text}".strip()}


class TextFolder(FileSource):
    """Every Markdown or text file under a folder; hidden files and folders are left out.

    Each row has `id` (the path below the folder, with `/`), `title` (the first heading,
    else the file's name without its suffix) and `text` (the whole file).

    Raises:
        SourceError: there is no such file; said now, and not after a model is loaded.
    """

    natural_id = "id"
    natural_text = ("title", "text")

    def __init__(self, path: Path) -> None:
        super().__init__(path, path.resolve().name)
        if not self._files():
            raise SourceError(
                f"The folder {path} holds neither {BEIR_CORPUS} nor a text file "
                f"({' '.join(sorted(TEXT_SUFFIXES))}). Name a data file in it, or another folder."
            )

    def rows(self) -> Iterator[Row | RowProblem]:
        for path in self._files():
            yield _file_row(path, path.relative_to(self.path).as_posix())

    def _files(self) -> list[Path]:
        """Return the text files in a stable order."""
        return [
            path
            for path in sorted(self.path.rglob("*"))
            if path.suffix.lower() in TEXT_SUFFIXES
            and path.is_file()
            and not any(part.startswith(".") for part in path.relative_to(self.path).parts)
        ]


def _file_row(path: Path, place: str) -> Row | RowProblem:
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
