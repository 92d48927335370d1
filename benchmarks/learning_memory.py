"""Rows of feedback alone: what stored examples are worth before any training."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from learning_contest import Contest
from learning_rows import Row, ahead, difference_row
from learning_sets import SEED, TITLES, Bench, RankingSet, taught

COUNTS = (20, 100, 500)
"""Questions that are taught."""

PROVABLE = 100
"""From this many on a gain was asked to be significant."""


def conala_feedback(bench: Bench) -> Iterator[Row]:
    given = bench.ranking_set("conala")
    for count in COUNTS:
        yield from _among_new(bench, given, count)


def _among_new(bench: Bench, given: RankingSet, count: int) -> Iterator[Row]:
    """Questions of new documents, ranked among documents that no example names."""
    ids = np.random.default_rng(SEED).permutation(sorted(given.train.queries))[:count]
    examples = given.train.some(sorted(ids.tolist()))
    labelled = examples.documents()
    new = [id for id in given.test.queries if not given.test.relevant(id) & labelled]
    with bench.workshop.beir(given) as collection:
        taught(collection, examples)
        contest = Contest(collection, given.test.some(new))
        mask = {"exclude": sorted(labelled)}
        contest.search("frozen", mask=mask, memory=0.0)
        contest.search("feedback", mask=mask)
    name, what = f"feedback.{given.name}_{count}", f"{TITLES[given.name]}, {len(new)} new among new"
    yield contest.row(f"{name}_frozen", f"{what}, frozen", "frozen")
    yield contest.row(name, f"  {count} examples, no training", "feedback")
    found = contest.difference("feedback", "frozen")
    row = difference_row(f"{name}_gain", "  feedback less frozen", found)
    yield ahead(row, found.p) if count >= PROVABLE else row.wanted(">", 0)
