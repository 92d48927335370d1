"""Two held-out views: random questions, and questions whose documents training never saw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from attend.learn.data import Questions, answerable
from attend.types import Bool, Int64

View = Literal["random", "unseen"]

VIEWS: tuple[View, View] = ("random", "unseen")

KEPT_LABELS = 0.6
"""Holding documents out may cost training no more of its labels than the rest."""

FEWEST = 10
"""Held-out questions of an unseen fold, before that limit is looked at."""


@dataclass(frozen=True)
class Fold:
    """One division of the questions.

    Attributes:
        training: questions to learn from, as they are known then.
        trained: (q,) which of all questions those are.
        blocked: (n,) documents of which training must not know.
        held_out: (h,) positions of the questions to be judged by.
    """

    view: View
    training: Questions
    trained: Bool
    blocked: Bool
    held_out: Int64


def folds(questions: Questions, groups: Int64, count: int, seed: int) -> list[Fold]:
    """`count` folds of each view; questions of one group (q,) are never divided.

    In the random view every question is held out once, and its documents may be known from
    others. In the unseen view, nothing about a held-out question's documents is known.
    """
    return [
        *_random(questions, groups, count, np.random.default_rng(seed)),
        *_unseen(questions, groups, count, np.random.default_rng(seed + 1)),
    ]


def _random(
    questions: Questions, groups: Int64, count: int, random: np.random.Generator
) -> Iterator[Fold]:
    names, sizes = np.unique(groups, return_counts=True)
    order = random.permutation(len(names))
    # Whole groups, dealt so that the folds are as large as each other.
    fold_of = np.empty(len(names), dtype=np.int64)
    fold_of[order] = np.minimum(
        (np.cumsum(sizes[order]) - 1) * count // max(1, sizes.sum()), count - 1
    )
    by_question = fold_of[np.searchsorted(names, groups)]
    can_learn = answerable(questions)
    for at in range(count):
        held = by_question == at
        trained = ~held & can_learn
        if held.any() and trained.any():
            none = np.zeros(questions.relevant.shape[1], dtype=bool)
            yield Fold("random", questions.some(trained), trained, none, np.flatnonzero(held))


def _unseen(
    questions: Questions, groups: Int64, count: int, random: np.random.Generator
) -> Iterator[Fold]:
    names = random.permutation(np.unique(groups))
    members = _members(groups)
    share = -(-questions.count // count)
    at = 0
    for _ in range(count):
        held = np.zeros(questions.count, dtype=bool)
        blocked = np.zeros(questions.relevant.shape[1], dtype=bool)
        while at < len(names) and held.sum() < share:
            chosen = members[names[at]]
            also = blocked.copy()
            also[questions.relevant[chosen].indices] = True
            if held.sum() >= FEWEST and _left(questions, held, chosen, also) < KEPT_LABELS:
                break
            held[chosen], blocked = True, also
            at += 1
        known = questions.without(blocked)
        trained = ~held & answerable(known)
        if held.any() and trained.any():
            yield Fold("unseen", known.some(trained), trained, blocked, np.flatnonzero(held))


def _members(groups: Int64) -> dict[int, Int64]:
    order = np.argsort(groups, kind="stable")
    names, begins = np.unique(groups[order], return_index=True)
    return dict(zip(names.tolist(), np.split(order, begins[1:]), strict=True))


def _left(questions: Questions, held: Bool, chosen: Int64, blocked: Bool) -> float:
    """The share of the other questions' labels that training would keep."""
    others = ~held
    others[chosen] = False
    labels = questions.relevant[np.flatnonzero(others)].indices
    return float(np.count_nonzero(~blocked[labels])) / max(1, len(labels))
