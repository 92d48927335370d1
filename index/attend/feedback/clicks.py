"""Click logs: a row for each document shown, its rank, and whether it was clicked.

Position bias: people look at the first results and seldom further, so that a click tells two
things at once: that the document was seen, and that it is relevant. Counted as they are, clicks
teach the ranking that produced them. Where a document at rank r is seen with probability p(r), its
propensity, a click there counts 1 / p(r), which makes the mean over all times it was shown an
unbiased estimate of its relevance (Joachims, Swaminathan and Schnabel 2017, "Unbiased
Learning-to-Rank with Biased Feedback"). p(r) = (1 / r) ** eta is their model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attend.feedback.reading import clicked_of, example_of, position_of
from attend.source import Row, RowItem, RowProblem, Source
from attend.source.columns import Columns
from attend.source.rows import Unusable, read_rows
from attend.types import Example, Json, same_question

ETA = 1.0
"""Exponent of the propensity; 0: all ranks are seen alike."""

CLIP = 10.0
"""The largest weight of one click: unclipped, a stray one at rank 200 outweighs all others."""


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
