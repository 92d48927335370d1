"""Building a collection from sources: read, encode what is new, store, publish.

Documents are stored window by window, each window in one transaction: a build that is
killed has lost at most the window in flight, and the next run of the same command finds
the rest by its hashes and goes on.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypedDict, Unpack

from attend.api.documents import Written
from attend.collection.collection import Collection
from attend.collection.data import Data
from attend.core.errors import AttendError, InvalidRequest, SourceError
from attend.core.types import OnStage
from attend.source import RowProblem
from attend.store import Entry
from attend.write.mapping import Mapped, check_fields, entries_of, remember, types_of

__all__ = ["Built", "Mapped", "Refused", "Shard", "build", "collection_for"]

WINDOW = 256
"""Documents that are encoded and stored together, where the engine names no other number: enough
to sort by length, and what a killed build has to repeat (about five seconds of work)."""

DELETED_AT_ONCE = 10_000


@dataclass(frozen=True)
class Built:
    """What a build did. Counts are documents; `encoded` counts texts (passages).

    `skipped` are the files of folders that were not read, each with the reason.
    """

    read: int
    added: int
    updated: int
    revised: int
    unchanged: int
    removed: int
    refused: int
    encoded: int
    documents: int
    keys: int
    seconds: float
    skipped: Sequence[SkippedFile] = ()


class SkippedFile(TypedDict):
    """A file of a folder that was not read."""

    file: str
    reason: str


class Shard(NamedTuple):
    """The documents of one of several processes that build together: each takes one of `parts`,
    by a hash of its id, so that none is taken twice, whatever its source and place there."""

    number: int
    parts: int

    def takes(self, id: str) -> bool:
        """Return whether this shard takes the document."""
        hashed = hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(hashed) % self.parts == self.number - 1

    @classmethod
    def of(cls, written: str) -> Shard:
        """`2/8` is the second of eight. Raises InvalidRequest for what is none."""
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", written)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise InvalidRequest(
                f"{written[:40]!r} is no shard; write 2/8 for the second of eight.", field="shard"
            )
        return cls(int(match[1]), int(match[2]))


class Refused(SourceError):
    """A row could not be used, and the build was told to be strict."""


Report = Callable[[int], None]
"""Called with the number of rows just dealt with."""


class BuildCallbacks(TypedDict, total=False):
    """Functions that follow a build.

    Attributes:
        on_problem: called with every row that cannot be used, and with a notice for every part
            of the source that is left out of the rows.
        on_progress: called with the number of rows just dealt with.
        on_stage: called, once all documents are stored, with the progress of their index.
    """

    on_problem: Callable[[RowProblem], None]
    on_progress: Report
    on_stage: OnStage


def collection_for(
    library: Data, name: str, sources: Sequence[Mapped], **settings: Any
) -> Collection:
    """Return the collection that sources are built into, which is made if it is not there.

    A new one has the width of the vectors that the sources bring.

    Args:
        settings: as `Data.create` takes them.

    Raises:
        SourceError: several sources that have no ids of their own, or vectors of several widths.
        CollectionExists: it is there and has other settings.
    """
    _check_ids(sources)
    widths = sorted({width for mapped in sources if (width := mapped.width()) is not None})
    if len(widths) > 1:
        raise SourceError(
            f"The sources bring vectors of {' and '.join(map(str, widths))} dimensions, but a "
            f"collection has one width. Build them into separate collections."
        )
    if widths:
        settings["dimension"] = widths[0]
    return library.ensure(name, **settings)


def build(
    collection: Collection,
    sources: Sequence[Mapped],
    *,
    sync: bool = False,
    strict: bool = False,
    publish: bool = False,
    shard: Shard | None = None,
    remap: bool = False,
    **callbacks: Unpack[BuildCallbacks],
) -> Built:
    """Bring a collection up to date with its sources.

    Fields that are not named are those of earlier builds, and the values of a column keep their
    type: a row with another one cannot be used.

    Args:
        sync: also delete the documents that no source has. Nothing is deleted if a single
            row could not be used: what it would have said is not known.
        strict: stop at the first row that cannot be used; what was stored stays.
        publish: write the index even if nothing changed.
        shard: take a part of the documents only, as one of several processes at once.
        remap: change stored values, types and ids where the sources or their fields say so.
        callbacks: functions that follow the build (`BuildCallbacks`).

    Raises:
        SourceError: a source has no usable row, or several have no ids of their own.
        MappingChanged: other fields would change stored values or ids, and `remap` is not set.
        Refused: a row could not be used, and `strict` was set.
    """
    entries = entries_of(collection)
    sources = [mapped.recalled(entries) for mapped in sources]
    _check_ids(sources)
    if sync and shard is not None:
        raise InvalidRequest(
            "A shard sees a part of the documents only, and cannot tell which no source has; build "
            "without sync, or without a shard.",
            field="shard",
        )
    for mapped in sources if not remap else ():
        check_fields(collection, mapped, entries, sync=sync)
    started = time.perf_counter()
    build = _Build(collection, strict, shard, **callbacks)
    for mapped in sources:
        build.take(mapped, remap)
    removed = 0
    if sync and not build.refused:
        gone = [id for id in collection.store.all_ids() if id not in build.places]
        for start in range(0, len(gone), DELETED_AT_ONCE):
            removed += collection.delete(gone[start : start + DELETED_AT_ONCE])
    if publish:
        collection.publish(build.on_stage)
    else:
        collection.publish(build.on_stage, only_fresh=True)
    count, keys = collection.store.counts()
    return Built(
        read=build.read,
        **build.written.json(),
        removed=removed,
        refused=build.refused,
        documents=count,
        keys=keys,
        seconds=round(time.perf_counter() - started, 3),
        skipped=build.skipped,
    )


class _Build:
    """The running totals of one build."""

    def __init__(
        self,
        collection: Collection,
        strict: bool,
        shard: Shard | None,
        on_problem: Callable[[RowProblem], None] = lambda problem: None,
        on_progress: Report = lambda rows: None,
        on_stage: OnStage = lambda stage, done: None,
    ) -> None:
        self._collection = collection
        self._strict = strict
        self._shard = shard
        self._on_problem = on_problem
        self._on_progress = on_progress
        self.on_stage = on_stage
        self.places: dict[str, str] = {}  # id -> where it was first used
        self.written = Written()
        self.read = 0
        self.refused = 0
        self.skipped: list[SkippedFile] = []

    def take(self, mapped: Mapped, remap: bool) -> None:
        """Write the documents of a source, window by window, and remember its fields."""
        before, size = len(self.places), self._collection.capabilities.window or WINDOW
        types = types_of(self._collection, mapped.map.value if mapped.map is not None else ())
        stored = dict(types)  # before this source adds to them
        remembered = False
        with closing(self._usable(mapped, types, remap)) as usable:
            while window := list(islice(usable, size)):
                self.written += self._collection.write(window)
                if not remembered:
                    remember(self._collection, mapped, stored)
                    remembered = True
                self.read += len(window)
                self._on_progress(len(window))
        if len(self.places) == before:
            raise SourceError(
                f"{mapped.source.name} has no usable row. Check --id, --text and --vector against "
                f"its fields, and the problems reported above."
            )
        # At the end: a build that goes on after a stop learns the types as one.
        remember(self._collection, mapped, types)

    def _usable(
        self, mapped: Mapped, types: dict[str, str], remap: bool
    ) -> Generator[Entry, None, None]:
        """Yield the documents of a source as they are written; report the rows that cannot be."""
        for row in mapped.documents(self.places, types, remap=remap):
            if isinstance(row, RowProblem):
                self._report(row)
                continue
            id = row.item.id
            try:
                entry = self._collection.prepare(row.item)
            except AttendError as error:
                del self.places[id]
                self._report(RowProblem(row.place, str(error)))
                continue
            if self._shard is None or self._shard.takes(id):
                yield entry
            else:
                self._on_progress(1)

    def _report(self, problem: RowProblem) -> None:
        self._on_problem(problem)
        if problem.skips:
            self.skipped.append({"file": problem.place, "reason": problem.reason})
        if not problem.rejects:
            return
        self.refused += 1
        self._on_progress(1)
        if self._strict:
            raise Refused(f"Stopped at {problem}; --strict takes no source with such a row.")


def _check_ids(sources: Sequence[Mapped]) -> None:
    """Raise SourceError for one without ids among several: row numbers are ids within one only."""
    nameless = [mapped.source.name for mapped in sources if mapped.map and mapped.map.id is None]
    if len(sources) > 1 and nameless:
        raise SourceError(
            f"{nameless[0]} has no id field, so that its rows would be numbered from 1 like those "
            f"of any other source. Name one with --id, or build each source into a collection of "
            f"its own."
        )
