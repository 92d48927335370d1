"""Versions compared by what people used, against figures from another calculation."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from attend import Collection, Data
from attend.collection.feedback import team_draft
from attend.core.errors import InvalidRequest, UnknownProjection
from attend.core.types import Float64
from attend.encoder import Encoder
from attend.measure.statistics import anytime_interval, anytime_p, ratio_intervals
from attend.measure.uses import advantages, compare_uses, condensed
from attend.store.searches import SearchEntry

TEXTS = 40
RANKS = 8


def world(rng: np.random.Generator, worse: int) -> dict[str, list[list[int]]]:
    """Return two lists of each text: the right document is number 0; the second version ranks it
    lower by some places."""
    lists = {}
    for text in range(TEXTS):
        others = (100 * text + rng.permutation(np.arange(1, 20))).tolist()
        rank = int(rng.integers(0, 3))
        pair = []
        for shift in (0, worse):
            order = others.copy()
            order.insert(rank + shift, 100 * text)
            if shift:  # one hit of the page is below it in the other's list
                order[6], order[12] = order[12], order[6]
            pair.append(order)
        lists[str(text)] = pair
    return lists


def clicked(page: Sequence[int], rng: np.random.Generator) -> dict[int, float]:
    relevant = np.array(page) % 100 == 0
    chance = np.where(relevant, 0.9, 0.1) / np.arange(1, len(page) + 1)
    return {int(rank): 1.0 for rank in np.flatnonzero(rng.random(len(page)) < chance)}


def log_of(
    lists: dict[str, list[list[int]]], rng: np.random.Generator, searches: int, *, drafted: bool
) -> list[SearchEntry]:
    entries = []
    while len(entries) < searches:
        text = str(rng.integers(TEXTS))
        first, second = lists[text]
        page, draft = first[:RANKS], None
        if drafted:
            page = team_draft(first, second, size=RANKS)
            tops = first[:RANKS], second[:RANKS]
            ranks = [[top.index(d) + 1 if d in top else 0 for d in page] for top in tops]
            draft = {1: ranks[0], 2: ranks[1]}
        if used := clicked(page, rng):
            entries.append(SearchEntry("", 0.0, 1, text, page, used, None, draft))
    return entries


def compared(lists, entries, versions=(1, 2), queries=TEXTS):  # type: ignore[no-untyped-def]
    def lister(texts: Sequence[str], version: int) -> list[list[int]]:
        return [lists[text][version - 1] for text in texts]

    return compare_uses(entries, versions, lister, 1 / np.arange(1.0, RANKS + 1), queries=queries)


def test_the_better_version_is_named_whichever_comes_first() -> None:
    rng = np.random.default_rng(1)
    lists = world(rng, worse=2)
    entries = log_of(lists, rng, 600, drafted=True)
    answer = compared(lists, entries)
    swapped = compared(lists, entries, (2, 1))
    assert (answer.better, swapped.better) == (1, 1)
    assert answer.interleaved == 600
    assert answer.before.wins > answer.after.wins
    assert (swapped.before.wins, swapped.after.wins) == (answer.after.wins, answer.before.wins)
    assert answer.advantage.interval[1] < 0 < swapped.advantage.interval[0]
    assert answer.more is None
    assert answer.sentence.startswith("Version 1 is better")
    few = compared(lists, entries[:12])
    assert few.better is None
    assert few.more is not None
    assert 0 < few.more < 600
    assert f"About {few.more} more may tell" in few.sentence


def test_equal_versions_are_told_apart_in_at_most_one_of_twenty_runs() -> None:
    rng = np.random.default_rng(2)
    named = 0
    for _ in range(60):
        lists = world(rng, worse=2)
        sides = log_of(lists, rng, 300, drafted=True)
        # Each search takes the two versions in an order by lot: neither is better.
        entries = [
            entry._replace(draft={1: entry.draft[2], 2: entry.draft[1]})
            if rng.random() < 0.5 and entry.draft is not None
            else entry
            for entry in sides
        ]
        named += compared(lists, entries).better is not None
    assert named <= 6


def test_versions_that_win_as_much_as_they_lose_are_told_apart_in_at_most_one_of_twenty_runs() -> (
    None
):
    """Of the texts each version ranks one half lower, in the same way."""
    random.seed(6)
    rng = np.random.default_rng(6)
    named = 0
    for _ in range(60):
        lists = world(rng, worse=2)
        for text in range(0, TEXTS, 2):
            mirrored = [[row + 100 for row in side] for side in lists[str(text)][::-1]]
            lists[str(text + 1)] = mirrored
        named += compared(lists, log_of(lists, rng, 300, drafted=True)).better is not None
    assert named <= 3


def test_an_advantage_is_how_much_further_up_is_ranked_what_is_used_and_was_before() -> None:
    rng = np.random.default_rng(7)
    entries = log_of(world(rng, worse=2), rng, 150, drafted=True)
    entries[3] = entries[3]._replace(used={0: 4.0, 2: 2.0})
    entries[5] = entries[5]._replace(used={})  # looked at, and nothing served
    entries[7] = entries[7]._replace(draft={1: [1] * RANKS, 3: [2] * RANKS})
    entries[9] = entries[9]._replace(used=None)
    look = [1 / (rank + 1) for rank in range(RANKS)]
    expected = []
    for place in range(len(entries) - 1, -1, -1):
        entry = entries[place]
        if not entry.used or entry.draft is None or 2 not in entry.draft:
            continue
        shares, gains = [], []
        for rank, row in enumerate(entry.rows):
            uses, looks = 0.3, 1.0
            for earlier in entries[place + 1 :]:
                same = earlier.query == entry.query and earlier.used is not None
                if same and row in earlier.rows:
                    at = list(earlier.rows).index(row)
                    most = max(earlier.used.values(), default=1.0)
                    uses += earlier.used.get(at, 0.0) / most
                    looks += look[at]
            shares.append(uses / looks)
            first, second = (entry.draft[version][rank] or 2 * RANKS for version in (1, 2))
            value = entry.used.get(rank, 0.0) / max(entry.used.values())
            gains.append(value * (np.log(first) - np.log(second)) / np.log(16))
        total = sum(min(2 * share, 1) * gain for share, gain in zip(shares, gains, strict=True))
        expected.append(max(-1.0, min(1.0, total)))
    assert len(expected) == 147
    np.testing.assert_allclose(advantages(entries, (1, 2), np.array(look)), expected)


def test_a_use_by_mistake_counts_less_where_many_passed_the_hit_over() -> None:
    """The right hit is 7, which the first version ranks higher; somebody uses 9 by mistake."""
    draft = {1: [1, 2], 2: [2, 1]}
    usual = SearchEntry("", 0.0, 1, "text", [7, 9], {0: 1.0}, None, draft)
    mistake = usual._replace(used={1: 1.0})
    looks: Float64 = np.ones(2)
    [alone] = advantages([mistake], (1, 2), looks)
    assert alone == pytest.approx(0.6 / 4)
    assert 0 < advantages([mistake, *[usual] * 20], (1, 2), looks)[-1] < 0.05 / 4
    assert advantages([usual] * 20, (1, 2), looks)[-1] == -1 / 4
    other = [entry._replace(query="another") for entry in [usual] * 20]
    assert advantages([mistake, *other], (1, 2), looks)[-1] == alone
    vectors = [entry._replace(query=None, id=str(n)) for n, entry in enumerate([usual] * 20)]
    assert advantages([mistake._replace(query=None), *vectors], (1, 2), looks)[-1] == alone


def test_the_gain_of_a_use_is_held_by_its_interval() -> None:
    """The true gain is known: the chance of a use, times the gain in the order of the version."""
    rng = np.random.default_rng(3)
    lists = world(rng, worse=2)
    totals, whole = np.zeros(2), 0.0
    for first, second in lists.values():
        page = first[:RANKS]
        chance = np.where(np.array(page) % 100 == 0, 0.9, 0.1)
        for side, ranking in enumerate((first, second)):
            order = sorted(page, key=ranking.index)
            gains = [1 / np.log2(order.index(document) + 2) for document in page]
            totals[side] += chance @ np.array(gains)
        whole += chance.sum()
    true = totals / whole
    held, runs = np.zeros(3), 150
    for _ in range(runs):
        answer = compared(lists, log_of(lists, rng, 400, drafted=False))
        intervals = [answer.before.interval, answer.after.interval, answer.gain_interval]
        truths = [*true, true[1] - true[0]]
        held += [low <= mean <= high for mean, (low, high) in zip(truths, intervals, strict=True)]
    assert (held / runs > 0.89).all(), held
    assert answer.before.coverage == 1
    assert answer.after.coverage == pytest.approx(7 / 8)
    assert answer.better is None
    assert answer.interleaved == 0
    assert "set interleave to [1, 2]" in answer.sentence


def test_gains_are_those_of_the_page_in_the_order_of_a_version() -> None:
    page, ranking = [7, 3, 9, 5], [9, 1, 2, 3, 8, 5, 7]
    expected = [1 / np.log2([9, 3, 5, 7].index(document) + 2) for document in page]
    np.testing.assert_allclose(condensed([ranking.index(d) + 1 for d in page]), expected)
    rest = np.mean([1 / np.log2(4), 1 / np.log2(5)])
    np.testing.assert_allclose(condensed([0, 2, 1, 0]), [rest, 1 / np.log2(3), 1, rest])
    assert condensed(range(1, 13))[10:].tolist() == [0, 0]


def test_a_ratio_has_the_interval_of_a_bootstrap() -> None:
    rng = np.random.default_rng(4)
    weights = rng.exponential(2, 500)
    column = weights * rng.random(500)
    [interval] = ratio_intervals(column[:, None], weights)
    rows = rng.integers(500, size=(4000, 500))
    drawn = column[rows].sum(axis=1) / weights[rows].sum(axis=1)
    assert interval.mean == pytest.approx(column.sum() / weights.sum())
    np.testing.assert_allclose(
        [interval.low, interval.high], np.quantile(drawn, [0.025, 0.975]), atol=0.003
    )


def test_the_bounds_are_the_means_that_are_not_refuted() -> None:
    differences: Float64 = np.random.default_rng(5).uniform(-0.5, 0.9, 300)
    interval = anytime_interval(differences)
    for mean in np.linspace(-0.1, 0.5, 61):
        p = anytime_p((differences - mean) / (1 + abs(mean)))[-1]
        if abs(mean - interval.low) > 0.01 and abs(mean - interval.high) > 0.01:
            assert (interval.low < mean < interval.high) == (p > 0.05)


@pytest.fixture
def collection(tmp_path: Path, tiny_encoder: Encoder) -> Iterator[Collection]:
    data = Data(tmp_path, load_encoder=lambda name: tiny_encoder)
    made = data.create("texts")
    made.upsert([{"id": str(n), "text": f"word{n} common"} for n in range(12)])
    yield made
    data.close()


def test_a_collection_compares_its_versions_from_its_log(collection: Collection) -> None:
    with pytest.raises(InvalidRequest, match="logs no searches"):
        collection.compare_from_log(1)
    collection.configure(log=True)
    second = collection.add_projection(collection.fit_projection("pca", 2))
    with pytest.raises(UnknownProjection):
        collection.compare_from_log(1, 9)
    collection.configure(interleave=[1, second])
    for n in range(12):
        answer = collection.search(f"word{n}", k=5)
        collection.used(str(answer.search), [answer.hits[0].id])
        collection.search(f"word{n}", k=5)  # nobody says anything
    report = collection.compare_from_log(1, second)
    assert (report.interleaved, report.searches) == (12, 12)
    assert (report.before.projection, report.after.projection) == (1, second)
    assert report.before.wins + report.after.wins <= 12
    assert 0 < report.before.gain <= 1
    assert collection.info().searches == 24  # comparing is not logged
    assert collection.compare_from_log(second).after.projection == 1
    assert collection.compare_from_log(1, second, queries=3).searches == 3
