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
    conala = bench.ranking_set("conala")
    for count in COUNTS:
        yield from _among_new(bench, conala, count)


def _among_new(bench: Bench, dataset: RankingSet, count: int) -> Iterator[Row]:
    """Rank questions of new documents among documents that no example names."""
    ids = np.random.default_rng(SEED).permutation(sorted(dataset.train.queries))[:count]
    examples = dataset.train.some(sorted(ids.tolist()))
    labelled = examples.documents()
    new = [id for id in dataset.test.queries if not dataset.test.relevant(id) & labelled]
    with bench.workshop.beir(dataset) as collection:
        taught(collection, examples)
        contest = Contest(collection, dataset.test.some(new))
        mask = {"exclude": sorted(labelled)}
        contest.search("frozen", mask=mask, memory=0.0)
        contest.search("feedback", mask=mask)
    name = f"feedback.{dataset.name}_{count}"
    what = f"{TITLES[dataset.name]}, {len(new)} new among new"
    yield contest.row(f"{name}_frozen", f"{what}, frozen", "frozen")
    yield contest.row(name, f"  {count} examples, no training", "feedback")
    gain = contest.difference("feedback", "frozen")
    row = difference_row(f"{name}_gain", "  feedback less frozen", gain)
    yield ahead(row, gain.p) if count >= PROVABLE else row.wanted(">", 0)
