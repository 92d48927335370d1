"""Cursors: where a page ends, so that the next begins there whatever is written meanwhile.

A cursor holds the place of the last item in the order of the list, and a fingerprint of what
was asked. It is no position: what comes or goes before that place moves nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence

from attend.errors import InvalidRequest

DIGEST = 8
"""Bytes of the fingerprint; it guards against mistakes and not against anybody."""


def fingerprint(*parts: str | bytes) -> str:
    """Of what a cursor belongs to: the same for the same, and another for another."""
    digest = hashlib.blake2b(digest_size=DIGEST)
    for part in parts:
        given = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        # With its length, so that no two lists of parts read the same.
        digest.update(len(given).to_bytes(8, "little") + given)
    return digest.hexdigest()


def cursor(asked: str, place: Sequence[float]) -> str:
    """The end of a page as a text for an address line.

    Args:
        asked: the fingerprint of what was asked.
        place: of the last item; numbers.
    """
    text = json.dumps([asked, *place], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def place(given: str, asked: str, length: int) -> list[float]:
    """What a cursor says of its place, `length` numbers.

    Raises:
        InvalidRequest: it is no cursor, or one of something else.
    """
    try:
        found = json.loads(base64.urlsafe_b64decode(given.encode() + b"=" * (-len(given) % 4)))
        of, *numbers = found
    except (ValueError, TypeError):
        of, numbers = None, []
    whole = isinstance(of, str) and len(numbers) == length
    if not whole or not all(_is_number(each) for each in numbers):
        raise InvalidRequest(
            f"{given[:40]!r} is no cursor; send `next` of the page before, as it is.",
            field="cursor",
        )
    if of != asked:
        raise InvalidRequest(
            "The cursor belongs to something else that was asked, or to another projection "
            "version; ask as before, or begin again without it.",
            field="cursor",
        )
    return [float(each) if isinstance(each, float) else each for each in numbers]


def _is_number(given: object) -> bool:
    # Python's JSON reads NaN and Infinity, and integers of any length.
    return isinstance(given, int | float) and abs(given) < 2**63
