"""What all readers of examples give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from attend.types import Float32

MAX_WEIGHT = 1e6
"""Of a label, on either side of 0: far beyond any grade, and sums of it stay exact."""


Asked: TypeAlias = str | Sequence[float] | Float32
"""What was asked: a text, or a vector (d,)."""


class Example(NamedTuple):
    """One document's label for one query.

    `weight` above 0: relevant, graded; 0: judged and not relevant; below 0: explicitly not
    relevant. `position` is the rank (from 1) at which the document was shown, where its effect
    is not yet taken out of the weight. `place` is where it was read (`qrels.tsv:17`).
    """

    query: Asked
    document: str
    weight: float = 1.0
    position: int | None = None
    query_id: str | None = None
    source: str | None = None
    place: str = ""


def same_question(query: Asked) -> str | bytes:
    """What two examples of one question have in common: its text, or its numbers as stored.

    >>> same_question([1, 0]) == same_question((1.0, 0.0))
    True
    """
    return query if isinstance(query, str) else np.asarray(query, dtype=np.float32).tobytes()
