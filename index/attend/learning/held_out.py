"""Held-out splits: what training must not know, and what it is judged by.

Units are held out in up to three splits. In the random split documents may be known from others;
where interactions have times, the latest split has its place. In the unseen split nothing is known
of the documents that judge, and all documents are ranked. In the new split such documents are
ranked among documents of which nothing is known either: a gain that comes from pushing known
documents down shows there as none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from attend.core.types import Bool, Float64, Int64, Json
from attend.learning.data import Questions, Ratings, Sparse, answerable, lengths, without

Split = Literal["random", "latest", "unseen", "new"]

SPLITS: tuple[Split, ...] = ("random", "unseen", "new", "latest")

FAMILIAR: tuple[Split, ...] = ("random", "latest")
"""Splits whose documents may be known from other units."""

KEPT_LABELS = 0.6
"""The least share of training's labels that is left when documents are held out."""

FEWEST = 10
"""Held-out questions of an unseen fold, before that limit applies."""

MOST_QUESTIONS = 1500
MOST_DOCUMENTS = 2500
"""Units that judge a fold: more make its figures no truer than they need to be."""


def fold_numbers(groups: Int64, count: int, random: np.random.Generator) -> Int64:
    """Return the fold of each unit (n,), in folds of equal size that never divide a group (n,)."""
    names, members, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = random.permutation(len(names))
    fold_of = np.empty(len(names), dtype=np.int64)
    fold_of[order] = (np.cumsum(sizes[order]) - 1) * count // max(1, sizes.sum())
    return np.asarray(np.minimum(fold_of, count - 1)[members])


def sampled(members: Int64, most: int, random: np.random.Generator) -> Int64:
    """Return a sample, ascending; all if there are no more than `most`."""
    if len(members) <= most:
        return members
    return np.sort(random.choice(members, most, replace=False))


# -- questions -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QuestionFold:
    """One division of the questions.

    Attributes:
        splits: what the held-out questions judge: one ranking of everything, and in an unseen fold
            another one of the documents that no training question labels.
        training: questions to learn from, as they are known then.
        trained: (q,) which of all questions those are.
        blocked: (n,) documents of which training must not know.
        held_out: (h,) positions of the questions that judge.
    """

    splits: tuple[Split, ...]
    training: Questions
    trained: Bool
    blocked: Bool
    held_out: Int64

    @cached_property
    def new_documents(self) -> Bool:
        """(n,) the documents that no training question labels."""
        new = np.ones(len(self.blocked), dtype=bool)
        new[self.training.judged.indices] = False
        return new

    def ranked(self, split: Split) -> Bool | None:
        """Return the documents (n,) that a split ranks; None for all."""
        return self.new_documents if split == "new" else None


def question_folds(
    questions: Questions, groups: Int64, count: int, seed: int
) -> list[QuestionFold]:
    """Divide questions into `count` random folds, and as many unseen ones, which judge new
    documents among new ones as well; a group (q,) is never divided.

    In the random split every question is held out once; of very many a sample judges.
    """
    divisions: dict[tuple[Split, ...], Iterator[tuple[Bool, Bool]]] = {
        ("random",): _random_questions(questions, groups, count, np.random.default_rng(seed)),
        ("unseen", "new"): _unseen_questions(
            questions, groups, count, np.random.default_rng(seed + 1)
        ),
    }
    folds = []
    for splits, division in divisions.items():
        for held_out, blocked in division:
            visible = questions.without_words().without(blocked)  # words are not learned from
            trained = ~held_out & answerable(visible)
            if held_out.any() and trained.any():
                random = np.random.default_rng(seed)
                judges = sampled(np.flatnonzero(held_out), MOST_QUESTIONS, random)
                training = visible.some(trained)
                folds.append(QuestionFold(splits, training, trained, blocked, judges))
    return folds


def _random_questions(
    questions: Questions, groups: Int64, count: int, random: np.random.Generator
) -> Iterator[tuple[Bool, Bool]]:
    """Yield the questions (q,) that each fold holds out, and no documents (n,)."""
    fold_of = fold_numbers(groups, count, random)
    for fold in range(count):
        yield fold_of == fold, np.zeros(questions.relevant.shape[1], dtype=bool)


def _unseen_questions(
    questions: Questions, groups: Int64, count: int, random: np.random.Generator
) -> Iterator[tuple[Bool, Bool]]:
    """Yield the questions (q,) that each fold holds out, and the documents (n,) of theirs."""
    names = random.permutation(np.unique(groups))
    share = -(-questions.count // count)
    place = 0
    for _ in range(count):
        held_out = np.zeros(questions.count, dtype=bool)
        blocked = np.zeros(questions.relevant.shape[1], dtype=bool)
        while place < len(names) and held_out.sum() < share:
            group = np.flatnonzero(groups == names[place])
            also = blocked.copy()
            also[questions.relevant[group].indices] = True
            few = held_out.sum() < FEWEST
            if not few and _labels_left(questions, held_out, group, also) < KEPT_LABELS:
                break
            held_out[group], blocked = True, also
            place += 1
        yield held_out, blocked


def _labels_left(questions: Questions, held_out: Bool, group: Int64, blocked: Bool) -> float:
    """Return the share of the other questions' labels that training would keep."""
    others = ~held_out
    others[group] = False
    labels = questions.relevant[np.flatnonzero(others)].indices
    return float(np.count_nonzero(~blocked[labels])) / max(1, len(labels))


# -- documents -------------------------------------------------------------------------------------


class DocumentFold(NamedTuple):
    """Documents that are held out (h,), and those that answer them (m,), ascending."""

    held_out: Int64
    members: Int64


def document_folds(groups: Int64, count: int, seed: int) -> list[DocumentFold]:
    """Divide documents into folds of equal size; a group (n,) is never divided."""
    random = np.random.default_rng(seed)
    fold_of = fold_numbers(groups, count, random)
    folds = []
    for fold in range(count):
        held_out, members = np.flatnonzero(fold_of == fold), np.flatnonzero(fold_of != fold)
        if len(held_out) and len(members):
            folds.append(DocumentFold(sampled(held_out, MOST_DOCUMENTS, random), members))
    return folds


# -- interactions ----------------------------------------------------------------------------------

WITHHELD = 0.2
"""The share of a user's interactions, and of all documents, that is withheld."""

MOST_USERS = 3000
"""Users that judge a split: more make its figures no truer than they need to be."""

MOST_CELLS = 30_000_000
"""Users times documents of a split: each choice that is tried ranks all of these."""

FEWEST_RANKED = 200
"""Users that judge in however large a catalogue."""

FEWEST_USERS = 500
"""Users that judge where there are as many, however few are left to learn from."""

JUDGED = 0.5
"""The share of users whose interactions are withheld. A model fitted without a fifth of all
interactions is another model than the one that will serve."""

TIMED = 0.9
"""The share of interactions that need a time for a division by time; those without count as the
earliest."""


class HistoryFold(NamedTuple):
    """One division of interactions.

    Attributes:
        training: sparse (u, n), what is learned from.
        users: (h,) who judge.
        history, target: sparse (h, n): the history of each, and what is withheld of it.
        candidates: (n,) what is ranked, but for the history; None for everything.
        after: the time after which everything is withheld, in seconds since 1970; None where what
            is withheld does not go by one time.
    """

    split: Split
    training: Sparse
    users: Int64
    history: Sparse
    target: Sparse
    candidates: Bool | None
    after: float | None = None

    @property
    def figures(self) -> dict[str, Json]:
        """Return what judges, for the report."""
        interactions = int(self.target.nnz)
        return {"users": len(self.users), "interactions": interactions, "after": self.after}


def history_folds(histories: Sparse, seed: int, times: Float64 | None = None) -> list[HistoryFold]:
    """Divide histories (u, n) in two splits; a split that nobody could judge is left out.

    In the random split a fifth of what some users interacted with is withheld, and all is ranked.
    Where interactions have times, the latest split has its place: everything after one time is
    withheld from everybody, so that nothing is learned from the future of those who judge (Ji et
    al. 2023, "A critical study on data leakage in recommender system offline evaluation"); where
    too few users have interactions on both sides of any such time, each one's latest are withheld.
    In the new split a fifth of the documents in any history is withheld from everybody, and
    ranked by itself: among documents of which more is known, a new one is judged by how much that
    is.

    Args:
        times: (t,) of the entries of the histories, in their order; NaN where one has none.
    """
    random = np.random.default_rng(seed)
    folds = (
        _random_histories(histories, random)
        if times is None or not _are_timed(times)
        else _latest_histories(histories, np.where(np.isnan(times), -np.inf, times), random),
        _new_histories(histories, np.random.default_rng(seed + 1)),
    )
    return [fold for fold in folds if len(fold.users) and (lengths(fold.training) >= 2).any()]


def _are_timed(times: Float64) -> bool:
    """Return whether nearly all interactions have a time, and not all the same."""
    timed = times[np.isfinite(times)]
    return bool(len(timed) >= TIMED * len(times) and timed.min() < timed.max())


def _latest_histories(
    histories: Sparse, times: Float64, random: np.random.Generator
) -> HistoryFold:
    """Withhold everything after one time, or each user's latest where few users could judge so."""
    several = int((lengths(histories) >= 2).sum())
    enough = min(FEWEST_USERS, several // 3)
    for share, fewest in ((WITHHELD * JUDGED, FEWEST_USERS), (WITHHELD, enough)):
        after = float(np.quantile(times, 1 - share, method="lower"))
        out = times > after
        training, target = without(histories, out), without(histories, ~out)
        judges = np.flatnonzero((lengths(training) > 0) & (lengths(target) > 0))
        if len(judges) >= fewest:
            users = sampled(judges, _most_users(histories), random)
            return HistoryFold(
                "latest", training, users, training[users], target[users], None, after
            )
    return _random_histories(histories, random, times)


def _random_histories(
    histories: Sparse, random: np.random.Generator, times: Float64 | None = None
) -> HistoryFold:
    """Withhold a fifth of what some users interacted with; the latest, where times are given."""
    counts = lengths(histories)
    able = random.permutation(np.flatnonzero(counts >= 2))
    judged = np.zeros(len(counts), dtype=bool)
    judges = max(FEWEST_USERS, round(JUDGED * len(able)))
    judged[able[: min(_most_users(histories), judges)]] = True
    user = np.repeat(np.arange(len(counts)), counts)
    # At least one; and as many in every ten as the share says, however short the histories.
    taken = np.maximum(1, np.round(WITHHELD * counts)).astype(np.int64)
    age = None if times is None else -times
    out = judged[user] & (shuffled_ranks(user, counts, random, age) < taken[user])
    training, users = without(histories, out), np.flatnonzero(judged)
    target = without(histories, ~out)[users]
    split: Split = "random" if times is None else "latest"
    return HistoryFold(split, training, users, training[users], target, None)


def _new_histories(histories: Sparse, random: np.random.Generator) -> HistoryFold:
    visible = np.unique(histories.indices)
    out = np.zeros(histories.shape[1], dtype=bool)
    out[random.permutation(visible)[: round(WITHHELD * len(visible))]] = True
    new = out[histories.indices]
    training, target = without(histories, new), without(histories, ~new)
    able = random.permutation(np.flatnonzero((lengths(training) > 0) & (lengths(target) > 0)))
    users = np.sort(able[: _most_users(histories)])
    return HistoryFold("new", training, users, training[users], target[users], out)


def _most_users(histories: Sparse) -> int:
    return int(min(MOST_USERS, max(FEWEST_RANKED, MOST_CELLS // histories.shape[1])))


def shuffled_ranks(
    user: Int64, counts: Int64, random: np.random.Generator, keys: Float64 | None = None
) -> Int64:
    """Return the place of each interaction (t,) in a random order of its user's; by keys (t,)
    where there are any, and at random among equals."""
    chance = random.random(len(user))
    order = np.lexsort((chance, user) if keys is None else (chance, keys, user))
    rank = np.empty(len(user), dtype=np.int64)
    rank[order] = np.arange(len(user)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rank


# -- ratings ---------------------------------------------------------------------------------------

HELD_RATINGS = 0.1
"""The share of documents, and of the other ratings, that is held out."""


class RatingFold(NamedTuple):
    """What is learned from, and the ratings that judge by split, each as a mask (r,)."""

    training: Bool
    held_out: dict[Split, Bool]


def rating_fold(ratings: Ratings, seed: int) -> RatingFold:
    """Hold out a tenth of the documents with all their ratings, and a tenth of the others.

    One fit is then judged where a document was rated before and where none of its ratings is known.
    """
    random = np.random.default_rng(seed)
    unseen = (random.random(ratings.item_count) < HELD_RATINGS)[ratings.items]
    chance = random.random(len(ratings)) < HELD_RATINGS
    return RatingFold(~unseen & ~chance, {"random": chance & ~unseen, "unseen": unseen})
