"""Limits that belong to HTTP; those of what is asked are `attend.api`'s.

SECURITY.md lists them all.
"""

from __future__ import annotations

from collections.abc import Sequence

from flask import request
from werkzeug.exceptions import RequestURITooLarge

from attend import Data, encoder
from attend.core.errors import Conflict, InvalidRequest

MAX_QUERY_STRING = 16_384
"""Bytes after the question mark."""

MAX_HEADERS = 65_536
"""Bytes of a request's first line and headers together."""

MAX_BODY = 4 * 1024 * 1024
"""Bytes of a body that uploads nothing, such as a search."""

MAX_BATCH_BODY = 16 * 1024 * 1024
"""Bytes of a body that has many searches."""

FREE_BRACKETS = 100_000
BYTES_PER_BRACKET = 32
"""Lists and objects in a JSON body, in all, and beyond that by its size. Each takes 150 bytes of
memory, however short its text."""

FREE_CHUNKS = 10_000
BYTES_PER_CHUNK = 64
"""Pieces in which a body may arrive, in all, and beyond that by its size: each takes as much time
as a thousand bytes."""

MAX_DEPTH = 64
"""Objects and lists within one another, in a body or a parameter: SQLite's JSON ends at 1,000, and
what walks such a tree in Python not far beyond."""

MAX_CONNECTIONS = 1000
"""Of one worker process; more wait until one of them is closed."""

IDLE_SECONDS = 60.0
"""The time in which a client must take the next part of an answer."""

BYTES_PER_SECOND = 256 * 1024
"""The rate, 2 Mbit a second, at which a client must take a long answer, after `IDLE_SECONDS`."""

MAX_UNSENT = 256 * 1024 * 1024
"""Bytes of long answers that wait for their clients, in all."""

HEADER_SECONDS = 30.0
"""In which a request's headers must arrive, since the connection began or the answer before them;
so a connection without a request is closed too."""

REQUEST_SECONDS = 300.0
"""In which a body must arrive: 64 MiB at 2 Mbit a second."""

RESERVED = frozenset(
    {"con", "prn", "aux", "nul"} | {f"{port}{n}" for port in ("com", "lpt") for n in range(10)}
)
"""Names of devices where Windows runs: a folder of such a name could not be copied there."""


def check_address() -> None:
    """Raise RequestURITooLarge for too many bytes of parameters."""
    length = len(request.query_string)
    if length > MAX_QUERY_STRING:
        raise RequestURITooLarge(
            f"The address has {length:,} bytes of parameters, but at most {MAX_QUERY_STRING:,} are "
            f"read; send them as the body of a POST."
        )


def check_brackets(text: bytes) -> None:
    """Raise InvalidRequest, before JSON is parsed, where it would take much memory for its size."""
    brackets = text.count(b"[") + text.count(b"{")
    limit = max(FREE_BRACKETS, len(text) // BYTES_PER_BRACKET)
    if brackets > limit:
        raise InvalidRequest(
            f"The JSON has {brackets:,} lists and objects, but at most {limit:,} are read in a "
            f"body of this size; send less at once.",
            field="body",
        )


def check_depth(content: object, text: bytes, field: str = "body") -> None:
    """Refuse JSON that is nested too deep.

    Args:
        text: the JSON text of `content`.

    Raises:
        InvalidRequest: it is nested more than `MAX_DEPTH` deep.
    """
    # A text with few brackets cannot be deep, and most requests cost no more than the count.
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and _is_deeper(content, MAX_DEPTH):
        raise InvalidRequest(
            f"The JSON is nested more than {MAX_DEPTH} deep; send it flatter.", field=field
        )


def check_encoder(name: str, allowed: Sequence[str], field: str = "encoder") -> None:
    """Raise InvalidRequest for an encoder that clients may not name.

    The sentence does not tell which folders the server has.
    """
    if encoder.canonical_name(name) not in map(encoder.canonical_name, (encoder.DEFAULT, *allowed)):
        raise InvalidRequest(
            f"The encoder {name[:80]!r} is not one that this server offers to its clients. Use "
            f"{encoder.DEFAULT}, or have its operator add it with --allow-encoder.",
            field=field,
        )


def check_new_collection(data: Data, name: str, limit: int) -> None:
    """Refuse a collection beyond the limit, or with an unsuitable name.

    Raises:
        Conflict: there are `limit` already, or a name that differs in its capitals only.
        InvalidRequest: the name is a device's.
    """
    count = len(data.names())
    if count >= limit:
        raise Conflict(
            f"There are {count:,} collections, and at most {limit:,} are kept; delete one, or "
            f"start the server with a larger --max-collections.",
            field="collection",
        )
    check_new_name(data, name)


def check_new_name(data: Data, name: str, field: str = "collection") -> None:
    """Refuse the name of a collection or alias that other systems could not tell apart."""
    if name.lower() in RESERVED:
        raise InvalidRequest(
            f"{name!r} names a device on some systems, to which the data folder could not be "
            f"copied; choose another name.",
            field=field,
        )
    others = {other.lower() for other in (*data.names(), *data.aliases()) if other != name}
    if name.lower() in others:
        raise Conflict(
            f"Another name differs from {name!r} in its capitals only, which some systems take for "
            f"the same; choose another name.",
            field=field,
        )


_CONTAINERS = frozenset({list, dict})


def _is_deeper(content: object, limit: int) -> bool:
    level = [content]
    for _ in range(limit):
        level = [child for parent in level for child in _nested(parent)]
        if not level:
            return False
    return True


def _nested(content: object) -> list[object]:
    """Return the lists and objects directly within one."""
    if not isinstance(content, list | dict):
        return []
    values = content if isinstance(content, list) else list(content.values())
    # Most content is vectors: their numbers are skipped without a line of Python each.
    if _CONTAINERS.isdisjoint(map(type, values)):
        return []
    return [value for value in values if type(value) in _CONTAINERS]
