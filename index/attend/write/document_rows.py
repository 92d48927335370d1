"""Rows that are documents already, as `attend export --jsonl` writes them and HTTP takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attend.api.base import parse
from attend.api.documents import DocumentRequest
from attend.core.errors import InvalidRequest
from attend.core.types import Document
from attend.source import Row, RowItem, RowProblem, Source

COLUMNS = frozenset({"id", "text", "fields", "vector", "vectors", "value", "payload"})


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


def document_rows(
    source: Source, places: dict[str, str]
) -> Iterator[RowItem[Document] | RowProblem]:
    """Read documents as they are; problems of the source pass through.

    Args:
        places: id → where it was first used. Sources whose ids must differ share one.
    """
    for row in source.rows():
        if isinstance(row, RowProblem):
            yield row
            continue
        try:
            document = parse(DocumentRequest, row.cells).document()
        except InvalidRequest as error:
            yield RowProblem(row.place, str(error))
            continue
        if (place := places.get(document.id)) is not None:
            yield RowProblem(row.place, f"The id {document.id!r} was used before, at {place}.")
            continue
        places[document.id] = row.place
        yield RowItem(row.place, document)
