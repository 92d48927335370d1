"""Rows → documents, with a reason for every row that cannot become one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from attend.source.cells import as_vector, document_id, is_scalar_column, shown, text_of, typed
from attend.source.columns import FieldMap
from attend.source.rows import (
    Row,
    RowItem,
    RowProblem,
    Source,
    Unusable,
    column_names,
    sample,
)
from attend.types import Document, Json


def documents(
    source: Source, map: FieldMap, places: dict[str, str] | None = None
) -> Iterator[RowItem[Document] | RowProblem]:
    """Read the source from its beginning; each row gives a document or a problem.

    The problems of the source itself pass through. Ids are unique: of rows with the same id the
    first usable one is taken.

    Args:
        places: id → where it was first used. Sources whose ids must differ share one.

    Raises:
        SourceError: the source as a whole is unreadable.
    """
    mapper = _Mapper(source, map, {} if places is None else places)
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


class _Mapper:
    """Turns the rows of one source into documents."""

    def __init__(self, source: Source, map: FieldMap, places: dict[str, str]) -> None:
        self._map = map
        self._places = places
        self._taken = map.taken() | {source.natural_vector}
        self.misfits: dict[str, tuple[str, Json, int]] = {}
        """Column of numbers → the place of its first text after the sample, that text, a count."""
        self._scalars: frozenset[str] | None = None  # columns of numbers, where cells have no types
        if source.untyped:
            rows = sample(source)
            names = (name for name in column_names(rows) if is_scalar_column(rows, name))
            self._scalars = frozenset(names)

    def document(self, row: Row, number: int) -> Document:
        """Return the row's document, by its number where no column is the id; raises Unusable."""
        id, vector, value = self._map.id, self._map.vector, self._map.value
        identity = str(number) if id is None else document_id(row.cells.get(id), id)
        if (place := self._places.get(identity)) is not None:
            raise Unusable(
                f"The id {identity!r} was used before, at {place}. Give each row its own."
            )
        values = self._cells(row, value)
        empty = all(cell is None for cell in values.values())
        document = Document(
            id=identity,
            fields=_texts(row, self._map.text, required=vector is None),
            vectors={"vector": _vector(row, vector)} if vector else {},
            value=values[value[0]] if len(value) == 1 else None if empty else values,
            payload=self._cells(row, [name for name in row.cells if name not in self._taken]),
        )
        _check_storable(document)
        self._places[identity] = row.place
        return document

    def _cells(self, row: Row, names: Sequence[str]) -> dict[str, Json]:
        cells = {name: row.cells.get(name) for name in names}
        if self._scalars is None:
            return cells
        parsed = typed(cells, self._scalars)
        for name in self._scalars & parsed.keys():
            if isinstance(cell := parsed[name], str):
                place, first, count = self.misfits.get(name, (row.place, cell, 0))
                self.misfits[name] = place, first, count + 1
        return parsed


def _vector(row: Row, column: str) -> list[float]:
    vector = as_vector(row.cells.get(column))
    if vector is None:
        raise Unusable(
            f"The field {column!r} is {shown(row.cells.get(column))}, but a list of finite numbers "
            f"is expected."
        )
    return vector


def _texts(row: Row, names: tuple[str, ...], *, required: bool) -> dict[str, str]:
    """Return the texts that are not blank; raises Unusable where all are and one is required."""
    texts = {name: text_of(row.cells.get(name), name) for name in names}
    filled = {name: text for name, text in texts.items() if text.strip()}
    if required and not filled:
        listed = ", ".join(repr(name) for name in names)
        raise Unusable(
            f"The row has no text: {listed} {'is' if len(names) == 1 else 'are'} empty. Write one, "
            f"or name other fields with --text."
        )
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
