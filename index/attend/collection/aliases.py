"""Names of collections: their own, and aliases that can be pointed at another."""

from __future__ import annotations

import re
from pathlib import Path

from attend.api.base import NAME_PATTERN
from attend.core.errors import InvalidRequest, ReadOnly, UnknownCollection
from attend.engines.engine import Engine, name_taken


class AliasedCollections:
    """The names of a library.

    Attributes:
        read_only: true if nothing may be written.
    """

    _folder: Path | None

    def __init__(self, engine: Engine, read_only: bool) -> None:
        self.read_only = read_only
        self._engine = engine
        self._aliases = engine.aliases

    def names(self) -> list[str]:
        """Return the names of the collections, without aliases, in alphabetical order.

        >>> library.names()
        ['books']
        """
        return self._engine.names()

    def aliases(self) -> dict[str, str]:
        """Return the collection of each alias, in alphabetical order.

        >>> library.set_alias("latest", "books")
        True
        >>> library.aliases()
        {'latest': 'books'}
        """
        return self._aliases.all()

    def resolve(self, name: str) -> str:
        """Return the collection that a name stands for, whether it exists or not.

        >>> library.resolve("books")
        'books'
        """
        check_name(name)
        return self._aliases.target(name) or name

    def set_alias(self, alias: str, collection: str) -> bool:
        """Let an alias stand for a collection, from the next request on and in every process.

        Returns: whether the alias is new.

        Raises:
            UnknownCollection: no such collection exists.
            CollectionExists: the alias is the name of a collection.
            InvalidRequest: an alias of an alias, or a name that is not allowed.

        >>> library.set_alias("latest", "books")
        True
        >>> library.collection("latest").name
        'books'
        """
        self._check_writable()
        check_name(alias)
        leads_to = self._aliases.target(collection)
        if leads_to is not None:
            raise InvalidRequest(
                f"{collection!r} is an alias itself, of {leads_to!r}; name the collection.",
                field="collection",
            )
        if self._engine.identity(collection) is None:
            raise self._unknown(collection, collection)
        if self._engine.identity(alias) is not None and self._aliases.target(alias) is None:
            raise name_taken(alias)
        return self._aliases.put(alias, collection)

    def drop_alias(self, alias: str) -> None:
        """Delete an alias; its collection stays.

        Raises:
            UnknownAlias: no alias has this name.

        >>> library.set_alias("latest", "books")
        True
        >>> library.drop_alias("latest")
        """
        self._check_writable()
        check_name(alias)
        self._aliases.remove(alias)

    def _check_writable(self) -> None:
        """Raise ReadOnly where the folder was opened to be read only."""
        if self.read_only:
            raise ReadOnly(
                f"{self._folder or 'The library'} was opened to be read only, and nothing was "
                f"changed. Open it without --read-only to write to it."
            )

    def _unknown(self, name: str, alias: str) -> UnknownCollection:
        if alias != name:
            return UnknownCollection(
                f"The alias {alias!r} leads to the collection {name!r}, which does not exist. "
                f"Point the alias at another collection, or delete it.",
                field="collection",
            )
        names = self.names()
        others = f"the collections are {', '.join(names)}" if names else "no collections exist yet"
        return UnknownCollection(f"There is no collection {name!r}; {others}.", field="collection")


def check_name(name: str) -> None:
    """Raises InvalidRequest for what is no name of a collection."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise InvalidRequest(
            f"{name[:80]!r} is no collection name: up to 63 letters, digits, - and _, not "
            f"beginning with -.",
            field="collection",
        )
