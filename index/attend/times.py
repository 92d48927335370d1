"""When something happened: a number or an ISO date as seconds since 1970."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from attend.types import Json

MILLISECONDS = 1e11
"""Numbers beyond are milliseconds: as seconds they would lie after the year 5000."""


def seconds_of(given: Json) -> float | None:
    """Seconds since 1970; None for nothing at all. Dates without a zone are UTC.

    Raises:
        ValueError: it is no time.

    >>> seconds_of("1970-01-02"), seconds_of("86400"), seconds_of(1_700_000_000_000)
    (86400.0, 86400.0, 1700000000.0)
    """
    if given is None or given == "":
        return None
    number = _number(given)
    if number is not None:
        seconds = number / 1000 if abs(number) > MILLISECONDS else number
        if abs(seconds) <= MILLISECONDS:
            return seconds
        raise ValueError(f"{number:g} is beyond any time; give seconds since 1970")
    try:
        date = datetime.fromisoformat(str(given).strip())
    except ValueError:
        raise ValueError(
            f"{str(given)[:40]!r} is no time; give seconds since 1970, or a date such as "
            f"2024-05-17T12:30:00Z"
        ) from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _number(given: Json) -> float | None:
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        return None
    try:
        number = float(given)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
