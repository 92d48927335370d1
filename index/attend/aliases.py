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
        """The collection of each alias, in alphabetical order."""
        try:
            links = sorted(each.name for each in os.scandir(self._names) if each.is_symlink())
        except FileNotFoundError:
            return {}
        found = {name: self.target(name) for name in links}
        return {name: target for name, target in found.items() if target is not None}

    def target(self, name: str) -> str | None:
        """The collection that an alias leads to, there or not; None where it is no alias.

        A link to another place is no alias, but a collection that somebody keeps there.
        """
        try:
            found = os.readlink(os.path.join(self._names, name))  # as each search asks
        except OSError:
            return None
        return found if re.fullmatch(NAME_PATTERN, found) else None

    def put(self, name: str, collection: str) -> bool:
        """Let an alias lead to a collection from now on. Returns whether the alias is new.

        Raises:
            CollectionExists: a collection has this name.
            LimitExceeded: there are too many.
        """
        before = self.all()
        if name not in before and len(before) >= MAX_ALIASES:
            raise LimitExceeded(
                f"There are {len(before)} aliases, and at most {MAX_ALIASES} are kept; delete one."
            )
        # Made where a killed process's leftovers are swept up, then renamed.
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
        """Let an alias go; its collection stays.

        Raises:
            UnknownAlias: there is none of this name.
        """
        if self.target(name) is None:
            raise UnknownAlias(
                f"There is no alias {name!r}; make one with PUT /v1/aliases/{name}.", field="alias"
            )
        (self._names / name).unlink(missing_ok=True)
        self._sync()

    def _sync(self) -> None:
        """What was answered is there after a power cut."""
        descriptor = os.open(self._names, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def name_taken(name: str) -> CollectionExists:
    """A collection and an alias cannot share a name."""
    return CollectionExists(
        f"There is a collection {name!r}, and an alias cannot have its name; choose another.",
        field="alias",
    )
