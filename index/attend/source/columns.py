"""Columns: which one of a table has which role, as the caller names it or guessed by its name.

`guess` chooses the fields of documents, `guess_columns` the columns of a table with a fixed layout,
such as a click log; both by names first, and by what the columns hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import TypeVar

from attend.core.errors import SourceError
from attend.core.types import Document, Json
from attend.source.files import headless
from attend.source.rows import (
    LOOKAHEAD_ROWS,
    SCALARS,
    Row,
    RowItem,
    RowProblem,
    Source,
    Unusable,
    as_vector,
    column_names,
    common_type,
    document_id,
    listed,
    sample,
    scalar,
    shown,
    text_of,
    type_of,
)

ID_NAMES = ("_id", "id", "doc_id", "document_id", "uid", "uuid", "key", "pk")
TEXT_NAMES = (
    *("title", "name", "question", "headline", "summary", "description", "abstract"),
    *("body", "content", "text", "passage", "document", "sentence", "utterance", "query"),
    *("caption", "synopsis", "message", "review", "comment", "transcript"),
)
VECTOR_NAMES = ("vector", "embedding")
VALUE_NAMES = ("value", "label", "category", "class", "intent", "answer", "target")

MAJORITY = 0.9
"""The share of a column's cells that decides its type; other cells are problems of their rows."""

PROSE_WORDS = 5
"""Words in a cell, on average, from which a column reads as prose."""

UNIQUE_ROWS = 10
"""Rows in which a column must differ to be named as a possible id."""

_LINK = re.compile(r"(?:[a-z][a-z0-9+.-]*://|data:|www\.)\S*$", re.IGNORECASE)

Parsed = TypeVar("Parsed")


def matching(columns: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the columns that go by one of the names, in the order of the names.

    Names are compared in one spelling, since data frames, spreadsheets and BEIR differ in theirs.

    >>> matching(["ID", "Corpus-ID", "title"], ["corpus_id", "doc_id", "id"])
    ['Corpus-ID', 'ID']
    """
    order = {name: position for position, name in enumerate(names)}
    spelled = {
        column: column.strip().lower().replace("-", "_").replace(" ", "_") for column in columns
    }
    present = [column for column, name in spelled.items() if name in order]
    return sorted(present, key=lambda column: order[spelled[column]])


def all_columns(names: Sequence[str], rows: Sequence[Row], source: Source | None) -> Sequence[str]:
    """Return the columns of the sampled rows, and of later ones until each of `names` appears.

    JSON rows may leave out what is null in them: the first 10,000 rows of the source are searched
    for a name that no sampled row has.

    Raises:
        SourceError: no row has a column of one of the names.
    """
    nested = [name for name in names if "." in name]  # of objects within rows
    present, count = dict.fromkeys(column_names(rows)), len(rows)
    present |= {n: None for n in nested if any(row.get(n) is not None for row in rows)}
    if source is not None and not set(names) <= present.keys():
        count = 0
        for row in islice(source.rows(), LOOKAHEAD_ROWS):
            if isinstance(row, Row):
                present |= dict.fromkeys(row.cells)
                present |= {name: None for name in nested if row.get(name) is not None}
                count += 1
                if set(names) <= present.keys():
                    break
    for name in names:
        if name not in present:
            if source is not None and name in source.faults:
                raise SourceError(f"{source.name}: {source.faults[name]}")
            raise SourceError(
                f"{'The source' if source is None else source.name} has no column {name!r} in its "
                f"first {count} rows. They have {listed(tuple(present), limit=40)}."
                f"{headless(present)}"
            )
    return tuple(present)


def _description(
    roles: Mapping[str, Sequence[str]], guessed: Sequence[str], option: str = "--{}"
) -> str:
    """Describe the choice in one line, and in a second one the guesses with their options."""
    line = " · ".join(f"{role}: {listed(names)}" for role, names in roles.items() if names)
    if not guessed:
        return line
    options = "/".join(option.format(role) for role in guessed)
    return f"{line}\nguessed: {', '.join(guessed)} (say {options} to choose)"


# -- documents ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FieldMap:
    """The columns that become a document's id, texts, vector and value; all others are payload.

    `id` None: the number of the row is the id. `value` of one column: its bare cell; of
    several: an object of them. `guessed` are the roles that the caller did not name.
    """

    id: str | None
    text: tuple[str, ...]
    vector: str | None
    value: tuple[str, ...]
    guessed: tuple[str, ...] = field(default=(), compare=False)

    def taken(self) -> frozenset[str | None]:
        """Return the columns that have a role, and so are no payload."""
        return frozenset([self.id, self.vector, *self.text, *self.value])


def guess(
    sample: Sequence[Row],
    *,
    id: str | None = None,
    text: Sequence[str] = (),
    vector: str | None = None,
    value: Sequence[str] = (),
    source: Source | None = None,
) -> FieldMap:
    """Take the columns that are named and guess the rest from the sample.

    `source` adds what its format declares: a primary key, or a layout's text columns.

    Raises:
        SourceError: no row has a column that is named; or neither text nor vector is named or can
            be guessed.

    >>> rows = [Row("a.csv:2", {"text": "Where is my card?", "category": "arrival"})]
    >>> describe(guess(rows), rows).splitlines()[0]
    'id: the row number · text: text · value: category'
    """
    all_columns([name for name in (*text, vector, id, *value) if name is not None], sample, source)
    columns = column_names(sample)
    natural_id, natural_text = (source.natural_id, source.natural_text) if source else (None, ())
    id_column = id or natural_id or next(iter(matching(columns, ID_NAMES)), None)
    vector_column = vector
    if not (vector or text or natural_text):
        vectors = [
            name
            for name in matching(columns, VECTOR_NAMES)
            if _mostly(sample, name, lambda cell: as_vector(cell) is not None)
        ]
        vector_column = next(iter(vectors), source.natural_vector if source else None)
    texts = tuple(dict.fromkeys(text))
    if not texts:
        used = {id_column, vector_column, *value}
        texts = natural_text or _texts(sample, used, id_column, required=vector_column is None)
    values = tuple(dict.fromkeys(value))
    if not values and not natural_text:
        used = {id_column, vector_column, *texts}
        values = tuple(name for name in matching(columns, VALUE_NAMES) if name not in used)[:1]
    # What the format declares is as good as named by the caller.
    named = {"id": id or natural_id, "text": text or natural_text, "vector": vector, "value": value}
    map = FieldMap(id_column, texts, vector_column, values)
    return replace(map, guessed=tuple(r for r in named if getattr(map, r) and not named[r]))


def _texts(
    sample: Sequence[Row], used: set[str | None], id: str | None, *, required: bool
) -> tuple[str, ...]:
    """Return all columns with a name that texts go by, else the one with the longest strings.

    Where a vector makes the texts optional, a name is needed.
    """
    names = column_names(sample)
    strings = [
        name
        for name in names
        if _mostly(sample, name, lambda c: isinstance(c, str) and not _LINK.match(c.strip()))
        # Digits alone are a code or a count, in a table without types as in others.
        and common_type(_cells(sample, name)) == "text"
    ]
    free = [name for name in strings if name not in used]
    if not required:
        return tuple(matching(free, TEXT_NAMES))
    # A column that is returned is searched only where there is no other: English → French.
    free = free or [name for name in strings if name != id]
    if not free:
        raise SourceError(
            f"No field looks like text or a vector. Choose with --text F or --vector F among "
            f"{listed(names, limit=40)}.{headless(names)}"
        )
    named = tuple(matching(free, TEXT_NAMES))
    prose = [name for name in free if _words(sample, name) >= PROSE_WORDS]
    if any(name in prose for name in named):
        return named
    # A header in another language: what reads as prose, beside a name or title.
    lengths = {name: sum(len(str(cell)) for cell in _cells(sample, name)) for name in free}
    return (*named, *prose) or (max(free, key=lengths.__getitem__),)


def _cells(sample: Sequence[Row], name: str) -> list[Json]:
    """Return the cells of a column that are not empty."""
    return [cell for row in sample if (cell := row.get(name)) not in (None, "")]


def _words(sample: Sequence[Row], name: str) -> float:
    """Return the mean number of words in a column whose texts mostly differ; 0 for another."""
    texts = [str(cell) for cell in _cells(sample, name)]
    differ = len(set(texts)) > len(texts) / 2
    return sum(len(text.split()) for text in texts) / len(texts) if texts and differ else 0.0


def _mostly(sample: Sequence[Row], name: str, test: Callable[[Json], bool]) -> bool:
    """Return whether nine in ten of a column's cells that are not empty pass the test.

    In a short table one cell may fail, as long as another one passes.
    """
    cells = _cells(sample, name)
    passing = sum(map(test, cells))
    enough = passing >= MAJORITY * len(cells) or len(cells) - passing == 1
    return passing > 0 and enough


def describe(
    map: FieldMap,
    sample: Sequence[Row],
    source: Source | None = None,
    types: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Describe the choice in one line, and in more lines what was guessed or detected.

    Args:
        source: adds the types of its columns and what was detected of its format.
        types: those that columns have in the collection.
    """
    untyped = source is not None and source.untyped
    taken = map.taken() | {source.natural_vector if source else None}
    payload = [name for name in column_names(sample) if name not in taken]
    text = list(map.text)
    if source is not None and source.text_note and map.text == source.natural_text:
        text[-1] += f" ({source.text_note})"
    about = {
        name: column_type(sample, name, untyped, types.get(name)) for name in (*map.value, *payload)
    }
    roles = {
        "id": [map.id or "the row number"],
        "text": text,
        "vector": [map.vector] if map.vector else [],
        "value": [name + (f" ({about[name]})" if about[name] else "") for name in map.value],
        # Of payload, only the columns that are not what they seem.
        "payload": [name + (f" ({about[name]})" if " " in about[name] else "") for name in payload],
    }
    described = _description(roles, map.guessed)
    if map.id is None and map.guessed and (unique := _unique(sample)):
        described += f"\nrow numbers change with the rows, and {unique} is another in each (--id)"
    return with_format(described, source)


def _unique(sample: Sequence[Row]) -> str | None:
    """Return the first column of codes with a letter that differ in all rows, of ten or more."""
    for name in column_names(sample):
        cells = [row.get(name) for row in sample]
        words = {cell for cell in cells if isinstance(cell, str) and len(cell.split()) == 1}
        codes = [word for word in words if any(map(str.isalpha, word))]  # a date is no code
        if len(codes) == len(cells) >= UNIQUE_ROWS:
            return name
    return None


def with_format(description: str, source: Source | None) -> str:
    """Add the line that says what was detected of the source's format, if anything was."""
    detected = "" if source is None else source.detected()
    return f"{description}\ndetected: {detected}" if detected else description


def column_type(sample: Sequence[Row], name: str, untyped: bool, before: str | None = None) -> str:
    """Describe the type of a column of numbers, or with the first cell that makes it none.

    Args:
        untyped: the cells are texts; the column has numbers only if all of its cells read as them.
        before: the type that the column has in the collection, and keeps.

    >>> rows = [Row("a.csv:2", {"price": "3"}), Row("a.csv:3", {"price": "n/a"})]
    >>> column_type(rows[:1], "price", untyped=True), column_type(rows, "price", untyped=True)
    ('number', "text, because of 'n/a' in line 3")
    """
    if before == "number":
        return before
    cells = [(row, cell) for row in sample if (cell := row.get(name)) not in (None, "")]
    types = [type_of(cell, untyped=untyped) for _, cell in cells]
    odd = [entry for entry, type in zip(cells, types, strict=True) if type == "text"]
    if set(types) - {"number", "text"} or len(cells) - len(odd) < max(1, len(odd)):
        return ""
    if before == "text" and untyped:
        return "text, as before"
    if not odd:
        return "number"
    row, cell = odd[0]
    kind, unit = ("text", "line") if untyped and before is None else ("mixed", "row")
    return f"{kind}, because of {shown(cell)} in {unit} {row.place.rpartition(':')[2]}"


# -- tables of a fixed layout ---------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """The roles of the columns of one kind of table.

    Attributes:
        names: role → the names that its column goes by, the most telling first.
        required: the roles that every such table has.
        option: how the command line names a role's option.
        absent: role → the description of a table without such a column.
        holds: role → a test of the cells of its column. Where the column that has a role by its
            name fails, or none has, the first free column that passes has it.
    """

    names: Mapping[str, Sequence[str]]
    required: tuple[str, ...]
    option: str = "--{}"
    absent: Mapping[str, str] = field(default_factory=dict)
    holds: Mapping[str, Callable[[Sequence[Json]], bool]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Columns:
    """The column of each role that a table has; `guessed` are the roles nobody named."""

    layout: Layout
    names: Mapping[str, str]
    guessed: tuple[str, ...] = ()

    def parse(self, row: Row, role: str, parser: Callable[[Json, str], Parsed]) -> Parsed:
        """Parse the cell of a required role; the parser takes the cell and its column's name."""
        column = self.names[role]
        return parser(row.get(column), column)

    def parse_optional(
        self, row: Row, role: str, parser: Callable[[Json, str], Parsed]
    ) -> Parsed | None:
        """Parse the cell of a role, or return None if the table has no such column."""
        return self.parse(row, role, parser) if role in self.names else None

    def describe(self) -> str:
        """Describe the choice in one line, and in a second one the guesses with their options."""
        names = {**self.layout.absent, **self.names}
        roles = {role: [names[role]] for role in self.layout.names if role in names}
        return _description(roles, self.guessed, self.layout.option)


def guess_columns(source: Source, layout: Layout, **named: str | None) -> Columns:
    """Take the columns that are named and guess the rest, by their names and by what they hold.

    Args:
        named: the columns of roles; None leaves a role to be guessed.

    Raises:
        SourceError: a column that is named or required does not exist.
    """
    taken = {role: column for role, column in named.items() if column is not None}
    rows = sample(source)
    present = all_columns(list(taken.values()), rows, source)
    guessed = []
    for role, names in layout.names.items():
        free = [column for column in present if column not in taken.values()]
        if role not in taken and (columns := matching(free, names)):
            taken[role] = columns[0]
            guessed.append(role)
    for role, holds in layout.holds.items():
        if role in taken and role not in guessed:
            continue
        free = [column for column in present if column not in taken.values()]
        for column in [*([taken[role]] if role in taken else []), *free]:
            cells = [cell for row in rows if (cell := row.get(column)) not in (None, "")]
            if cells and holds(cells):
                guessed += [role] * (role not in taken)
                taken[role] = column
                break
    for role in layout.required:
        if role not in taken:
            raise SourceError(
                f"No column of {source.name} looks like the {role}. Choose with "
                f"{layout.option.format(role)} among {listed(present, limit=40)}."
                f"{headless(present)}"
            )
    return Columns(layout, taken, tuple(guessed))


def documents(
    source: Source,
    map: FieldMap,
    places: dict[str, str] | None = None,
    types: dict[str, str] | None = None,
    *,
    remap: bool = False,
) -> Iterator[RowItem[Document] | RowProblem]:
    """Read the source from its beginning; each row gives a document or a problem.

    The problems of the source itself pass through. Ids are unique: of rows with the same id the
    first usable one is taken.

    Args:
        places: id → where it was first used. Sources whose ids must differ share one.
        types: column → number, boolean, text or mixed, as the collection has it; those of new
            columns are added. A row whose value has another type is a problem. Other cells of
            another type are kept as they are.
        remap: take the types from this source; numbers that are stored stay numbers.

    Raises:
        SourceError: the source as a whole is unreadable.
    """
    types = {} if types is None else types
    kept = frozenset() if remap else frozenset(map.value) & types.keys()
    rows = sample(source)
    # What a format with types has in its other columns is the author's choice.
    for name in column_names(rows) if source.untyped else map.value:
        type = common_type((row.get(name) for row in rows), untyped=source.untyped)
        if type is not None and (remap or name not in types):
            types[name] = "mixed" if type == "text" and types.get(name, type) != "text" else type
    mapper = _Mapper(source, map, {} if places is None else places, types, kept)
    for number, row in enumerate(source.rows(), start=1):
        if isinstance(row, RowProblem):
            yield row
            continue
        try:
            yield RowItem(row.place, mapper.document(row, number))
        except Unusable as reason:
            yield RowProblem(row.place, str(reason))
    for name, (place, cell, count) in mapper.misfits.items():
        more = f" and {count - 1} more cells" if count > 1 else ""
        yield RowProblem(
            place,
            f"The column {name!r} has numbers, but {shown(cell)} here{more}, which stay text. "
            f"Write numbers, or leave the cells empty.",
            rejects=False,
        )


@dataclass
class _Mapper:
    """Turns the rows of one source into documents.

    Attributes:
        kept: columns of values in which a cell of another type is a problem.
        misfits: column of numbers → the place of its first text, that text, the number of texts.
    """

    source: Source
    map: FieldMap
    places: dict[str, str]
    types: dict[str, str]
    kept: frozenset[str]
    misfits: dict[str, tuple[str, Json, int]] = field(default_factory=dict)

    def document(self, row: Row, number: int) -> Document:
        """Return the row's document, by its number where no column is the id; raises Unusable."""
        id, vector, value = self.map.id, self.map.vector, self.map.value
        identity = str(number) if id is None else document_id(row.get(id), id)
        if (place := self.places.get(identity)) is not None:
            raise Unusable(
                f"The id {identity!r} was used before, at {place}. Give each row its own."
            )
        values = {name: self._cell(row, name) for name in value}
        empty = all(cell is None for cell in values.values())
        texts = {name: text_of(row.get(name), name) for name in self.map.text}
        filled = {name: text for name, text in texts.items() if text.strip()}
        if vector is None and not filled:
            listed = ", ".join(map(repr, texts))
            raise Unusable(
                f"The row has no text: {listed} {'is' if len(texts) == 1 else 'are'} empty. Write "
                f"one, or name other fields with --text."
            )
        numbers = as_vector(row.get(vector)) if vector else None
        if vector and numbers is None:
            raise Unusable(
                f"The field {vector!r} is {shown(row.get(vector))}, but a list of finite numbers "
                f"is expected."
            )
        taken, untyped = self.map.taken(), self.source.untyped
        document = Document(
            id=identity,
            fields=filled,
            vectors={} if numbers is None else {"vector": numbers},
            value=values[value[0]] if len(value) == 1 else None if empty else values,
            payload={
                name: self._cell(row, name) if untyped else cell
                for name, cell in row.cells.items()
                if name not in taken and name != self.source.natural_vector
            },
        )
        parts = [document.id, document.fields, document.value, document.payload]
        try:
            if not untyped:  # a cell of a table without types is Unicode, and its numbers finite
                json.dumps(parts, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError as error:
            raise Unusable("The row holds text that is not valid UTF-8.") from error
        except (ValueError, RecursionError) as error:
            raise Unusable(f"The row cannot be written as JSON: {error}.") from error
        self.places[identity] = row.place
        return document

    def _cell(self, row: Row, name: str) -> Json:
        """Return a cell with the type of its column; raises Unusable where that is kept."""
        cell = row.get(name)
        if cell is None or (cell == "" and self.source.untyped):
            return None
        type = self.types.get(name)
        if type == "text" or (type not in SCALARS and not self.source.untyped):
            return cell
        parsed = scalar(cell) if isinstance(cell, str) else cell
        if type is None:  # no row of the sample has such a cell
            self.types[name] = "text" if parsed is None else "mixed"
            return cell if parsed is None else parsed
        if type in SCALARS and (parsed is None or type_of(parsed) != type):
            if name in self.kept:
                raise Unusable(
                    f"The value {name!r} is a {type} in this collection, but {shown(cell)} here. "
                    f"Write a {type}, leave it empty, or add --remap to store what is there."
                )
            self.types[name] = "mixed"
        if parsed is None:
            place, first, count = self.misfits.get(name, (row.place, cell, 0))
            self.misfits[name] = place, first, count + 1
            return cell
        return parsed
