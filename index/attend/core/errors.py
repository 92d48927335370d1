"""Every error the package raises on purpose.

```
AttendError
├── InvalidRequest        what was asked cannot be done as asked (a field, a value, a range)
│   ├── UnknownField      a value, payload or text field that no document has
│   ├── Unsupported       what another engine can do, but this one cannot
│   ├── Cancelled         a training that whoever asked for it stopped
│   ├── DimensionMismatch a vector of another width than the collection's
│   └── KeylessDocuments  a query by documents that have neither text nor a vector
├── Forbidden             a server asks for another key
├── NotFound
│   ├── UnknownCollection
│   ├── UnknownAlias
│   ├── UnknownDocument
│   └── UnknownProjection
├── Conflict              the state of the data forbids it
│   ├── CollectionExists
│   ├── EncoderMismatch   the collection was built by another encoder
│   ├── Replaced          another collection took its place while it was open
│   ├── ReadOnly          it was opened to be read only
│   └── ManifestMismatch  an index file and the database disagree
├── CannotWrite           the disk does not take it: full, or not to be written to
├── Unavailable           a server that it needs does not answer, or not in time
│   ├── Opening           a collection is being opened, or an encoder loaded
│   ├── Unconfirmed       a write whose answer was lost: it may be stored
│   ├── OutOfFiles        the process has as many open files as the system allows
│   └── OutOfMemory       the machine has no memory left for it
├── LimitExceeded         larger than a stated limit
├── OverTime              the work took longer than its deadline
├── SourceError           a source that cannot be read at all
├── EncoderError          a model that cannot be loaded or is not the one expected
└── Damaged               data on disk that fails its check
    └── WrongKeys         keys of an index that are not what was written
```

The service maps the second level to HTTP status codes; nothing here knows them.
A message is one sentence or two: what was given, what was expected, what to do.
"""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict


class AttendError(Exception):
    """Base of all expected errors; `str(error)` is a sentence for the user.

    >>> try:
    ...     books.search([1.0, 0.1], top_k=3)
    ... except AttendError as error:
    ...     print(error.field, "|", error)
    top_k | top_k: unknown field; did you mean 'k'?
    """

    details: Sequence[Detail] = ()
    """Every wrong field, where a whole request was checked at once."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        """The request field that the sentence is about, where there is one."""


class Detail(TypedDict):
    """One thing wrong with a request."""

    field: str
    reason: str


class InvalidRequest(AttendError):
    """What was asked cannot be done as asked."""


class UnknownField(InvalidRequest):
    """A field that no document of the collection has."""


class Unsupported(InvalidRequest):
    """What another engine can do, but not the one that keeps the collection."""


class Cancelled(InvalidRequest):
    """The training was stopped by whoever asked for it."""

    def __init__(self) -> None:
        super().__init__("The training was stopped; nothing was promoted, and nothing was lost.")


class DimensionMismatch(InvalidRequest):
    """A vector whose width is not the collection's."""

    def __init__(
        self, *, expected: int, got: int, field: str = "vector", subject: str = "The vector"
    ) -> None:
        super().__init__(
            f"{subject} has {got} dimensions, but this collection's have {expected}. "
            f"Send {expected} numbers.",
            field=field,
        )


class KeylessDocuments(InvalidRequest):
    """Documents without text and vector, with which nothing can be compared.

    Args:
        ids, rows: of these documents.
    """

    def __init__(self, ids: Sequence[str], rows: Sequence[int]) -> None:
        super().__init__(
            f"The document {ids[0]!r} has neither text nor a vector, so that "
            f"nothing can be compared with it; name another, or store a text or a vector for it.",
            field="query",
        )
        self.rows = frozenset(rows)


class Forbidden(AttendError):
    """A server has no such key, or the key does not allow what was asked."""


class NotFound(AttendError):
    """Something named that is not there."""


class UnknownCollection(NotFound):
    """A collection name with no collection behind it."""


class UnknownAlias(NotFound):
    """A name that is no alias."""


class UnknownDocument(NotFound):
    """A document id with no document behind it."""


class UnknownProjection(NotFound):
    """A projection version that was never stored."""


class Conflict(AttendError):
    """The state of the data forbids what was asked."""


class CollectionExists(Conflict):
    """A collection of this name is there already, with other settings."""


class EncoderMismatch(Conflict):
    """The collection was built by another encoder."""


class Replaced(Conflict):
    """The collection was replaced by another while it was open; nothing was written."""


class ReadOnly(Conflict):
    """What was opened to be read only is not written to."""


class ManifestMismatch(Conflict):
    """A published index and the database disagree."""


class CannotWrite(AttendError):
    """The disk does not take it; nothing of it was stored."""


class Unavailable(AttendError):
    """A server that the engine needs does not answer, or not in time; later it may."""

    retry_after = 5
    """Seconds to wait before asking again."""


class Opening(Unavailable):
    """A collection is being opened, or an encoder loaded, for longer than a caller waits."""


class Unconfirmed(Unavailable):
    """A write was sent, and its answer was lost; it may be stored."""


class OutOfFiles(Unavailable):
    """The process has as many open files as the system allows."""


class OutOfMemory(Unavailable):
    """The machine has no memory left for it."""


class LimitExceeded(AttendError):
    """Larger than a stated limit."""


class OverTime(AttendError):
    """The work took longer than its deadline, and was stopped."""


class SourceError(AttendError):
    """A source that cannot be read at all."""


class EncoderError(AttendError):
    """A model that cannot be loaded, or is not the one expected."""


class Damaged(AttendError):
    """Data on disk that fails its check."""


class WrongKeys(Damaged):
    """Keys of an index that are others than were written; the next search has others."""


# Where no file is free, each library says so in its own way, and a server cannot take a connection
# either. So a part of them is left to all the rest, and databases are refused before.

RESERVED_SHARE = 8
"""One file in so many is left for connections, temporary files and indexes."""

NONE_LEFT = os.strerror(errno.EMFILE)
"""The end of a sentence of FAISS, which keeps no number of the error."""


def check_open_files(path: Path) -> None:
    """Raise OutOfFiles unless the process may open a database, and leave enough files free."""
    if not _has_room():
        raise out_of_files(str(path))


def out_of_files(name: str) -> OutOfFiles:
    """Return the error for a file, or an operation, that needs one more than there are."""
    return OutOfFiles(
        f"{name} cannot be opened, as the process has as many open files as the system allows. "
        f"Raise LimitNOFILE, or 'ulimit -n'."
    )


def is_out_of_files(error: BaseException | None) -> bool:
    """Return whether an error comes from a want of files, as any library says it.

    SQLite has one code for all reasons for which a file cannot be opened: it counts where few
    files are free. Causes may lead back to an error before them, as where a library raises an
    error that it has kept: each is looked at once.

    >>> is_out_of_files(OSError(errno.EMFILE, "Too many open files"))
    True
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        if isinstance(error, RuntimeError) and NONE_LEFT in str(error):
            return True
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_CANTOPEN and not _has_room():
            return True
        error = error.__cause__ or error.__context__
    return False


def _has_room() -> bool:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return True
    try:
        count = len(os.listdir("/dev/fd"))
    except OSError as error:
        return error.errno not in (errno.EMFILE, errno.ENFILE)
    return count < limit - limit // RESERVED_SHARE
