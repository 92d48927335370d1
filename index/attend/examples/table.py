"""A table of examples: a row for each query and document, with a label or without."""

from __future__ import annotations

from collections.abc import Iterator

from attend.examples.cells import position_of, query_of, weight_of
from attend.examples.columns import Columns
from attend.examples.types import Example
from attend.source import Problem, Row, Source
from attend.source.mapping import Unusable, document_id


def read_table(
    source: Source, columns: Columns, *, vectors: bool = False
) -> Iterator[Example | Problem]:
    """Read from the beginning: each row gives an example, of weight 1 without a label column.

    Args:
        vectors: queries are vectors, be they written as texts.
    """
    for row in source.rows():
        if isinstance(row, Problem):
            yield row
            continue
        try:
            yield _example(row, columns, vectors)
        except Unusable as reason:
            yield Problem(row.place, str(reason))


def _example(row: Row, columns: Columns, vectors: bool) -> Example:
    cells = row.cells
    label, position, query_id = columns.label, columns.position, columns.query_id
    return Example(
        query=query_of(cells.get(columns.query), columns.query, vectors=vectors),
        document=document_id(cells.get(columns.document), columns.document),
        weight=1.0 if label is None else weight_of(cells.get(label), label),
        position=None if position is None else position_of(cells.get(position), position),
        query_id=None if query_id is None else str(cells.get(query_id)),
        source=source_of(row),
        place=row.place,
    )


def source_of(row: Row) -> str:
    """The file that a row is from, as its examples remember it."""
    return row.place.rpartition(":")[0]
