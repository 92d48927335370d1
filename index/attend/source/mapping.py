"""Rows → documents, with a reason for every row that cannot become one."""

from __future__ import annotations

import json
from collections.abc import Iterator

from attend.source.cells import as_vector, document_id, scalar_columns, text_of, typed
from attend.source.columns import FieldMap
from attend.source.rows import Row, RowItem, RowProblem, Source, Unusable, sample
from attend.types import Document, Json

VECTOR_FIELD = "vector"
"""The key field of a document's own vector."""


def documents(source: Source, map: FieldMap) -> Iterator[RowItem[Document] | RowProblem]:
    """Read the source from its beginning; each row gives a document or a problem.

    The problems of the source itself pass through. Ids are unique within the source: of
    rows with the same id the first usable one is taken.

    Raises:
        SourceError: the source as a whole is unreadable.
    """
    mapper = _Mapper(map, scalar_columns(sample(source)) if source.untyped else None)
    for number, row in enumerate(source.rows(), start=1):
        if isinstance(row, RowProblem):
            yield row
            continue
        try:
            yield RowItem(row.place, mapper.document(row, number))
        except Unusable as reason:
            yield RowProblem(row.place, str(reason))


class _Mapper:
    """Turns the rows of one source into documents; ids must differ and widths agree.

    `scalars` are the columns of numbers and booleans of an untyped source, None of a typed one.
    """

    def __init__(self, map: FieldMap, scalars: frozenset[str] | None) -> None:
        self._map = map
        self._scalars = scalars
        self._taken = map.taken()
        self._places: dict[str, str] = {}  # id -> where it was first used
        self._width: int | None = None

    def document(self, row: Row, number: int) -> Document:
        """Return the row's document, by its number where no column is the id; raises Unusable."""
        identity = self._identity(row, number)
        document = Document(
            id=identity,
            fields={} if self._map.vector else _texts(row, self._map.text),
            vectors=self._vectors(row, self._map.vector) if self._map.vector else {},
            value=self._value(row),
            payload=self._typed(row, [name for name in row.cells if name not in self._taken]),
        )
        _check_storable(document)
        self._remember(document, row.place)
        return document

    def _identity(self, row: Row, number: int) -> str:
        if self._map.id is None:
            return str(number)
        identity = document_id(row.cells.get(self._map.id), self._map.id)
        if (place := self._places.get(identity)) is not None:
            raise Unusable(f"The id {identity!r} was used before, at {place}.")
        return identity

    def _vectors(self, row: Row, column: str) -> dict[str, list[float]]:
        vector = as_vector(row.cells.get(column))
        if vector is None:
            raise Unusable(f"The field {column!r} is not a list of finite numbers.")
        if self._width is not None and len(vector) != self._width:
            raise Unusable(
                f"The vector in {column!r} has {len(vector)} dimensions, "
                f"but those before it have {self._width}."
            )
        return {VECTOR_FIELD: vector}

    def _remember(self, document: Document, place: str) -> None:
        if self._map.id is not None:  # row numbers cannot repeat
            self._places[document.id] = place
        for vector in document.vectors.values():
            self._width = len(vector)

    def _value(self, row: Row) -> Json:
        """Return one column's cell; of several an object, or null where all of them are null."""
        names = self._map.value
        cells = self._typed(row, names)
        if len(names) == 1:
            return cells[names[0]]
        return cells if any(cell is not None for cell in cells.values()) else None

    def _typed(self, row: Row, names: tuple[str, ...] | list[str]) -> dict[str, Json]:
        cells = {name: row.cells.get(name) for name in names}
        return cells if self._scalars is None else typed(cells, self._scalars)


def _texts(row: Row, names: tuple[str, ...]) -> dict[str, str]:
    """Return the texts that are not blank; raises Unusable where all are."""
    texts = {name: text_of(row.cells.get(name), name) for name in names}
    filled = {name: text for name, text in texts.items() if text.strip()}
    if not filled:
        listed = ", ".join(repr(name) for name in names)
        raise Unusable(f"The row has no text: {listed} {'is' if len(names) == 1 else 'are'} empty.")
    return filled


def _check_storable(document: Document) -> None:
    """Reject what neither JSON nor UTF-8 can hold, before a whole batch fails on it."""
    parts = [document.id, document.fields, document.value, document.payload]
    try:
        json.dumps(parts, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise Unusable("The row holds text that is not valid UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise Unusable(f"The row cannot be written as JSON: {error}.") from error
