"""A SOURCE as it is written on the command line → the reader for its kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from attend.errors import SourceError
from attend.source.files import (
    BEIR_CORPUS,
    BeirFolder,
    Delimited,
    JsonArray,
    JsonLinesFile,
    StandardInput,
    TextFolder,
)
from attend.source.rows import Source

KINDS = (
    "Readable are .jsonl, .ndjson, .json, .csv, .tsv and .parquet files, a SQLite table as "
    "file.db:table, a folder of Markdown or text, a folder with corpus.jsonl, and - for JSONL "
    "on standard input."
)

_TABLE = re.compile(r"(?P<file>.+?\.(?:db|sqlite3?)):(?P<table>.+)", re.IGNORECASE | re.DOTALL)


def _parquet(path: Path) -> Source:
    # Here: pyarrow takes long to import, and few sources need it.
    from attend.source.tables import ParquetFile

    return ParquetFile(path, path.name)


def _table(path: Path, table: str = "") -> Source:
    from attend.source.tables import open_table

    return open_table(path, table)


READERS: dict[str, Callable[[Path], Source]] = {
    ".jsonl": lambda path: JsonLinesFile(path, path.name),
    ".ndjson": lambda path: JsonLinesFile(path, path.name),
    ".json": lambda path: JsonArray(path, path.name),
    ".csv": lambda path: Delimited(path, path.name, ","),
    ".tsv": lambda path: Delimited(path, path.name, "\t"),
    ".parquet": _parquet,
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), _table),
}


def open_source(spec: str) -> Source:
    """Return the reader for a file, a folder, `file.db:table`, or `-` for standard input.

    Rows are read only later.

    Raises:
        SourceError: the path does not exist, its kind is not readable, a folder has nothing to
            read, or a table does not exist.
    """
    if spec == "-":
        return StandardInput()
    path = Path(spec)
    if spec and path.is_dir():
        return _folder(path)
    if spec and path.exists():
        return _file(path)
    if (match := _TABLE.fullmatch(spec)) and Path(match["file"]).is_file():
        return _table(Path(match["file"]), match["table"])
    raise SourceError(f"There is no file or folder {spec!r}. {KINDS}")


def _folder(path: Path) -> Source:
    name = path.resolve().name
    if (path / BEIR_CORPUS).is_file():
        return BeirFolder(path, name)
    folder = TextFolder(path, name)
    folder.size_hint()  # an empty folder is better refused now than after a model has loaded
    return folder


def _file(path: Path) -> Source:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        ending = f"files ending in {path.suffix}" if path.suffix else "files without an extension"
        raise SourceError(f"{path} cannot be read: {ending} are not known. {KINDS}")
    return reader(path)
