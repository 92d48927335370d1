"""Recommendations against what users met later: the protocol of top-N evaluation.

Each user with a history is recommended ten of all documents but those of the history, and these
are compared with what the user met in the test (a full ranking, and no sample of it: Krichene and
Rendle 2020). Relevance is binary; the ideal list has the ten best places filled with what was
withheld, or as many as there is. Means are over users.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attend.errors import SourceError
from attend.measure.statistics import Interval, dcg, mean_intervals, ndcg
from attend.recommend.history import is_liked
from attend.store import Interaction
from attend.types import Float64

CUT = 10
"""Documents that are recommended to each user."""

MEASURES = ("ndcg@10", "recall@10")

History = Sequence[Interaction]

Recommend = Callable[[str, History], Sequence[str]]
"""Of a user and their history: the ids of `CUT` documents, best first."""


@dataclass(frozen=True)
class Protocol:
    """Who is asked for, and what would be right.

    Attributes:
        histories: user → what they met before, of all users: popularity is counted in them.
        asked: user → ids of the documents that are right; users with a history alone.
        candidates: ids that may be recommended; None for every document.
        without_history: users of the test who have none, or nothing in it that they liked; they
            are not judged.
        left_out: interactions of the test, but for those of users without history, that could
            not be right: the user met the document before, or it is no candidate.
    """

    histories: Mapping[str, History]
    asked: Mapping[str, frozenset[str]]
    candidates: frozenset[str] | None
    without_history: int
    left_out: int


@dataclass(frozen=True)
class Evaluation:
    """What came of it.

    Attributes:
        by_user: user → values in the order of `MEASURES`.
        coverage: the share of the candidates that is in anybody's ten.
        novelty: bits: how unlikely a recommended document is to be one that a user met, as
            log2(users / users who met it), the mean over all lists (Zhou et al. 2010). A document
            that nobody met counts as one that one user did.
    """

    by_user: Mapping[str, tuple[float, ...]]
    coverage: float
    novelty: float

    def columns(self) -> Float64:
        """(users, measures)."""
        return np.array(list(self.by_user.values()), dtype=np.float64)

    @property
    def measures(self) -> dict[str, float]:
        """name → mean over the users."""
        return dict(zip(MEASURES, self.columns().mean(axis=0).tolist(), strict=True))

    def intervals(self) -> dict[str, Interval]:
        """name → mean with its 95 % bootstrap interval over the users."""
        return dict(zip(MEASURES, mean_intervals(self.columns()), strict=True))


def protocol_of(
    test: Sequence[Interaction],
    history: Sequence[Interaction],
    cold: Collection[str] | None = None,
) -> Protocol:
    """Divide interactions into what is known of users and what they are asked for.

    Nothing is right that a user valued at 0 or below.

    Args:
        test: what users met later.
        history: what they met before.
        cold: ids of withheld documents. They alone are recommended and right, and no history
            holds them: what nobody met yet is in nobody's.

    Raises:
        SourceError: no user of the test has a history and something to be found.
    """
    candidates = None if cold is None else frozenset(cold)
    histories, asked = defaultdict[str, list[Interaction]](list), defaultdict[str, set[str]](set)
    for each in history:
        if candidates is None or each.document not in candidates:
            histories[each.user].append(each)
    met = {
        user: {each.document for each in found}
        for user, found in histories.items()
        if any(is_liked(each.value) for each in found)
    }
    pairs = {(each.user, each.document) for each in test if is_liked(each.value)}
    for user, document in pairs:
        can_be = candidates is None or document in candidates
        if user in met and document not in met[user] and can_be:
            asked[user].add(document)
    users = dict.fromkeys(each.user for each in test)
    kept = {user: frozenset(asked[user]) for user in users if asked.get(user)}
    if not kept:
        raise SourceError(
            f"None of the {len(users)} users of the test has a history and met anything else "
            f"later; do the two files belong together?"
        )
    return Protocol(
        histories=dict(histories),
        asked=kept,
        candidates=candidates,
        without_history=sum(user not in met for user in users),
        left_out=sum(user in met for user, _ in pairs) - sum(map(len, kept.values())),
    )


def evaluate(
    protocol: Protocol,
    recommend: Recommend,
    catalogue: int,
    on_progress: Callable[[int], object] = lambda users: None,
) -> Evaluation:
    """Ask for every user and measure.

    Args:
        catalogue: how many documents might be recommended.
        on_progress: called with the number of users who were answered since.
    """
    by_user: dict[str, tuple[float, ...]] = {}
    listed: Counter[str] = Counter()
    for user, right in protocol.asked.items():
        documents = list(recommend(user, protocol.histories[user]))[:CUT]
        by_user[user] = _measured(documents, right)
        listed.update(documents)
        on_progress(1)
    return Evaluation(by_user, len(listed) / max(1, catalogue), _novelty(protocol, listed))


def read_ids(path: Path) -> list[str]:
    """Ids of documents, one in a line.

    Raises:
        SourceError: it cannot be read, or holds none.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} cannot be read: {error}.") from error
    ids = [line.strip() for line in lines if line.strip()]
    if not ids:
        raise SourceError(f"{path} holds no ids; write one in each line.")
    return list(dict.fromkeys(ids))


def _measured(documents: Sequence[str], right: Collection[str]) -> tuple[float, float]:
    """nDCG@10 and recall@10.

    >>> ndcg, recall = _measured(["a", "b", "c"], {"b", "x"})
    >>> round(ndcg, 6), recall  # (1 / log2 3) / (1 + 1 / log2 3), 1 / 2
    (0.386853, 0.5)
    """
    hits = [float(id in right) for id in documents]
    return float(ndcg(hits, dcg(np.ones(len(right))))), sum(hits) / len(right)


def _novelty(protocol: Protocol, listed: Counter[str]) -> float:
    """The mean over everything that was listed, as often as it was."""
    users = len(protocol.histories)
    met = Counter(
        document
        for history in protocol.histories.values()
        for document in {each.document for each in history}
    )
    bits = math.fsum(
        count * math.log2(users / max(1, met[document])) for document, count in listed.items()
    )
    return bits / max(1, listed.total())
