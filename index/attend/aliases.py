"""Aliases: other names of collections, switched in one step while searches run.

An alias is a symbolic link beside the collections, `collections/ALIAS -> COLLECTION`: so the file
system itself keeps a name from being both, in every process; a rename switches it; and a restart
finds it.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from attend.api.base import NAME_PATTERN
from attend.errors import CollectionExists, LimitExceeded, UnknownAlias

MAX_ALIASES = 1000


class Aliases:
    """The aliases of one data folder.

    Args:
        folder: the data folder.
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
        making.mkdir()
        try:
            link = making / "alias"
            link.symlink_to(collection)
            link.rename(self._names / name)
        except IsADirectoryError:
            link.unlink()
            raise name_taken(name) from None
        finally:
            making.rmdir()
        self._sync()
        return name not in before

    def remove(self, name: str) -> None:
        """Remove an alias; its collection stays.

        Raises:
            UnknownAlias: no alias has this name.
        """
        if self.target(name) is None:
            raise UnknownAlias(
                f"There is no alias {name!r}; make one with PUT /v1/aliases/{name}.", field="alias"
            )
        (self._names / name).unlink(missing_ok=True)
        self._sync()

    def _sync(self) -> None:
        """Keep what was answered through a power cut."""
        descriptor = os.open(self._names, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def name_taken(name: str) -> CollectionExists:
    """Return the error for a name that a collection has."""
    return CollectionExists(
        f"There is a collection {name!r}, and an alias cannot have its name; choose another.",
        field="alias",
    )
