"""The styles and scripts of the pages, answered from memory.

They are open to everyone who can connect, and so they cost the server little: no thread, no place
in the queue, no open file and no line in the log.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from granian.rsgi import Scope

from attend_service.problems import NO_PATH
from attend_service.security.browsers import FOR_PROGRAMS
from attend_service.wsgi import HttpAnswer, Refusal

FOLDER = Path(__file__).parent / "static"

PREFIX = "/static/"


class StaticFile(NamedTuple):
    """A file, with the headers that describe it."""

    content: bytes
    headers: Mapping[str, str]

    def is_known(self, if_none_match: str) -> bool:
        """Return whether a client has the file already, by its If-None-Match header."""
        return self.headers["ETag"] in if_none_match


def static_answer(scope: Scope) -> HttpAnswer:
    """Answer a request of a style or script.

    Raises:
        Refusal: there is no such file.
    """
    file = static_files().get(scope.path)
    if file is None:
        raise Refusal(NO_PATH, f"There is nothing at {scope.path}; /docs lists every path.")
    headers = [*file.headers.items(), *FOR_PROGRAMS]
    if file.is_known(scope.headers.get("if-none-match", "")):
        return HttpAnswer(304, headers, b"")
    headers.append(("Content-Length", str(len(file.content))))
    return HttpAnswer(200, headers, b"" if scope.method == "HEAD" else file.content)


@cache
def static_files() -> Mapping[str, StaticFile]:
    """Read the files, by the paths of their requests: some 200 KB."""
    paths = [path for path in FOLDER.rglob("*") if path.is_file()]
    return {PREFIX + path.relative_to(FOLDER).as_posix(): _read(path) for path in paths}


def _read(path: Path) -> StaticFile:
    content = path.read_bytes()
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    is_text = kind.startswith("text/")
    return StaticFile(
        content,
        {
            "Content-Type": f"{kind}; charset=utf-8" if is_text else kind,
            "Cache-Control": "no-cache",  # to be asked for again each time, by its tag
            "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
        },
    )
