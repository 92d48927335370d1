"""A library: collections by name, wherever an engine keeps them, and the encoders they share."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from attend import encoder as encoders
from attend.api.answers import AcrossAnswer
from attend.api.base import DEFAULT_COLLECTION, check_name, keywords_of, parse
from attend.api.documents import CollectionSettings
from attend.api.search import AcrossRequest, SearchRequest
from attend.collection.collection import Collection
from attend.core.deadline import SlowLock
from attend.core.errors import (
    CollectionExists,
    Conflict,
    EncoderMismatch,
    InvalidRequest,
    LimitExceeded,
    ReadOnly,
    UnknownAlias,
    UnknownCollection,
    Unsupported,
)
from attend.core.settings import LATER, Settings
from attend.core.types import Json
from attend.encoder import CachedEncoder, EmbeddingCache, Encoder
from attend.engines.engine import Capabilities, Engine, name_taken
from attend.engines.local import Folder
from attend.search.across import merged_answer
from attend.values.kinds import parse_type

if TYPE_CHECKING:
    from attend.api.keywords import CollectionKeywords, SearchKeywords

__all__ = ["DEFAULT_COLLECTION", "Data"]

RETIRED_SECONDS = 60.0
"""After which nobody searches any more in a collection that another one took the place of."""


MAX_ALIASES = 1000

GROUP = "attend.engines"
"""The group of entry points that name engines."""

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/", re.IGNORECASE)
"""One slash: a path has lost the second."""


class Data:
    """Collections in a folder or on a server, and the encoders that they share.

    Attributes:
        read_only: true if nothing may be written.

    >>> library.names()
    ['books']
    >>> poems = library.create("poems", dimension=2)
    >>> poems.upsert([{"id": "ode", "vector": [0.5, 0.5]}]).added
    1
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        load_encoder: Callable[[str], Encoder] | None = None,
        cache_bytes: int = 0,
        read_only: bool = False,
        engine: str | None = None,
        precision: encoders.Precision = "auto",
    ) -> None:
        """
        Args:
            folder: a data folder, or the address of another engine, `milvus://HOST:PORT/LIBRARY`.
            cache_bytes: memory for a cache of query embeddings.
            read_only: write nothing, not even an index; the folder may be write-protected. Writes
                of other processes are seen.
            engine: the address of an engine that keeps the collections, where `folder` keeps only
                the access keys and jobs of this process.
            precision: what encoders compute in; auto takes what is fastest on this processor.

        Raises:
            InvalidRequest: a wrong address, or a package that it needs is not installed.
            Unavailable: no server answers there.
        """
        self.embeddings = EmbeddingCache(cache_bytes)
        self._folder = None if is_address(folder) else Path(folder)
        self.read_only = read_only
        self._engine = engine_of(engine or folder, read_only=read_only)
        self._aliases = self._engine.aliases
        self._record = None if self._folder is None else self._folder / encoders.RECORD
        self._load = load_encoder or partial(
            encoders.load, precision=precision, record=self._record, keep=not read_only
        )
        # Both are read under no lock: nobody waits while others open something else.
        self._encoders: dict[str, Encoder] = {}
        self._open: dict[str, tuple[object, Collection]] = {}
        self._opening: dict[str, SlowLock] = {}
        self._retired: list[threading.Timer] = []
        self._loading = SlowLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        """The folder of the library; of one on a server, the folder of this process.

        Raises:
            Unsupported: it was opened by its address alone.

        >>> library.folder.is_dir()
        True
        """
        if self._folder is None:
            raise Unsupported(
                f"A library of the engine {self.capabilities.engine} that is opened by its address "
                f"alone has no folder; name one with --data as well."
            )
        return self._folder

    @property
    def capabilities(self) -> Capabilities:
        """The features of the engine.

        >>> library.capabilities.engine
        'local'
        """
        return self._engine.capabilities

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
            LimitExceeded: too many aliases.
            InvalidRequest: an alias of an alias, or a name that is not allowed.

        >>> library.set_alias("latest", "books")
        True
        >>> library.collection("latest").name
        'books'
        """
        self.check_writable()
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
        before = self.aliases()
        if alias not in before and len(before) >= MAX_ALIASES:
            raise LimitExceeded(
                f"There are {len(before)} aliases, and at most {MAX_ALIASES} are allowed; "
                f"delete one."
            )
        self._aliases.put(alias, collection)
        return alias not in before

    def drop_alias(self, alias: str) -> None:
        """Delete an alias; its collection stays.

        Raises:
            UnknownAlias: no alias has this name.

        >>> library.set_alias("latest", "books")
        True
        >>> library.drop_alias("latest")
        """
        self.check_writable()
        check_name(alias)
        if not self._aliases.remove(alias):
            raise UnknownAlias(
                f"There is no alias {alias!r}. List the aliases to see their names.", field="alias"
            )

    def collection(self, name: str = DEFAULT_COLLECTION) -> Collection:
        """Return an existing collection, by its name or an alias.

        Raises:
            UnknownCollection: no collection has this name; the sentence names the others.
            Opening: another thread opens it, and this one has a deadline.

        >>> library.collection("books").name
        'books'
        """
        alias, name = name, self.resolve(name)
        identity = self._engine.identity(name)
        if identity is None:
            raise self._unknown(name, alias)
        opened = self._open.get(name)
        if opened is not None and opened[0] == identity:
            return opened[1]
        with self._opening_of(name):
            outdated = self._open.get(name)
            # Another process may have dropped the collection and made one of the same name.
            if outdated is not None and outdated[0] == identity:
                return outdated[1]
            collection = Collection(name, self._engine.open(name), self.encoder)
            self._open[name] = identity, collection
        if outdated is not None:  # searches in it end as they began
            closing = threading.Timer(RETIRED_SECONDS, outdated[1].close)
            closing.daemon = True
            self._retired = [*filter(threading.Timer.is_alive, self._retired), closing]
            closing.start()
        return collection

    @keywords_of(CollectionSettings)
    def create(
        self, name: str = DEFAULT_COLLECTION, **settings: Unpack[CollectionKeywords]
    ) -> Collection:
        """Create a collection, or return an existing one of the same settings.

        Args:
            settings: the fields of `attend.api.documents.CollectionSettings`, which describes
                them: an `encoder` by name or folder (the packaged model if absent), or the
                `dimension` of vectors that documents bring; `normalize`, `values`, `recall`.

        Raises:
            InvalidRequest: a name or a setting that is not allowed.
            CollectionExists: a collection with other settings, or an alias, has this name.
            EncoderError: the encoder cannot be loaded.

        >>> library.create("poems", dimension=2).info().documents
        0
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
        if full.log:
            self._engine.capabilities.check("log", field="log")
        with self._opening_of(name):
            if self._engine.identity(name) is None:
                self._engine.make(name, full)
            collection = self.collection(name)
        collection.views.refresh()
        has = collection.settings
        unnamed = {
            field: getattr(has, field) for field in LATER if field.startswith(("log", "interleave"))
        }
        unnamed = {field: value for field, value in unnamed.items() if field not in settings}
        full = replace(full, value_name=has.value_name, **unnamed)  # no setting of a caller's
        if full.normalize is None:  # left to the first write, which may have been
            full = replace(full, normalize=has.normalize)
        if full.about is None:
            full = replace(full, about=has.about)
        if has != full:
            raise _differs(name, has, full)
        return collection

    @keywords_of(CollectionSettings)
    def ensure(
        self, name: str = DEFAULT_COLLECTION, **settings: Unpack[CollectionKeywords]
    ) -> Collection:
        """Return an existing collection, which must have the settings named, or create one.

        Raises:
            EncoderMismatch: it was built with another encoder than the one named.
            CollectionExists: it was made with another of the settings named.

        >>> library.ensure("books").name, library.ensure("poems", dimension=2).name
        ('books', 'poems')
        """
        name = self.resolve(name)
        if name not in self.names():
            return self.create(name, **settings)
        collection = self.collection(name)
        collection.views.refresh()
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
            UnknownCollection: no collection has this name.
            Conflict: the name is an alias, or the collection has one.

        >>> library.drop("books")
        >>> library.names()
        []
        """
        self.check_writable()
        self._check_exists(name)
        self.check_droppable(name)
        with self._opening_of(name):
            self._engine.drop(name)
            opened = self._open.pop(name, None)
        if opened is not None:  # the disk gets its room back once the files are closed
            opened[1].close()

    def exchange(self, name: str, other: str) -> None:
        """Let two collections change their names, in one step and in every process.

        Raises:
            UnknownCollection: one of them does not exist.

        >>> library.create("poems", dimension=2).info().documents
        0
        >>> library.exchange("books", "poems")
        >>> library.collection("poems").info().documents
        3
        """
        self.check_writable()
        for existing in (name, other):
            self._check_exists(existing)
        self._engine.exchange(name, other)

    def _check_exists(self, name: str) -> None:
        actual = self.resolve(name)
        if self._engine.identity(actual) is None:
            raise self._unknown(actual, name)

    def _opening_of(self, name: str) -> AbstractContextManager[None]:
        """Let one thread at a time open a collection; openings of others go on beside it."""
        lock = self._opening.setdefault(name, SlowLock())
        return lock.held(f"The collection {name!r} is being opened")

    def check_droppable(self, name: str) -> None:
        """Raise Conflict for an alias, and for a collection that has one.

        >>> library.check_droppable("books")
        """
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

    @keywords_of(SearchRequest)
    def search(
        self,
        query: str | Sequence[float] | Mapping[str, Any] | AcrossRequest,
        collections: Sequence[str] = (),
        **options: Unpack[SearchKeywords],
    ) -> AcrossAnswer:
        """Search several collections, and merge their hits by weight where that is sound.

        Args:
            query, options: as `Collection.search` takes them; or the whole request.
            collections: names or aliases.

        Raises:
            UnknownCollection: one of them does not exist.

        >>> library.create("poems", dimension=2).upsert([{"id": "ode", "vector": [0.6, 0.8]}]).added
        1
        >>> found = library.search([1.0, 0.1], ["books", "poems"], k=3)
        >>> [(hit.collection, hit.id) for hit in found.hits]
        [('books', 'whale'), ('books', 'ship'), ('poems', 'ode')]
        """
        request = query
        if not isinstance(request, AcrossRequest):
            fields = {"query": query, "collections": list(collections), **options}
            request = parse(AcrossRequest, fields)
        started = time.perf_counter()
        opened = [self.collection(name) for name in request.collections]
        by_name = {collection.name: collection for collection in opened}  # aliases may repeat
        one = request.of_each()
        answers = {
            name: collection.answered([one], live=False)[0] for name, collection in by_name.items()
        }
        settings = {name: collection.settings for name, collection in by_name.items()}
        return merged_answer(answers, settings, request, started)

    def encoder(self, name: str) -> Encoder:
        """Return an encoder by name or folder; it is loaded once, however its folder is written.

        >>> library.encoder("all-MiniLM-L6-v2").dimension  # doctest: +SKIP
        384
        """
        name = encoders.canonical_name(name)
        if name not in self._encoders:
            with self._loading.held(f"The encoder {name!r}, or another, is being loaded"):
                if name not in self._encoders:
                    loaded = self._load(name)
                    cached = self.embeddings.limit > 0
                    encoder = CachedEncoder(loaded, self.embeddings) if cached else loaded
                    self._encoders[name] = encoder
        return self._encoders[name]

    def precisions(self) -> dict[str, Json]:
        """Return what encoders compute in on this processor, by name, as it was measured here.

        >>> library.precisions()
        {}
        """
        return {} if self._record is None else encoders.precisions(self._record)

    def opened(self) -> dict[str, Collection]:
        """Return the collections that are open, by name.

        >>> list(library.opened())
        ['books']
        """
        return {name: collection for name, (_, collection) in sorted(self._open.items())}

    def rebuilt(self) -> list[str]:
        """Return the open collections whose index was damaged, and was built again.

        >>> library.rebuilt()
        []
        """
        return [name for name, one in self.opened().items() if one.views.damage is not None]

    def close(self) -> None:
        """Close all collections.

        >>> library.close()
        """
        self.close_collections()
        self._engine.close()

    def close_collections(self) -> None:
        """Close the files of all collections; each is opened again where it is used next.

        >>> library.close_collections()
        """
        while self._open:
            _, (_, collection) = self._open.popitem()
            collection.close()
        while self._retired:
            closing = self._retired.pop()
            closing.cancel()
            closing.function()

    def check_writable(self) -> None:
        """Raise ReadOnly where the library was opened to be read only.

        >>> library.check_writable()
        """
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


def is_address(where: str | Path) -> bool:
    """Return whether collections live elsewhere than in a folder."""
    return _ADDRESS.match(str(where)) is not None


def engine_of(where: str | Path, *, read_only: bool = False) -> Engine:
    """Return the engine at an address, such as `milvus://HOST:PORT/LIBRARY`, or in a folder.

    Raises:
        InvalidRequest: a wrong address, or no engine is installed for its scheme.
        Unavailable: no server answers there.
    """
    address = _ADDRESS.match(str(where))
    if address is None:
        return Folder(Path(where), read_only=read_only)
    scheme = address[1].lower()
    for engine in entry_points(group=GROUP, name=scheme):
        opened: Engine = engine.load()(str(where))
        return opened
    raise InvalidRequest(
        f"{str(where)!r} is an address, but a data folder is expected: no engine {scheme!r} is "
        f"installed. For milvus://HOST:PORT/LIBRARY run 'pip install attend-retrieval[milvus]'. "
        f"Commands work where the collections are; in Python attend.open('http://HOST:PORT') opens "
        f"the library of an Attend server.",
        field="engine",
    )
