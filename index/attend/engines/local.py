"""The default engine: a folder of collections, each in a folder of its own.

```
DIR/collections/NAME/documents.db    the truth
DIR/collections/NAME/keys/           published indexes, which can be built again
DIR/collections/ALIAS -> NAME        another name of a collection
```
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import time
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from attend.api.base import NAME_PATTERN
from attend.api.search import Mask, SearchOptions
from attend.collection.versions import Selected
from attend.collection.views import Views
from attend.core.errors import LimitExceeded, UnknownAlias
from attend.core.settings import Settings
from attend.core.types import Int64
from attend.engines.engine import MAX_ALIASES, Capabilities, OpenedCollection, name_taken
from attend.engines.local_checks import LocalChecks
from attend.keys.files import sync_folder
from attend.projection import identity
from attend.search.queries import rows_by_id
from attend.store import Store, compile_filter

LEFT_BEHIND = re.compile(r"(making|dropped|restored)-[0-9a-f]{16}")
"""Folders on their way to a collection, or from one: there for a moment, unless it was killed."""

MAKING_SECONDS = 3600.0
"""After which nobody can still be making a collection, which takes a fraction of one second."""

CAPABILITIES = Capabilities("local")

HERE, EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of renameat2(2)."""

CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
"""Errors of a kernel or a file system that does not exchange names."""


class Folder:
    """Collections in a folder, in SQLite and FAISS."""

    capabilities = CAPABILITIES

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        self.folder = folder
        self._read_only = read_only
        self.aliases = Aliases(folder)
        if not read_only:
            _sweep(folder)

    def names(self) -> list[str]:
        """Return the collections, without aliases, in alphabetical order."""
        results = (self.folder / "collections").glob("*/documents.db")
        names = (path.parent.name for path in results)
        valid = (name for name in names if re.fullmatch(NAME_PATTERN, name))
        return sorted(name for name in valid if self.aliases.target(name) is None)

    def identity(self, name: str) -> object | None:
        """Return the database's inode: another process may have made one of the same name."""
        try:
            # As each search asks.
            return os.stat(os.path.join(self._of(name), "documents.db")).st_ino
        except FileNotFoundError:
            return None

    def open(self, name: str) -> OpenedCollection:
        folder = self._of(name)
        store = Store(folder / "documents.db", read_only=self._read_only)
        with ExitStack() as on_error:
            on_error.callback(store.close)
            settings = Settings.of(store.settings())
            on_error.pop_all()
        views = Views(store, folder / "keys", settings)
        checks = LocalChecks(store, views, settings)

        def select(options: SearchOptions, query_rows: tuple[int, ...]) -> Selected:
            view = views.current(options.projection)
            if not (options.filter or options.mask or query_rows):
                return Selected(view, None, store)
            return Selected(view, _passing(store, options, query_rows), store)

        return OpenedCollection(folder, settings, store, views, select, CAPABILITIES, checks)

    def make(self, name: str, settings: Settings) -> None:
        """Make the folder under another name first: a killed creation leaves nothing behind."""
        folder = self._of(name)
        if (folder / "documents.db").exists():
            return
        making = self.folder / f"making-{secrets.token_hex(8)}"
        cosine_of_raw = settings.scorer == "cosine" and not settings.unit_embeddings
        projection = identity(settings.dimension, normalize=cosine_of_raw)
        first = projection.kind, projection.to_bytes(), projection.fingerprint
        # Of their owner alone: whoever reads them reads every text.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            making.mkdir(mode=0o700)
            (making / "documents.db").touch(mode=0o600)
            with closing(Store(making / "documents.db")) as store:
                store.initialise(settings.stored(), first)
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.exists() and not (folder / "documents.db").exists():
                shutil.rmtree(folder)  # indexes without their database are of no use
            try:
                making.rename(folder)
            except OSError:
                if not (folder / "documents.db").exists():
                    raise
        finally:
            shutil.rmtree(making, ignore_errors=True)

    def drop(self, name: str) -> None:
        """Rename the folder first: a killed deletion leaves no half a collection."""
        doomed = self.folder / f"dropped-{secrets.token_hex(8)}"
        self._of(name).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def exchange(self, name: str, other: str) -> None:
        """Let two collections change their names: at no moment is one of them missing."""
        _exchange(self._of(name), self._of(other))
        sync_folder(self._of(name).parent)

    def close(self) -> None:
        """Nothing is held open."""

    def _of(self, name: str) -> Path:
        return self.folder / "collections" / name


class Aliases:
    """Other names of the collections of a data folder, switched in one step while searches run.

    An alias is a symbolic link beside the collections: so the file system itself keeps a name
    from being both, in every process; a rename switches it; and a restart finds it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = folder / "collections"

    def all(self) -> dict[str, str]:
        """Return the collection of each alias, in alphabetical order."""
        try:
            links = sorted(entry.name for entry in os.scandir(self._names) if entry.is_symlink())
        except FileNotFoundError:
            return {}
        targets = {name: self.target(name) for name in links}
        return {name: target for name, target in targets.items() if target is not None}

    def target(self, name: str) -> str | None:
        """Return the collection that an alias leads to, if it exists or not; None for no alias.

        A link to another place is a collection that somebody keeps there.
        """
        try:
            link = os.readlink(os.path.join(self._names, name))  # in each search
        except OSError:
            return None
        return link if re.fullmatch(NAME_PATTERN, link) else None

    def put(self, name: str, collection: str) -> bool:
        """Let an alias lead to a collection, and return whether the alias is new.

        Raises:
            CollectionExists: a collection has this name.
            LimitExceeded: too many aliases.
        """
        before = self.all()
        if name not in before and len(before) >= MAX_ALIASES:
            raise LimitExceeded(
                f"There are {len(before)} aliases, and at most {MAX_ALIASES} are allowed; "
                f"delete one."
            )
        # Made where leftovers of killed processes are removed, then renamed.
        making = self._folder / f"making-{secrets.token_hex(8)}"
        try:
            making.mkdir()
            link = making / "alias"
            link.symlink_to(collection)
            link.rename(self._names / name)
        except IsADirectoryError:
            raise name_taken(name) from None
        finally:
            shutil.rmtree(making, ignore_errors=True)
        sync_folder(self._names)  # the answer holds through a power cut
        return name not in before

    def remove(self, name: str) -> None:
        """Remove an alias; its collection stays.

        Raises:
            UnknownAlias: no alias has this name.
        """
        if self.target(name) is None:
            raise UnknownAlias(
                f"There is no alias {name!r}. List the aliases to see their names.", field="alias"
            )
        (self._names / name).unlink(missing_ok=True)
        sync_folder(self._names)


def _passing(store: Store, options: SearchOptions, query_rows: tuple[int, ...]) -> Int64 | None:
    """Return the rows that filter and mask let pass, ascending; None for all."""
    mask, rows = options.mask or Mask(), None
    if options.filter:
        rows = store.matching(compile_filter(options.filter))
    named = rows_by_id(store, [*mask.exclude, *(mask.only or [])], "mask")
    masked = {named[id] for id in mask.exclude}
    if mask.only is None:
        masked |= set(query_rows)
    else:
        only = np.unique(np.array([named[id] for id in mask.only], dtype=np.int64))
        rows = only if rows is None else np.intersect1d(rows, only)
    if not masked:
        return rows
    if rows is None:
        rows = store.matching(compile_filter({}))
    return np.setdiff1d(rows, np.fromiter(masked, dtype=np.int64))


def _exchange(one: Path, other: Path) -> None:
    """Let two folders change their names in one step, where the system can do that."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is not None:
        paths = (os.fsencode(one), HERE, os.fsencode(other))
        if rename(HERE, *paths, EXCHANGE) == 0:
            return
        error = ctypes.get_errno()
        if error not in CANNOT_EXCHANGE:
            raise OSError(error, os.strerror(error), str(one), None, str(other))
    # Elsewhere a name is missing for a moment; the third name says what is to be done if the
    # process is killed in it.
    beside = one.with_name(f"{one.name}.{other.name}")
    one.rename(beside)
    try:
        other.rename(one)
    finally:
        _finish_exchange(beside)


def _finish_exchange(beside: Path) -> None:
    """Rename the folder that an exchange left beside the two names: to the one that is free."""
    for name in beside.name.split("."):
        if not beside.with_name(name).exists():
            beside.rename(beside.with_name(name))
            return


def _sweep(folder: Path) -> None:
    """Remove what killed creations and deletions left behind, and go on with killed restores.

    A dropped folder is nobody's, whoever drops it; one that is being made may be another
    process's, and is left alone until it is old.
    """
    for path in (folder / "collections").glob("*.*"):
        if path.name.count(".") == 1 and (path / "documents.db").exists():
            _finish_exchange(path)
    made_before = time.time() - MAKING_SECONDS
    for path in folder.glob("*-*"):
        results = LEFT_BEHIND.fullmatch(path.name)
        if results and path.is_dir() and not path.is_symlink():
            if results[1] == "making" and path.stat().st_mtime > made_before:
                continue
            if results[1] == "restored" and not _moved(path / "collections", folder):
                continue
            shutil.rmtree(path, ignore_errors=True)


def _moved(restored: Path, folder: Path) -> bool:
    """Move what a killed restore has not moved yet: all of it was checked."""
    try:
        for path in sorted(restored.glob("*"), key=Path.is_symlink):  # an alias at the end
            if not os.path.lexists(folder / "collections" / path.name):
                path.rename(folder / "collections" / path.name)
    except OSError:  # another process goes on with it, or the next opening does
        return False
    return True
