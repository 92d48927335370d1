"""Files of feedback that are no plain table: judgements in BEIR's layout, and click logs.

Judgements are a file of queries, and one of query id, document id and grade.

A click log has a row for each document shown, its rank, and whether it was clicked. Position bias:
people look at the first results and seldom further, so that a click tells two things at once: that
the document was seen, and that it is relevant. Counted as they are, clicks teach the ranking that
produced them. Where a document at rank r is seen with probability p(r), its propensity, a click
there counts 1 / p(r), which makes the mean over all times it was shown an unbiased estimate of its
relevance (Joachims, Swaminathan and Schnabel 2017, "Unbiased Learning-to-Rank with Biased
Feedback"). p(r) = (1 / r) ** eta is their model.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from attend.core.errors import SourceError
from attend.core.types import Example, Json, QueryInput, same_question
from attend.feedback.reading import (
    DOCUMENT_NAMES,
    LABEL_NAMES,
    QUERY_NAMES,
    VECTOR_NAMES,
    clicked_of,
    example_of,
    file_of,
    label_of,
    position_of,
    query_of,
    vector_query,
)
from attend.source import Row, RowItem, RowProblem, Source, open_source
from attend.source.cells import document_id, is_unicode, number_of
from attend.source.columns import Columns, matching
from attend.source.decoding import SAVE_AS, TableFormat, open_text
from attend.source.files import JsonLinesFile
from attend.source.opening import READERS
from attend.source.rows import Unusable, read_rows

QUERY_ID_NAMES = ("query_id", "qid", "question_id")

QRELS_SUFFIXES = frozenset({".tsv", ".txt", ".qrels", ".trec", ""})
"""Read line by line, with a header or without: TREC's files have none."""

COLUMNS = ("query-id", "corpus-id", "score")
"""BEIR's names of the columns of judgements."""


ETA = 1.0
"""Exponent of the propensity; 0: all ranks are seen alike."""

CLIP = 10.0
"""The largest weight of one click: unclipped, a stray one at rank 200 outweighs all others."""


class Judgement(NamedTuple):
    """A line of a file of judgements: a query's id, a document's id, and a grade."""

    query: str
    document: str
    grade: float


def read_judgements(
    queries: Path, qrels: Path, *, vectors: bool = False, encoding: str | None = None
) -> Iterator[RowItem[Example] | RowProblem]:
    """Read judgements and the queries that they name.

    Grades may be any finite numbers. Queries without a judgement are skipped: one file of
    queries often serves several files of judgements.

    Args:
        queries: JSON lines (or another table) with `_id` and `text`, or `vector`.
        qrels: query id, document id, grade, with BEIR's header or without; TREC's four columns;
            or a table with such columns.
        vectors: queries are vectors, even if they are written as texts.
        encoding: of both files, where it is not to be detected.

    Raises:
        SourceError: a file cannot be read, or no query can be used.
    """
    by_id: dict[str, QueryInput] = {}
    for item in read_queries(queries, vectors=vectors, encoding=encoding):
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

    for judgement in read_qrels(qrels, by_id, encoding):
        if isinstance(judgement, RowProblem):
            yield judgement
            continue
        place, (query_id, document, grade) = judgement
        if query_id in by_id:
            yield RowItem(place, Example(by_id[query_id], document, grade, source=file_of(place)))
        else:
            yield RowProblem(place, f"There is no query {query_id!r} in {queries.name}.")


def read_queries(
    path: Path, *, vectors: bool = False, encoding: str | None = None
) -> Iterator[RowItem[tuple[str, QueryInput]] | RowProblem]:
    """Read the id of each query and the query itself."""
    is_table, format = path.suffix.lower() in READERS, TableFormat(encoding=encoding)
    source = open_source(str(path), format) if is_table else JsonLinesFile(path, format=format)

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
    path: Path, queries: Container[str] = (), encoding: str | None = None
) -> Iterator[RowItem[Judgement] | RowProblem]:
    """Read judgements without their queries.

    Args:
        queries: ids of queries: a first line that begins with one is no header.

    Raises:
        SourceError: the file cannot be read.
    """
    if path.suffix.lower() in QRELS_SUFFIXES:
        rows = _lines(path, queries, encoding)
    else:
        rows = map(_renamed, open_source(str(path), TableFormat(encoding=encoding)).rows())
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


def _lines(path: Path, queries: Container[str], encoding: str | None) -> Iterator[Row | RowProblem]:
    """Read lines of three cells, or of TREC's four: the second, the iteration, has no use."""
    with open_text(path, encoding) as file:
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
                yield RowProblem(place, f"The row holds bytes that are not UTF-8. {SAVE_AS}")
            # A header has no number for a grade, and is about no query.
            elif number > 1 or number_of(cells[-1]) is not None or cells[0] in queries:
                yield Row(place, dict(zip(COLUMNS, (cells[0], *cells[-2:]), strict=True)))


# -- click logs -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """The counts of one document for one query, over all times it was shown.

    Attributes:
        seen: the expected number of looks, the sum of propensities.
        clicks: the sum of clicks, each over its propensity.
    """

    first: RowItem[Example]
    shown: int = 0
    seen: float = 0.0
    clicks: float = 0.0

    def count(self, clicked: bool, propensity: float) -> None:
        self.shown += 1
        self.seen += propensity
        self.clicks += clicked / propensity

    def weight(self) -> float:
        """Return the estimate of relevance; without a click, minus the probability of a look.

        Not clicked at rank 1 says more against a document than at rank 10, where perhaps nobody
        looked.
        """
        return (self.clicks or -self.seen) / self.shown


def propensity(position: int, eta: float = ETA, clip: float = CLIP) -> float:
    """Return the probability that a document at a rank (from 1) is seen, at least 1 / clip.

    >>> propensity(1), propensity(4), propensity(4, eta=0.5), propensity(1000)
    (1.0, 0.25, 0.5, 0.1)
    """
    return float(max(position**-eta, 1 / clip))


def read_clicks(
    source: Source,
    columns: Columns,
    *,
    eta: float = ETA,
    clip: float = CLIP,
    negatives: bool = False,
    vectors: bool = False,
) -> Iterator[RowItem[Example] | RowProblem]:
    """Read the whole log: one example for each query and clicked document, without the bias.

    Its position is None, since the weight accounts for the positions already.

    Args:
        eta: the exponent of the propensity, 0 or more.
        clip: the largest weight of one click, 1 or more.
        negatives: documents shown and never clicked become examples too, of weight below 0. By
            default they do not: a document that was not clicked is often one that was not seen.
        vectors: queries are vectors, even if they are written as texts.
    """
    tallies: dict[tuple[str | bytes, str], Tally] = {}
    unclicked = rows = 0

    def read(row: Row) -> tuple[Example, int, bool]:
        example = example_of(row, columns, vectors=vectors)
        position = columns.parse(row, "position", _required_position)
        return example, position, columns.parse(row, "clicked", clicked_of)

    for item in read_rows(source.rows(), read):
        if isinstance(item, RowProblem):
            yield item
            continue
        example, position, clicked = item.item
        rows += 1
        unclicked += not clicked
        identity = same_question(example.query), example.document
        first = RowItem(item.place, example._replace(position=None))
        tallies.setdefault(identity, Tally(first)).count(clicked, propensity(position, eta, clip))
    for tally in tallies.values():
        if tally.clicks or negatives:
            place, example = tally.first
            yield RowItem(place, example._replace(weight=tally.weight()))
    if unclicked and not negatives:
        yield RowProblem(
            source.name,
            f"{unclicked} of {rows} rows were shown and not clicked. They count where the document "
            f"was clicked at other times, and are no negative labels; --negatives makes them that.",
            rejects=False,
        )


def _required_position(cell: Json, column: str) -> int:
    position = position_of(cell, column)
    if position is None:
        raise Unusable(f"The position in {column!r} is missing, and a click counts by its rank.")
    return position
