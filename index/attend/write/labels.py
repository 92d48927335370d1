"""Tables of feedback: labels of documents for queries, and interactions of users.

```
source = open_source("labels.csv")
columns = label_columns(source)
gathered = gather(read_labels(source, columns), partial(unfit, collection))
```

Each reader yields a `RowItem` item for every row, or a `RowProblem` that says why it is unusable.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from attend.api.base import MAX_TEXT
from attend.core.arrays import same_question
from attend.core.errors import SourceError
from attend.core.types import MAX_WEIGHT, Example, Json, QueryInput
from attend.source import Row, RowItem, RowProblem, Source, open_source, sample
from attend.source.columns import Columns, Layout, guess_columns, matching
from attend.source.files import SAVE_AS, JsonLinesFile, TableFormat, TextFile
from attend.source.opening import READERS
from attend.source.rows import (
    Unusable,
    as_vector,
    column_names,
    document_id,
    is_unicode,
    number_of,
    read_rows,
    seconds_of,
    unexpected,
)
from attend.store import Interaction

QUERY_NAMES = (
    *("query", "query_text", "question", "question_text", "search", "search_query"),
    *("search_term", "term", "q", "text", "utterance", "sentence", "request"),
)
VECTOR_NAMES = ("query_vector", "query_embedding", "vector", "embedding", *QUERY_NAMES)
DOCUMENT_NAMES = (
    *("document", "document_id", "doc_id", "docid", "doc", "corpus_id", "passage_id", "pid"),
    *("item", "item_id", "product_id", "article_id", "target", "_id", "id", "url"),
)
LABEL_NAMES = (
    *("label", "weight", "relevance", "relevant", "rel", "grade", "score", "judgement"),
    *("judgment", "rating", "gain"),
)
POSITION_NAMES = ("position", "rank", "pos", "result_position")
CLICKED_NAMES = ("clicked", "click", "is_clicked", "is_click")

LABELS = Layout(
    names={
        "query": QUERY_NAMES,
        "document": DOCUMENT_NAMES,
        "label": LABEL_NAMES,
        "position": POSITION_NAMES,
    },
    required=("query", "document"),
    option="--{}-column",
    absent={"label": "none, so that each row counts as 1"},
)
CLICKS = Layout(
    names={
        "query": QUERY_NAMES,
        "document": DOCUMENT_NAMES,
        "position": POSITION_NAMES,
        "clicked": CLICKED_NAMES,
    },
    required=("query", "document", "position", "clicked"),
    option="--{}-column",
)
INTERACTIONS = Layout(
    names={
        "user": (
            *("user", "user_id", "userid", "uid", "customer", "customer_id", "reader"),
            *("reader_id", "session", "session_id", "visitor", "visitor_id", "member"),
            *("member_id", "person"),
        ),
        "item": (
            *("item", "item_id", "itemid", "movie", "movie_id", "movieid", "book", "book_id"),
            *("bookid", "product", "track", "track_id", "isbn", "asin", "sku", *DOCUMENT_NAMES),
        ),
        "value": ("value", "rating", "stars", "score", "label", "grade", "rate", "feedback"),
        "time": ("time", "timestamp", "date", "datetime", "created", "created_at", "when", "ts"),
    },
    required=("user", "item"),
)

EARLIEST = 1e8
"""Seconds since 1970 from which on a number is taken for a time, where its column's name is none of
a time's."""

_TRUTH = {"true": 1.0, "false": 0.0}


def label_columns(
    source: Source, layout: Layout = LABELS, *, vectors: bool = False, **named: str | None
) -> Columns:
    """Return the columns of a table of labels or of a click log; see `guess_columns`.

    Args:
        vectors: the collection has no encoder: a query's vector comes before its text.

    Raises:
        SourceError: a column that is named or required does not exist; or a table of labels seems
            to be a click log, whose every row would count as relevant.
    """
    names = {**layout.names, "query": VECTOR_NAMES} if vectors else layout.names
    columns = guess_columns(source, replace(layout, names=names), **named)
    clicked = matching(column_names(sample(source)), CLICKED_NAMES)
    if clicked and layout is not CLICKS and "label" not in columns.names:
        raise SourceError(
            f"{source.name} has a column {clicked[0]!r} and no label: it seems to be a click log. "
            f"Give it with --clicks, or name the label with --label-column."
        )
    return columns


def read_labels(
    source: Source, columns: Columns, *, vectors: bool = False
) -> Iterator[RowItem[Example] | RowProblem]:
    """Read a table from the beginning: without a label column each row has weight 1.

    Args:
        vectors: queries are vectors, even if they are written as texts.
    """
    return read_rows(source.rows(), lambda row: example_of(row, columns, vectors=vectors))


def example_of(row: Row, columns: Columns, *, vectors: bool) -> Example:
    """Return a row of a table of labels, or of a click log, as an example; raises Unusable."""
    label = columns.parse_optional(row, "label", label_of)
    return Example(
        query=columns.parse(row, "query", vector_query if vectors else query_of),
        document=columns.parse(row, "document", document_id),
        weight=1.0 if label is None else label,
        position=columns.parse_optional(row, "position", position_of),
        source=file_of(row.place),
    )


def read_interactions(
    source: Source, columns: Columns
) -> Iterator[RowItem[Interaction] | RowProblem]:
    """Read a table of interactions from the beginning."""
    value = columns.names.get("value", "")
    cells = [cell for row in sample(source) if (cell := row.get(value)) not in (None, "")]
    numeric = 2 * sum(number_of(cell) is not None for cell in cells) > len(cells)

    return read_rows(
        source.rows(),
        lambda row: Interaction(
            user=columns.parse(row, "user", document_id),
            document=columns.parse(row, "item", document_id),
            value=columns.parse_optional(row, "value", numeric_value if numeric else value_of),
            time=columns.parse_optional(row, "time", time_of),
        ),
    )


# -- cells ----------------------------------------------------------------------------------------


def query_of(cell: Json, column: str) -> QueryInput:
    """Parse a query: a text, or a vector where the cell is no text."""
    if not isinstance(cell, str | None):
        return vector_query(cell, column)
    if cell is None or not cell.strip():
        raise Unusable(f"The query in {column!r} is empty. Give its text.")
    if len(cell) > MAX_TEXT:
        raise Unusable(
            f"The query in {column!r} has {len(cell)} characters, but at most {MAX_TEXT} are "
            f"allowed."
        )
    if not is_unicode(cell):
        raise Unusable(f"The query in {column!r} is not valid UTF-8. Save the file as UTF-8.")
    return cell


def vector_query(cell: Json, column: str) -> QueryInput:
    """Parse a query of a collection without an encoder: a vector, also one written as text."""
    vector = as_vector(cell)
    if vector is None:
        raise unexpected("query", column, cell, "a list of finite numbers")
    return np.asarray(vector, dtype=np.float32)


def label_of(cell: Json, column: str) -> float:
    """Parse a label: a finite number; true is 1 and false 0.

    >>> label_of("0.5", "label"), label_of(True, "label"), label_of("-1", "label")
    (0.5, 1.0, -1.0)
    """
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        raise Unusable(f"The label in {column!r} is missing. Give a number.")
    number = _truth_or_number(cell)
    if number is None:
        raise unexpected("label", column, cell, "a number")
    if not abs(number) <= MAX_WEIGHT:  # true for NaN too
        raise Unusable(
            f"The label in {column!r} is {number:g}, but a finite number between {-MAX_WEIGHT:g} "
            f"and {MAX_WEIGHT:g} is expected."
        )
    return number


def position_of(cell: Json, column: str) -> int | None:
    """Parse a rank from 1; None for an empty cell.

    >>> position_of("3", "rank"), position_of(2.0, "rank"), position_of("", "rank")
    (3, 2, None)
    """
    if cell is None or cell == "":
        return None
    number = number_of(cell)
    if number is None or not math.isfinite(number) or number < 1 or number != int(number):
        raise unexpected("position", column, cell, "a whole number from 1")
    return int(number)


def clicked_of(cell: Json, column: str) -> bool:
    """Parse a click: 0 or 1, false or true."""
    number = _truth_or_number(cell)
    if number not in (0, 1):
        raise unexpected("click", column, cell, "0 or 1")
    return number == 1


def value_of(cell: Json, column: str) -> Json:
    """Parse the value of an interaction: a number where it is one, else the cell itself."""
    number = number_of(cell)
    return cell if cell != "" and number is None else numeric_value(cell, column)


def numeric_value(cell: Json, column: str) -> Json:
    """Parse the value of an interaction in a column of numbers; None for an empty cell."""
    if cell is None or cell == "":
        return None
    number = number_of(cell)
    if number is None or not math.isfinite(number):
        raise Unusable(
            f"The value in {column!r} is {str(cell)[:40]!r}, but a finite number is expected, as "
            f"most rows have."
        )
    return int(number) if number == int(number) else number


def time_of(cell: Json, column: str) -> float | None:
    """Parse a time as seconds since 1970; None for an empty cell."""
    try:
        return seconds_of(cell)
    except ValueError as error:
        raise Unusable(f"The time in {column!r}: {error}.") from None


def are_times(cells: Sequence[Json]) -> bool:
    """Return whether cells are dates, or numbers that are no rating: seconds later than 1973.

    >>> are_times(["2024-05-17", "2024-05-18T09:30"]), are_times(["1715904000"]), are_times([5, 3])
    (True, True, False)
    """
    for cell in cells:
        number = number_of(cell)
        try:
            seconds = seconds_of(cell)
        except ValueError:
            return False
        if number is not None and not (seconds or 0) > EARLIEST:
            return False
    return True


def _truth_or_number(cell: Json) -> float | None:
    word = str(cell).strip().lower() if isinstance(cell, str | bool) else ""
    return _TRUTH[word] if word in _TRUTH else number_of(cell)


def file_of(place: str) -> str:
    """Return the file of a row's place, which its example stores."""
    return place.rpartition(":")[0]


QUERY_ID_NAMES = ("query_id", "qid", "question_id")

QRELS_SUFFIXES = frozenset({".tsv", ".txt", ".qrels", ".trec", ""})
"""Read line by line, with a header or without: TREC's files have none."""

COLUMNS = ("query-id", "corpus-id", "score")
"""BEIR's names of the columns of judgements."""

Judgement: TypeAlias = tuple[str, str, float]
"""A line of a file of judgements: a query's id, a document's id, and a grade."""


ETA = 1.0
"""Exponent of the propensity; 0: all ranks are seen alike."""

CLIP = 10.0
"""The largest weight of one click: unclipped, a stray one at rank 200 outweighs all others."""


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
    format = TableFormat(encoding=encoding)
    if path.suffix.lower() in QRELS_SUFFIXES:
        rows = JudgementLines(path, format=format).judged(queries)
    else:
        rows = map(_renamed, open_source(str(path), format).rows())

    query, document, grade = COLUMNS
    return read_rows(
        rows,
        lambda row: (
            document_id(row.cells[query], query),
            document_id(row.cells[document], document),
            label_of(row.cells[grade], grade),
        ),
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


class JudgementLines(TextFile):
    """Lines of three cells, or of TREC's four: the second, the iteration, has no use."""

    def rows(self) -> Iterator[Row | RowProblem]:
        return self.judged(())

    def judged(self, queries: Container[str]) -> Iterator[Row | RowProblem]:
        """Read the lines; a first one that begins with one of some queries is no header."""
        with self.opened() as file, self.decoded(file) as text:
            for number, line in enumerate(text, start=1):
                place = f"{self.name}:{number}"
                parts = line.split("\t") if "\t" in line else line.split()
                cells = [cell.strip() for cell in parts]
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
    first: dict[tuple[str | bytes, str], RowItem[Example]] = {}
    shown: Counter[tuple[str | bytes, str]] = Counter()
    looks: defaultdict[tuple[str | bytes, str], float] = defaultdict(float)  # sum of propensities
    clicks: defaultdict[tuple[str | bytes, str], float] = defaultdict(float)  # each over its own
    unclicked = 0

    def read(row: Row) -> tuple[Example, float, bool]:
        example = example_of(row, columns, vectors=vectors)
        if example.position is None:
            column = columns.names["position"]
            raise Unusable(
                f"The position in {column!r} is missing, and a click counts by its rank."
            )
        seen = propensity(example.position, eta, clip)
        return example, seen, columns.parse(row, "clicked", clicked_of)

    for item in read_rows(source.rows(), read):
        if isinstance(item, RowProblem):
            yield item
            continue
        example, seen, clicked = item.item
        pair = same_question(example.query), example.document
        first.setdefault(pair, RowItem(item.place, example))
        shown[pair] += 1
        looks[pair] += seen
        clicks[pair] += clicked / seen
        unclicked += not clicked
    for pair, (place, example) in first.items():
        if clicks[pair] or negatives:
            # Not clicked at rank 1 says more against a document than at rank 10, where perhaps
            # nobody looked.
            weight = (clicks[pair] or -looks[pair]) / shown[pair]
            yield RowItem(place, example._replace(position=None, weight=weight))
    if unclicked and not negatives:
        yield RowProblem(
            source.name,
            f"{unclicked} of {shown.total()} rows were shown and not clicked. They count where the "
            f"document was clicked at other times, and are no negative labels; --negatives makes "
            f"them that.",
            rejects=False,
        )
