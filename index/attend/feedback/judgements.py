"""Judgements in BEIR's layout: a file of queries, and one of query id, document id and grade."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

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
from attend.source import Row, RowItem, RowProblem, Unusable, open_source, read_rows
from attend.source.cells import document_id, is_unicode, number_of
from attend.source.columns import matching
from attend.source.files import JsonLinesFile
from attend.source.opening import READERS
from attend.source.rows import unreadable
from attend.types import Example, QueryInput, same_question

QUERY_ID_NAMES = ("query_id", "qid", "question_id")

QRELS_SUFFIXES = frozenset({".tsv", ".txt", ".qrels", ".trec", ""})
"""Read line by line, with a header or without: TREC's files have none."""


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

    def judgement_of(row: Row) -> Example:
        query_id = document_id(row.cells["query-id"], "query-id")
        if query_id not in by_id:
            raise Unusable(f"There is no query {query_id!r} in {queries.name}.")
        document = document_id(row.cells["corpus-id"], "corpus-id")
        weight = label_of(row.cells["score"], "score")
        return Example(by_id[query_id], document, weight, source=file_of(row))

    yield from read_rows(_judgement_rows(qrels, by_id), judgement_of)


def read_queries(
    path: Path, *, vectors: bool = False
) -> Iterator[RowItem[tuple[str, QueryInput]] | RowProblem]:
    """Read the id of each query and the query itself."""
    if path.suffix.lower() in READERS:
        source = open_source(str(path))
    else:
        source = JsonLinesFile(path, path.name)

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


def _judgement_rows(path: Path, queries: Mapping[str, QueryInput]) -> Iterator[Row | RowProblem]:
    """Yield rows with the cells query-id, corpus-id and score."""
    if path.suffix.lower() in QRELS_SUFFIXES:
        yield from _judgement_lines(path, queries)
        return
    for row in open_source(str(path)).rows():
        yield row if isinstance(row, RowProblem) else _renamed(row)


def _renamed(row: Row) -> Row | RowProblem:
    names = (*QUERY_ID_NAMES, "query"), DOCUMENT_NAMES, LABEL_NAMES
    columns = [matching(row.cells, role)[:1] for role in names]
    if not all(columns):
        return RowProblem(
            row.place, "The row is no judgement: expected query-id, corpus-id and score."
        )
    cells = [row.cells[column] for (column,) in columns]
    return Row(row.place, dict(zip(("query-id", "corpus-id", "score"), cells, strict=True)))


def _judgement_lines(path: Path, queries: Mapping[str, QueryInput]) -> Iterator[Row | RowProblem]:
    try:
        # surrogateescape: one undecodable byte is a problem of its row, not of the file.
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
            for number, line in enumerate(file, start=1):
                cells = _split(line)
                if any(cells) and not (number == 1 and _is_header(cells, queries)):
                    yield _judgement_row(cells, f"{path.name}:{number}")
    except OSError as error:
        raise unreadable(path, error) from error


def _split(line: str) -> list[str]:
    cells = line.rstrip("\r\n").split("\t") if "\t" in line else line.split()
    return [cell.strip() for cell in cells]


def _is_header(cells: Sequence[str], queries: Mapping[str, QueryInput]) -> bool:
    """Return whether a first line names columns: its grade is no number, its id no query's."""
    return number_of(cells[-1]) is None and cells[0] not in queries


def _judgement_row(cells: list[str], place: str) -> Row | RowProblem:
    if len(cells) == 4:
        del cells[1]  # TREC's iteration, which nobody uses
    if len(cells) != 3:
        return RowProblem(
            place,
            f"The row has {len(cells)} cells, but query id, document id and grade are expected, "
            f"separated by tabs.",
        )
    if not is_unicode("".join(cells)):
        return RowProblem(place, "The row holds bytes that are not UTF-8. Save the file as UTF-8.")
    return Row(place, dict(zip(("query-id", "corpus-id", "score"), cells, strict=True)))
