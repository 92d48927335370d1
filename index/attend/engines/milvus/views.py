"""What searches of one collection look at, made anew for each of them."""

from __future__ import annotations

import threading
import time
from typing import NoReturn, cast

from attend.api.search import Mask, SearchOptions
from attend.consistency import reading
from attend.engines.capabilities import unsupported
from attend.engines.milvus.capabilities import CAPABILITIES, MAX_ATTENDED
from attend.engines.milvus.keys import RemoteKeys, Size
from attend.engines.milvus.retired import GRACE_SECONDS
from attend.engines.milvus.store import RemoteStore
from attend.engines.milvus.tables import Tables
from attend.engines.milvus.versions import Versions
from attend.errors import InvalidRequest
from attend.keys import Snapshot, Wanted
from attend.search.encode import rows_by_id
from attend.search.selecting import Selected
from attend.store import Role, compile_filter
from attend.types import Json, OnStage
from attend.versions import Version
from attend.views import View

COUNTED_SECONDS = 10.0
"""For so long a count of documents and keys is good enough to plan a search with."""


class RemoteViews:
    """As `attend.views.Views`, over a server's tables: there is nothing to bring up to date."""

    def __init__(self, tables: Tables, store: RemoteStore, versions: Versions) -> None:
        self.wanted = Wanted()
        self._tables = tables
        self._store = store
        self._versions = versions
        self._size: tuple[float, Size] | None = None
        self._sizing = threading.Lock()

    def current(self, version: int | None = None, role: Role = "search") -> View:
        """The view of a version, or of the active one; its keys are written first, if need be."""
        _check_role(role)
        known = self._tables.known()
        number = version or known.version
        self._versions.prepare(number)
        return self.view(self._versions.of(number))

    def view(
        self,
        made: Version,
        passing: str = "",
        exclude: tuple[int, ...] = (),
        only: list[int] | None = None,
    ) -> View:
        """A version's keys, those that may be found."""
        layout = made.layout
        size = self.size()
        graph = self._versions.graphs.of(made, size.keys)
        keys = RemoteKeys(self._tables, layout, made.width, size, passing, exclude, only, graph)
        return View(made, cast(Snapshot, keys), self._store.generation)

    def select(self, options: SearchOptions, own: tuple[int, ...]) -> Selected:
        """What a search looks at; see `attend.search.selecting`."""
        _check(options)
        there = self._tables.known()
        made = self._versions.of(options.projection or there.version)
        if not self._versions.is_ready(made, there):
            raise InvalidRequest(
                f"Projection {made.number} has keys of its own, which are not written yet; "
                f"activate it first.",
                field="projection",
            )
        mask = options.mask or Mask()
        named = rows_by_id(self._store, [*mask.exclude, *(mask.only or [])], "mask")
        exclude = {named[id] for id in mask.exclude} | (set(own) if mask.only is None else set())
        only = None if mask.only is None else [named[id] for id in mask.only]
        given = options.filter
        passing = self._store.passing(compile_filter(given)) if given else ""
        view = self.view(made, passing, tuple(sorted(exclude)), only)
        keys = cast(RemoteKeys, view.keys)
        return Selected(view, None, self._store.with_documents(keys.documents_read))

    def size(self) -> Size:
        """How large the collection is, as counted some seconds ago at most."""
        counted = self._size
        if counted is None or time.monotonic() - counted[0] > COUNTED_SECONDS:
            with self._sizing, reading("bounded"):
                self._size = counted = time.monotonic(), Size(*self._store.counts())
        return counted[1]

    def publish(self, on_stage: OnStage = lambda stage, done: None) -> View:
        """Write what is in memory to the server's storage, which it does by itself in time; and
        wait until the keys of versions before are gone, for a process that ends leaves them."""
        for table in (self._tables.documents, *self._tables.of_keys()):
            self._tables.client.flush(table)
        began = time.monotonic()
        while self._store.retires:
            on_stage("keys before", min(1.0, (time.monotonic() - began) / GRACE_SECONDS))
            time.sleep(0.5)
        self._versions.graphs.ensure(self._active(), on_stage)
        return self.current()

    def merge_if_due(self) -> None:
        """Begin to make an HNSW table in the background, where the keys have become so many."""
        made = self._active()
        if self._versions.graphs.is_due(made, self.size().keys):
            self._versions.graphs.start(made)

    def has_fresh(self) -> bool:
        """Whether something is to be waited for before the process ends."""
        keys = self._store.counts()[1]
        return self._store.retires or self._versions.graphs.is_due(self._active(), keys)

    def _active(self) -> Version:
        return self._versions.of(self._tables.known().version)

    def told(self, view: View) -> dict[str, Json]:
        return {
            **{name: each for name, each in view.keys.index.items() if name != "points"},
            "exact": view.keys.promises() == 1,
            "published": 0,
            "keys": view.keys.keys,
            "fresh": 0,
        }

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        CAPABILITIES.check("train" if name == "mean" else "snapshots")
        raise AttributeError(name)


def _check_role(role: Role) -> None:
    if role != "search":
        CAPABILITIES.check("recommend")


def _check(options: SearchOptions) -> None:
    """Raises Unsupported for what a search cannot ask here."""
    if options.attend == "all":
        CAPABILITIES.check("attend_all", field="attend")
    elif options.attend > MAX_ATTENDED:
        raise unsupported(
            CAPABILITIES.engine,
            f"Attended sets of {options.attend:,} documents",
            f"attend to at most {MAX_ATTENDED:,}",
            field="attend",
        )
    if options.decode:
        CAPABILITIES.check("attend_all", field="decode")
    if options.lexical:
        CAPABILITIES.check("lexical", field="lexical")
    if options.facets is not None:
        CAPABILITIES.check("facets", field="facets")
