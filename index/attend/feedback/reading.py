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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from attend.api.base import MAX_TEXT
from attend.core.errors import SourceError
from attend.core.types import MAX_WEIGHT, Example, Json, QueryInput, same_question
from attend.source import Row, RowItem, RowProblem, Source, sample
from attend.source.cells import as_vector, document_id, is_unicode, number_of, seconds_of, shown
from attend.source.columns import Columns, Layout, guess_columns, matching
from attend.source.rows import Unusable, column_names, read_rows
from attend.store import Interaction

Entry = TypeVar("Entry", Example, Interaction)

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
    numeric = "value" in columns.names and _is_numeric(sample(source), columns.names["value"])

    def interaction_of(row: Row) -> Interaction:
        return Interaction(
            user=columns.parse(row, "user", document_id),
            document=columns.parse(row, "item", document_id),
            value=columns.parse_optional(row, "value", numeric_value if numeric else value_of),
            time=columns.parse_optional(row, "time", time_of),
        )

    return read_rows(source.rows(), interaction_of)


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
        raise Unusable(
            f"The query in {column!r} is {shown(cell)}, but a list of finite numbers is expected."
        )
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
        raise Unusable(f"The label in {column!r} is {shown(cell)}, but a number is expected.")
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
        raise Unusable(
            f"The position in {column!r} is {shown(cell)}, but a whole number from 1 is expected."
        )
    return int(number)


def clicked_of(cell: Json, column: str) -> bool:
    """Parse a click: 0 or 1, false or true."""
    number = _truth_or_number(cell)
    if number not in (0, 1):
        raise Unusable(f"The click in {column!r} is {shown(cell)}, but 0 or 1 is expected.")
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


def _is_numeric(rows: Sequence[Row], column: str) -> bool:
    """Return whether most values of a column that are not empty are numbers."""
    cells = [cell for row in rows if (cell := row.get(column)) not in (None, "")]
    return sum(number_of(cell) is not None for cell in cells) * 2 > len(cells)


def file_of(place: str) -> str:
    """Return the file of a row's place, which its example stores."""
    return place.rpartition(":")[0]


# -- collecting -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gathered(Generic[Entry]):
    """The usable rows of a file.

    Attributes:
        entries: one for each query and document, or user and document.
        skipped: rows that could not be used, contradicted labels included.
        repeated: rows that another replaces without a contradiction.
    """

    entries: Sequence[Entry]
    skipped: int
    repeated: int


def gather(
    items: Iterable[RowItem[Entry] | RowProblem],
    unfit: Callable[[Sequence[Entry]], Mapping[int, Exception]],
    *,
    strict: bool = False,
    on_problem: Callable[[RowProblem], None] = lambda problem: None,
) -> Gathered[Entry]:
    """Collect the entries that a collection takes, one for each pair that they are about.

    Of several labels for one query and document the last counts, of several interactions of one
    user and document the latest.

    Args:
        unfit: the collection's errors about entries, by their positions.
        strict: stop at the first row that cannot be used.
        on_problem: called with every row that cannot be used, and with every notice.

    Raises:
        SourceError: a row could not be used, and `strict` was set.
    """
    skipped = repeated = 0

    def report(problem: RowProblem) -> None:
        nonlocal skipped
        on_problem(problem)
        skipped += problem.rejects
        if strict and problem.rejects:
            raise SourceError(f"Stopped at {problem} Nothing was stored, because of --strict.")

    rows: list[RowItem[Entry]] = []
    for item in items:
        report(item) if isinstance(item, RowProblem) else rows.append(item)
    errors = unfit([row.item for row in rows])
    last: dict[tuple[str | bytes, str], RowItem[Entry]] = {}
    for position, row in enumerate(rows):
        if position in errors:
            report(RowProblem(row.place, str(errors[position])))
            continue
        identity = _identity(row.item)
        earlier = last.pop(identity, row)
        last[identity] = earlier if is_earlier(row.item, earlier.item) else row
        contradiction = _contradiction(earlier, row)
        if contradiction:
            report(contradiction)
        elif earlier is not row:
            repeated += 1
    return Gathered([row.item for row in last.values()], skipped, repeated)


def _identity(entry: Example | Interaction) -> tuple[str | bytes, str]:
    if isinstance(entry, Example):
        return same_question(entry.query), entry.document
    return entry.user, entry.document


def is_earlier(entry: Example | Interaction, other: Example | Interaction) -> bool:
    """Return whether both are interactions with a time, and the first is the earlier one.

    Of a user and document the latest interaction counts, of equal times or without one the last
    sent; `StoredInteractions.add_interactions` has the same rule against what is stored.
    """
    if not (isinstance(entry, Interaction) and isinstance(other, Interaction)):
        return False
    return entry.time is not None and other.time is not None and entry.time < other.time


def _contradiction(earlier: RowItem[Entry], row: RowItem[Entry]) -> RowProblem | None:
    """Return the problem of a label that a later row of the same pair changes."""
    one, other = earlier.item, row.item
    if not (isinstance(one, Example) and isinstance(other, Example)) or one.weight == other.weight:
        return None
    return RowProblem(
        earlier.place,
        f"The label {one.weight:g} of {one.document!r} is contradicted by {other.weight:g} at "
        f"{row.place}, for the same query. The later one counts.",
    )
