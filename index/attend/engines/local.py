"""The default engine: a folder of collections, each in a folder of its own.

```
DIR/collections/NAME/documents.db    the truth
DIR/collections/NAME/keys/           published indexes, which can be built again
DIR/collections/ALIAS -> NAME        another name of a collection
```
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from pathlib import Path

import numpy as np

from attend.aliases import Aliases
from attend.api.search import Mask, SearchOptions
from attend.engines.engine import Capabilities, OpenedCollection
from attend.engines.local_checks import LocalChecks
from attend.projection import identity
from attend.search.queries import rows_by_id
from attend.settings import Settings
from attend.store import Store, compile_filter
from attend.types import Int64
from attend.versions import Selected
from attend.views import Views

LEFT_BEHIND = re.compile(r"(making|dropped)-[0-9a-f]{16}")
"""Folders on their way to a collection, or from one: there for a moment, unless it was killed."""

MAKING_SECONDS = 3600.0
"""After which nobody can still be making a collection, which takes a fraction of one second."""

CAPABILITIES = Capabilities("local")


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
        """The collections, without aliases, in alphabetical order."""
        results = (self.folder / "collections").glob("*/documents.db")
        names = (path.parent.name for path in results)
        return sorted(name for name in names if self.aliases.target(name) is None)

    def identity(self, name: str) -> object | None:
        """The database's inode: another process may have dropped it and made one of the name."""
        try:
            # As each search asks.
            return os.stat(os.path.join(self._of(name), "documents.db")).st_ino
        except FileNotFoundError:
            return None

    def open(self, name: str) -> OpenedCollection:
        folder = self._of(name)
        store = Store(folder / "documents.db", read_only=self._read_only)
        settings = Settings.of(store.settings())
        views = Views(store, folder / "keys", settings)
        checks = LocalChecks(store, views, settings)
        return OpenedCollection(
            folder, settings, store, views, LocalSelection(store, views), CAPABILITIES, checks
        )

    def make(self, name: str, settings: Settings) -> None:
        """Make the folder under another name first: a killed creation leaves nothing behind."""
        folder = self._of(name)
        if (folder / "documents.db").exists():
            return
        making = self.folder / f"making-{secrets.token_hex(8)}"
        making.mkdir(parents=True)
        cosine_of_raw = settings.scorer == "cosine" and not settings.unit_embeddings
        projection = identity(settings.dimension, normalize=cosine_of_raw)
        store = Store(making / "documents.db")
        store.initialise(
            settings.stored(), (projection.kind, projection.to_bytes(), projection.fingerprint)
        )
        store.close()
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists() and not (folder / "documents.db").exists():
            shutil.rmtree(folder)  # indexes without their database are of no use
        try:
            making.rename(folder)
        except OSError:
            shutil.rmtree(making, ignore_errors=True)
            if not (folder / "documents.db").exists():
                raise

    def drop(self, name: str) -> None:
        """The folder is renamed first: a killed deletion leaves no half a collection."""
        doomed = self.folder / f"dropped-{secrets.token_hex(8)}"
        self._of(name).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def close(self) -> None:
        """Nothing is held open."""

    def _of(self, name: str) -> Path:
        return self.folder / "collections" / name


class LocalSelection:
    """Selects documents by their rows, from a filter and a mask."""

    def __init__(self, store: Store, views: Views) -> None:
        self._store = store
        self._views = views

    def __call__(self, options: SearchOptions, made_of: tuple[int, ...]) -> Selected:
        view = self._views.current(options.projection)
        return Selected(view, self._rows(options, made_of), self._store)

    def _rows(self, options: SearchOptions, made_of: tuple[int, ...]) -> Int64 | None:
        """Return the rows that filter and mask let pass, ascending; None for all."""
        if not (options.filter or options.mask or made_of):
            return None
        mask, rows = options.mask or Mask(), None
        if options.filter:
            rows = self._store.matching(compile_filter(options.filter))
        named = rows_by_id(self._store, [*mask.exclude, *(mask.only or [])], "mask")
        masked = {named[id] for id in mask.exclude}
        if mask.only is None:
            masked |= set(made_of)
        else:
            only = np.unique(np.array([named[id] for id in mask.only], dtype=np.int64))
            rows = only if rows is None else np.intersect1d(rows, only)
        if not masked:
            return rows
        if rows is None:
            rows = self._store.matching(compile_filter({}))
        return np.setdiff1d(rows, np.fromiter(masked, dtype=np.int64))


def _sweep(folder: Path) -> None:
    """Remove what killed creations and deletions left behind.

    A dropped folder is nobody's, whoever drops it; one that is being made may be another
    process's, and is left alone until it is old.
    """
    made_before = time.time() - MAKING_SECONDS
    for path in folder.glob("*-*"):
        results = LEFT_BEHIND.fullmatch(path.name)
        if results and path.is_dir() and not path.is_symlink():
            if results[1] == "making" and path.stat().st_mtime > made_before:
                continue
            shutil.rmtree(path, ignore_errors=True)
