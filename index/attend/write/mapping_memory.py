"""The fields that earlier builds of a collection used, and their types, which later builds keep.

Each source has an entry under its name, as several tables may give one collection its documents. A
source without one follows the last build in the fields that the user named there: the export of
another day has another name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from attend.collection.collection import Collection
from attend.core.errors import Conflict, InvalidRequest, SourceError
from attend.core.settings import MAPPING, Settings
from attend.core.types import Json
from attend.source import FieldMap, Row, RowProblem, Source, TableFormat, documents, guess
from attend.source.cells import common_type
from attend.source.columns import all_columns
from attend.source.decoding import DETECTED
from attend.source.files import StandardInput
from attend.source.rows import LOOKAHEAD_ROWS, listed

TYPES = "column_types"
"""The stored setting that holds the types of columns."""

MAX_STORED = 100
"""Sources that are remembered: a collection may grow by a file each day."""

ROLES = tuple(field.name for field in fields(FieldMap) if field.name != "guessed")
SEVERAL = ("text", "value")
"""The roles that may have several columns."""

Columns = Mapping[str, tuple[str, ...]]
"""Role → its columns. An empty name stands for none: no value, vector or text, or the row number
as id."""


WINDOW = 1000
"""Documents whose stored values are read at once."""

DECLARED = {"number": "number", "boolean": "boolean"} | dict.fromkeys(
    ("category", "text", "image"), "text"
)
"""Declared type of values → the type of their column."""


class MappingChanged(Conflict):
    """A build has other fields than those before, and would change stored values or ids."""


@dataclass(frozen=True)
class SourceFields:
    """The fields of one source.

    Attributes:
        source: its name.
        columns: the columns of the roles that the source has.
        named: the roles that the user named; the others were guessed.
        format: the format of a text file, as far as the user named it.
    """

    source: str
    columns: Columns
    named: frozenset[str] = frozenset()
    format: TableFormat = DETECTED

    @classmethod
    def of(
        cls, source: str, map: FieldMap, named: Iterable[str], format: TableFormat = DETECTED
    ) -> SourceFields:
        """Return the entry of a source that is built with a map."""
        roles = frozenset(named)
        columns = {role: _columns(getattr(map, role)) for role in ROLES}
        # Row numbers stay the ids, although the source may have a column "id" one day.
        absent = roles | {"id"}
        columns = {
            role: names or (("",) if role in absent else ()) for role, names in columns.items()
        }
        present = {role: names for role, names in columns.items() if names}
        return cls(source, present, roles, format)

    def stored(self) -> dict[str, Json]:
        """Return plain data."""
        columns: dict[str, Json] = {role: list(names) for role, names in self.columns.items()}
        named: Json = sorted(self.named)
        return asdict(self) | {"columns": columns, "named": named}


_STORED = TypeAdapter(list[SourceFields])


class Recollection(NamedTuple):
    """The map of a source, as the user, earlier builds and the source itself give it.

    Attributes:
        named: the roles that the user named, now or before.
        notes: sentences about what is as before, and what cannot be.
    """

    map: FieldMap
    named: frozenset[str]
    notes: Sequence[str]


def entries_of(collection: Collection) -> list[SourceFields]:
    """Return the fields of earlier builds; nothing where this program cannot read them."""
    try:
        return _STORED.validate_python(collection.store.settings().get(MAPPING, []))
    except (ValidationError, InvalidRequest):
        return []


def entry_for(entries: Sequence[SourceFields], source: str) -> SourceFields | None:
    """Return the entry of a source, or of a new one what the user named last; None without any.

    >>> prices = SourceFields("a.csv", {"id": ("id",), "value": ("price",)}, frozenset({"value"}))
    >>> entry_for([prices], "b.csv").columns
    {'value': ('price',)}
    """
    same = next((entry for entry in entries if entry.source == source), None)
    if same is not None or not entries:
        return same
    last = entries[-1]
    columns = {role: names for role, names in last.columns.items() if role in last.named}
    return SourceFields(source, columns, last.named)


def format_for(entries: Sequence[SourceFields], path: str) -> TableFormat:
    """Return the format that a file was read in, or the last one with its ending.

    >>> ratings = SourceFields("u.data", {}, format=TableFormat(delimiter="|"))
    >>> format_for([ratings], "data/u.data").delimiter
    '|'
    """
    name, ending = Path(path).name, Path(path).suffix
    same = [entry for entry in entries if entry.source == name]
    alike = same or [entry for entry in entries if Path(entry.source).suffix == ending]
    return alike[-1].format if alike and ending else DETECTED


def types_of(collection: Collection, value: Sequence[str]) -> dict[str, str]:
    """Return the types of columns as builds have stored them, or else as documents have them.

    Args:
        value: the columns of the values.
    """
    stored = collection.store.settings().get(TYPES)
    if isinstance(stored, dict):
        return {name: str(type) for name, type in stored.items()}
    columns: defaultdict[str, list[Json]] = defaultdict(list)
    for document in collection.store.sample(WINDOW):
        values = document.value
        for name, cell in (
            values if isinstance(values, dict) else {value[0]: values} if value else {}
        ).items():
            columns[name].append(cell)
        for name, cell in document.payload.items():
            columns[name].append(cell)
    types = {name: common_type(cells, untyped=False) for name, cells in columns.items()}
    return {name: type for name, type in types.items() if type is not None}


def declared_types(settings: Settings, value: Sequence[str]) -> dict[str, str]:
    """Return the types of columns of values that the collection declares."""
    spec = settings.values
    if not isinstance(spec, dict):
        spec = {value[0]: spec} if len(value) == 1 else {}
    return {name: DECLARED[str(spec[name])] for name in value if spec.get(name) in DECLARED}


def remember(collection: Collection, entry: SourceFields, types: Mapping[str, str]) -> None:
    """Store the entry of a source as the last one of its collection, and the types of columns."""
    entries = entries_of(collection)
    changes: dict[str, Json] = {}
    if entries[-1:] != [entry]:
        others = [other for other in entries if other.source != entry.source]
        changes[MAPPING] = [one.stored() for one in [*others, entry][-MAX_STORED:]]
    if collection.store.settings().get(TYPES) != types:
        changes[TYPES] = dict(types)
    if changes:
        collection.store.put_settings(changes)


def recall(
    source: Source, rows: Sequence[Row], options: Mapping[str, Any], entry: SourceFields | None
) -> Recollection:
    """Return the map of a source: fields that the user names, those of before, and guesses.

    Args:
        rows: its sample.
        options: the columns that the user names, by role.
        entry: as `entry_for` returns it.

    Raises:
        SourceError: no row has a column that the user names, or no text can be guessed.
    """
    named = {role: names for role in ROLES if (names := _columns(options.get(role)))}
    columns: Columns = {} if entry is None else entry.columns
    before = {role: names for role, names in columns.items() if role not in named}
    usable = {role: names for role, names in before.items() if _has(source, rows, names)}
    map = _mapped(source, rows, {**usable, **named})
    again = frozenset() if entry is None else entry.named & usable.keys()
    notes = []
    if usable:
        listing = (f"{role}: {_listed(role, names)}" for role, names in usable.items())
        notes.append(f"as before: {' · '.join(listing)}")
    notes += [
        f"not as before: {source.name} has no {listed(names)} ({role})"
        for role, names in before.items()
        if role not in usable
    ]
    return Recollection(map, again | named.keys(), notes)


def check_fields(
    collection: Collection,
    source: Source,
    map: FieldMap,
    entries: Sequence[SourceFields],
    *,
    sync: bool = False,
) -> None:
    """Raise MappingChanged if other fields than before would change stored values or ids.

    What the source itself has changed is no concern: fields that are as before are not compared.

    Args:
        entries: the fields of earlier builds.
        sync: documents with other ids are deleted, so that none is there twice.
    """
    if not sync:
        _check_ids(collection, source, map, entries)
    same = [entry for entry in entries if entry.source == source.name]
    before = [name for entry in (same or entries)[-1:] for name in entry.columns.get("value", ())]
    names = tuple(name for name in before if name)
    # Of documents that no build has written, it is not known what their values are.
    if map.value == names if entries else map.value:
        return
    count = changed_values(collection, source, map)
    if not count:
        return
    stored = "1 stored document" if count == 1 else f"{count} stored documents"
    change = f"would be {_listed('value', map.value)}"
    if names:
        change = f"was {listed(names)}, and {change}"
    again = " ".join(f"--value {name}" for name in names)
    raise MappingChanged(
        f"{source.name} would change or empty the values of {stored}: the value {change}. No "
        f"document was changed. Name it {f'as before ({again})' if again else 'with --value'}, or "
        f"add --remap to change the values."
    )


def _check_ids(
    collection: Collection, source: Source, map: FieldMap, entries: Sequence[SourceFields]
) -> None:
    before = next((e.columns.get("id") for e in entries if e.source == source.name), None)
    count = collection.store.counts()[0]
    if before is None or before == (map.id or "",) or not count:
        return
    stored = "1 document" if count == 1 else f"{count} documents"
    raise MappingChanged(
        f"The id in {source.name} was {_listed('id', before)}, and would be "
        f"{_listed('id', [map.id or ''])}: its rows would be stored once more, beside the {stored} "
        f"of before. No document was changed. Name it as before (--id {before[0] or repr('')}), "
        f"add --sync to delete the documents that no source has, or --remap to keep both."
    )


def changed_values(collection: Collection, source: Source, map: FieldMap) -> int:
    """Count the stored documents whose values a source would change; null values do not count.

    Of standard input, which is read once, only the rows that it can give again are counted.
    """
    limit = LOOKAHEAD_ROWS if isinstance(source, StandardInput) else None
    rows = islice(documents(source, map, types=types_of(collection, map.value)), limit)
    values = ((row.item.id, row.item.value) for row in rows if not isinstance(row, RowProblem))
    count = 0
    while window := dict(islice(values, WINDOW)):
        stored = collection.store.find(list(window))
        count += sum(
            document.value is not None and document.value != window[id]
            for id, document in stored.items()
        )
    return count


def _columns(names: Any) -> tuple[str, ...]:
    """Return the columns of a role, which has one, several or none."""
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(names)


def _has(source: Source, rows: Sequence[Row], names: Sequence[str]) -> bool:
    try:
        all_columns([name for name in names if name], rows, source)
    except SourceError:
        return False
    return True


def _mapped(source: Source, rows: Sequence[Row], columns: Columns) -> FieldMap:
    """Return the map with some columns, and guesses for the other roles."""
    present = {role: names for role, names in columns.items() if any(names)}
    arguments = {role: names if role in SEVERAL else names[0] for role, names in present.items()}
    map = guess(rows, source=source, **arguments)  # type: ignore[arg-type]
    empty = {role: () if role in SEVERAL else None for role in columns.keys() - present.keys()}
    guessed = tuple(role for role in map.guessed if role not in empty)
    return replace(map, **empty, guessed=guessed)  # type: ignore[arg-type]


def _listed(role: str, names: Sequence[str]) -> str:
    if any(names):
        return listed(names)
    return "the row number" if role == "id" else "none"
