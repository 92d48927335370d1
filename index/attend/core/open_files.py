"""The files that the process has open, of which the system allows a number.

Where none is free, each library says so in its own way, and a server cannot take a connection
either. So a part of them is left to all the rest, and databases are refused before.
"""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
from pathlib import Path

from attend.core.errors import OutOfFiles

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
