"""Labels from use: the hits of logged searches that served.

A hit at the top is used more often, since more people look at it. How much more is estimated from
the log itself, wherever a document was shown at several ranks for one question; that tells what a
hit that was not used says. What was used and not used becomes stored examples, from which `train`
learns as from any others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attend.core.arrays import same_question
from attend.core.types import Example, Float64, Int64, Json
from attend.engines.engine import StoredCollection
from attend.store import USED
from attend.store.searches import SearchEntry
from attend.write.feedback import add_feedback

ETA, SPREAD = 1.0, 0.5
"""How steeply the chance of a look falls with the rank, before the log says anything: 1 / rank to
the power of about this (Joachims, Swaminathan and Schnabel 2017)."""

ETAS: Float64 = np.linspace(0.0, 3.0, 301)

SHAPE = 20.0
"""Uses at a rank that its own estimate takes to count as much as the power of the rank."""

STEPS = 50

RIGHT, WRONG, STRENGTH = 0.9, 0.1, 20.0
"""The chances that a hit is used which is looked at, and is right or not, before the log says
anything, and the looks that they count for."""

MOST = 0.98

SURE = 0.8
"""The chance from which on a used document is taken for right. On CoNaLa, with clicks by mistake, a
version gained less that learned from all of them, weighed by their chances, or by one over the
chance that a right one is used."""

MOST_SEARCHES = 100_000
"""The latest searches with a report from which labels are made."""

FEWEST_SOURCES = 3
"""Fewer sources cannot outvote one."""

LOUDEST = 5.0
"""How many times the uses of the median source one may have before it is weighed down."""

FEWEST_COMPARABLE = 20
"""Uses that others could have confirmed, from which on a source is compared with them."""


class UsedLabels(NamedTuple):
    """What the log says about questions and documents.

    Attributes:
        examples: one for each question and document that was used, or passed over.
        figures: of what they were made from, for a report.
    """

    examples: Sequence[Example]
    figures: Mapping[str, Json]


class ShownHits(NamedTuple):
    """The hits of searches with a report, one row each (n,).

    Attributes:
        pairs: numbers of question and document; those of swapped neighbours come after all.
        ranks: from 0.
        used: how much a hit served, 0 for not.
        read: whether a hit below was used, so that this one was looked at.
        searches, sources: positions of the search and of who reported.
    """

    pairs: Int64
    ranks: Int64
    used: Float64
    read: Float64
    searches: Int64
    sources: Int64


def take_used(
    collection: StoredCollection, watch: Callable[[float], None] = lambda done: None
) -> Mapping[str, Json] | None:
    """Store what the log says as examples, in place of those that were made from it before.

    Labels that somebody gave stay as they are.

    Returns: the figures of `labels_of`; None for a collection without a log, or without an encoder
        for the texts in it.

    >>> take_used(books) is None
    True
    """
    log = collection.log
    if log is None or collection.settings.encoder is None:  # of vectors the log has nothing
        return None
    entries = log.latest(MOST_SEARCHES, judged=True)
    rows = np.array(sorted({row for entry in entries for row in entry.rows}), dtype=np.int64)
    documents = collection.store.documents(rows, texts=False)
    ids = {row: document.id for row, document in documents.items()}
    labels = labels_of(entries, ids)
    add_feedback(collection, labels.examples, only=USED, progress=lambda stage, done: watch(done))
    return labels.figures


def examination(entries: Sequence[SearchEntry], ranks: int | None = None) -> Float64:
    """Estimate the chance that a hit is looked at, by its rank; 1 at the first.

    Searches that showed one document for one question at several ranks, after it was used once,
    tell how much more the higher one is used (intervention harvesting: Agarwal et al. 2019). So do
    neighbours that changed places by chance. The estimate is a power of the rank, and each rank's
    own as far as its uses say more. Without either it is 1 / rank.

    Args:
        entries: the newest first.
        ranks: r, the number of ranks; those of the longest page if absent.

    Returns: (r,).

    >>> examination([], 3)
    array([1.        , 0.5       , 0.33333333])
    """
    longest = max((len(entry.rows) for entry in entries), default=1)
    return _examination(_shown(entries, None)[0], ranks or longest)


def _examination(shown: ShownHits, ranks: int) -> Float64:
    places = np.arange(1.0, ranks + 1)
    # A use moves its document up. What was used before that says nothing of ranks: only documents
    # that were used low have moved. Searches are numbered from the newest on.
    first = np.full(int(shown.pairs.max(initial=-1)) + 1, -1)
    np.maximum.at(first, shown.pairs[shown.used > 0], shown.searches[shown.used > 0])
    inside = (shown.ranks < ranks) & (shown.searches < np.maximum(first, 0)[shown.pairs])
    pairs, rank, used = shown.pairs[inside], shown.ranks[inside], shown.used[inside] > 0
    distinct = np.unique(pairs * ranks + rank) // ranks
    several = np.bincount(distinct, minlength=len(pairs)) > 1
    several[np.setdiff1d(pairs, pairs[used])] = False  # without a use there is nothing to divide
    tells = several[pairs]
    _, pairs = np.unique(pairs[tells], return_inverse=True)
    shows, uses = np.zeros((2, int(pairs.max(initial=-1)) + 1, ranks))
    np.add.at(shows, (pairs, rank[tells]), 1.0)
    np.add.at(uses, (pairs, rank[tells]), used[tells])
    total = uses.sum(axis=1)

    # Of each pair, a use has a rank with the chance shows · look / sum, whatever the relevance.
    powers = places ** -ETAS[:, None]  # (e, r)
    gains = np.log(powers) @ uses.sum(axis=0) - total @ np.log(shows @ powers.T)
    power = powers[np.argmax(gains - ((ETAS - ETA) / SPREAD) ** 2 / 2)]
    look, seen = power, uses.sum(axis=0)
    for _ in range(STEPS):  # a power of the rank is what SHAPE uses of each rank would say
        expected = (total[:, None] * shows / (shows @ look)[:, None]).sum(axis=0)
        look = (seen + SHAPE) / (expected + SHAPE / power)
        look = look / look[0]
    return np.asarray(np.minimum(look, 1.0))


def labels_of(entries: Sequence[SearchEntry], ids: Mapping[int, str]) -> UsedLabels:
    """Make labels of searches with a report.

    All reports about a document and a question tell the chance that it is right: by how often hits
    are used that are right and looked at, and that are not. A used document that is right with the
    chance SURE has the label 1, or its value; one that was passed over a label below 0, by how sure
    it is not right; of all others the log says too little.

    Args:
        ids: of documents by row; others are left out.
    """
    shown, names, questions, newest = _shown(entries, ids)
    looks = _examination(shown, int(shown.ranks.max(initial=0)) + 1)
    shown = ShownHits._make(column[shown.pairs < len(names)] for column in shown)
    trust, weighed = _trust(shown, newest)
    labels, plain = (
        _labels(shown, len(names), looks, weights) for weights in (trust, np.ones(len(newest)))
    )
    examples = [
        Example(questions[question], ids[row], float(label), None, USED)
        for (question, row), label in zip(names, labels.tolist(), strict=True)
        if label
    ]
    figures: dict[str, Json] = {
        "searches": len(entries),
        "used": int((shown.used > 0).sum()),
        "labels": len(examples),
        "relevant": sum(example.weight > 0 for example in examples),
        "looked_at": [round(share, 4) for share in looks.tolist()],
        "sources": len(newest),
        "weighed_down": weighed,
        "changed_labels": int((np.sign(labels) != np.sign(plain)).sum()),
    }
    return UsedLabels(examples, figures)


def _labels(shown: ShownHits, count: int, looks: Float64, trust: Float64) -> Float64:
    """Return the label of each pair (p,): above 0 used, below 0 passed over, 0 for neither.

    The chances that a hit that is looked at is used if it is right (`right`), or wrong, and that a
    document is right by its best rank (`prior`, (r,)), are estimated with the labels (expectation
    maximisation).

    Args:
        trust: (s,) of each source.
    """
    weights, used, look = trust[shown.sources], shown.used > 0, looks[shown.ranks]
    best = np.full(count, len(looks) - 1)
    np.minimum.at(best, shown.pairs, shown.ranks)
    right, wrong, prior = RIGHT, WRONG, np.full(len(looks), 0.5)
    chances = np.empty(0)
    for _ in range(STEPS):
        missed = np.log1p(-right * look) - np.log1p(-wrong * look)
        evidence = np.where(used, math.log(right / wrong), missed)
        odds = np.log(prior / (1 - prior))[best]
        odds += np.bincount(shown.pairs, weights * evidence, count)
        chances = 1 / (1 + np.exp(-np.clip(odds, -500, 500)))
        mine, others = (side[shown.pairs] * weights for side in (chances, 1 - chances))
        right = min((used @ mine + STRENGTH * RIGHT) / (look @ mine + STRENGTH), MOST)
        wrong = (used @ others + STRENGTH * WRONG) / (look @ others + STRENGTH)
        wrong = min(wrong, right / 2)
        counts = np.bincount(best, chances, len(looks)) + STRENGTH / 2
        prior = np.minimum(counts / (np.bincount(best, minlength=len(looks)) + STRENGTH), MOST)
    uses = np.bincount(shown.pairs, weights * used, count)
    value = np.bincount(shown.pairs, weights * shown.used, count) / np.maximum(uses, 1e-9)
    passed = np.bincount(shown.pairs, weights * shown.read, count)
    sure = np.where(chances >= SURE, value, 0.0)
    return np.where(uses > 0, sure, np.where(passed > 0, chances - 1, 0.0))


def _shown(
    entries: Sequence[SearchEntry], ids: Mapping[int, str] | None
) -> tuple[ShownHits, list[tuple[int, int]], list[str], list[str]]:
    """Return the hits of searches by text with a report; the question and row of each pair, the
    texts of questions, and the newest search of each source."""
    pairs: dict[tuple[int, int], int] = {}
    questions: dict[str | bytes, int] = {}
    texts, newest = list[str](), list[str]()
    sources: dict[str | None, int] = {}
    swaps: list[tuple[int, int, float]] = []
    rows: list[tuple[int, int, float, float, int, int]] = []
    for search, entry in enumerate(entries):
        if entry.query is None or entry.used is None:
            continue
        key = same_question(entry.query)
        question = questions.setdefault(key, len(questions))
        if question == len(texts):
            texts.append(entry.query)
        source = sources.setdefault(entry.source, len(sources))
        if source == len(newest):
            newest.append(entry.id)
        last = max(entry.used, default=-1)
        for rank, row in enumerate(entry.rows):
            if ids is None or row in ids:
                pair = pairs.setdefault((question, row), len(pairs))
                used = entry.used.get(rank, 0.0)
                rows.append((pair, rank, used, float(rank < last), search, source))
        if entry.pair is not None:
            swaps += [
                (entry.pair, rank, entry.used.get(rank, 0.0))
                for rank in (entry.pair, entry.pair + 1)
            ]
    # Over searches that exchanged two neighbours by chance, both ranks had as good documents.
    rows += [(len(pairs) + upper, rank, used, 0.0, -1, -1) for upper, rank, used in swaps]
    table = np.array(rows, dtype=np.float64).reshape(-1, 6).T
    numbers = (table[place].astype(np.int64) for place in (0, 1, 4, 5))
    pair, rank, searches, who = numbers
    shown = ShownHits(pair, rank, table[2], table[3], searches, who)
    return shown, list(pairs), texts, newest


def _trust(shown: ShownHits, newest: Sequence[str]) -> tuple[Float64, list[Json]]:
    """Return how much each source counts (s,), 0 to 1, and those that are weighed down.

    A report outlives the log. So a source has the id of its newest search there, of which the log
    alone tells whose it is, and no name.

    One that reports far more than the median source counts as one that does not; one that uses
    what all others were shown for the same question and did not use, by how often others agree.
    """
    count = len(newest)
    trust = np.ones(count)
    if count < FEWEST_SOURCES:
        return trust, []
    used = shown.used > 0
    uses = np.bincount(shown.sources, used, count)
    typical = float(np.median(uses[uses > 0])) if uses.any() else 1.0
    volume = np.minimum(1.0, LOUDEST * max(typical, 1.0) / np.maximum(uses, 1.0))
    # Of each use, how often others used that document where they were shown it.
    size = int(shown.pairs.max(initial=-1)) + 1
    names, place = np.unique(shown.pairs * count + shown.sources, return_inverse=True)
    shows, hits = np.bincount(place), np.bincount(place, used)
    pair = names // count
    others = np.bincount(pair, shows, size)[pair] - shows
    agreed = np.bincount(pair, hits, size)[pair] - hits
    comparable = (hits > 0) & (others > 0)
    by = names[comparable] % count
    could = np.bincount(by, hits[comparable], count)
    rate = np.bincount(
        by, hits[comparable] * agreed[comparable] / others[comparable], count
    ) / np.maximum(could, 1)
    compared = could >= FEWEST_COMPARABLE
    usual = float(np.median(rate[compared])) if compared.sum() >= FEWEST_SOURCES else 0.0
    agreement = np.where(compared & (usual > 0), np.minimum(1.0, rate / max(usual, 1e-9)), 1.0)
    trust = volume * np.where(agreement < 0.5, agreement, 1.0)
    weighed: list[Json] = [
        {
            "search": newest[place],
            "uses": int(uses[place]),
            "weight": round(float(trust[place]), 4),
            "agreement": round(float(rate[place]), 4) if compared[place] else None,
        }
        for place in np.argsort(trust, kind="stable").tolist()
        if trust[place] < 1
    ]
    return trust, weighed
