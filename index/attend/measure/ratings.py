"""Predictions against what users gave documents later: root mean square and mean absolute error.

Each user's history is what is known of them, and each number that they gave later is predicted from
it by what predicts now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attend.api.recommend import MAX_TARGETS
from attend.collection import Collection
from attend.measure.statistics import Interval, by_group, mean_interval
from attend.recommend.answers import Predicted
from attend.store import Interaction
from attend.types import Float64
from attend.values import as_number


class RatingErrors(NamedTuple):
    """Errors (r,) of predictions, and whose they are (r,)."""

    errors: Float64
    users: Sequence[str]

    @property
    def measures(self) -> dict[str, float]:
        """rmse and mae, over ratings."""
        squares, sizes = self.errors**2, np.abs(self.errors)
        return {"rmse": float(np.sqrt(squares.mean())), "mae": float(sizes.mean())}

    def intervals(self) -> dict[str, Interval]:
        """name → mean with its 95 % bootstrap interval; users are drawn whole."""
        squares = mean_interval(by_group(self.errors**2, self.users))
        roots = Interval(*(float(np.sqrt(each)) for each in squares))
        return {"rmse": roots, "mae": mean_interval(by_group(np.abs(self.errors), self.users))}


def numbers_by_user(later: Iterable[Interaction]) -> dict[str, dict[str, float]]:
    """The numbers among what users gave: user → document → number."""
    asked: dict[str, dict[str, float]] = defaultdict(dict)
    for each in later:
        if np.isfinite(as_number(each.value)):
            asked[each.user][each.document] = as_number(each.value)
    return dict(asked)


def rating_errors(
    collection: Collection,
    histories: Mapping[str, Sequence[Interaction]],
    later: Mapping[str, Mapping[str, float]],
    on_progress: Callable[[int], object] = lambda users: None,
) -> RatingErrors | None:
    """Predict the numbers among what users gave later.

    Args:
        histories: user → what they met before.
        later: user → document → the number given then; users without a number in their history
            are passed over.
        on_progress: called with the number of users who were done since.

    Returns: None where there is nothing to predict, or nothing to predict it from.

    Raises:
        InvalidRequest: a number out of the range of what was learned from.
    """
    errors: list[Float64] = []
    users: list[str] = []
    for user, truth in later.items():
        known = _numbers(histories.get(user, ()))
        if known:
            said = _predicted(collection, known, list(truth))
            errors.append(said - np.array([*truth.values()]))
            users += [user] * len(truth)
        on_progress(1)
    return RatingErrors(np.concatenate(errors), users) if errors else None


def _numbers(history: Iterable[Interaction]) -> list[dict[str, Any]]:
    """The part of a history that has a number, as a request has it."""
    return [
        {"id": each.document, "value": as_number(each.value)}
        for each in history
        if np.isfinite(as_number(each.value))
    ]


def _predicted(collection: Collection, history: list[dict[str, Any]], ids: list[str]) -> Float64:
    means: list[float] = []
    for at in range(0, len(ids), MAX_TARGETS):
        found = collection.recommend(history=history, target=ids[at : at + MAX_TARGETS])
        assert isinstance(found, Predicted)  # as targets were named
        means += [as_number(each["mean"]) for each in found.predictions]
    return np.array(means)
