"""Folders: Markdown and text, one document a file; and the BEIR layout."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from attend.errors import SourceError
from attend.source.files import JsonLines
from attend.source.rows import Problem, Row
from attend.types import Json

TEXT_SUFFIXES = frozenset({".md", ".markdown", ".txt", ".rst"})
BEIR_CORPUS = "corpus.jsonl"
MAX_TEXT_BYTES = 64 << 20

_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#*)?$")
_UNDERLINE = re.compile(r"={3,}[ \t]*$")
_FENCE = re.compile(r" {0,3}(?:```|~~~)")


@dataclass(frozen=True)
class TextFolder:
    """Every Markdown or text file under a folder; hidden files and folders are left out.

    Each row has `id` (the path below the folder, with `/`), `title` (the first heading,
    else the file's name without its suffix) and `text` (the whole file).
    """

    path: Path
    name: str
    natural_id: str | None = "id"
    natural_text: tuple[str, ...] = ("title", "text")
    untyped: bool = False

    def rows(self) -> Iterator[Row | Problem]:
        for path in self._files():
            yield _file_row(path, path.relative_to(self.path))

    def _files(self) -> list[Path]:
        """The readable files in a stable order; raises SourceError where there is none."""
        found = sorted(path for path in self.path.rglob("*") if _is_text(path, self.path))
        if not found:
            raise SourceError(
                f"The folder {self.path} holds neither {BEIR_CORPUS} nor a text file "
                f"({' '.join(sorted(TEXT_SUFFIXES))}). Name a data file in it, or another folder."
            )
        return found

    def size_hint(self) -> int | None:
        return len(self._files())


def _is_text(path: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return not hidden and path.suffix.lower() in TEXT_SUFFIXES and path.is_file()


def _file_row(path: Path, relative: PurePath) -> Row | Problem:
    place = relative.as_posix()
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            return Problem(place, f"The file is larger than {MAX_TEXT_BYTES >> 20} MiB. Split it.")
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return Problem(f"{place}:{line}", "The line is not UTF-8. Save the file as UTF-8.")
    except OSError as error:
        return Problem(place, f"The file cannot be read: {error.strerror}.")
    if not text.strip():
        return Problem(place, "The file is empty.")
    return Row(place, {"id": place, "title": heading(text) or path.stem, "text": text})


def heading(text: str) -> str | None:
    """The first heading: a line that begins with `#`, or one underlined with `===`.

    Lines in fenced code are passed over: a comment there looks like a heading.

    >>> heading("intro\\n```\\n# a comment\\n```\\n## Setup ##\\n")
    'Setup'
    """
    fenced, previous = False, ""
    for line in text.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            if (found := _HEADING.match(line)) and found[1]:
                return found[1]
            if _UNDERLINE.match(line) and previous.strip():
                return previous.strip()
        previous = line
    return None


@dataclass(frozen=True)
class BeirFolder:
    """A folder with `corpus.jsonl` of `_id`, `title` and `text`.

    `text` becomes title and text joined by a space, since that is what BEIR results are
    measured on. The title stays a cell of its own, to be shown or returned.
    """

    path: Path
    name: str
    natural_id: str | None = "_id"
    natural_text: tuple[str, ...] = ("text",)
    untyped: bool = False

    def rows(self) -> Iterator[Row | Problem]:
        for row in self._corpus().rows():
            yield Row(row.place, _joined(row.cells)) if isinstance(row, Row) else row

    def size_hint(self) -> int | None:
        return self._corpus().size_hint()

    def _corpus(self) -> JsonLines:
        return JsonLines(self.path / BEIR_CORPUS, f"{self.name}/{BEIR_CORPUS}")


def _joined(cells: Mapping[str, Json]) -> Mapping[str, Json]:
    """Title and text as one text. Cells of a wrong type are left for the mapping to report."""
    title, text = cells.get("title") or "", cells.get("text") or ""
    if not (isinstance(title, str) and isinstance(text, str)):
        return cells
    kept = {name: cell for name, cell in cells.items() if name != "title" or title.strip()}
    return {**kept, "text": f"{title} {text}".strip()}
