"""Rows → documents, with a reason for every row that cannot become one."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from attend.source.cells import scalar_columns, typed
from attend.source.files import kind
from attend.source.guess import FieldMap
from attend.source.rows import Problem, Row, Source, sample
from attend.source.vectors import as_vector
from attend.types import Document, Json

MAX_ID_CHARACTERS = 512
VECTOR_FIELD = "vector"
"""The key field under which a document's own vector goes."""


class Placed(NamedTuple):
    """A document and where it was read."""

    place: str
    document: Document


class Unusable(Exception):
    """Why a row cannot become a document, as a sentence; turned into a Problem here."""


def documents(source: Source, map: FieldMap) -> Iterator[Placed | Problem]:
    """Read the source from its beginning; each row gives a document or a problem.

    The problems of the source itself pass through. Ids are unique within the source: of
    rows with the same id the first usable one is kept. Raises SourceError where the source
    cannot be read at all.
    """
    scalars = scalar_columns(sample(source)) if source.untyped else frozenset()
    mapper = Mapper(map, scalars, untyped=source.untyped)
    for number, row in enumerate(source.rows(), start=1):
        if isinstance(row, Problem):
            yield row
            continue
        try:
            yield Placed(row.place, mapper.document(row, number))
        except Unusable as reason:
            yield Problem(row.place, str(reason))


class Mapper:
    """Turns the rows of one source into documents, and remembers what they must agree on."""

    def __init__(self, map: FieldMap, scalars: frozenset[str], *, untyped: bool) -> None:
        self._map = map
        self._scalars = scalars
        self._untyped = untyped
        self._taken = map.taken()
        self._places: dict[str, str] = {}  # id -> where it was first used
        self._width: int | None = None

    def document(self, row: Row, number: int) -> Document:
        """Raises Unusable. `number` is the id where no field is."""
        identity = self._identity(row, number)
        found = Document(
            id=identity,
            fields={} if self._map.vector else _fields(row, self._map.text),
            vectors=self._vectors(row, self._map.vector) if self._map.vector else {},
            value=self._value(row),
            payload=self._payload(row),
        )
        _check_storable(found)
        self._remember(found, row.place)
        return found

    def _identity(self, row: Row, number: int) -> str:
        if self._map.id is None:
            return str(number)
        identity = document_id(row.cells.get(self._map.id), self._map.id)
        if (place := self._places.get(identity)) is not None:
            raise Unusable(f"The id {identity!r} was used before, at {place}.")
        return identity

    def _vectors(self, row: Row, field: str) -> dict[str, list[float]]:
        vector = as_vector(row.cells.get(field))
        if vector is None:
            raise Unusable(f"The field {field!r} is not a list of finite numbers.")
        if self._width is not None and len(vector) != self._width:
            raise Unusable(
                f"The vector in {field!r} has {len(vector)} dimensions, "
                f"but those before it have {self._width}."
            )
        return {VECTOR_FIELD: vector}

    def _remember(self, document: Document, place: str) -> None:
        if self._map.id is not None:  # row numbers cannot repeat
            self._places[document.id] = place
        for vector in document.vectors.values():
            self._width = len(vector)

    def _value(self, row: Row) -> Json:
        """One field: its cell. Several: an object, or null where all of them are."""
        names = self._map.value
        cells = self._typed({name: row.cells.get(name) for name in names})
        if len(names) == 1:
            return cells[names[0]]
        return cells if any(cell is not None for cell in cells.values()) else None

    def _payload(self, row: Row) -> Mapping[str, Json]:
        free = {name: cell for name, cell in row.cells.items() if name not in self._taken}
        return self._typed(free)

    def _typed(self, cells: dict[str, Json]) -> dict[str, Json]:
        return typed(cells, self._scalars) if self._untyped else cells


def document_id(cell: Json, field: str) -> str:
    """A string or a whole number as an id; raises Unusable for anything else.

    Control characters (Unicode category Cc) and lone surrogates are no part of an id.
    """
    if cell is None or cell == "":
        raise Unusable(f"The row has no id: its field {field!r} is missing or empty.")
    if isinstance(cell, bool) or not isinstance(cell, str | int):
        raise Unusable(
            f"The id in {field!r} is {kind(cell)}, but a string or a whole number is expected."
        )
    identity = str(cell)
    if len(identity) > MAX_ID_CHARACTERS:
        raise Unusable(
            f"The id in {field!r} has {len(identity)} characters; "
            f"at most {MAX_ID_CHARACTERS} are allowed."
        )
    _check_characters(identity, field)
    return identity


def _check_characters(identity: str, field: str) -> None:
    """SQLite's json_each cuts a text at NUL: two ids would become one."""
    if identity.isprintable():  # nearly every id; the loop below is slow
        return
    for character in identity:
        category = unicodedata.category(character)
        if category == "Cc":
            raise Unusable(
                f"The id in {field!r} holds the control character U+{ord(character):04X}, "
                "but only printable text can be an id. Take it out."
            )
        if category == "Cs":
            raise Unusable(
                f"The id in {field!r} holds half of a surrogate pair, which is not valid UTF-8."
            )


def _fields(row: Row, names: tuple[str, ...]) -> dict[str, str]:
    """The texts that are not blank; raises Unusable where all are."""
    texts = {name: text_of(row.cells.get(name), name) for name in names}
    found = {name: text for name, text in texts.items() if text.strip()}
    if not found:
        listed = ", ".join(repr(name) for name in names)
        raise Unusable(f"The row has no text: {listed} {'is' if len(names) == 1 else 'are'} empty.")
    return found


def text_of(cell: Json, field: str) -> str:
    """A cell as text: a list of strings, such as tags, is joined by commas; null is empty.

    Numbers and booleans raise Unusable: a text of bare numbers is a mapping gone wrong.

    >>> text_of(["crime", "classics"], "tags")
    'crime, classics'
    """
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, list | tuple) and all(isinstance(item, str) for item in cell):
        return ", ".join(cell)
    raise Unusable(
        f"The text field {field!r} holds {kind(cell)}, but a string or a list of strings "
        "is expected."
    )


def _check_storable(document: Document) -> None:
    """Refuse what neither JSON nor UTF-8 can hold, before a whole batch fails on it."""
    parts = [document.id, document.fields, document.value, document.payload]
    try:
        json.dumps(parts, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise Unusable("The row holds text that is not valid UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise Unusable(f"The row cannot be written as JSON: {error}.") from error
