"""Building a collection from sources: read, encode what is new, store, publish.

Documents are stored window by window, each window in one transaction: a build that is
killed has lost at most the window in flight, and the next run of the same command finds
the rest by its hashes and goes on.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, TypedDict, Unpack

from attend.api.documents import Written
from attend.collection.collection import Collection
from attend.core.errors import AttendError, InvalidRequest, SourceError
from attend.core.types import Document, OnStage
from attend.source import (
    FieldMap,
    RowItem,
    RowProblem,
    Source,
    TableFormat,
    documents,
    guess,
    open_source,
    sample,
)
from attend.source.decoding import DETECTED
from attend.write.document_rows import document_rows
from attend.write.ingest import Prepared
from attend.write.mapping_memory import (
    ROLES,
    SourceFields,
    check_fields,
    declared_types,
    entries_of,
    entry_for,
    recall,
    remember,
    types_of,
)

WINDOW = 256
"""Documents that are encoded and stored together, where the engine names no other number: enough
to sort by length, and what a killed build has to repeat (about five seconds of work)."""


class Roles(TypedDict, total=False):
    """The fields of a source that become a document's parts; the rest is guessed."""

    id: str | None
    text: Sequence[str]
    vector: str | None
    value: Sequence[str]


@dataclass(frozen=True)
class Mapped:
    """A source and how its fields become documents; without a map its rows are documents.

    Attributes:
        named: the roles whose fields the user named, which later builds take from other sources.
        format: the format of a text file, as far as the user named it.
        notes: sentences about the fields of earlier builds; None where these were not looked at.
    """

    source: Source
    map: FieldMap | None
    named: frozenset[str] = frozenset()
    format: TableFormat = DETECTED
    notes: Sequence[str] | None = None

    @classmethod
    def of(cls, source: object, **roles: Unpack[Roles]) -> Mapped:
        """Open a source, and choose the fields that `roles` do not name.

        Args:
            source: as `open_source` takes it: a path, or an object with `__arrow_c_stream__`.
            roles: the fields of the id, texts, vector and value.

        Raises:
            SourceError: it cannot be read, or has no such field.

        >>> import pyarrow
        >>> Mapped.of(pyarrow.table({"id": [1], "title": ["Emma"]})).map
        FieldMap(id='id', text=('title',), vector=None, value=(), guessed=('id', 'text'))
        """
        opened = open_source(source)
        named = frozenset(role for role, fields in roles.items() if fields)
        return cls(opened, guess(sample(opened), source=opened, **roles), named)

    def recalled(self, entries: Sequence[SourceFields]) -> Mapped:
        """Return it with the fields of earlier builds in place of those that were guessed."""
        if self.map is None or self.notes is not None or not entries:
            return self
        names = {role: getattr(self.map, role) for role in ROLES if role not in self.map.guessed}
        fields = {role: name for role, name in names.items() if name}
        entry = entry_for(entries, self.source.name)
        map, named, notes = recall(self.source, sample(self.source), fields, entry)
        return replace(self, map=map, named=self.named | named, notes=notes)


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
    check_ids(sources)
    if sync and shard is not None:
        raise InvalidRequest(
            "A shard sees a part of the documents only, and cannot tell which no source has; build "
            "without sync, or without a shard.",
            field="shard",
        )
    for mapped in sources:
        if mapped.map is not None and not remap:
            check_fields(collection, mapped.source, mapped.map, entries, sync=sync)
    started = time.perf_counter()
    build = _Build(collection, strict, shard, **callbacks)
    for mapped in sources:
        build.take(mapped, remap)
    removed = build.remove_others() if sync and not build.refused else 0
    if publish:
        collection.publish(build.on_stage)
    else:
        collection._publish_fresh(build.on_stage)
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
        self._places: dict[str, str] = {}  # id -> where it was first used
        self.written = Written()
        self.read = 0
        self.refused = 0
        self.skipped: list[SkippedFile] = []

    def take(self, mapped: Mapped, remap: bool) -> None:
        before, size = len(self._places), self._collection.capabilities.window or WINDOW
        value = mapped.map.value if mapped.map is not None else ()
        stored = types_of(self._collection, value)
        types = stored | declared_types(self._collection.settings, value)
        rows = _rows(mapped, self._places, types, remap)
        remembered = False
        with closing(self._usable(rows)) as usable:
            while window := list(islice(usable, size)):
                self.written += self._collection.write(window)
                if not remembered:
                    self._remember(mapped, stored)
                    remembered = True
                self.read += len(window)
                self._on_progress(len(window))
        if len(self._places) == before:
            raise SourceError(
                f"{mapped.source.name} has no usable row. Check --id, --text and --vector against "
                f"its fields, and the problems reported above."
            )
        self._remember(mapped, types)  # at the end: a build that goes on after a stop learns as one

    def _remember(self, mapped: Mapped, types: Mapping[str, str]) -> None:
        """Store the fields of a source and the types of columns once documents were made."""
        if mapped.map is not None:
            entry = SourceFields.of(mapped.source.name, mapped.map, mapped.named, mapped.format)
            remember(self._collection, entry, types)

    def remove_others(self) -> int:
        gone = [id for id in self._collection.store.all_ids() if id not in self._places]
        return sum(
            self._collection.delete(gone[start : start + 10_000])
            for start in range(0, len(gone), 10_000)
        )

    def _usable(
        self, rows: Iterator[RowItem[Document] | RowProblem]
    ) -> Generator[Prepared, None, None]:
        """Yield the documents of a source as they are written; report the rows that cannot be."""
        for row in rows:
            if isinstance(row, RowProblem):
                self._report(row)
                continue
            id = row.item.id
            try:
                document = self._collection.prepare(row.item)
            except AttendError as error:
                del self._places[id]
                self._report(RowProblem(row.place, str(error)))
                continue
            if self._shard is None or self._shard.takes(id):
                yield document
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


def _rows(
    mapped: Mapped, places: dict[str, str], types: dict[str, str], remap: bool
) -> Iterator[RowItem[Document] | RowProblem]:
    if mapped.map is None:
        return document_rows(mapped.source, places)
    return documents(mapped.source, mapped.map, places, types, remap=remap)


def check_ids(sources: Sequence[Mapped]) -> None:
    """Row numbers are ids within one source only.

    Raises:
        SourceError: several sources, and one of them has no ids of its own.
    """
    nameless = [mapped.source.name for mapped in sources if mapped.map and mapped.map.id is None]
    if len(sources) > 1 and nameless:
        raise SourceError(
            f"{nameless[0]} has no id field, so that its rows would be numbered from 1 like those "
            f"of any other source. Name one with --id, or build each source into a collection of "
            f"its own."
        )
