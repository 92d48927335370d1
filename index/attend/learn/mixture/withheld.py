"""Two held-out views of interactions: some of what each user met, and documents nobody met."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attend.learn.data import Sparse
from attend.learn.folds import View
from attend.learn.mixture.histories import lengths, without
from attend.types import Bool, Int64

SHARE = 0.2
"""Of a user's interactions, and of all documents: what is withheld."""

MOST_USERS = 3000
"""Users by which a view is judged: more make its figures no truer than they need to be."""

MOST_CELLS = 30_000_000
"""Users times documents of a view: each way that is tried ranks all of these."""

FEWEST_RANKED = 200
"""Users who are judged in however large a catalogue."""

FEWEST_USERS = 500
"""Users who are judged if there are so many, whatever that takes from what is learned from."""

JUDGED = 0.5
"""Of all users: those whose interactions are withheld. What is fitted without a fifth of all that
is known is another model than the one that will serve."""


class Withheld(NamedTuple):
    """One view: what is learned from, and by what it is judged.

    Attributes:
        training: sparse (u, n), what is learned from.
        users: (h,) who are judged.
        given, asked: sparse (h, n): the history of each, and what is withheld of it.
        candidates: (n,) what is ranked, but for the history; None for everything.
    """

    view: View
    training: Sparse
    users: Int64
    given: Sparse
    asked: Sparse
    candidates: Bool | None


def withheld(met: Sparse, seed: int) -> list[Withheld]:
    """Both views of histories (u, n); one that nobody could be judged by is left out.

    In the random view a fifth of what some users met is withheld, and all is ranked. In the unseen
    view a fifth of the documents that anybody met is withheld from everybody, and ranked by itself:
    among documents of which more is known, what is new is judged by how well that is known.
    """
    made = (
        _random(met, np.random.default_rng(seed)),
        _unseen(met, np.random.default_rng(seed + 1)),
    )
    return [each for each in made if len(each.users) and (lengths(each.training) >= 2).any()]


def _random(met: Sparse, random: np.random.Generator) -> Withheld:
    counts = lengths(met)
    able = random.permutation(np.flatnonzero(counts >= 2))
    judged = np.zeros(len(counts), dtype=bool)
    judged[able[: min(_most(met), max(FEWEST_USERS, round(JUDGED * len(able))))]] = True
    user = np.repeat(np.arange(len(counts)), counts)
    rank = _shuffled(user, counts, random)
    # At least one; and as many in every ten as the share says, however short the histories.
    taken = np.maximum(1, np.round(SHARE * counts)).astype(np.int64)
    out = judged[user] & (rank < taken[user])
    training, users = without(met, out), np.flatnonzero(judged)
    return Withheld("random", training, users, training[users], without(met, ~out)[users], None)


def _unseen(met: Sparse, random: np.random.Generator) -> Withheld:
    known = np.unique(met.indices)
    out = np.zeros(met.shape[1], dtype=bool)
    out[random.permutation(known)[: round(SHARE * len(known))]] = True
    of_new = out[met.indices]
    training, asked = without(met, of_new), without(met, ~of_new)
    able = random.permutation(np.flatnonzero((lengths(training) > 0) & (lengths(asked) > 0)))
    users = np.sort(able[: _most(met)])
    return Withheld("unseen", training, users, training[users], asked[users], out)


def _most(met: Sparse) -> int:
    """Users of a view at most."""
    return int(min(MOST_USERS, max(FEWEST_RANKED, MOST_CELLS // met.shape[1])))


def _shuffled(user: Int64, counts: Int64, random: np.random.Generator) -> Int64:
    """The place of each interaction in a random order of its user's."""
    order = np.lexsort((random.random(len(user)), user))
    rank = np.empty(len(user), dtype=np.int64)
    rank[order] = np.arange(len(user)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rank
