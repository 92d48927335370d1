"""Read the plain files of a tar, once, from its beginning to its end.

Python's `tarfile` also follows links, fills the holes of sparse files and reads extended headers
of any size, some in quadratic time. A backup has none of that but a file's time and a long name,
which versions before this one wrote as an extended header.
"""

from __future__ import annotations

import tarfile
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

from attend.core.errors import Damaged

BLOCK = 512
CHUNK = 1 << 20

MAX_HEADER = 4096
"""Bytes of an extended header: a name of 255 bytes and three times need a fifth of it."""

_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)


class PlainFile(NamedTuple):
    """A file in a tar; `content` gives its bytes, until the next file is read."""

    name: str
    size: int
    content: Iterator[bytes]


def plain_files(source: IO[bytes], check: Callable[[], None]) -> Iterator[PlainFile]:
    """Read the files of a tar, which is not compressed.

    Args:
        check: called before each read; raises an error to stop.

    Raises:
        Damaged: it is not a tar, ends early, or holds something other than files.
    """
    path = None
    while (header := _header(_read(source, BLOCK, check))) is not None:
        content = _content(source, header.size, check)
        if header.type == tarfile.XHDTYPE and header.size <= MAX_HEADER:
            path = _path(b"".join(content))
            continue
        if header.type not in _PLAIN:
            raise Damaged(f"The backup holds {header.name!r:.200}, which is not a plain file.")
        yield PlainFile(path or header.name, header.size, content)
        deque(content, maxlen=0)
        path = None


def _header(block: bytes) -> tarfile.TarInfo | None:
    """Return a header; None at the end, which is a block of zeros or nothing."""
    if not block.strip(b"\0"):
        return None
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "replace")
    except (tarfile.TarError, ValueError) as error:
        raise Damaged(f"This is not a backup, or not all of it is ({error}).") from error
    if header.size < 0:
        raise Damaged(f"{header.name!r:.200} has {header.size} bytes in the backup.")
    return header


def _content(source: IO[bytes], size: int, check: Callable[[], None]) -> Iterator[bytes]:
    """Yield the bytes of a file in chunks, and skip what fills its last block."""
    left = size
    while left:
        chunk = _read(source, min(left, CHUNK), check)
        if not chunk:
            raise Damaged("The backup ends within a file; get the rest of it.")
        left -= len(chunk)
        yield chunk
    _read(source, -size % BLOCK, check)


def _read(source: IO[bytes], size: int, check: Callable[[], None]) -> bytes:
    """Read `size` bytes, fewer only at the end: a network delivers them in pieces."""
    pieces: list[bytes] = []
    while size > 0:
        check()
        piece = source.read(size)
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _path(header: bytes) -> str | None:
    r"""Return the name in an extended header, of lines "LENGTH KEYWORD=VALUE\n".

    >>> _path(b"19 path=a/long/one\n")
    'a/long/one'
    """
    path, start = None, 0
    while start < len(header):
        length, _, rest = header[start:].partition(b" ")
        if not (length.isdigit() and len(length) < 5 and int(length) > len(length)):
            raise Damaged("The backup has a header that cannot be read.")
        keyword, _, value = rest[: int(length) - len(length) - 2].partition(b"=")
        if keyword not in (b"path", b"mtime", b"atime", b"ctime"):
            raise Damaged(f"The backup has a header of {keyword!r:.80}, which no backup has.")
        if keyword == b"path":
            path = value.decode(errors="replace")
        start += int(length)
    return path
