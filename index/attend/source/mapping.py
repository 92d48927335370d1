"""Rows → documents, with a reason for every row that cannot become one."""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from typing import TypeAlias

from attend.core.types import Document, Json
from attend.source.cells import (
    SCALARS,
    as_vector,
    common_type,
    document_id,
    scalar,
    shown,
    text_of,
    type_of,
)
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

ColumnTypes: TypeAlias = MutableMapping[str, str]
"""Column → number, boolean, text or mixed."""


def documents(
    source: Source,
    map: FieldMap,
    places: dict[str, str] | None = None,
    types: ColumnTypes | None = None,
    *,
    remap: bool = False,
) -> Iterator[RowItem[Document] | RowProblem]:
    """Read the source from its beginning; each row gives a document or a problem.

    The problems of the source itself pass through. Ids are unique: of rows with the same id the
    first usable one is taken.

    Args:
        places: id → where it was first used. Sources whose ids must differ share one.
        types: the types of columns in the collection; those of new columns are added. A row whose
            value has another type is a problem. Other cells of another type are kept as they are.
        remap: take the types from this source; numbers that are stored stay numbers.

    Raises:
        SourceError: the source as a whole is unreadable.
    """
    types = {} if types is None else types
    kept = frozenset() if remap else frozenset(map.value) & types.keys()
    _learn_types(types, source, map, remap)
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


def _learn_types(types: ColumnTypes, source: Source, map: FieldMap, remap: bool) -> None:
    rows = sample(source)
    # What a format with types has in its other columns is the author's choice.
    for name in column_names(rows) if source.untyped else map.value:
        type = common_type((row.get(name) for row in rows), untyped=source.untyped)
        if type is None or (name in types and not remap):
            continue
        types[name] = "mixed" if type == "text" and types.get(name, type) != "text" else type


class _Mapper:
    """Turns the rows of one source into documents.

    Args:
        kept: columns of values in which a cell of another type is a problem.
    """

    def __init__(
        self,
        source: Source,
        map: FieldMap,
        places: dict[str, str],
        types: ColumnTypes,
        kept: frozenset[str],
    ) -> None:
        self._map = map
        self._places = places
        self._taken = map.taken() | {source.natural_vector}
        self._untyped = source.untyped
        self._types = types
        self._kept = kept
        self.misfits: dict[str, tuple[str, Json, int]] = {}
        """Column of numbers → the place of its first text, that text, and the number of texts."""

    def document(self, row: Row, number: int) -> Document:
        """Return the row's document, by its number where no column is the id; raises Unusable."""
        id, vector, value = self._map.id, self._map.vector, self._map.value
        identity = str(number) if id is None else document_id(row.get(id), id)
        if (place := self._places.get(identity)) is not None:
            raise Unusable(
                f"The id {identity!r} was used before, at {place}. Give each row its own."
            )
        values = {name: self._cell(row, name) for name in value}
        empty = all(cell is None for cell in values.values())
        document = Document(
            id=identity,
            fields=_texts(row, self._map.text, required=vector is None),
            vectors={"vector": _vector(row, vector)} if vector else {},
            value=values[value[0]] if len(value) == 1 else None if empty else values,
            payload={
                name: self._cell(row, name) if self._untyped else cell
                for name, cell in row.cells.items()
                if name not in self._taken
            },
        )
        _check_storable(document)
        self._places[identity] = row.place
        return document

    def _cell(self, row: Row, name: str) -> Json:
        """Return a cell with the type of its column; raises Unusable where that is kept."""
        cell = row.get(name)
        if cell is None or (cell == "" and self._untyped):
            return None
        type = self._types.get(name)
        if type == "text" or (type not in SCALARS and not self._untyped):
            return cell
        parsed = scalar(cell) if isinstance(cell, str) else cell
        if type is None:  # no row of the sample has such a cell
            self._types[name] = "text" if parsed is None else "mixed"
            return cell if parsed is None else parsed
        if type in SCALARS and (parsed is None or type_of(parsed) != type):
            if name in self._kept:
                raise Unusable(
                    f"The value {name!r} is a {type} in this collection, but {shown(cell)} here. "
                    f"Write a {type}, leave it empty, or add --remap to store what is there."
                )
            self._types[name] = "mixed"
        if parsed is None:
            place, first, count = self.misfits.get(name, (row.place, cell, 0))
            self.misfits[name] = place, first, count + 1
            return cell
        return parsed


def _vector(row: Row, column: str) -> list[float]:
    vector = as_vector(row.get(column))
    if vector is None:
        raise Unusable(
            f"The field {column!r} is {shown(row.get(column))}, but a list of finite numbers "
            f"is expected."
        )
    return vector


def _texts(row: Row, names: tuple[str, ...], *, required: bool) -> dict[str, str]:
    """Return the texts that are not blank; raises Unusable where all are and one is required."""
    texts = {name: text_of(row.get(name), name) for name in names}
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
