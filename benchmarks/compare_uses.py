"""How many used searches tell two versions apart, and whether intervals from the log hold.

Versions are rankings of real queries: with a BM25 weight of 0.5, and with the weight at which
nDCG@10 is nearest to .02 lower. Users click by `clicks`. Rows: how often the better one is named
within 2,000 used searches, how often one of two equal versions is, the used searches after which
the better one is named in 95 % of runs, and how often the interval of the gain of a use holds.
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

from attend.core.types import Float64
from attend.measure.rankings import measure, rank
from attend.measure.uses import compare_uses, condensed
from attend.search.drafts import team_draft
from attend.store.searches import Draft, SearchEntry

K = 10
SETS = ("scifact", "conala", "nfcorpus")
WEIGHTS = (0.05, 0.1, 0.15, 0.2, 0.3)
LOSS = 0.02
WITHIN = 2000
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


def contest(workshop: Workshop, folder: Path, name: str) -> Contest:
    """Rank the test queries of a set with two weights of BM25."""
    given = ranking_set(folder, name, rehearse=False)
    with workshop.beir(given) as collection:
        queries, qrels = given.test
        runs = {weight: rank(collection, queries, lexical=weight) for weight in (0.5, *WEIGHTS)}
        quality = {
            weight: measure(qrels, run.run(), collection).measures["ndcg@10"]
            for weight, run in runs.items()
        }
    best = quality.pop(0.5)
    weight = min(quality, key=lambda weight: abs(best - quality[weight] - LOSS))
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
            ranks = [(places[0].get(row, 0), places[1].get(row, 0)) for row in page]
            pages.append(page)
            drafts.append(Draft((1, 2), ranks) if drafted else None)
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
    given: Contest, users: Users, runs: int, searches: int, *, equal: bool
) -> tuple[float, float]:
    """Return the shares of runs in which the better and the worse version are named."""
    rng = np.random.default_rng(SEED)
    answers = []
    for _ in range(runs):
        entries = used(given, users, rng, searches, drafted=True, equal=equal)
        answers.append(
            compare_uses(entries, (1, 2), lambda texts, version: [], EXAMINED, queries=0).better
        )
    return answers.count(1) / runs, answers.count(2) / runs


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
    runs = 20 if options.quick else 200
    result: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder))
        for name in SETS[1:2] if options.quick else SETS:
            given = contest(workshop, options.folder, name)
            result[f"{name}.loss"] = round(given.loss, 4)
            for users, model in USERS.items():
                for searches in (WITHIN, 2 * WITHIN, 4 * WITHIN):
                    better, worse = named(given, model, runs, searches, equal=False)
                    result[f"{name}.{users}.named.{searches}"] = [better, worse]
                    if better >= 0.95 or options.quick:
                        break
                result[f"{name}.{users}.equal"] = sum(named(given, model, runs, WITHIN, equal=True))
            result[f"{name}.held"] = held(given, 2 * runs, 1000)
            progress(json.dumps(result))
    print(json.dumps(result, indent=None if options.json else 1))


if __name__ == "__main__":
    main()
