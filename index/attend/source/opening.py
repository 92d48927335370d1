"""A SOURCE as it is written on the command line → the reader for its kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from attend.errors import SourceError
from attend.source.delimited import Delimited
from attend.source.files import JsonArray, JsonLines, StandardInput
from attend.source.folders import BEIR_CORPUS, BeirFolder, TextFolder
from attend.source.rows import Source
from attend.source.tables import SQLITE_SUFFIXES, open_table

KINDS = (
    "Readable are .jsonl, .ndjson, .json, .csv, .tsv and .parquet files, a SQLite table as "
    "file.db:table, a folder of Markdown or text, a folder with corpus.jsonl, and - for JSONL "
    "on standard input."
)

_TABLE = re.compile(r"(?P<file>.+?\.(?:db|sqlite3?)):(?P<table>.+)", re.IGNORECASE | re.DOTALL)


def _parquet(path: Path) -> Source:
    try:
        # pyarrow takes long to import, and only this kind needs it.
        from attend.source.parquet import Parquet
    except ImportError as error:
        raise SourceError(f"{path} needs pyarrow: install it with pip install pyarrow.") from error
    return Parquet(path, path.name)


READERS: dict[str, Callable[[Path], Source]] = {
    ".jsonl": lambda path: JsonLines(path, path.name),
    ".ndjson": lambda path: JsonLines(path, path.name),
    ".json": lambda path: JsonArray(path, path.name),
    ".csv": lambda path: Delimited(path, path.name, ","),
    ".tsv": lambda path: Delimited(path, path.name, "\t"),
    ".parquet": _parquet,
    **dict.fromkeys(SQLITE_SUFFIXES, lambda path: open_table(path, "")),
}


def open_source(spec: str) -> Source:
    """Find the reader for a file, a folder, `file.db:table`, or `-` for standard input.

    Raises SourceError for a path that is not there, a kind that is not readable, a folder
    with nothing to read, and a table that does not exist. Rows are read only later.
    """
    if spec == "-":
        return StandardInput()
    path = Path(spec)
    if spec and path.is_dir():
        return _folder(path)
    if spec and path.exists():
        return _file(path)
    if (found := _TABLE.fullmatch(spec)) and Path(found["file"]).is_file():
        return open_table(Path(found["file"]), found["table"])
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
