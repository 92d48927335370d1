"""Judgements in BEIR's layout: a file of queries, and one of query id, document id and grade."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from attend.errors import SourceError
from attend.examples.cells import is_unicode, query_of, weight_of
from attend.examples.columns import (
    DOCUMENT_NAMES,
    LABEL_NAMES,
    QUERY_ID_NAMES,
    QUERY_NAMES,
    VECTOR_NAMES,
    named,
)
from attend.examples.types import Example, same_question
from attend.source import Problem, Row, Source, open_source
from attend.source.files import JsonLines
from attend.source.mapping import Unusable, document_id
from attend.source.opening import READERS
from attend.source.rows import unreadable
from attend.types import Float32

QRELS_SUFFIXES = frozenset({".tsv", ".txt", ".qrels", ".trec", ""})
"""Read line by line, with a header or without: those of TREC have none."""

Query = str | Float32


def read_judgements(
    queries: Path, qrels: Path, *, vectors: bool = False
) -> Iterator[Example | Problem]:
    """Read judgements with the queries that they name.

    Grades may be any finite numbers. Queries without a judgement are passed over: one file of
    queries often serves several of judgements.

    Args:
        queries: JSON lines (or another table) with `_id` and `text`, or `vector`.
        qrels: query id, document id, grade, with BEIR's header or without; TREC's four columns;
            or a table with such columns.
        vectors: queries are vectors, be they written as texts.

    Raises:
        SourceError: a file cannot be read, or no query can be used.
    """
    found: dict[str, Query] = {}
    for item in read_queries(queries, vectors=vectors):
        if isinstance(item, Problem):
            yield item
            continue
        id, query, place = item
        if same_question(found.get(id, query)) != same_question(query):
            yield Problem(place, f"The query id {id!r} was used before, for another query.")
        else:
            found[id] = query
    if not found:
        raise SourceError(f"{queries} has no usable query: expected _id and text in each row.")
    for row in _judgements(qrels, found):
        yield row if isinstance(row, Problem) else _example(row, found, queries.name)


def read_queries(
    path: Path, *, vectors: bool = False
) -> Iterator[tuple[str, Query, str] | Problem]:
    """Read queries alone: the id of each, the query itself, and its place."""
    for row in _source(path).rows():
        if isinstance(row, Problem):
            yield row
            continue
        try:
            yield *_query(row, vectors), row.place
        except Unusable as reason:
            yield Problem(row.place, str(reason))


def _query(row: Row, vectors: bool) -> tuple[str, Query]:
    present = list(row.cells)
    id_field = named(present, ("_id", *QUERY_ID_NAMES, "id"))
    # Text is BEIR's own name for it, before all others.
    field = named(present, VECTOR_NAMES if vectors else ("text", *QUERY_NAMES, *VECTOR_NAMES))
    if id_field is None or field is None:
        raise Unusable("The row is no query: expected the fields _id and text, or _id and vector.")
    id = document_id(row.cells[id_field], id_field)
    return id, query_of(row.cells[field], field, vectors=vectors)


def _judgements(path: Path, queries: Mapping[str, Query]) -> Iterator[Row | Problem]:
    """Rows of query id, document id and grade under these names."""
    if path.suffix.lower() in QRELS_SUFFIXES:
        yield from _lines(path, queries)
        return
    for row in open_source(str(path)).rows():
        yield row if isinstance(row, Problem) else _renamed(row)


def _renamed(row: Row) -> Row | Problem:
    present = list(row.cells)
    query = named(present, (*QUERY_ID_NAMES, "query"))
    document, grade = named(present, DOCUMENT_NAMES), named(present, LABEL_NAMES)
    if query is None or document is None or grade is None:
        return Problem(
            row.place, "The row is no judgement: expected query-id, corpus-id and score."
        )
    cells = {"query-id": query, "corpus-id": document, "score": grade}
    return Row(row.place, {name: row.cells[column] for name, column in cells.items()})


def _lines(path: Path, queries: Mapping[str, Query]) -> Iterator[Row | Problem]:
    try:
        # surrogateescape: one undecodable byte is a problem of its row, not of the file.
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
            for number, line in enumerate(file, start=1):
                if line.strip() and not (number == 1 and _is_header(line, queries)):
                    yield _row(line, f"{path.name}:{number}")
    except OSError as error:
        raise unreadable(path, error) from error


def _row(line: str, place: str) -> Row | Problem:
    cells = _cells(line)
    if len(cells) == 4:
        del cells[1]  # TREC's iteration, which nobody uses
    if len(cells) != 3:
        return Problem(
            place,
            f"The row has {len(cells)} cells, but query id, document id and grade are expected, "
            f"separated by tabs.",
        )
    if not is_unicode(line):
        return Problem(place, "The row holds bytes that are not UTF-8. Save the file as UTF-8.")
    return Row(place, dict(zip(("query-id", "corpus-id", "score"), cells, strict=True)))


def _is_header(line: str, queries: Mapping[str, Query]) -> bool:
    """Whether a first line names columns: its grade is a word, and it begins with no query's id."""
    cells = _cells(line)
    try:
        float(cells[-1])
    except ValueError:
        return cells[0] not in queries
    return False


def _cells(line: str) -> list[str]:
    cells = line.rstrip("\r\n").split("\t") if "\t" in line else line.split()
    return [cell.strip() for cell in cells]


def _example(row: Row, queries: Mapping[str, Query], named_in: str) -> Example | Problem:
    try:
        id = document_id(row.cells["query-id"], "query-id")
        if id not in queries:
            raise Unusable(f"There is no query {id!r} in {named_in}.")
        return Example(
            query=queries[id],
            document=document_id(row.cells["corpus-id"], "corpus-id"),
            weight=weight_of(row.cells["score"], "score"),
            query_id=id,
            source=row.place.rpartition(":")[0],
            place=row.place,
        )
    except Unusable as reason:
        return Problem(row.place, str(reason))


def _source(path: Path) -> Source:
    if path.suffix.lower() in READERS:
        return open_source(str(path))
    return JsonLines(path, path.name)
