"""Which column of a table is the user, the item, the value, the time: as told, else guessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attend.errors import SourceError
from attend.examples.columns import DOCUMENT_NAMES, named
from attend.source import Source, sample
from attend.source.rows import field_names, listed

NAMES = {
    "user": (
        *("user", "user_id", "userid", "uid", "customer", "customer_id", "reader", "reader_id"),
        *("session", "session_id", "visitor", "visitor_id", "member", "member_id", "person"),
    ),
    "item": (
        *("item", "item_id", "itemid", "movie", "movie_id", "movieid", "book", "book_id"),
        *("bookid", "product", "track", "track_id", "isbn", "asin", "sku", *DOCUMENT_NAMES),
    ),
    "value": ("value", "rating", "stars", "score", "label", "grade", "rate", "feedback"),
    "time": ("time", "timestamp", "date", "datetime", "created", "created_at", "when", "ts"),
}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table of interactions; `guessed` says which of these nobody asked for."""

    user: str
    item: str
    value: str | None = None
    time: str | None = None
    guessed: tuple[str, ...] = ()


def guess_columns(source: Source, **given: str | None) -> Columns:
    """Keep the columns that are given and find the rest by their names, whatever their case.

    Args:
        given: user, item, value, time: names of columns.

    Raises:
        SourceError: a column that is given or needed is not there.
    """
    present = field_names(sample(source))
    found = {kind: name for kind, name in given.items() if name is not None}
    for kind, name in found.items():
        if name not in present:
            raise _missing(source, kind, present, f"{source.name} has no column {name!r}.")
    guessed = []
    for kind, names in NAMES.items():
        free = [name for name in present if name not in found.values()]
        if kind not in found and (column := named(free, names)):
            found[kind] = column
            guessed.append(kind)
    for kind in ("user", "item"):
        if kind not in found:
            said = f"No column of {source.name} looks like the {kind}."
            raise _missing(source, kind, present, said)
    return Columns(**found, guessed=tuple(guessed))


def _missing(source: Source, kind: str, present: Sequence[str], said: str) -> SourceError:
    columns = listed(present, limit=40)
    return SourceError(f"{said} Choose with --{kind} among {columns}.")


def describe_columns(columns: Columns) -> str:
    """The choice in one line.

    >>> describe_columns(Columns("reader", "book", guessed=("user",)))
    'user: reader · item: book (guessed: user; say --user to choose)'
    """
    parts = [f"{kind}: {name}" for kind in NAMES if (name := getattr(columns, kind))]
    line = " · ".join(parts)
    if not columns.guessed:
        return line
    options = "/".join(f"--{kind}" for kind in columns.guessed)
    return f"{line} (guessed: {', '.join(columns.guessed)}; say {options} to choose)"
