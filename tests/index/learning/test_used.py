"""Labels from the log of searches: the bias of ranks, sources, and what becomes an example."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from attend import Data
from attend.core.types import Example, Float64
from attend.learning import train
from attend.learning.used import examination, labels_of
from attend.store.searches import SearchEntry

QUESTIONS, DOCUMENTS, RANKS = 200, 20, 8


def shown(
    rows: Sequence[int], used: Sequence[int], query: str = "q", source: str | None = None
) -> SearchEntry:
    return SearchEntry(f"by {source}", 0.0, 1, query, rows, dict.fromkeys(used, 1.0), source=source)


def simulated(
    eta: float, searches: int, *, versions: int = 1, swaps: bool = False, seed: int = 0
) -> list[SearchEntry]:
    """Searches of users who look at rank r with chance r^-eta, and find one of six relevant."""
    random = np.random.default_rng(seed)
    relevant = random.random((QUESTIONS, DOCUMENTS)) < 1 / 6
    noise = random.normal(size=(versions, QUESTIONS, DOCUMENTS))
    orders = np.argsort(noise - relevant, axis=-1)[..., :RANKS]
    entries = []
    for number in range(searches):
        question, version = int(random.integers(QUESTIONS)), number * versions // searches
        rows, pair = orders[version, question].copy(), None
        if swaps:
            pair = int(random.integers(RANKS - 1))
            if random.random() < 0.5:
                rows[[pair, pair + 1]] = rows[[pair + 1, pair]]
        looks = np.arange(1.0, RANKS + 1) ** -eta
        used = random.random(RANKS) < looks * np.where(relevant[question][rows], 0.9, 0.1)
        served = dict.fromkeys(np.flatnonzero(used).tolist(), 1.0)
        text = f"question {question}"
        entries.append(SearchEntry("0", 0.0, version, text, rows.tolist(), served, pair))
    return entries


def slope(looks: Float64) -> float:
    """The power of the rank that fits best, by least squares."""
    ranks = np.log(np.arange(1.0, len(looks) + 1))
    return float(-np.polyfit(ranks, np.log(looks), 1)[0])


@pytest.mark.parametrize("eta", [0.5, 1.0, 1.5])
def test_versions_that_rank_differently_tell_how_looks_fall_with_the_rank(eta: float) -> None:
    looks = examination(simulated(eta, 6000, versions=4), RANKS)
    assert looks[0] == 1
    assert slope(looks) == pytest.approx(eta, abs=0.1)


def test_a_document_that_moved_up_since_it_was_used_tells_nothing_of_its_first_rank() -> None:
    """Each document is used once at the rank where it is, and stands first from then on."""
    entries = []
    random = np.random.default_rng(0)
    for question in range(400):
        first = int(random.integers(1, RANKS))
        entries.append(shown(range(RANKS), [first], f"question {question}"))
        moved = [first, *(row for row in range(RANKS) if row != first)]
        for _ in range(3):
            used = [0] if random.random() < 0.9 else []
            entries.append(shown(moved, used, f"question {question}"))
    looks = examination(entries[::-1], RANKS)
    np.testing.assert_allclose(looks, 1 / np.arange(1, RANKS + 1), rtol=0.05)


def test_swapped_neighbours_tell_it_where_ranks_never_change_otherwise() -> None:
    looks = examination(simulated(0.5, 20_000, swaps=True), RANKS)
    assert slope(looks) == pytest.approx(0.5, abs=0.15)


def test_one_order_for_each_question_says_nothing_of_looks() -> None:
    np.testing.assert_allclose(examination(simulated(0.3, 3000), 4), 1 / np.arange(1, 5), rtol=1e-4)


def test_what_is_labelled_is_right_but_for_as_many_as_is_told() -> None:
    """Questions with one answer each, half of them at the first rank, asked three times each."""
    random = np.random.default_rng(0)
    ranks = random.integers(RANKS, size=6000) * (random.random(6000) < 0.5)
    entries = []
    for question, rank in enumerate(np.concatenate([ranks] * 3).tolist()):
        chances = np.where(np.arange(RANKS) == rank, 0.9, 0.1) / np.arange(1, RANKS + 1)
        used = np.flatnonzero(random.random(RANKS) < chances).tolist()
        # Documents are their ranks, of which one is the answer.
        entries.append(shown(range(RANKS), used, f"question {question % len(ranks)}"))
    labels = labels_of(entries, {row: str(row) for row in range(RANKS)})
    sides = [
        [example for example in labels.examples if example.weight * sign > 0] for sign in (1, -1)
    ]
    right, wrong = (
        np.array([int(one.document) == ranks[int(one.query.split()[1])] for one in side])
        for side in sides
    )
    # The chances are those of the simulation: of labels from .8 up more than .8 are right.
    assert right.mean() > 0.9
    assert right.sum() > 0.6 * len(ranks)
    assert {one.weight for one in sides[0]} == {1.0}
    assert len(wrong) > 500
    assert wrong.mean() < 0.05


def test_several_documents_may_be_right() -> None:
    entries = [shown([7, 8, 9], [0, 1, 2], f"question {number % 4}") for number in range(12)]
    labels = labels_of(entries, {7: "a", 8: "b", 9: "c"})
    assert [example.weight for example in labels.examples] == [1.0] * 12


def test_a_hit_that_was_passed_over_is_a_label_below_zero() -> None:
    entries = [shown([7, 8, 9], [2], f"question {number}") for number in range(20)]
    weights = {
        example.document: example.weight
        for example in labels_of(entries, {7: "a", 8: "b", 9: "c"}).examples
        if example.query == "question 3"
    }
    assert weights.keys() == {"a", "b", "c"}
    assert weights["a"] < -0.9
    assert weights["a"] < weights["b"] < 0
    assert weights["c"] == 1


def test_what_is_below_the_last_used_hit_says_nothing_and_deleted_documents_are_left_out() -> None:
    labels = labels_of([shown([7, 8, 9], [0])], {7: "a", 9: "c"})
    assert [example.document for example in labels.examples] == ["a"]
    assert labels.examples[0].weight > 0
    assert labels_of([shown([8], [0])], {}).examples == []


def honest(sources: int) -> list[SearchEntry]:
    """Every source uses document 1 for each of 25 questions, and was shown 2 above it."""
    return [
        shown([2, 1], [1], f"question {question}", f"user {source}")
        for source in range(sources)
        for question in range(25)
    ]


def test_a_source_against_all_others_is_weighed_down_and_listed() -> None:
    against = [shown([2, 1], [0], f"question {number}", "mallory") for number in range(25)] * 3
    labels = labels_of([*honest(4), *against], {1: "right", 2: "wrong"})
    assert [each["search"] for each in labels.figures["weighed_down"]] == ["by mallory"]
    best: dict[str, tuple[float, str]] = {}
    for example in labels.examples:
        best[example.query] = max(
            best.get(example.query, (0, "")), (example.weight, example.document)
        )
    assert {document for _, document in best.values()} == {"right"}


def test_a_source_that_says_far_more_than_others_counts_as_one_that_does_not() -> None:
    loud = [shown([3], [0], f"other {number}", "bot") for number in range(500)]
    figures = labels_of([*honest(4), *loud], {1: "a", 2: "b", 3: "c"}).figures
    (bot,) = figures["weighed_down"]
    assert (bot["search"], bot["uses"], bot["weight"]) == ("by bot", 500, 0.25)


def test_a_report_names_no_source_and_what_the_log_said_goes_with_it(
    tmp_path: Path, tiny_encoder_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Data(tmp_path)
    shop = data.create("shop", encoder=str(tiny_encoder_folder))
    shop.upsert([{"id": str(n), "text": f"ship {n}"} for n in range(30)])
    shop.configure(log=True)
    shop.teach([Example("ship 1", "1", 1.0)])
    sources = ["loud@example.org"] * 6 + ["ann@example.org", "bob@example.org"]
    now = time.time()
    for number, source in enumerate(sources):
        sent = now - (10 * 86_400 if number < 6 else 0)
        monkeypatch.setattr(time, "time", lambda sent=sent: sent)
        answer = shop.search(f"my secret {number}", k=3)
        shop.used(str(answer.search), [answer.hits[0].id], source=source)
    report = train(shop)
    [loud] = report["used"]["weighed_down"]
    assert loud["uses"] == 6
    whose = {search.search: search.source for search in shop.searches(100).items}
    assert whose[loud["search"]] == "loud@example.org"
    assert "example.org" not in json.dumps([report, *(one.report for one in shop.projections())])

    def labels() -> list[str | None]:
        return sorted(str(one.query) for one in shop.store.latest_examples(100))

    assert len(labels()) == 9
    shop.configure(log_days=5)
    assert shop.log is not None
    shop.log.trim()
    assert labels() == ["my secret 6", "my secret 7", "ship 1"]
    assert shop.delete_searches() == 2
    assert labels() == ["ship 1"]
    data.close()


def test_what_is_too_old_goes_where_nobody_searches_any_more(
    tmp_path: Path, tiny_encoder_folder: Path
) -> None:
    with Data(tmp_path) as data:
        shop = data.create("shop", encoder=str(tiny_encoder_folder))
        shop.upsert([{"id": "1", "text": "ship"}])
        shop.configure(log=True)
        shop.search("my secret", k=1)
        shop.configure(log_days=1e-9)
    with Data(tmp_path) as data:
        until = time.monotonic() + 60
        log = data.collection("shop").log
        assert log is not None
        while log.counts()[0] and time.monotonic() < until:
            time.sleep(0.05)
        assert log.counts() == (0, 0)
