"""Building a collection from sources: read, encode what is new, store, publish.

The fields of a source are as the user names them, as earlier builds had them, or guessed. Each
source has an entry under its name, as several tables may give one collection its documents. A
source without one follows the last build in the fields that the user named there: the export of
another day has another name. The types of columns are stored too, and later builds keep them.

Documents are stored window by window, each window in one transaction, while the next one is read
and encoded: a build that is killed has lost these two at most, and the next run of the same command
finds the rest by its hashes and goes on.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import defaultdict
from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
from pydantic import TypeAdapter, ValidationError

from attend.api.base import parse
from attend.api.documents import DocumentRequest, Written
from attend.collection.collection import Collection
from attend.collection.data import Data
from attend.core.errors import AttendError, Conflict, InvalidRequest, SourceError
from attend.core.settings import MAPPING
from attend.core.types import Document, Json, OnStage
from attend.source import (
    FieldMap,
    Row,
    RowItem,
    RowProblem,
    Source,
    TableFormat,
    describe,
    documents,
    guess,
    open_source,
    sample,
)
from attend.source.columns import all_columns
from attend.source.files import DETECTED, StandardInput
from attend.source.rows import (
    LOOKAHEAD_ROWS,
    Unusable,
    column_names,
    common_type,
    listed,
    read_rows,
)
from attend.store import Entry

WINDOW = 256
"""Documents that are encoded and stored together, where the engine names no other number: enough
to sort by length, and what a killed build has to repeat (about five seconds of work)."""

DELETED_AT_ONCE = 10_000

TYPES = "column_types"
"""The stored setting that holds the types of columns."""

MAX_STORED = 100
"""Sources that are remembered: a collection may grow by a file each day."""

READ_AT_ONCE = 1000
"""Documents whose stored values are read at once."""

ROLES = tuple(role.name for role in fields(FieldMap) if role.name != "guessed")
SEVERAL = ("text", "value")
"""The roles that may have several columns."""

COLUMNS = frozenset({"id", "text", "fields", "vector", "vectors", "value", "payload"})
"""The fields of rows that are documents already, as `attend export --jsonl` writes them."""

DECLARED = {"number": "number", "boolean": "boolean"} | dict.fromkeys(
    ("category", "text", "image"), "text"
)
"""Declared type of values → the type of their column."""


class MappingChanged(Conflict):
    """A build has other fields than those before, and would change stored values or ids."""


class Roles(TypedDict, total=False):
    """The fields of a source that become a document's parts; the rest is guessed.

    An empty name stands for none: no value, vector or text, or the row number as id.
    """

    id: str | None
    text: Sequence[str] | str
    vector: str | None
    value: Sequence[str] | str


@dataclass(frozen=True)
class SourceFields:
    """The fields of one source, as they are stored.

    Attributes:
        source: its name.
        columns: the columns of the roles that the source has; an empty name stands for none.
        named: the roles that the user named; the others were guessed.
        format: the format of a text file, as far as the user named it.
    """

    source: str
    columns: Mapping[str, tuple[str, ...]]
    named: tuple[str, ...] = ()
    format: TableFormat = DETECTED


_STORED = TypeAdapter(list[SourceFields])


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
    def of(
        cls,
        source: object,
        collection: Collection | None = None,
        format: TableFormat = DETECTED,
        **roles: Unpack[Roles],
    ) -> Mapped:
        """Open a source, and choose the fields that `roles` do not name.

        Args:
            source: as `open_source` takes it: a path, or an object with `__arrow_c_stream__`.
            collection: the collection whose earlier builds have chosen fields and formats; `build`
                looks at them where it is left out.
            format: how text files are read, where it is not to be detected.
            roles: the fields of the id, texts, vector and value.

        Raises:
            SourceError: it cannot be read, or has no such field.

        >>> import pyarrow
        >>> Mapped.of(pyarrow.table({"id": [1], "title": ["Emma"]})).map
        FieldMap(id='id', text=('title',), vector=None, value=(), guessed=('id', 'text'))
        """
        entries = [] if collection is None else entries_of(collection)
        notes: list[str] = []
        path = Path(str(source))
        if format == DETECTED and path.suffix:  # as it was read before, or the last of its ending
            alike = [entry for entry in entries if Path(entry.source).suffix == path.suffix]
            same = [entry for entry in entries if entry.source == path.name]
            format = (same or alike)[-1].format if alike else DETECTED
            notes += [] if format == DETECTED else [f"as before: {format}"]
        opened = open_source(source, format)
        rows = sample(opened)
        if not any(roles.values()) and are_documents(rows):
            return cls(opened, None)
        named = {role: names for role in ROLES if (names := _columns(roles.get(role)))}
        mapped = _chosen(opened, named, entries, format)
        stated = None if collection is None else [*notes, *(mapped.notes or ())]
        return replace(mapped, notes=stated)

    def recalled(self, entries: Sequence[SourceFields]) -> Mapped:
        """Return it with the fields of earlier builds in place of those that were guessed."""
        if self.map is None or self.notes is not None or not entries:
            return self
        named = {
            role: names
            for role, names in self.columns().items()
            if role not in self.map.guessed and (any(names) or role in self.named)
        }
        return _chosen(self.source, named, entries, self.format)

    def columns(self) -> dict[str, tuple[str, ...]]:
        """Return the columns by role; an empty name stands for none.

        Row numbers stay the ids, although the source may have a column "id" one day.
        """
        columns = {role: _columns(getattr(self.map, role)) for role in ROLES}
        fixed = {"id", *self.named}
        return {role: names or ("",) for role, names in columns.items() if names or role in fixed}

    def described(self, collection: Collection | None, *, remap: bool = False) -> str:
        """Describe the fields in lines: the roles, what was guessed, and what is as before."""
        rows = sample(self.source)
        if self.map is None:
            return f"{self.source.name}: documents with {listed(column_names(rows))}"
        types = {} if collection is None else types_of(collection, self.map.value)
        if remap:  # texts become what they are now, and numbers stay beside new texts
            types = {name: "mixed" for name, type in types.items() if type != "text"}
        line = f"{self.source.name}: {describe(self.map, rows, self.source, types)}"
        return "\n".join([line, *(self.notes or ())])

    def width(self) -> int | None:
        """Return the number of dimensions of the first vector, of the first 10,000 rows."""
        if self.map is not None and self.map.vector is None:
            return None
        for row in islice(self.documents({}, {}, remap=False), LOOKAHEAD_ROWS):
            if isinstance(row, RowItem) and row.item.vectors:
                return int(np.shape(next(iter(row.item.vectors.values())))[-1])
        return None

    def documents(
        self, places: dict[str, str], types: dict[str, str], *, remap: bool
    ) -> Iterator[RowItem[Document] | RowProblem]:
        """Read the documents; `places` and `types` are those of `attend.source.documents`."""
        if self.map is not None:
            return documents(self.source, self.map, places, types, remap=remap)

        def read(row: Row) -> Document:
            try:
                document = parse(DocumentRequest, row.cells).document()
            except InvalidRequest as error:
                raise Unusable(str(error)) from None
            if (place := places.get(document.id)) is not None:
                raise Unusable(f"The id {document.id!r} was used before, at {place}.")
            places[document.id] = row.place
            return document

        return read_rows(self.source.rows(), read)


def are_documents(rows: Sequence[Row]) -> bool:
    """Return whether all rows have the fields of documents alone, with texts and payload apart.

    >>> row = Row("a.jsonl:1", {"id": "1", "fields": {"title": "Emma"}, "payload": {"year": 1815}})
    >>> are_documents([row])
    True
    """
    return bool(rows) and all(
        row.cells.keys() <= COLUMNS
        and isinstance(row.cells.get("fields", {}), dict)
        and isinstance(row.cells.get("payload"), dict)
        for row in rows
    )


# -- what is stored -------------------------------------------------------------------------------


def entries_of(collection: Collection) -> list[SourceFields]:
    """Return the fields of earlier builds; nothing where this program cannot read them."""
    try:
        return _STORED.validate_python(collection.store.settings().get(MAPPING, []))
    except (ValidationError, InvalidRequest):
        return []


def remember(collection: Collection, mapped: Mapped, types: Mapping[str, str]) -> None:
    """Store the fields of a source as the last ones of its collection, and the types of columns."""
    if mapped.map is None:
        return
    named = tuple(sorted(mapped.named))
    entry = SourceFields(mapped.source.name, mapped.columns(), named, mapped.format)
    entries = entries_of(collection)
    changes: dict[str, Json] = {}
    if entries[-1:] != [entry]:
        others = [other for other in entries if other.source != entry.source]
        changes[MAPPING] = _STORED.dump_python([*others, entry][-MAX_STORED:], mode="json")
    if collection.store.settings().get(TYPES) != types:
        changes[TYPES] = dict(types)
    if changes:
        collection.store.put_settings(changes)


def types_of(collection: Collection, value: Sequence[str]) -> dict[str, str]:
    """Return the types of columns as declared, as builds have stored them, or as documents have.

    Args:
        value: the columns of the values.
    """
    spec = collection.settings.values
    if not isinstance(spec, dict):
        spec = {value[0]: spec} if len(value) == 1 else {}
    declared = {name: DECLARED[str(spec[name])] for name in value if spec.get(name) in DECLARED}
    stored = collection.store.settings().get(TYPES)
    if isinstance(stored, dict):
        return {name: str(type) for name, type in stored.items()} | declared
    columns: defaultdict[str, list[Json]] = defaultdict(list)
    for document in collection.store.sample(READ_AT_ONCE):
        values = document.value
        if not isinstance(values, dict):
            values = {value[0]: values} if value else {}
        for name, cell in chain(values.items(), document.payload.items()):
            columns[name].append(cell)
    types = {name: common_type(cells, untyped=False) for name, cells in columns.items()}
    return {name: type for name, type in types.items() if type is not None} | declared


def _chosen(
    source: Source,
    named: Mapping[str, tuple[str, ...]],
    entries: Sequence[SourceFields],
    format: TableFormat,
) -> Mapped:
    """Return a source with the fields that the user names, those of before, and guesses.

    Raises:
        SourceError: no row has a column that the user names, or no text can be guessed.
    """
    rows = sample(source)
    # A new source follows what the user named last.
    last = entries[-1] if entries else SourceFields(source.name, {})
    columns = {role: names for role, names in last.columns.items() if role in last.named}
    followed = SourceFields(source.name, columns, last.named)
    entry = next((entry for entry in entries if entry.source == source.name), followed)
    before = {role: names for role, names in entry.columns.items() if role not in named}
    usable = {role: names for role, names in before.items() if _has(source, rows, names)}
    roles = {**usable, **named}
    present = {role: names for role, names in roles.items() if any(names)}
    arguments = {role: names if role in SEVERAL else names[0] for role, names in present.items()}
    map = guess(rows, source=source, **arguments)  # type: ignore[arg-type]
    absent = {role: () if role in SEVERAL else None for role in roles.keys() - present.keys()}
    guessed = tuple(role for role in map.guessed if role not in absent)
    map = replace(map, **absent, guessed=guessed)  # type: ignore[arg-type]
    notes = [
        f"not as before: {source.name} has no {listed(names)} ({role})"
        for role, names in before.items()
        if role not in usable
    ]
    if usable:
        listing = " · ".join(f"{role}: {_listed(role, names)}" for role, names in usable.items())
        notes.insert(0, f"as before: {listing}")
    named_ever = frozenset(named.keys() | (usable.keys() & entry.named))
    return Mapped(source, map, named_ever, format, notes)


def _has(source: Source, rows: Sequence[Row], names: Sequence[str]) -> bool:
    try:
        all_columns([name for name in names if name], rows, source)
    except SourceError:
        return False
    return True


def _columns(names: Any) -> tuple[str, ...]:
    """Return the columns of a role, which has one, several or none."""
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(names)


def _listed(role: str, names: Sequence[str]) -> str:
    if any(names):
        return listed(names)
    return "the row number" if role == "id" else "none"


# -- what a build would change --------------------------------------------------------------------


def check_fields(
    collection: Collection, mapped: Mapped, entries: Sequence[SourceFields], *, sync: bool = False
) -> None:
    """Raise MappingChanged if other fields than before would change stored values or ids.

    What the source itself has changed is no concern: fields that are as before are not compared.

    Args:
        entries: the fields of earlier builds.
        sync: documents with other ids are deleted, so that none is there twice.
    """
    source, map = mapped.source, mapped.map
    if map is None:
        return
    same = [entry for entry in entries if entry.source == source.name]
    ids = next((entry.columns.get("id") for entry in same), None)
    count = collection.store.counts()[0]
    if not sync and ids not in (None, (map.id or "",)) and count:
        raise MappingChanged(
            f"The id in {source.name} was {_listed('id', ids)}, and would be "
            f"{_listed('id', [map.id or ''])}: its rows would be stored once more, beside the "
            f"{_counted(count)} of before. No document was changed. Name it as before (--id "
            f"{ids[0] or repr('')}), add --sync to delete the documents that no source has, or "
            f"--remap to keep both."
        )
    before = [name for entry in (same or entries)[-1:] for name in entry.columns.get("value", ())]
    names = tuple(name for name in before if name)
    # Of documents that no build has written, it is not known what their values are.
    if map.value == names if entries else map.value:
        return
    count = changed_values(collection, source, map)
    if not count:
        return
    change = f"would be {_listed('value', map.value)}"
    if names:
        change = f"was {listed(names)}, and {change}"
    again = " ".join(f"--value {name}" for name in names)
    raise MappingChanged(
        f"{source.name} would change or empty the values of {_counted(count, 'stored ')}: the "
        f"value {change}. No document was changed. Name it "
        f"{f'as before ({again})' if again else 'with --value'}, or add --remap to change the "
        f"values."
    )


def _counted(count: int, kind: str = "") -> str:
    return f"1 {kind}document" if count == 1 else f"{count} {kind}documents"


def changed_values(collection: Collection, source: Source, map: FieldMap) -> int:
    """Count the stored documents whose values a source would change; null values do not count.

    Of standard input, which is read once, only the rows that it can give again are counted.
    """
    if not collection.store.counts()[0]:
        return 0
    limit = LOOKAHEAD_ROWS if isinstance(source, StandardInput) else None
    rows = islice(documents(source, map, types=types_of(collection, map.value)), limit)
    values = ((row.item.id, row.item.value) for row in rows if not isinstance(row, RowProblem))
    count = 0
    while window := dict(islice(values, READ_AT_ONCE)):
        stored = collection.store.find(list(window))
        count += sum(
            document.value is not None and document.value != window[id]
            for id, document in stored.items()
        )
    return count


# -- building --------------------------------------------------------------------------------------


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
        removed = delete_others(collection, build.places)
    collection.publish(build.on_stage, only_fresh=not publish)
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


def delete_others(collection: Collection, ids: Container[str]) -> int:
    """Delete the documents that have none of the ids; return the number of deleted ones."""
    gone = [id for id in collection.store.all_ids() if id not in ids]
    starts = range(0, len(gone), DELETED_AT_ONCE)
    return sum(collection.delete(gone[start : start + DELETED_AT_ONCE]) for start in starts)


@dataclass
class _Build:
    """The running totals of one build; `places` has where each id was first used."""

    collection: Collection
    strict: bool
    shard: Shard | None
    on_problem: Callable[[RowProblem], None] = lambda problem: None
    on_progress: Report = lambda rows: None
    on_stage: OnStage = lambda stage, done: None
    places: dict[str, str] = field(default_factory=dict)
    written: Written = field(default_factory=Written)
    read: int = 0
    refused: int = 0
    skipped: list[SkippedFile] = field(default_factory=list)

    def take(self, mapped: Mapped, remap: bool) -> None:
        """Write the documents of a source, window by window, and remember its fields."""
        before, size = len(self.places), self.collection.capabilities.window or WINDOW
        types = types_of(self.collection, mapped.map.value if mapped.map is not None else ())
        stored = dict(types)  # before this source adds to them
        last: Future[None] | None = None

        def finish(store: Callable[[], Written], count: int) -> None:
            self.written += store()
            remember(self.collection, mapped, stored)
            self.read += count
            self.on_progress(count)

        rows, storing = self._usable(mapped, types, remap), ThreadPoolExecutor(1, "build")
        with closing(rows) as usable, storing:  # at its end, also by an error, all is stored
            while window := list(islice(usable, size)):
                store = self.collection.begin_write(window)
                if last is not None:
                    last.result()
                last = storing.submit(finish, store, len(window))
        if last is not None:
            last.result()
        if len(self.places) == before:
            raise SourceError(
                f"{mapped.source.name} has no usable row. Check --id, --text and --vector against "
                f"its fields, and the problems reported above."
            )
        # At the end: a build that goes on after a stop learns the types as one.
        remember(self.collection, mapped, types)

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
                entry = self.collection.prepare(row.item)
            except AttendError as error:
                del self.places[id]
                self._report(RowProblem(row.place, str(error)))
                continue
            if self.shard is None or self.shard.takes(id):
                yield entry
            else:
                self.on_progress(1)

    def _report(self, problem: RowProblem) -> None:
        self.on_problem(problem)
        if problem.skips:
            self.skipped.append({"file": problem.place, "reason": problem.reason})
        if not problem.rejects:
            return
        self.refused += 1
        self.on_progress(1)
        if self.strict:
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
