"""Which queries gained and which lost, by how much, and what they found before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attend.collection import Collection
from attend.measure.rankings import Qrels, Ranked
from attend.types import Float64, QueryInput

SHOWN = 3
"""Documents shown of each ranking."""

SNIPPET = 120
"""Characters shown of a document's text."""

STEPS = 20
"""Bins of gains; measures lie within 0 to 1, and so gains within -1 to 1."""

NUMBERS = 4
"""Numbers shown of a query that is a vector."""

UNCHANGED = 1e-9
"""A gain nearer to 0 is rounding."""


class Shown(NamedTuple):
    """A ranked document: its text's beginning, and its grade (None: nobody judged it)."""

    id: str
    text: str
    grade: float | None


class Change(NamedTuple):
    """One query's measure, and its first documents, before and after.

    `text` is the query for people; of a vector, its first numbers.
    """

    query: str
    text: str
    before: float
    after: float
    gain: float
    documents_before: list[Shown]
    documents_after: list[Shown]


class Gains(NamedTuple):
    """How many queries gained and lost, and how much: `counts` lie between the `edges`.

    A query that stayed as it was is in `unchanged` alone.
    """

    gained: int
    lost: int
    unchanged: int
    edges: list[float]
    counts: list[int]


@dataclass(frozen=True)
class Changes:
    """The queries that changed, the largest change first."""

    gains: Gains
    most_gained: Sequence[Change]
    most_lost: Sequence[Change]


def changes(
    collection: Collection,
    queries: Mapping[str, QueryInput],
    qrels: Qrels,
    sides: tuple[Ranked, Ranked],
    values: tuple[Float64, Float64],
    examples: int,
) -> Changes:
    """Tell what changed.

    Args:
        sides: what was ranked before and after.
        values: (q), the measure of every query in the order of `queries`, before and after.
        examples: how many queries to tell of each kind.
    """
    gains = values[1] - values[0]
    ids = list(queries)
    rising = np.argsort(gains, kind="stable")
    places = {
        "most_lost": [at for at in rising if gains[at] < -UNCHANGED][:examples],
        "most_gained": [at for at in rising[::-1] if gains[at] > UNCHANGED][:examples],
    }
    told = [ids[at] for chosen in places.values() for at in chosen]
    texts = _texts(
        collection, (id for query in told for side in sides for id in _first(side, query))
    )

    def change(at: int) -> Change:
        query = ids[at]
        before, after = (float(side[at]) for side in values)
        shown = [
            [Shown(id, texts.get(id, ""), qrels[query].get(id)) for id in _first(side, query)]
            for side in sides
        ]
        said = said_of(queries[query])
        return Change(query, said, before, after, after - before, shown[0], shown[1])

    return Changes(
        histogram(gains),
        **{name: [change(at) for at in chosen] for name, chosen in places.items()},
    )


def histogram(gains: Float64) -> Gains:
    """Count gains (q), each within -1 to 1, in bins of equal width.

    >>> found = histogram(np.array([0.25, 0.0, -1.0]))
    >>> found.gained, found.lost, found.unchanged, sum(found.counts)
    (1, 1, 1, 2)
    """
    changed = gains[np.abs(gains) > UNCHANGED]
    edges = np.round(np.linspace(-1, 1, STEPS + 1), 12)
    counts, _ = np.histogram(changed, edges)
    gained = int((changed > 0).sum())
    lost = len(changed) - gained
    return Gains(gained, lost, len(gains) - len(changed), edges.tolist(), counts.tolist())


def said_of(query: QueryInput) -> str:
    """A query for people.

    >>> said_of("a whale hunt"), said_of([1.0, 0.5]), said_of([0.25] * 9)
    ('a whale hunt', '[1, 0.5]', '[0.25, 0.25, 0.25, 0.25, …]')
    """
    if isinstance(query, str):
        return query
    told = [f"{number:g}" for number in query[:NUMBERS]]
    return f"[{', '.join([*told, '…'] if len(query) > NUMBERS else told)}]"


def _first(side: Ranked, query: str) -> tuple[str, ...]:
    return side.rankings[query].documents[:SHOWN]


def _texts(collection: Collection, ids: Iterable[str]) -> dict[str, str]:
    """The beginning of each document's text, or of its payload where it has none."""
    found = collection.store.find(list(dict.fromkeys(ids)))
    return {
        id: _beginning(each.fields.values() or map(str, each.payload.values()))
        for id, each in found.items()
    }


def _beginning(texts: Iterable[str]) -> str:
    words = " ".join(" ".join(texts).split())
    return words if len(words) <= SNIPPET else f"{words[: SNIPPET - 1]}…"
