"""Judgements in BEIR's layout: a file of queries, and one of query id, document id and grade."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import NamedTuple

from attend.errors import SourceError
from attend.feedback.reading import (
    DOCUMENT_NAMES,
    LABEL_NAMES,
    QUERY_NAMES,
    VECTOR_NAMES,
    file_of,
    label_of,
    query_of,
    vector_query,
)
from attend.source import Row, RowItem, RowProblem, open_source
from attend.source.cells import document_id, is_unicode, number_of
from attend.source.columns import matching
from attend.source.files import JsonLinesFile
from attend.source.opening import READERS
from attend.source.rows import Unusable, open_text, read_rows
from attend.types import Example, QueryInput, same_question

QUERY_ID_NAMES = ("query_id", "qid", "question_id")

QRELS_SUFFIXES = frozenset({".tsv", ".txt", ".qrels", ".trec", ""})
"""Read line by line, with a header or without: TREC's files have none."""

COLUMNS = ("query-id", "corpus-id", "score")
"""BEIR's names of the columns of judgements."""


class Judgement(NamedTuple):
    """A line of a file of judgements: a query's id, a document's id, and a grade."""

    query: str
    document: str
    grade: float


def read_judgements(
    queries: Path, qrels: Path, *, vectors: bool = False
) -> Iterator[RowItem[Example] | RowProblem]:
    """Read judgements and the queries that they name.

    Grades may be any finite numbers. Queries without a judgement are skipped: one file of
    queries often serves several files of judgements.

    Args:
        queries: JSON lines (or another table) with `_id` and `text`, or `vector`.
        qrels: query id, document id, grade, with BEIR's header or without; TREC's four columns;
            or a table with such columns.
        vectors: queries are vectors, even if they are written as texts.

    Raises:
        SourceError: a file cannot be read, or no query can be used.
    """
    by_id: dict[str, QueryInput] = {}
    for item in read_queries(queries, vectors=vectors):
        if isinstance(item, RowProblem):
            yield item
            continue
        id, query = item.item
        if same_question(by_id.get(id, query)) != same_question(query):
            yield RowProblem(item.place, f"The query id {id!r} was used before, for another query.")
        else:
            by_id[id] = query
    if not by_id:
        raise SourceError(f"{queries} has no usable query: expected _id and text in each row.")

    for judgement in read_qrels(qrels, by_id):
        if isinstance(judgement, RowProblem):
            yield judgement
            continue
        place, (query_id, document, grade) = judgement
        if query_id in by_id:
            yield RowItem(place, Example(by_id[query_id], document, grade, source=file_of(place)))
        else:
            yield RowProblem(place, f"There is no query {query_id!r} in {queries.name}.")


def read_queries(
    path: Path, *, vectors: bool = False
) -> Iterator[RowItem[tuple[str, QueryInput]] | RowProblem]:
    """Read the id of each query and the query itself."""
    is_table = path.suffix.lower() in READERS
    source = open_source(str(path)) if is_table else JsonLinesFile(path)

    def named_query_of(row: Row) -> tuple[str, QueryInput]:
        ids = matching(row.cells, ("_id", *QUERY_ID_NAMES, "id"))
        # Text is BEIR's own name for it, before all others.
        names = VECTOR_NAMES if vectors else ("text", *QUERY_NAMES, *VECTOR_NAMES)
        queries = matching(row.cells, names)
        if not ids or not queries:
            raise Unusable(
                "The row is no query: expected the fields _id and text, or _id and vector."
            )
        parser = vector_query if vectors else query_of
        return document_id(row.cells[ids[0]], ids[0]), parser(row.cells[queries[0]], queries[0])

    return read_rows(source.rows(), named_query_of)


def read_qrels(
    path: Path, queries: Container[str] = ()
) -> Iterator[RowItem[Judgement] | RowProblem]:
    """Read judgements without their queries.

    Args:
        queries: ids of queries: a first line that begins with one is no header.

    Raises:
        SourceError: the file cannot be read.
    """
    if path.suffix.lower() in QRELS_SUFFIXES:
        rows = _lines(path, queries)
    else:
        rows = map(_renamed, open_source(str(path)).rows())
    return read_rows(rows, _judgement_of)


def _judgement_of(row: Row) -> Judgement:
    query, document, grade = COLUMNS
    return Judgement(
        document_id(row.cells[query], query),
        document_id(row.cells[document], document),
        label_of(row.cells[grade], grade),
    )


def _renamed(row: Row | RowProblem) -> Row | RowProblem:
    """Give the columns of a table BEIR's names."""
    if isinstance(row, RowProblem):
        return row
    names = (*QUERY_ID_NAMES, "query"), DOCUMENT_NAMES, LABEL_NAMES
    columns = [matching(row.cells, role)[:1] for role in names]
    if not all(columns):
        return RowProblem(
            row.place, "The row is no judgement: expected query-id, corpus-id and score."
        )
    return Row(row.place, dict(zip(COLUMNS, (row.cells[c] for (c,) in columns), strict=True)))


def _lines(path: Path, queries: Container[str]) -> Iterator[Row | RowProblem]:
    """Read lines of three cells, or of TREC's four: the second, the iteration, has no use."""
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            place = f"{path.name}:{number}"
            cells = [cell.strip() for cell in (line.split("\t") if "\t" in line else line.split())]
            if not any(cells):
                continue
            if len(cells) not in (3, 4):
                yield RowProblem(
                    place,
                    f"The row has {len(cells)} cells, but query id, document id and grade are "
                    f"expected, separated by tabs.",
                )
            elif not is_unicode(line):
                yield RowProblem(
                    place, "The row holds bytes that are not UTF-8. Save the file as UTF-8."
                )
            # A header has no number for a grade, and is about no query.
            elif number > 1 or number_of(cells[-1]) is not None or cells[0] in queries:
                yield Row(place, dict(zip(COLUMNS, (cells[0], *cells[-2:]), strict=True)))
