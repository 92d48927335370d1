"""Folders of documents: text, Markdown with front matter, and what `convert` reads."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from email import message_from_bytes
from pathlib import Path
from typing import BinaryIO

import yaml

from attend.core.errors import SourceError
from attend.core.types import Json
from attend.source.cells import to_json
from attend.source.converting import CONVERTIBLE, EMAIL, MissingExtra, convert, convert_bytes
from attend.source.decoding import (
    DETECTED,
    HEAD_BYTES,
    SAVE_AS,
    TableFormat,
    detect_encoding,
    read_head,
)
from attend.source.rows import FileSource, Row, RowProblem, Unusable, unreadable

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

    Args:
        tables: endings of files that are sources of their own.

    Raises:
        SourceError: no file is a document; raised now, and not after a model is loaded.
    """

    natural_id = "id"
    natural_text = ("title", "text")

    def __init__(
        self, path: Path, format: TableFormat = DETECTED, tables: Collection[str] = ()
    ) -> None:
        super().__init__(path, path.resolve().name)
        self._encoding = format.encoding
        self._tables = tables
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
            else:
                yield RowProblem(name, self._reason(ending), rejects=False, skips=True)

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

    def _reason(self, ending: str) -> str:
        if ending in self._tables:
            return "A table is no document of a folder. Build it as a source of its own."
        kind = f"ending in {ending}" if ending else "without an ending"
        return f"Files {kind} are not read. Convert it to one of {_endings()}."

    def _document(self, path: Path, name: str) -> Iterator[Row | RowProblem]:
        """Yield the row of a file, or the reason why it has none."""
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise Unusable(f"The file is larger than {MAX_FILE_BYTES >> 20} MiB. Split it.")
            if path.suffix.lower() in CONVERTIBLE:
                text, title, fields = convert(path)
                yield _row(name, text, title or heading(text) or path.stem, fields)
            else:
                yield from _text_rows(path, name, self._encoding)
        except OSError as error:
            reason = f"The file cannot be read: {error.strerror}. Check its permissions."
            yield RowProblem(name, reason, skips=True)
        except MissingExtra as reason:
            yield RowProblem(name, str(reason), skips=True)
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

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        if not _FROM.match(read_head(path)[:MOST_FROM]):
            raise SourceError(
                f"{path} is no mbox: its first line is not 'From', an address and a date. Export "
                f"the mailbox as mbox, or as a folder of .eml files."
            )

    def rows(self) -> Iterator[Row | RowProblem]:
        try:
            with self.path.open("rb") as file:
                for number, data in enumerate(_messages(file), start=1):
                    yield _message_row(f"{self.name}:{number}", str(number), data)
        except OSError as error:
            raise unreadable(self.path, error) from error


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


def _message_row(place: str, number: str, data: bytes) -> Row | RowProblem:
    try:
        if len(data) > MAX_FILE_BYTES:
            raise Unusable(f"The message is larger than {MAX_FILE_BYTES >> 20} MiB. Remove it.")
        text, title, fields = convert_bytes(data, EMAIL)
    except Unusable as reason:
        return RowProblem(place, str(reason).replace("The file", "The message", 1))
    head = message_from_bytes(data.replace(b"\r\n", b"\n").partition(b"\n\n")[0])
    id = str(head["message-id"] or "").strip().strip("<>") or number
    return Row(place, _row(id, text, title or heading(text) or id, fields).cells)


def _endings() -> str:
    return ", ".join(sorted(DOCUMENT_SUFFIXES))


def _text_rows(path: Path, name: str, encoding: str | None) -> Iterator[Row | RowProblem]:
    """Yield the row of a text file, after a notice of front matter that is no YAML."""
    data = path.read_bytes()
    decoding = detect_encoding(data[:HEAD_BYTES], path, encoding)
    try:
        text = data.decode(decoding.encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        kind = "UTF-8" if decoding.is_utf8 else decoding.encoding
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
    title = fields.get("title")
    if not text.strip():
        raise Unusable("The file is empty. Write a text into it, or remove it.")
    shown = title.strip() if isinstance(title, str) else None
    yield _row(name, text, shown or heading(text) or path.stem, fields)


def _row(name: str, text: str, title: str, fields: Mapping[str, Json]) -> Row:
    """Return a row; fields that would replace its id or text get a longer name."""
    rest = {
        f"front_matter_{key}" if key in ("id", "text") else key: cell
        for key, cell in fields.items()
        if key != "title" or not isinstance(cell, str)
    }
    return Row(name, {**rest, "id": name, "title": title, "text": text})


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
