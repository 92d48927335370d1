"""A library: collections by name, wherever an engine keeps them, and the encoders they share."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attend import encoder as encoders
from attend.api.answers import AcrossAnswer
from attend.api.base import DEFAULT_COLLECTION, NAME_PATTERN, parse
from attend.api.documents import CollectionSettings
from attend.api.search import AcrossRequest
from attend.collection import Collection
from attend.encoder import CachedEncoder, EmbeddingCache, Encoder
from attend.engines import SCHEME, engine_of
from attend.engines.engine import Capabilities, name_taken
from attend.errors import (
    CollectionExists,
    Conflict,
    EncoderMismatch,
    InvalidRequest,
    ReadOnly,
    UnknownCollection,
    Unsupported,
)
from attend.search.several import merged_answer
from attend.settings import Settings
from attend.values import parse_type

__all__ = ["DEFAULT_COLLECTION", "Data"]


class Data:
    """Collections in a folder or on a server, and the encoders that they share.

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
            cache_bytes: memory for a cache of query embeddings.
            read_only: write nothing, not even an index; the folder may be write-protected. Writes
                of other processes are seen.
            engine: the address of an engine that keeps the collections, where `folder` keeps only
                the access keys and jobs of this process.

        Raises:
            InvalidRequest: a wrong address, or a package that it needs is not installed.
            Unavailable: no server answers there.
        """
        self.read_only = read_only
        self.embeddings = EmbeddingCache(cache_bytes)
        self._folder = None if str(folder).startswith(SCHEME) else Path(folder)
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
        """The folder of the library; of one on a server, the folder of this process.

        Raises:
            Unsupported: it was opened by its address alone.
        """
        if self._folder is None:
            raise Unsupported(
                f"A library of the engine {self.capabilities.engine} that is opened by its address "
                f"alone has no folder; name one with --data as well."
            )
        return self._folder

    @property
    def capabilities(self) -> Capabilities:
        """The features of the engine."""
        return self._engine.capabilities

    def names(self) -> list[str]:
        """Return the names of the collections, without aliases, in alphabetical order."""
        return self._engine.names()

    def collection(self, name: str = DEFAULT_COLLECTION) -> Collection:
        """Return an existing collection, by its name or an alias.

        Raises:
            UnknownCollection: no collection has this name; the sentence names the others.
        """
        alias, name = name, self.resolve(name)
        identity = self._engine.identity(name)
        if identity is None:
            raise self._unknown(name, alias)
        with self._lock:
            opened = self._open.get(name)
            # Another process may have dropped the collection and made one of the same name.
            if opened is None or opened[0] != identity:
                opened = identity, Collection(name, self._engine.open(name), self.encoder)
                self._open[name] = opened
            return opened[1]

    def create(self, name: str = DEFAULT_COLLECTION, **settings: Any) -> Collection:
        """Create a collection, or return an existing one of the same settings.

        Raises:
            InvalidRequest: a name or a setting that is not allowed.
            CollectionExists: a collection with other settings, or an alias, has this name.
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
        full = self._settings(parse(CollectionSettings, settings))  # may load an encoder
        with self._lock:
            if self._engine.identity(name) is None:
                self._engine.make(name, full)
            collection = self.collection(name)
        has = collection.settings
        if full.normalize is None:  # left to the first write, which may have been
            full = replace(full, normalize=has.normalize)
        if has != full:
            raise _differs(name, has, full)
        return collection

    def ensure(self, name: str = DEFAULT_COLLECTION, **settings: Any) -> Collection:
        """Return an existing collection, which must have the settings named, or create one.

        Raises:
            EncoderMismatch: it was built with another encoder than the one named.
            CollectionExists: it was made with another of the settings named.
        """
        name = self.resolve(name)
        if name not in self.names():
            return self.create(name, **settings)
        collection = self.collection(name)
        has = collection.settings
        full = self._settings(parse(CollectionSettings, settings)) if settings else has
        if "encoder" in settings and has.encoder != full.encoder:
            raise EncoderMismatch(
                f"The collection {name!r} was built with the encoder {has.encoder!r}, not "
                f"{full.encoder!r}. Use that one, or build another collection."
            )
        agreed = replace(has, **{field: getattr(full, field) for field in settings})
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
        """Raise Conflict for an alias, and for a collection that has one."""
        leads_to = self._aliases.target(name)
        if leads_to is not None:
            raise Conflict(
                f"{name!r} is an alias of the collection {leads_to!r}. Delete the alias, or name "
                f"the collection itself.",
                field="collection",
            )
        aliases = [alias for alias, target in self.aliases().items() if target == name]
        if aliases:
            raise Conflict(
                f"The collection {name!r} is the target of {', '.join(aliases)}. Point the "
                f"alias at another collection or delete it, then delete this one.",
                field="collection",
            )

    def search(self, query: Any, collections: Sequence[str], **options: Any) -> AcrossAnswer:
        """Search several collections; see `attend.search.several` for what merging means.

        Args:
            query, options: as `Collection.search` takes them.
            collections: names or aliases.
        """
        request = parse(AcrossRequest, {"query": query, "collections": collections, **options})
        return self.search_across(request)

    def search_across(self, request: AcrossRequest) -> AcrossAnswer:
        """Search several collections by a request that is validated already."""
        started = time.perf_counter()
        opened = [self.collection(name) for name in request.collections]
        by_name = {collection.name: collection for collection in opened}  # aliases may repeat
        one = request.of_each()
        answers = {name: collection.answer([one])[0] for name, collection in by_name.items()}
        settings = {name: collection.settings for name, collection in by_name.items()}
        return merged_answer(answers, settings, request, started)

    # -- aliases ----------------------------------------------------------------------------

    def aliases(self) -> dict[str, str]:
        """Return the collection of each alias, in alphabetical order."""
        return self._aliases.all()

    def resolve(self, name: str) -> str:
        """Return the collection that a name stands for, whether it exists or not."""
        check_name(name)
        return self._aliases.target(name) or name

    def set_alias(self, alias: str, collection: str) -> bool:
        """Let an alias stand for a collection, from the next request on and in every process.

        Returns: whether the alias is new.

        Raises:
            UnknownCollection: no such collection exists.
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
            UnknownAlias: no alias has this name.
        """
        self.check_writable()
        check_name(alias)
        self._aliases.remove(alias)

    def check_writable(self) -> None:
        """Raise ReadOnly where the folder was opened to be read only."""
        if self.read_only:
            raise ReadOnly(
                f"{self._folder or 'The library'} was opened to be read only, and nothing was "
                f"changed. Open it without --read-only to write to it."
            )

    def encoder(self, name: str) -> Encoder:
        """Return an encoder by name or folder; it is loaded once, however its folder is written."""
        name = encoders.canonical_name(name)
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

    def _settings(self, request: CollectionSettings) -> Settings:
        plain = request.model_dump(exclude={"encoder", "dimension"})
        if request.values is not None:
            parse_type(request.values, field="values")
        if request.dimension is not None:
            return Settings(encoder=None, dimension=request.dimension, **plain)
        plain["normalize"] = bool(request.normalize)
        encoder = self.encoder(request.encoder or encoders.DEFAULT)
        if request.overlap is not None:
            encoder.passages([], request.overlap)  # refuses one that leaves a passage nothing new
        return Settings(encoder=encoder.name, dimension=encoder.dimension, **plain)

    def _unknown(self, name: str, alias: str) -> UnknownCollection:
        if alias != name:
            return UnknownCollection(
                f"The alias {alias!r} leads to the collection {name!r}, which is not there; point "
                f"it at another with PUT /v1/aliases/{alias}.",
                field="collection",
            )
        names = ", ".join(self.names()) or "none yet"
        return UnknownCollection(
            f"There is no collection {name!r}; there are: {names}. Build one with "
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


def _differs(name: str, has: Settings, other: Settings) -> CollectionExists:
    stored: Mapping[str, Any] = has.stored()
    differences = [
        f"{field} is {stored[field]!r}, not {value!r}"
        for field, value in other.stored().items()
        if stored[field] != value
    ]
    return CollectionExists(
        f"The collection {name!r} exists with other settings: {'; '.join(differences)}. "
        f"Use those, or another name.",
        field="collection",
    )
