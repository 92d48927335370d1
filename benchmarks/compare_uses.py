"""How many used searches tell two versions apart, and whether intervals from the log hold.

Versions are rankings of real queries: with a BM25 weight of 0.5, and with the weight at which
nDCG@10 is nearest to .02 lower. Users click by `clicks`. Rows: how often the better one is named
after 1,000 to 8,000 used searches, how often one of two equal versions is within 2,000, how often
a version nearest to .05 worse is sent back by a one-sided test within 250 to 2,000 (`sent_back`),
and how often the intervals of the gain of a use, of both versions and of their difference, hold.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from clicks import Cascade, Position, attraction
from common import parser, progress
from learning_sets import Workshop, ranking_set

from attend.collection.feedback import team_draft
from attend.core.types import Float64
from attend.measure.rankings import measure, rank
from attend.measure.uses import compare_uses, condensed
from attend.store.searches import SearchEntry

K = 10
SETS = ("scifact", "conala", "nfcorpus")
WEIGHTS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
LOSS, LARGE_LOSS = 0.02, 0.05
WITHIN = 2000
"""Used searches of two equal versions."""

LOOKS = (1000, 2000, 4000, 8000)
"""Used searches after which the better version is to be named."""

BACK_LOOKS = (250, 500, 1000, 2000)
"""Used searches after which the worse version is to be sent back."""

NOISE = 0.1
SEED = 20170612
EXAMINED: Float64 = np.asarray(1 / np.arange(1.0, K + 1))

Users = Callable[[np.random.Generator], Position | Cascade]

USERS: Mapping[str, Users] = {
    "position": lambda rng: Position(1.0, NOISE, rng),
    "cascade": lambda rng: Cascade(NOISE, rng),
}


class Contest(NamedTuple):
    """Two lists of rows for each query, the better version's first, and what is relevant."""

    lists: Sequence[tuple[Sequence[int], Sequence[int]]]
    relevance: Sequence[Mapping[int, float]]
    loss: float


def contest(workshop: Workshop, folder: Path, name: str, loss: float = LOSS) -> Contest:
    """Rank the test queries of a set with two weights of BM25, the second nearest to a loss."""
    given = ranking_set(folder, name, rehearse=False)
    with workshop.beir(given) as collection:
        queries, qrels = given.test
        runs = {weight: rank(collection, queries, lexical=weight) for weight in (0.5, *WEIGHTS)}
        quality = {
            weight: measure(qrels, run.run(), collection).measures["ndcg@10"]
            for weight, run in runs.items()
        }
    best = quality.pop(0.5)
    weight = min(quality, key=lambda weight: abs(best - quality[weight] - loss))
    progress(f"{name}: nDCG@10 {best:.4f}, and {quality[weight]:.4f} with a weight of {weight}")
    numbers: dict[str, int] = {}
    lists, relevance = [], []
    for id in queries:
        first, second = (
            [numbers.setdefault(document, len(numbers)) for document in ranking.documents]
            for ranking in (runs[0.5].rankings[id], runs[weight].rankings[id])
        )
        most = max(qrels[id].values())
        grades = {
            numbers.setdefault(d, len(numbers)): max(0, g) / most for d, g in qrels[id].items()
        }
        lists.append((first, second))
        relevance.append(grades)
    return Contest(lists, relevance, best - quality[weight])


def used(
    given: Contest,
    users: Users,
    rng: np.random.Generator,
    searches: int,
    *,
    drafted: bool,
    equal: bool,
) -> list[SearchEntry]:
    """Return used searches of one run; of equal versions each search takes the two by lot."""
    entries: list[SearchEntry] = []
    while len(entries) < searches:
        drawn = rng.integers(len(given.lists), size=searches)
        pages, drafts = [], []
        for query in drawn.tolist():
            first, second = (row[:K] for row in given.lists[query])
            page = team_draft(first, second, size=K) if drafted else list(first)
            sides = (second, first) if equal and rng.random() < 0.5 else (first, second)
            places = [{row: rank for rank, row in enumerate(side, start=1)} for side in sides]
            first, second = ([side.get(row, 0) for row in page] for side in places)
            pages.append(page)
            drafts.append({1: first, 2: second} if drafted else None)
        relevance = np.array(
            [
                [given.relevance[query].get(row, 0.0) for row in page]
                for query, page in zip(drawn.tolist(), pages, strict=True)
            ]
        )
        clicks = users(rng).clicks(relevance)
        entries += [
            SearchEntry(
                "",
                0.0,
                1,
                str(query),
                page,
                dict.fromkeys(np.flatnonzero(row).tolist(), 1.0),
                None,
                draft,
            )
            for query, page, row, draft in zip(drawn, pages, clicks, drafts, strict=True)
            if row.any()
        ]
    return entries[:searches]


def named(
    given: Contest, users: Users, runs: int, looks: Sequence[int], *, one_sided: bool = False
) -> list[float]:
    """Return the share of runs in which the better version is named, after some used searches."""
    rng, right = np.random.default_rng(SEED), np.zeros(len(looks))
    for _ in range(runs):
        entries = used(given, users, rng, max(looks), drafted=True, equal=False)
        right += [better(entries[-searches:], one_sided) == 1 for searches in looks]
    return [round(float(share), 3) for share in right / runs]


def named_of_equal(given: Contest, users: Users, runs: int) -> float:
    """Return the share of runs in which one of two equal versions is named."""
    rng = np.random.default_rng(SEED)
    wrong = [better(used(given, users, rng, WITHIN, drafted=True, equal=True)) for _ in range(runs)]
    return 1 - wrong.count(None) / runs


def better(entries: Sequence[SearchEntry], one_sided: bool = False) -> int | None:
    """Return the version that is named, of the interleaved searches alone."""
    return compare_uses(
        entries, (1, 2), lambda texts, version: [], EXAMINED, queries=0, one_sided=one_sided
    ).better


def held(given: Contest, runs: int, searches: int) -> list[float]:
    """Return how often the intervals of both gains, and of their difference, hold the true ones.

    The true gain of a use is over the hits that the first version shows, each by its chance of use.
    """
    totals, whole = np.zeros(2), 0.0
    for (first, second), grades in zip(given.lists, given.relevance, strict=True):
        page = first[:K]
        chance = attraction(np.array([grades.get(row, 0.0) for row in page]), NOISE)
        sides = [
            [side.index(row) + 1 if row in side else 0 for row in page] for side in (first, second)
        ]
        totals += [chance @ condensed(ranks) for ranks in sides]
        whole += chance.sum()
    truths = np.append(totals, totals[1] - totals[0]) / whole
    rng, inside = np.random.default_rng(SEED), np.zeros(3)
    for _ in range(runs):
        entries = used(given, USERS["position"], rng, searches, drafted=False, equal=False)
        answer = compare_uses(
            entries, (1, 2),
            lambda texts, version: [given.lists[int(text)][version - 1] for text in texts],
            EXAMINED, queries=len(given.lists),
        )  # fmt: skip
        intervals = answer.before.interval, answer.after.interval, answer.gain_interval
        inside += [
            bounds is not None and bounds[0] <= truth <= bounds[1]
            for truth, bounds in zip(truths, intervals, strict=True)
        ]
    return [round(float(share), 3) for share in inside / runs]


def main() -> None:
    options = parser(__doc__ or "").parse_args()
    random.seed(SEED)
    runs = 10 if options.quick else 50
    result: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder))
        for name in SETS[1:2] if options.quick else SETS:
            given = contest(workshop, options.folder, name)
            worse = contest(workshop, options.folder, name, LARGE_LOSS)
            result[f"{name}.loss"] = round(given.loss, 4)
            result[f"{name}.large_loss"] = round(worse.loss, 4)
            for users, model in USERS.items():
                result[f"{name}.{users}.named"] = named(given, model, runs, LOOKS)
                result[f"{name}.{users}.equal"] = named_of_equal(given, model, 2 * runs)
                back = named(worse, model, runs, BACK_LOOKS, one_sided=True)
                result[f"{name}.{users}.sent_back"] = back
            result[f"{name}.held"] = held(given, 4 * runs, 1000)
            progress(json.dumps(result))
    print(json.dumps(result, indent=None if options.json else 1))


if __name__ == "__main__":
    main()
