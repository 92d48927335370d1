"""Open a SOURCE as it is written on the command line: a file, a folder of documents, a table.

Documents are text, Markdown with front matter, and PDF, Word, HTML and e-mail, which markitdown
converts (MIT, offline): one interface for all of these, while docling needs models from the network
and PyMuPDF is under the AGPL. Only the converter of a file's own format is used. markitdown reads
no .eml: Python's e-mail parser does, and needs the converter for HTML alone.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import EmailPolicy
from functools import cache, lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeAlias

import yaml

from attend.core.errors import SourceError
from attend.core.types import Json
from attend.source.files import (
    DETECTED,
    HEAD_BYTES,
    SAVE_AS,
    UTF_8,
    Delimited,
    FileSource,
    JsonArray,
    JsonLinesFile,
    StandardInput,
    TabDelimited,
    TableFormat,
    detect_encoding,
)
from attend.source.rows import (
    SAMPLE_ROWS,
    Row,
    RowProblem,
    Source,
    Unusable,
    to_json,
)

# -- converting -----------------------------------------------------------------------------------

CONVERTERS = {
    ".pdf": "PdfConverter",
    ".docx": "DocxConverter",
    ".html": "HtmlConverter",
    ".htm": "HtmlConverter",
    ".msg": "OutlookMsgConverter",
}
"""Ending → the class of `markitdown.converters`."""

MAX_HEADER = 2000
"""Characters of an e-mail's header that are read: Python's parser takes quadratic time for it."""

SECONDS, SECONDS_PER_MIB = 60.0, 10.0
"""The time for one file: its parsers have regular expressions that take quadratic time, too."""

EMAIL = ".eml"
CONVERTIBLE = frozenset({*CONVERTERS, EMAIL})


Converted: TypeAlias = tuple[str, str | None, Mapping[str, Json]]
"""A document as Markdown, its title, and what else its format declares."""


# A sample and a build read the same files; a conversion takes up to seconds.
@lru_cache(maxsize=SAMPLE_ROWS)
def converted_file(path: Path, _modified: int) -> Converted:
    return convert(path.read_bytes(), path.suffix.lower())


def convert(data: bytes, ending: str) -> Converted:
    """Return the contents of a file with an ending as Markdown.

    Raises:
        Unusable: the extra `documents` is not installed; the file cannot be converted, or has no
            text.
    """
    try:
        with _limited(SECONDS + SECONDS_PER_MIB * len(data) / 2**20):
            text, title, fields = _email(data) if ending == EMAIL else _markdown(data, ending)
    except Unusable:
        raise
    except Exception as error:  # of any of the parsers, for a broken file
        reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise Unusable(
            f"The file cannot be read as {ending} ({reason.rstrip('.')}). Open it in a program for "
            f"such files and save it again."
        ) from None
    text = text.replace("\f", "\n").strip()
    if not text:
        advice = "Recognise the text of a scan (OCR) first" if ending == ".pdf" else "Remove it"
        raise Unusable(f"The file has no text. {advice}.")
    return text, title.strip() if title else None, fields


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise Unusable after some time; only in the main thread, where alone Python can do that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> NoReturn:
        raise Unusable(
            f"The file was not read within {seconds:.0f} s. Open it in a program for such files "
            f"and save it as text."
        )

    before = signal.signal(signal.SIGALRM, stop)
    # Again and again, as a parser may catch it.
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _markdown(data: bytes, ending: str) -> Converted:
    converter = converter_of(ending)  # first: it says where the library is missing
    from markitdown import StreamInfo

    result = converter.convert(BytesIO(data), StreamInfo(extension=ending))
    return result.markdown, result.title, {}


class _BriefHeaders(EmailPolicy):
    def header_fetch_parse(self, name: str, value: str) -> Any:
        return super().header_fetch_parse(name, value[:MAX_HEADER])


def _email(data: bytes) -> Converted:
    """Read an e-mail; a body of HTML alone is converted."""
    message = message_from_bytes(data, policy=_BriefHeaders())
    assert isinstance(message, EmailMessage)
    body = message.get_body(("plain", "html"))
    content = "" if body is None else body.get_content()
    if body is not None and body.get_content_subtype() == "html":
        content = converter_of(".html").convert_string(content).markdown
    sent = message["date"].datetime if message["date"] else None
    fields: dict[str, Json] = {
        "from": str(message["from"] or ""),
        "to": str(message["to"] or ""),
        "date": sent.isoformat() if sent else "",
        "attachments": [part.get_filename() or "" for part in message.iter_attachments()],
    }
    subject = str(message["subject"] or "").strip()
    return content, subject or None, {name: cell for name, cell in fields.items() if cell}


@cache
def converter_of(ending: str) -> Any:
    for name in ("pdfminer", "bs4"):  # they warn of harmless faults of fonts and characters
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        from markitdown import converters
    except ImportError:
        raise Unusable(
            f"Reading {ending} needs the extra 'documents'. Install it with: pip install "
            f"'attend-retrieval[documents]'."
        ) from None
    return getattr(converters, CONVERTERS[ending])()


# -- folders and mailboxes ------------------------------------------------------------------------

MAX_FILE_BYTES = 64 << 20
MARKDOWN = frozenset({".md", ".markdown"})
TEXT_SUFFIXES = MARKDOWN | {".txt", ".rst"}
DOCUMENT_SUFFIXES = TEXT_SUFFIXES | CONVERTIBLE

MAX_FRONT_MATTER = 1 << 16
"""Characters of front matter; a longer text between two rules is text. PyYAML reads 0.1 MB/s."""

MAX_DEPTH = 50
"""Lists and mappings within one another in front matter: PyYAML takes quadratic time for them."""

MOST_FROM = 200
"""Bytes of a line in which a message of an mbox begins, at most."""

_FROM = re.compile(rb"From +\S+ [^\n]{0,60}\d\d:\d\d[^\n]{0,40}\b\d{4}\b")
_QUOTED_FROM = (b">From ", b">>From ")


class TextFolder(FileSource):
    """The documents under a folder, or one document; hidden files and folders are left out.

    Each row has `id` (the path below the folder, with `/`), `title` (of the front matter, the
    document or its first heading, else the file's name without its suffix), `text`, and the fields
    of the front matter or e-mail. A file that is not read is a problem with `skips`.

    Raises:
        SourceError: no file is a document; raised now, and not after a model is loaded.
    """

    natural_id = "id"
    natural_text = ("title", "text")

    def __init__(self, path: Path, format: TableFormat = DETECTED) -> None:
        super().__init__(path, path.resolve().name, format)
        if not any(file.suffix.lower() in DOCUMENT_SUFFIXES for file in self._files()):
            raise SourceError(
                f"The folder {path} holds neither corpus.jsonl nor a text file "
                f"({' '.join(sorted(TEXT_SUFFIXES))}), nor one that can be converted "
                f"({' '.join(sorted(CONVERTIBLE))}). Name a data file in it, or another folder."
            )

    def rows(self) -> Iterator[Row | RowProblem]:
        for path in self._files():
            ending = path.suffix.lower()
            name = path.name if path == self.path else path.relative_to(self.path).as_posix()
            if ending in DOCUMENT_SUFFIXES:
                yield from self._document(path, name)
                continue
            kind = f"ending in {ending}" if ending else "without an ending"
            endings = ", ".join(sorted(DOCUMENT_SUFFIXES))
            reason = f"Files {kind} are not read. Convert it to one of {endings}."
            if ending in READERS:
                reason = "A table is no document of a folder. Build it as a source of its own."
            yield RowProblem(name, reason, rejects=False, skips=True)

    def _files(self) -> list[Path]:
        """Return the files in a stable order."""
        if self.path.is_file():
            return [self.path]
        return [
            path
            for path in sorted(self.path.rglob("*"))
            if path.is_file()
            and not any(part.startswith(".") for part in path.relative_to(self.path).parts)
        ]

    def _document(self, path: Path, name: str) -> Iterator[Row | RowProblem]:
        """Yield the row of a file, or the reason why it has none."""
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise Unusable(f"The file is larger than {MAX_FILE_BYTES >> 20} MiB. Split it.")
            if path.suffix.lower() in CONVERTIBLE:
                text, title, fields = converted_file(path, path.stat().st_mtime_ns)
                title = title or heading(text) or path.stem
                yield Row(name, _cells(name, text, title, fields))
            else:
                yield from _text_rows(path, name, self.format.encoding)
        except OSError as error:
            reason = f"The file cannot be read: {error.strerror}. Check its permissions."
            yield RowProblem(name, reason, skips=True)
        except (Unusable, SourceError) as reason:
            yield RowProblem(name, str(reason).replace(str(path), "The file", 1), skips=True)


class Mailbox(FileSource):
    """The messages of an mbox file, with the cells of an e-mail.

    A message begins after a blank line with `From`, a sender and a date: a text may begin a line
    with From, too. Its id is its Message-ID, which stays as the file grows, or else its number.

    Raises:
        SourceError: the file cannot be opened, or does not begin with such a line.
    """

    natural_id = "id"
    natural_text = ("title", "text")

    def __init__(self, path: Path, format: TableFormat = DETECTED) -> None:
        super().__init__(path, format=format)
        if not _FROM.match(self.head[:MOST_FROM]):
            raise SourceError(
                f"{path} is no mbox: its first line is not 'From', an address and a date. Export "
                f"the mailbox as mbox, or as a folder of .eml files."
            )

    def rows(self) -> Iterator[Row | RowProblem]:
        with self.opened() as file:
            for number, data in enumerate(_messages(file), start=1):
                place = f"{self.name}:{number}"
                try:
                    if len(data) > MAX_FILE_BYTES:
                        raise Unusable(
                            f"The message is larger than {MAX_FILE_BYTES >> 20} MiB. Remove it."
                        )
                    text, title, fields = convert(data, EMAIL)
                except Unusable as reason:
                    fault = str(reason).replace("The file", "The message", 1)
                    yield RowProblem(place, fault)
                    continue
                head = message_from_bytes(data.replace(b"\r\n", b"\n").partition(b"\n\n")[0])
                id = str(head["message-id"] or "").strip().strip("<>") or str(number)
                yield Row(place, _cells(id, text, title or heading(text) or id, fields))


def _messages(file: BinaryIO) -> Iterator[bytes]:
    """Yield the messages of an mbox, of each at most a little more than `MAX_FILE_BYTES`."""
    lines: list[bytes] = []
    size, after_blank = 0, True
    while line := file.readline(MAX_FILE_BYTES):
        if after_blank and _FROM.match(line[:MOST_FROM]):
            if size:
                yield b"".join(lines)
            lines, size = [], 0
        else:
            if size <= MAX_FILE_BYTES:
                lines.append(line[line.startswith(_QUOTED_FROM) :])
            size += len(line)
        after_blank = not line.strip()
    if size:
        yield b"".join(lines)


def _text_rows(path: Path, name: str, encoding: str | None) -> Iterator[Row | RowProblem]:
    """Yield the row of a text file, after a notice of front matter that is no YAML."""
    data = path.read_bytes()
    encoding, _ = detect_encoding(data[:HEAD_BYTES], path, encoding)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        kind = "UTF-8" if encoding == UTF_8 else encoding
        yield RowProblem(f"{name}:{line}", f"The line is not {kind}. {SAVE_AS}", skips=True)
        return
    fields: Mapping[str, Json] = {}
    if path.suffix.lower() in MARKDOWN and (parts := _divided(text)) is not None:
        try:
            fields, text = front_matter(text)
        # For some texts, its constructors raise what int, date or a dict raises.
        except Exception as error:
            mark = getattr(error, "problem_mark", None)
            line = 2 if mark is None else mark.line + 2  # the first line is ---
            fault = getattr(error, "problem", None) or str(error).partition("\n")[0]
            yield RowProblem(
                f"{name}:{line}",
                f"The front matter is no valid YAML ({fault:.200}), and is left out. Quote its "
                f"texts.",
                rejects=False,
            )
            text = parts[1]
    if not text.strip():
        raise Unusable("The file is empty. Write a text into it, or remove it.")
    named = fields.get("title")
    title = (named.strip() if isinstance(named, str) else "") or heading(text) or path.stem
    yield Row(name, _cells(name, text, title, fields))


def _cells(id: str, text: str, title: str, fields: Mapping[str, Json]) -> dict[str, Json]:
    """Return a row's cells; fields that would replace its id or text get a longer name."""
    rest = {
        f"front_matter_{key}" if key in ("id", "text") else key: cell
        for key, cell in fields.items()
        if key != "title" or not isinstance(cell, str)
    }
    return {**rest, "id": id, "title": title, "text": text}


def front_matter(text: str) -> tuple[Mapping[str, Json], str]:
    """Split Markdown into the fields of its front matter and the text after it.

    Raises:
        YAMLError: the lines between the --- are not valid YAML.

    >>> front_matter("---\\ntitle: Ships\\ntags: [sea, sail]\\n---\\nA ship sails.")
    ({'title': 'Ships', 'tags': ['sea', 'sail']}, 'A ship sails.')
    """
    parts = _divided(text)
    if parts is None:
        return {}, text
    depth = 0
    for event in yaml.parse(parts[0]):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias, which can expand to gigabytes")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise yaml.YAMLError(f"it is nested more than {MAX_DEPTH} deep")
    fields = yaml.safe_load(parts[0])
    if not isinstance(fields, Mapping):  # a rule and some text, and no fields
        return {}, text
    return {str(name): to_json(cell) for name, cell in fields.items()}, parts[1]


def _divided(text: str) -> tuple[str, str] | None:
    """Return the lines of front matter and the text after it, or None without front matter."""
    first, _, rest = text.removeprefix("\ufeff").partition("\n")
    if first.rstrip(" \t\r") != "---":
        return None
    start = 0
    while start < min(len(rest), MAX_FRONT_MATTER):
        stop = rest.find("\n", start)
        stop = len(rest) if stop < 0 else stop
        if rest[start:stop].rstrip(" \t\r") in ("---", "..."):
            return rest[:start], rest[stop + 1 :]
        start = stop + 1
    return None


def heading(text: str) -> str | None:
    """Return the first heading: a line that begins with `#`, or one underlined with `===`.

    Lines in fenced code are skipped: a comment there looks like a heading.

    >>> heading("intro\\n```\\n# a comment\\n```\\n## Setup ##\\n")
    'Setup'
    """
    fenced, previous = False, ""
    for line in text.splitlines():
        is_code = line[:4].expandtabs(4).startswith("    ")
        bare = "" if is_code else line.strip(" \t")
        if bare.startswith(("```", "~~~")):
            fenced = not fenced
        elif not fenced:
            if title := _heading(bare):
                return title
            if bare.startswith("===") and not bare.strip("=") and previous.strip():
                return previous.strip()
        previous = line
    return None


def _heading(line: str) -> str:
    """Return the text of a line such as `## Setup ##`, "" for any other line."""
    text = line.lstrip("#")
    if not 1 <= len(line) - len(text) <= 6 or not text.startswith((" ", "\t")):
        return ""
    text = text.strip(" \t")
    open_end = text.rstrip("#")
    return open_end.rstrip(" \t") if open_end.endswith((" ", "\t")) else text


# -- opening ------------------------------------------------------------------------------------

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


def _stored_table(path: Path, table: str = "", format: TableFormat = DETECTED) -> Source:
    # Here: pyarrow takes long to import, and few sources need it.
    from attend.source.tables import ParquetFile, SqliteTable

    return ParquetFile(path) if path.suffix.lower() == ".parquet" else SqliteTable(path, table)


READERS: dict[str, Callable[..., Source]] = {
    ".jsonl": JsonLinesFile,
    ".ndjson": JsonLinesFile,
    ".json": JsonArray,
    ".csv": Delimited,
    ".tsv": TabDelimited,
    ".mbox": Mailbox,
    **dict.fromkeys((".parquet", ".db", ".sqlite", ".sqlite3"), _stored_table),
}
"""By ending: what reads a file that is a source of its own, from its path and format."""


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
            if isinstance(row, Row):
                title, text = row.cells.get("title") or "", row.cells.get("text") or ""
                # Cells of a wrong type are left for the mapping to report.
                if isinstance(title, str) and isinstance(text, str):
                    cells = {**row.cells, "text": f"{title} {text}".strip()}
                    if not title.strip():
                        cells.pop("title", None)
                    row = Row(row.place, cells)
            yield row


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
        from attend.source.tables import ArrowStream

        return ArrowStream(spec)
    if spec == "-":
        return StandardInput()
    path = Path(spec := str(spec))
    if spec and path.is_dir():
        corpus = path / BEIR_CORPUS
        if corpus.is_file():
            return BeirCorpus(corpus, f"{path.resolve().name}/{BEIR_CORPUS}", format)
        return TextFolder(path, format)
    if not (spec and path.exists()):
        if (match := _TABLE.fullmatch(spec)) and Path(match["file"]).is_file():
            return _stored_table(Path(match["file"]), match["table"])
        raise SourceError(f"There is no file or folder {spec!r}. {KINDS}")
    ending = path.suffix.lower()
    is_table = format.delimiter is not None or not format.header
    other = Delimited if is_table else TextFolder if ending in DOCUMENT_SUFFIXES else None
    reader = READERS.get(ending, other)
    if is_table and reader in (JsonLinesFile, JsonArray):
        raise SourceError(
            f"{path} is JSON, which has neither a delimiter nor a header. Leave --delimiter "
            f"and --no-header out."
        )
    if reader is not None:
        return reader(path, format=format)
    kind = f"files ending in {path.suffix}" if path.suffix else "files without an extension"
    remedy = f"{KINDS} For a table, give --delimiter or --no-header."
    if ending in REMEDIES:
        remedy = f"{REMEDIES[ending]} {KINDS}"
    raise SourceError(f"{path} cannot be read: {kind} are not known. {remedy}")
