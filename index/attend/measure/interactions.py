"""Measure recommendations and predictions against what users interacted with later.

Top-N recommendation: each user with a history is recommended ten of all documents but those of the
history, and these are compared with what the user met in the test (a full ranking, and no sample of
it: Krichene and Rendle 2020). Relevance is binary; the ideal list has the documents that were
withheld in its first ten places. Means are over users.

Predictions: the errors against the numbers that users gave later.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Collection as Group
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attend.api.answers import Predicted
from attend.api.recommend import MAX_TARGETS
from attend.collection.collection import Collection
from attend.core.errors import SourceError
from attend.core.liking import is_liked
from attend.core.types import Float64
from attend.measure.statistics import Interval, by_group, dcg, mean_interval, mean_intervals, ndcg
from attend.store import Interaction
from attend.values.kinds import as_number

CUT = 10
"""Documents that are recommended to each user."""

MEASURES = ("ndcg@10", "recall@10")

UserHistory = Sequence[Interaction]

Recommend = Callable[[str, UserHistory], Sequence[str]]
"""Maps a user and their history to the ids of `CUT` documents, best first."""

# -- recommendations ------------------------------------------------------------------------


@dataclass(frozen=True)
class Protocol:
    """The users, their histories and the right documents.

    Attributes:
        histories: user → earlier interactions, of all users: popularity is counted in them.
        relevant: user → ids of the documents that are right; only users with a history.
        candidates: ids that may be recommended; None for every document.
        without_history: users of the test without a history, or with nothing in it that they
            liked; they are not judged.
        left_out: interactions of the test, but for those of users without history, that could
            not be right: the user met the document before, or it is not a candidate.
    """

    histories: Mapping[str, UserHistory]
    relevant: Mapping[str, frozenset[str]]
    candidates: frozenset[str] | None
    without_history: int
    left_out: int


@dataclass(frozen=True)
class TopNEvaluation:
    """The measures of the recommendations of all users.

    Attributes:
        by_user: user → values in the order of `MEASURES`.
        coverage: the share of the candidates that is in anybody's ten.
        novelty: bits: how unlikely a recommended document is to be one that a user met, as
            log2(users / users of the document), the mean over all lists (Zhou et al. 2010). A
            document without users counts as one with one user.
    """

    by_user: Mapping[str, tuple[float, ...]]
    coverage: float
    novelty: float

    def columns(self) -> Float64:
        """Return the values (users, measures)."""
        return np.array(list(self.by_user.values()), dtype=np.float64)

    @property
    def measures(self) -> dict[str, float]:
        """Return name → mean over the users."""
        return dict(zip(MEASURES, self.columns().mean(axis=0).tolist(), strict=True))

    def intervals(self) -> dict[str, Interval]:
        """Return name → mean with its 95 % bootstrap interval over the users."""
        return dict(zip(MEASURES, mean_intervals(self.columns()), strict=True))


def protocol_of(
    test: Sequence[Interaction],
    history: Sequence[Interaction],
    cold: Group[str] | None = None,
    liked_from: float | None = None,
) -> Protocol:
    """Divide interactions into histories and the documents that are right.

    A document that a user did not like is not right.

    Args:
        test: later interactions.
        history: earlier interactions.
        cold: ids of withheld documents. Only they are recommended and right, and no history
            holds them: a document that nobody met yet is in no history.
        liked_from: numbers from here up are likes; all above zero if None.

    Raises:
        SourceError: no user of the test has a history and a document that is right.
    """
    candidates = None if cold is None else frozenset(cold)
    histories = defaultdict[str, list[Interaction]](list)
    for event in history:
        if candidates is None or event.document not in candidates:
            histories[event.user].append(event)
    earlier = {
        user: {event.document for event in events}
        for user, events in histories.items()
        if any(is_liked(event.value, liked_from) for event in events)
    }
    relevant = defaultdict[str, set[str]](set)
    pairs = {(event.user, event.document) for event in test if is_liked(event.value, liked_from)}
    for user, document in pairs:
        possible = candidates is None or document in candidates
        if user in earlier and document not in earlier[user] and possible:
            relevant[user].add(document)
    users = dict.fromkeys(event.user for event in test)
    judged = {user: frozenset(relevant[user]) for user in users if relevant.get(user)}
    if not judged:
        raise SourceError(
            f"None of the {len(users)} users of the test has a history and met anything else "
            f"later; do the two files belong together?"
        )
    return Protocol(
        histories=dict(histories),
        relevant=judged,
        candidates=candidates,
        without_history=sum(user not in earlier for user in users),
        left_out=sum(user in earlier for user, _ in pairs) - sum(map(len, judged.values())),
    )


def evaluate(
    protocol: Protocol,
    recommend: Recommend,
    catalogue: int,
    on_progress: Callable[[int], object] = lambda users: None,
) -> TopNEvaluation:
    """Recommend to every user and measure.

    Args:
        catalogue: the number of documents that might be recommended.
        on_progress: called with the number of users who were answered since.
    """
    by_user: dict[str, tuple[float, ...]] = {}
    listed: Counter[str] = Counter()
    for user, relevant in protocol.relevant.items():
        documents = list(recommend(user, protocol.histories[user]))[:CUT]
        by_user[user] = _measured(documents, relevant)
        listed.update(documents)
        on_progress(1)
    users = len(protocol.histories)
    popularity = Counter(
        document
        for history in protocol.histories.values()
        for document in {event.document for event in history}
    )
    bits = math.fsum(
        count * math.log2(users / max(1, popularity[document]))
        for document, count in listed.items()
    )
    coverage = len(listed) / max(1, catalogue)
    return TopNEvaluation(by_user, coverage, novelty=bits / max(1, listed.total()))


def read_ids(path: Path) -> list[str]:
    """Read the ids of documents, one in a line.

    Raises:
        SourceError: the file cannot be read, or is empty.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} cannot be read: {error}.") from error
    ids = [line.strip() for line in lines if line.strip()]
    if not ids:
        raise SourceError(f"{path} holds no ids; write one in each line.")
    return list(dict.fromkeys(ids))


def _measured(documents: Sequence[str], relevant: Group[str]) -> tuple[float, float]:
    """Return nDCG@10 and recall@10.

    >>> ndcg, recall = _measured(["a", "b", "c"], {"b", "x"})
    >>> round(ndcg, 6), recall  # (1 / log2 3) / (1 + 1 / log2 3), 1 / 2
    (0.386853, 0.5)
    """
    hits = [float(id in relevant) for id in documents]
    return float(ndcg(hits, dcg(np.ones(len(relevant))))), sum(hits) / len(relevant)


# -- predictions ----------------------------------------------------------------------------


class RatingErrors(NamedTuple):
    """The errors (r,) of predictions, and the user (r,) of each."""

    errors: Float64
    users: Sequence[str]

    def intervals(self) -> dict[str, Interval]:
        """Return root mean square and mean absolute error over ratings, with 95 % intervals.

        The draws are of users.
        """
        squares = mean_interval(by_group(self.errors**2, self.users))
        roots = Interval(*(float(np.sqrt(bound)) for bound in squares))
        return {"rmse": roots, "mae": mean_interval(by_group(np.abs(self.errors), self.users))}


def numbers_by_user(later: Iterable[Interaction]) -> dict[str, dict[str, float]]:
    """Return user → document → number; interactions without a number are left out."""
    numbers: dict[str, dict[str, float]] = defaultdict(dict)
    for event in later:
        if np.isfinite(as_number(event.value)):
            numbers[event.user][event.document] = as_number(event.value)
    return dict(numbers)


def rating_errors(
    collection: Collection,
    histories: Mapping[str, UserHistory],
    later: Mapping[str, Mapping[str, float]],
    on_progress: Callable[[int], object] = lambda users: None,
) -> RatingErrors | None:
    """Predict the numbers that users gave later from their histories.

    Args:
        histories: user → earlier interactions.
        later: user → document → the number given; users without a number in their history are
            passed over.
        on_progress: called with the number of users who were done since.

    Returns: None where no user has both a history and a later number.

    Raises:
        InvalidRequest: a number is out of the range that the model was learned from.
    """
    errors: list[Float64] = []
    users: list[str] = []
    for user, truth in later.items():
        history = [
            {"id": event.document, "value": as_number(event.value)}
            for event in histories.get(user, ())
            if np.isfinite(as_number(event.value))
        ]
        if history:
            predicted = _predicted(collection, history, list(truth))
            errors.append(predicted - np.array([*truth.values()]))
            users += [user] * len(truth)
        on_progress(1)
    return RatingErrors(np.concatenate(errors), users) if errors else None


def _predicted(collection: Collection, history: list[dict[str, Any]], ids: list[str]) -> Float64:
    means: list[float] = []
    for start in range(0, len(ids), MAX_TARGETS):
        answer = collection.recommend(history=history, target=ids[start : start + MAX_TARGETS])
        assert isinstance(answer, Predicted)  # as targets were named
        means += [as_number(prediction["mean"]) for prediction in answer.predictions]
    return np.array(means)
