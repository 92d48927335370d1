"""What users would give documents, as predicted, against what they gave them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from index.store import Interaction
from index.types import Float64

Predict = Callable[[Sequence[Interaction], Sequence[str]], Sequence[float]]
"""Of a history with values, and ids of documents: what the user would give each."""


class Errors(NamedTuple):
    """Differences between what was predicted and what was given, one for each rating (r,)."""

    differences: Float64

    @property
    def rmse(self) -> float:
        """The root of the mean square."""
        return float(np.sqrt((self.differences**2).mean()))

    @property
    def mae(self) -> float:
        """The mean size."""
        return float(np.abs(self.differences).mean())


def errors(
    test: Sequence[Interaction],
    history: Sequence[Interaction],
    predict: Predict,
    on_progress: Callable[[int], object] = lambda users: None,
) -> Errors | None:
    """Predict every number of the test from its user's numbers in the history.

    Returns: None where no user of the test with a number there has one in the history.

    Args:
        on_progress: called with the number of users who were predicted since.
    """
    known: dict[str, list[Interaction]] = {}
    for each in history:
        if _is_number(each.value):
            known.setdefault(each.user, []).append(each)
    asked = sorted(each for each in test if _is_number(each.value) and each.user in known)
    found: list[float] = []
    for user, group in groupby(asked, key=lambda each: each.user):
        given = list(group)
        predicted = predict(known[user], [each.document for each in given])
        pairs = zip(predicted, given, strict=True)
        found += [one - float(each.value) for one, each in pairs]  # type: ignore[arg-type]
        on_progress(1)
    return Errors(np.array(found)) if found else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
