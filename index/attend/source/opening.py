"""Open a SOURCE as it is written on the command line; folders of BEIR's layout."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from attend.core.errors import SourceError
from attend.core.types import Json
from attend.source.decoding import DETECTED, TableFormat
from attend.source.files import (
    Delimited,
    JsonArray,
    JsonLinesFile,
    StandardInput,
    TabDelimited,
    TextFile,
)
from attend.source.folders import DOCUMENT_SUFFIXES, Mailbox, TextFolder
from attend.source.rows import Row, RowProblem, Source

KINDS = (
    "Readable are .jsonl, .ndjson, .json, .csv, .tsv and .parquet files, a SQLite table as "
    "file.db:table, Markdown, text, PDF, Word, HTML and e-mail or a folder of these, .mbox files, "
    "a folder with corpus.jsonl, and - for JSONL on standard input."
)

REMEDIES = {
    **dict.fromkeys((".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".tgz"), "Unpack it first."),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "Save its sheet as CSV."),
    ".sql": "Restore it (sqlite3 NEW.db < FILE.sql), and name a table: NEW.db:TABLE.",
    ".xml": "Write its items as JSON, one object a line, into a .jsonl file.",
    ".pst": "Export it as .mbox.",
}
"""Endings of files that are not read → what to do."""

BEIR_CORPUS = "corpus.jsonl"

_TABLE = re.compile(r"(?P<file>.+?\.(?:db|sqlite3?)):(?P<table>.+)", re.IGNORECASE | re.DOTALL)


def _parquet(path: Path) -> Source:
    # Here: pyarrow takes long to import, and few sources need it.
    from attend.source.tables import ParquetFile

    return ParquetFile(path)


def _table(path: Path, table: str = "") -> Source:
    from attend.source.tables import open_table

    return open_table(path, table)


def _stream(data: object) -> Source:
    from attend.source.tables import ArrowStream

    return ArrowStream(data)


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
    ".mbox": Mailbox,
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), _table),
}


def open_source(spec: str | Path | object, format: TableFormat = DETECTED) -> Source:
    """Return the reader for a file, a folder, `file.db:table`, or `-` for standard input.

    Rows are read only later.

    Args:
        spec: or an object with `__arrow_c_stream__`, such as a frame of pandas or Polars.
        format: how text files are read, where it is not to be detected. With a delimiter, or
            without a header, a file of any other ending is a table, too.

    Raises:
        SourceError: the path does not exist, its kind is not readable, a folder has nothing to
            read, or a table does not exist.
    """
    if hasattr(spec, "__arrow_c_stream__"):
        return _stream(spec)
    if spec == "-":
        return StandardInput()
    spec = str(spec)
    path = Path(spec)
    if spec and path.is_dir():
        name = path.resolve().name
        corpus = path / BEIR_CORPUS
        if corpus.is_file():
            return BeirCorpus(corpus, f"{name}/{BEIR_CORPUS}", format)
        return TextFolder(path, format, READERS)
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
    if ending in DOCUMENT_SUFFIXES:
        return TextFolder(path, format)
    kind = f"files ending in {path.suffix}" if path.suffix else "files without an extension"
    if (remedy := REMEDIES.get(ending)) is not None:
        raise SourceError(f"{path} cannot be read: {kind} are not known. {remedy} {KINDS}")
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
