"""Choosing by held-out questions, and measuring the choice by questions that did not make it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attend.api.learning import TrainRequest
from attend.learning.ranking import RankingChoice
from attend.learning.selection import (
    LEAD,
    PART_COST,
    Judged,
    Outcome,
    best,
    contest,
    mixed,
    nested_outcomes,
    weights,
)
from attend.learning.task import Look

PLAIN = RankingChoice(0.0)
LEARNED = RankingChoice(1.0)
WORDS = RankingChoice(0.0, 0.0, 0.3)
ALL = RankingChoice(0.6, 0.8, 0.3, 1.0)


def fold(view, questions, before, **after) -> Judged:
    """Values by the name of the choice in this module."""
    named = {globals()[name]: np.array(values, dtype=float) for name, values in after.items()}
    return Judged(view, np.array(questions), np.array(before, dtype=float), named)


# -- the best --------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.3, 1.0]))
def test_the_best_against_a_plain_loop(seed, share):
    rng = np.random.default_rng(seed)
    choices = [PLAIN, LEARNED, WORDS, ALL]
    judged = []
    for view, first in (("random", 0), ("random", 5), ("unseen", 0)):
        size = int(rng.integers(1, 6))
        after = {choice: rng.random(size) for choice in choices}
        judged.append(Judged(view, first + np.arange(size), rng.random(size), after))
    sizes = [len(each.units) for each in judged]
    seen, unseen = sum(sizes[:2]), sizes[2]
    totals, mixes = {}, {}
    for choice in choices:
        by_view = {"random": [], "unseen": []}
        for each in judged:
            by_view[each.split] += each.after[choice].tolist()
        parts = (choice.share > 0) + (choice.examples > 0) + (choice.lexical > 0)
        mix = share * np.mean(by_view["random"]) + (1 - share) * np.mean(by_view["unseen"])
        before = np.mean([value for each in judged[2:] for value in each.before])
        lost = max(0.0, before - np.mean(by_view["unseen"]))
        totals[choice] = mix - (1 - share) * lost - PART_COST * parts
        # What each question, which both views may hold out, adds to the mix.
        shown = np.zeros(10)
        parts = (share / seen, share / seen, (1 - share) / unseen)
        for each, part in zip(judged, parts, strict=True):
            shown[each.units] += part * each.after[choice]
        held = np.unique(np.concatenate([each.units for each in judged]))
        mixes[choice] = shown[held]
    nearest = max([PLAIN, WORDS], key=totals.get)
    for farther in (ALL, LEARNED):  # share 0.6 and 1
        differences = mixes[farther] - mixes[nearest]
        error = stats.sem(differences) * len(differences) if len(differences) > 1 else 0.0
        if totals[farther] - totals[nearest] >= LEAD * error:
            nearest = farther
    assert best(judged, share) == nearest


def test_only_what_every_fold_could_fit_is_chosen():
    first = fold("random", [0, 1], [0.5, 0.5], PLAIN=[0.5, 0.5], WORDS=[0.9, 0.9], ALL=[1, 1])
    second = fold("random", [2, 3], [0.5, 0.5], PLAIN=[0.5, 0.5], WORDS=[0.9, 0.9])
    assert best([first, second], 0.5) == WORDS


def test_each_part_must_be_worth_what_it_costs():
    def held(gain: float) -> list[Judged]:
        return [fold("random", [0, 1], [0.5, 0.5], PLAIN=[0.5, 0.5], WORDS=[0.5, 0.5 + gain])]

    assert best(held(0.0), 0.5) == best(held(PART_COST), 0.5) == PLAIN
    assert best(held(2.5 * PART_COST), 0.5) == WORDS
    assert ALL.cost == pytest.approx(3 * PART_COST)
    assert PLAIN.cost == 0


def test_a_fit_has_to_lead_what_goes_less_far_by_a_part_of_the_standard_error():
    """A lead is worth nothing where the questions differ too much to tell."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=100)
    noise = (noise - noise.mean()) / stats.sem(noise)  # of a standard error of one

    def held(lead: float) -> list[Judged]:
        cost = LEARNED.cost
        values = 0.5 + 0.01 * noise + cost + lead
        return [fold("random", range(100), [0.0] * 100, PLAIN=[0.5] * 100, LEARNED=values)]

    assert best(held(0.01 * LEAD * 0.9), 0.5) == PLAIN
    assert best(held(0.01 * LEAD * 1.1), 0.5) == LEARNED
    # So has the whole way what goes a part of it.
    part = RankingChoice(0.6)
    for lead, first in ((0.9, part), (1.1, LEARNED)):
        judged = held(0.01 * LEAD * (4 + lead))
        judged[0].after[part] = np.full(100, 0.5 + part.cost + 0.04 * LEAD)
        assert best(judged, 0.5) == first


def test_a_choice_that_may_lose_is_taken_only_where_all_may():
    """A safe gain is worth more than a larger one that the promotion test would refuse."""
    rng = np.random.default_rng(0)
    risky = 0.5 + rng.normal(0.15, 0.5, 40)
    judged = [fold("unseen", range(40), [0.5] * 40, PLAIN=[0.5] * 40, LEARNED=risky)]
    judged[0].after[WORDS] = np.full(40, 0.51)
    assert best(judged, 0.5) == LEARNED
    assert best(judged, 0.5, tolerance=0.01) == WORDS
    assert best(judged, 0.5, tolerance=0.5) == LEARNED
    # Of few that all may lose, one that does not is taken, however much another gains elsewhere.
    few = [
        fold("random", range(6), [0.5] * 6, PLAIN=[0.9] * 6, LEARNED=[0.7] * 6),
        fold("unseen", range(6), [0.5] * 6, PLAIN=[0.4] * 6, LEARNED=[0.2, 0.9] * 3),
    ]
    assert best(few, 0.5, tolerance=0.01) == LEARNED
    assert best(few, 0.5) == PLAIN
    worse = [fold("unseen", range(40), [0.9] * 40, PLAIN=[0.5] * 40, LEARNED=risky)]
    assert best(worse, 0.5, tolerance=0.01) == best(worse, 0.5)


# -- honesty ---------------------------------------------------------------------------------------


def test_a_fold_is_judged_by_the_choice_of_the_others():
    """Each fold would choose what none of the others does: honestly that is a loss."""
    judged = [
        fold("random", [0, 1], [0.5, 0.5], PLAIN=[0.5, 0.5], LEARNED=[0.9, 0.9], WORDS=[0.1, 0.1]),
        fold("random", [2, 3], [0.5, 0.5], PLAIN=[0.5, 0.5], LEARNED=[0.1, 0.1], WORDS=[0.9, 0.9]),
    ]
    found = nested_outcomes(judged, 0.5)
    assert set(found) == {"random"}
    assert found["random"].units.tolist() == [0, 1, 2, 3]
    assert found["random"].before.tolist() == [0.5] * 4
    assert found["random"].after.tolist() == [0.1] * 4
    dishonest = max(np.mean([each.after[choice].mean() for each in judged]) for choice in (PLAIN,))
    assert found["random"].after.mean() < dishonest


def test_where_all_folds_agree_honesty_costs_nothing():
    judged = [
        fold(view, [at, at + 1], [0.2, 0.4], PLAIN=[0.2, 0.4], LEARNED=[0.7, 0.8])
        for at, view in ((0, "random"), (2, "random"), (4, "unseen"), (6, "unseen"))
    ]
    for outcome in nested_outcomes(judged, 0.5).values():
        assert outcome.after.tolist() == [0.7, 0.8, 0.7, 0.8]


def same_questions(own: float) -> list[Judged]:
    """Two folds of each view over the same four questions; 0 and 1 gain by words, if anything.

    Only they tell the choices apart, by what is their own.
    """
    words, learned = [own, own, 0.5, 0.5], [0.5, 0.5, 0.6, 0.6]
    judged = []
    for view, halves in (("random", ([0, 1], [2, 3])), ("unseen", ([0, 2], [1, 3]))):
        judged += [
            fold(
                view,
                half,
                [0.5] * 2,
                PLAIN=[0.5] * 2,
                WORDS=[words[at] for at in half],
                LEARNED=[learned[at] for at in half],
            )
            for half in halves
        ]
    return judged


def test_a_question_has_no_say_in_its_own_judgement_by_way_of_the_other_view():
    """Both views hold out the same questions: what is chosen for a fold must not know them."""
    found = nested_outcomes(same_questions(0.9), 0.5)["random"]
    values = dict(zip(found.units.tolist(), found.after.tolist(), strict=True))
    # Of the other questions, 2 and 3, words do nothing and what was learned does something.
    assert values[0] == values[1] == 0.5


def test_noise_that_both_views_share_looks_no_better_than_it_is():
    """Choices that are pure noise: none of them may seem to gain by having been chosen."""
    rng = np.random.default_rng(0)
    choices = [PLAIN, *(RankingChoice(0.0, 0.0, at / 100) for at in range(1, 60))]
    gains = []
    for _ in range(40):
        values = {choice: rng.random(60) for choice in choices}
        judged = []
        for view in ("random", "unseen"):
            for part in np.split(rng.permutation(60), 3):
                after = {choice: each[part] for choice, each in values.items()}
                judged.append(Judged(view, part, values[PLAIN][part], after))
        mix = mixed(nested_outcomes(judged, 0.5), 0.5)
        gains.append(mix.after.sum() - 0.5)
    standard_error = np.std(gains) / np.sqrt(len(gains))
    assert np.mean(gains) < 3 * standard_error


class Form(NamedTuple):
    name: str
    reach: float = 1.0
    cost: float = 0.0


def test_a_gain_on_new_documents_is_no_reason_to_fall_behind_a_plain_choice():
    form, behind, ahead = Form("form", reach=0.0), Form("behind"), Form("ahead")
    familiar = {form: [0.4, 0.6], behind: [0.35, 0.54], ahead: [0.5, 0.5]}
    new = {form: [0.1, 0.1], behind: [0.9, 0.9], ahead: [0.2, 0.2]}

    def judged(left_out: Form | None = None, now: float = 0.0) -> list[Judged]:
        return [
            Judged(
                view,
                np.arange(2),
                np.full(2, now),
                {choice: np.array(row) for choice, row in rows.items() if choice != left_out},
            )
            for view, rows in (("random", familiar), ("new", new))
        ]

    assert best(judged(), 0.5, 0.01) == ahead
    assert best(judged(left_out=form), 0.5, 0.01) == behind
    assert best(judged(left_out=ahead), 0.5, 0.01) == form
    assert best(judged(left_out=ahead), 0.5, 0.06) == behind
    # Where nothing else gains, what is behind is better than nothing.
    assert best(judged(left_out=ahead, now=0.4), 0.5, 0.01) == behind


# -- the mix ---------------------------------------------------------------------------------------


def outcome(questions, before, after) -> Outcome:
    return Outcome(np.array(questions), np.array(before, float), np.array(after, float))


def test_the_mix_weighs_views_by_the_share_of_seen_documents():
    views = {
        "random": outcome([0, 1, 2, 3], [0.1, 0.2, 0.3, 0.4], [0.4, 0.5, 0.6, 0.7]),
        "unseen": outcome([2, 5], [0.5, 0.7], [0.4, 0.2]),
    }
    for share in (0.0, 0.25, 1.0):
        found = mixed(views, share)
        assert found.units.tolist() == [0, 1, 2, 3, 5]
        assert found.before.sum() == pytest.approx(share * 0.25 + (1 - share) * 0.6)
        assert found.after.sum() == pytest.approx(share * 0.55 + (1 - share) * 0.3)
        # Question 2 is in both, and counts once, with both of its values.
        assert found.before[2] == pytest.approx(share * 0.3 / 4 + (1 - share) * 0.5 / 2)
        assert found.before[4] == pytest.approx((1 - share) * 0.7 / 2)


def test_splits_of_known_documents_share_one_part():
    outcomes = dict.fromkeys(("latest", "random", "new"))
    assert weights(outcomes, 0.8) == pytest.approx({"latest": 0.4, "random": 0.4, "new": 0.2})


def test_one_view_alone_has_all_the_weight():
    both = {"random": outcome([0], [0], [0]), "unseen": outcome([0], [0], [0])}
    assert weights(both, 0.3) == {"random": 0.3, "unseen": 0.7}
    for share in (0.0, 0.3, 1.0):
        assert weights({"random": both["random"]}, share) == {"random": 1.0}
        assert weights({"unseen": both["unseen"]}, share) == {"unseen": 1.0}


@pytest.mark.parametrize("by_use", [False, True])
def test_no_plain_choice_is_taken_for_a_gain_of_use(by_use: bool) -> None:
    rng = np.random.default_rng(0)
    before = rng.random(60) / 2
    judged = [
        Judged(
            "random",
            np.arange(30) + 30 * place,
            before[30 * place :][:30],
            {PLAIN: before[30 * place :][:30] + 0.3, LEARNED: before[30 * place :][:30] + 0.1},
        )
        for place in (0, 1)
    ]
    choice, criteria, nested = contest(
        judged, TrainRequest(), Look.after((), 60), by_use=by_use, groups=np.arange(60)
    )
    assert {choice, *nested} == {LEARNED if by_use else PLAIN}
    assert criteria[0].after - criteria[0].before == pytest.approx(0.1 if by_use else 0.3)
