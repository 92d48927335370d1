"""A library: collections by name, wherever an engine keeps them, and the encoders they share."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attend import encoder as encoders
from attend.aliases import name_taken
from attend.api.answers import AcrossAnswer
from attend.api.base import DEFAULT_COLLECTION, NAME_PATTERN, parse
from attend.api.documents import CollectionSettings
from attend.api.search import AcrossRequest
from attend.collection import Collection
from attend.encoder import CachedEncoder, EmbeddingCache, Encoder
from attend.engines import SCHEME, engine_of
from attend.engines.engine import Capabilities
from attend.errors import (
    CollectionExists,
    Conflict,
    EncoderMismatch,
    InvalidRequest,
    ReadOnly,
    UnknownCollection,
    Unsupported,
)
from attend.search.across import search_across
from attend.settings import Settings
from attend.values import parse_type

__all__ = ["DEFAULT_COLLECTION", "Data"]


class Data:
    """The collections in a folder or on a server, and the encoders that they share.

    >>> data = Data("library")  # doctest: +SKIP
    >>> books = data.create("books")  # doctest: +SKIP
    >>> books.upsert([{"id": "1", "text": "A whale, hunted.", "value": 4.2}])  # doctest: +SKIP
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        load_encoder: Callable[[str], Encoder] | None = None,
        cache_bytes: int = 0,
        read_only: bool = False,
        engine: str | None = None,
    ) -> None:
        """
        Args:
            folder: a data folder, or the address of another engine, `milvus://HOST:PORT/LIBRARY`.
            cache_bytes: what embeddings of queries may take in memory, to be used again.
            read_only: write nothing, not even an index; the folder may be one that cannot be
                written to. What others write is seen all the same.
            engine: the address of an engine that keeps the collections, where `folder` is to keep
                what is this process's own: keys of access and jobs.

        Raises:
            InvalidRequest: an address that is none, or what it needs is not installed.
            Unavailable: no server answers there.
        """
        self.read_only = read_only
        self.embeddings = EmbeddingCache(cache_bytes)
        self._own = None if str(folder).startswith(SCHEME) else Path(folder)
        self._engine = engine_of(engine or folder, read_only=read_only)
        self._load = load_encoder or encoders.load
        self._encoders: dict[str, Encoder] = {}
        self._open: dict[str, tuple[object, Collection]] = {}
        self._aliases = self._engine.aliases
        self._lock = threading.RLock()
        # A lock of its own: loading takes seconds, and vectors need no encoder.
        self._loading = threading.Lock()

    @property
    def folder(self) -> Path:
        """Of this library's files; of one on a server, of what is this process's own.

        Raises:
            Unsupported: it was opened by its address alone.
        """
        if self._own is None:
            raise Unsupported(
                f"A library of the engine {self.capabilities.engine} that is opened by its address "
                f"alone has no folder; name one with --data as well."
            )
        return self._own

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""
        return self._engine.capabilities

    def names(self) -> list[str]:
        """The collections there are, without their aliases, in alphabetical order."""
        return self._engine.names()

    def collection(self, name: str = DEFAULT_COLLECTION) -> Collection:
        """An existing collection, by its name or an alias.

        Raises:
            UnknownCollection: there is none of this name; the sentence names those there are.
        """
        given, name = name, self.resolve(name)
        identity = self._engine.identity(name)
        if identity is None:
            raise self._unknown(name, given)
        with self._lock:
            opened = self._open.get(name)
            # Another process may have dropped the collection and made one of the same name.
            if opened is None or opened[0] != identity:
                opened = identity, Collection(name, self._engine.open(name), self.encoder)
                self._open[name] = opened
            return opened[1]

    def create(self, name: str = DEFAULT_COLLECTION, **settings: Any) -> Collection:
        """A new collection; an existing one of the same settings is returned as it is.

        Raises:
            InvalidRequest: a name or a setting that is not allowed.
            CollectionExists: there is one of this name, made with other settings, or an alias.
            EncoderError: the encoder cannot be loaded.
        """
        check_name(name)
        leads_to = self._aliases.target(name)
        if leads_to is not None:
            raise CollectionExists(
                f"{name!r} is an alias of the collection {leads_to!r}, and no collection can have "
                f"its name; choose another, or delete the alias.",
                field="collection",
            )
        self.check_writable()
        wanted = self._settings(parse(CollectionSettings, settings))  # may load an encoder
        with self._lock:
            if self._engine.identity(name) is None:
                self._engine.make(name, wanted)
            collection = self.collection(name)
        if collection.settings != wanted:
            raise _differs(name, collection.settings, wanted)
        return collection

    def ensure(self, name: str = DEFAULT_COLLECTION, **settings: Any) -> Collection:
        """An existing collection, which must agree with the settings named; else a new one.

        Raises:
            EncoderMismatch: it was built with another encoder than the one named.
            CollectionExists: it was made with another of the settings named.
        """
        name = self.resolve(name)
        if name not in self.names():
            return self.create(name, **settings)
        collection = self.collection(name)
        has = collection.settings
        wanted = self._settings(parse(CollectionSettings, settings)) if settings else has
        if "encoder" in settings and has.encoder != wanted.encoder:
            raise EncoderMismatch(
                f"The collection {name!r} was built with the encoder {has.encoder!r}, not "
                f"{wanted.encoder!r}. Use that one, or build another collection."
            )
        agreed = replace(has, **{field: getattr(wanted, field) for field in settings})
        if agreed != has:
            raise _differs(name, has, agreed)
        return collection

    def drop(self, name: str) -> None:
        """Delete a collection with everything in it.

        Raises:
            Conflict: the name is an alias, or the collection has one.
        """
        self.check_writable()
        with self._lock:
            self.collection(name)
            self.check_droppable(name)
            self._open.pop(name, None)
            self._engine.drop(name)

    def check_droppable(self, name: str) -> None:
        """Raises Conflict for an alias, and for a collection that has one."""
        leads_to = self._aliases.target(name)
        if leads_to is not None:
            raise Conflict(
                f"{name!r} is an alias of the collection {leads_to!r}. Delete the alias, or name "
                f"the collection itself.",
                field="collection",
            )
        own = [alias for alias, target in self.aliases().items() if target == name]
        if own:
            raise Conflict(
                f"The collection {name!r} is what {', '.join(own)} stands for. Point the alias at "
                f"another collection or delete it, then delete this one.",
                field="collection",
            )

    def search(self, query: Any, collections: Sequence[str], **options: Any) -> AcrossAnswer:
        """Ask several collections the same; see `attend.search.across` for what merging means.

        Args:
            query, options: as `Collection.search` takes them.
            collections: names or aliases.
        """
        request = parse(AcrossRequest, {"query": query, "collections": collections, **options})
        return self.search_across(request)

    def search_across(self, request: AcrossRequest) -> AcrossAnswer:
        """The same, of a request that was checked."""
        return search_across([self.collection(name) for name in request.collections], request)

    # -- aliases ----------------------------------------------------------------------------

    def aliases(self) -> dict[str, str]:
        """The collection of each alias, in alphabetical order."""
        return self._aliases.all()

    def resolve(self, name: str) -> str:
        """The collection that a name stands for, whether it is there or not."""
        check_name(name)
        return self._aliases.target(name) or name

    def set_alias(self, alias: str, collection: str) -> bool:
        """Let an alias stand for a collection, from the next request on and in every process.

        Returns: whether the alias is new.

        Raises:
            UnknownCollection: there is no such collection.
            CollectionExists: the alias is the name of a collection.
            InvalidRequest: an alias of an alias, or a name that is not allowed.
        """
        self.check_writable()
        check_name(alias)
        leads_to = self._aliases.target(collection)
        if leads_to is not None:
            raise InvalidRequest(
                f"{collection!r} is an alias itself, of {leads_to!r}; name the collection.",
                field="collection",
            )
        self.collection(collection)
        if self._engine.identity(alias) is not None and self._aliases.target(alias) is None:
            raise name_taken(alias)
        return self._aliases.put(alias, collection)

    def drop_alias(self, alias: str) -> None:
        """Delete an alias; its collection stays.

        Raises:
            UnknownAlias: there is none of this name.
        """
        self.check_writable()
        check_name(alias)
        self._aliases.remove(alias)

    def check_writable(self) -> None:
        """Raises ReadOnly where the folder was opened to be read only."""
        if self.read_only:
            raise ReadOnly(
                f"{self._own or 'The library'} was opened to be read only, and nothing was "
                f"changed. Open it without --read-only to write to it."
            )

    def encoder(self, name: str) -> Encoder:
        """An encoder by name or folder, loaded once."""
        with self._loading:
            if name not in self._encoders:
                loaded = self._load(name)
                cached = self.embeddings.limit > 0
                self._encoders[name] = CachedEncoder(loaded, self.embeddings) if cached else loaded
            return self._encoders[name]

    def close(self) -> None:
        with self._lock:
            for _, collection in self._open.values():
                collection.close()
            self._open.clear()
        self._engine.close()

    def _settings(self, given: CollectionSettings) -> Settings:
        plain = given.model_dump(exclude={"encoder", "dimension"})
        if given.values is not None:
            parse_type(given.values, field="values")
        if given.dimension is not None:
            return Settings(encoder=None, dimension=given.dimension, **plain)
        encoder = self.encoder(given.encoder or encoders.DEFAULT)
        if given.overlap is not None:
            encoder.passages([], given.overlap)  # refuses one that leaves a passage nothing new
        return Settings(encoder=encoder.name, dimension=encoder.dimension, **plain)

    def _unknown(self, name: str, given: str) -> UnknownCollection:
        if given != name:
            return UnknownCollection(
                f"The alias {given!r} leads to the collection {name!r}, which is not there; point "
                f"it at another with PUT /v1/aliases/{given}.",
                field="collection",
            )
        known = ", ".join(self.names()) or "none yet"
        return UnknownCollection(
            f"There is no collection {name!r}; there are: {known}. Build one with "
            f"'attend build', or make one with PUT /v1/collections/{name}.",
            field="collection",
        )


def check_name(name: str) -> None:
    """Raises InvalidRequest for what is no name of a collection."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise InvalidRequest(
            f"{name[:80]!r} is no collection name: up to 63 letters, digits, - and _, not "
            f"beginning with -.",
            field="collection",
        )


def _differs(name: str, has: Settings, wanted: Settings) -> CollectionExists:
    stored: Mapping[str, Any] = has.stored()
    differences = [
        f"{field} is {stored[field]!r}, not {value!r}"
        for field, value in wanted.stored().items()
        if stored[field] != value
    ]
    return CollectionExists(
        f"The collection {name!r} exists with other settings: {'; '.join(differences)}. "
        f"Use those, or another name.",
        field="collection",
    )
