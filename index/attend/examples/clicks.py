"""Click logs: a row for each document shown, its rank, and whether it was clicked.

Position bias: people look at the first results and seldom further, so that a click tells two
things at once: that the document was seen, and that it is relevant. Counted as they are, clicks
teach the ranking that made them. Where a document at rank r is seen with probability p(r), its
propensity, a click there counts 1 / p(r), which makes the mean over all times it was shown an
unbiased estimate of its relevance (Joachims, Swaminathan and Schnabel 2017, "Unbiased
Learning-to-Rank with Biased Feedback"). p(r) = (1 / r) ** eta is their model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from attend.examples.cells import clicked_of, position_of, query_of
from attend.examples.columns import Columns
from attend.examples.table import source_of
from attend.examples.types import Example, same_question
from attend.source import Problem, Row, Source
from attend.source.mapping import Unusable, document_id

ETA = 1.0
"""How fast attention falls with rank; 0: all ranks are seen alike."""

CLIP = 10.0
"""The most that one click counts: unclipped, a single stray one at rank 200 outweighs them all."""


class Shown(NamedTuple):
    """A document shown once; a row of the log."""

    example: Example
    position: int
    clicked: bool


@dataclass(slots=True)
class Tally:
    """What is known of one document for one query, over all times it was shown."""

    first: Example
    shown: int = 0
    seen: float = 0.0  # expected number of looks: the sum of propensities
    clicks: float = 0.0  # each over its propensity

    def weight(self) -> float:
        """The estimate of relevance; without a click, minus the probability of having been seen.

        Not clicked at rank 1 says more against a document than at rank 10, where perhaps nobody
        looked.
        """
        return (self.clicks or -self.seen) / self.shown


def propensity(position: int, eta: float = ETA, clip: float = CLIP) -> float:
    """The probability that a document at a rank (from 1) is looked at, at least 1 / clip.

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
) -> Iterator[Example | Problem]:
    """Read the whole log: one example for each query and clicked document, its bias taken out.

    Its position is None, since the weight accounts for the positions already.

    Args:
        eta: the exponent of the propensity, 0 or more.
        clip: the most that one click counts, 1 or more.
        negatives: documents shown and never clicked become examples too, of weight below 0. A
            document that was not clicked is often one that was not seen: it is not one unless
            asked for.
        vectors: queries are vectors, be they written as texts.
    """
    tallies: dict[tuple[str | bytes, str], Tally] = {}
    unclicked = rows = 0
    for row in _shown(source.rows(), columns, vectors):
        if isinstance(row, Problem):
            yield row
            continue
        rows += 1
        unclicked += not row.clicked
        tally = tallies.setdefault(
            (same_question(row.example.query), row.example.document), Tally(row.example)
        )
        _count(tally, row, propensity(row.position, eta, clip))
    for tally in tallies.values():
        if tally.clicks or negatives:
            yield tally.first._replace(weight=tally.weight())
    if unclicked and not negatives:
        yield _passed_over(source, unclicked, rows)


def _shown(
    rows: Iterable[Row | Problem], columns: Columns, vectors: bool
) -> Iterator[Shown | Problem]:
    for row in rows:
        if isinstance(row, Problem):
            yield row
            continue
        try:
            yield _one(row, columns, vectors)
        except Unusable as reason:
            yield Problem(row.place, str(reason))


def _one(row: Row, columns: Columns, vectors: bool) -> Shown:
    cells = row.cells
    # Without such columns, every row says that it has none.
    rank, click = columns.position or "position", columns.clicked or "clicked"
    position = position_of(cells.get(rank), rank)
    if position is None:
        raise Unusable(f"The position in {rank!r} is missing, and a click counts by its rank.")
    example = Example(
        query=query_of(cells.get(columns.query), columns.query, vectors=vectors),
        document=document_id(cells.get(columns.document), columns.document),
        source=source_of(row),
        place=row.place,
    )
    return Shown(example, position, clicked_of(cells.get(click), click))


def _count(tally: Tally, row: Shown, seen: float) -> None:
    tally.shown += 1
    tally.seen += seen
    tally.clicks += row.clicked / seen


def _passed_over(source: Source, unclicked: int, rows: int) -> Problem:
    reason = (
        f"{unclicked} of {rows} rows were shown and not clicked. They count where the document was "
        f"clicked at other times, and are no negative labels; --negatives makes them that."
    )
    return Problem(source.name, reason, refuses=False)
