"""The promotion test: gains that SciPy's test proves, losses that SciPy's interval rules out."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from attend.learning.ranking import UNMEASURED
from attend.learning.selection import (
    LEAST_GAIN,
    TOLERANCE,
    Criterion,
    Outcome,
    compare_splits,
    mixed,
)
from attend.learning.selection import decide as decide_all
from attend.learning.task import (
    FIRST_LOOK,
    GROWTH,
    LATER_LOOK,
    SIGNIFICANCE,
    Look,
    PromotionVerdict,
)


def decide(views, share: float, measure: str, groups=None, **test) -> PromotionVerdict:
    """As the ranking objective does."""
    note = "" if "unseen" in views else UNMEASURED
    comparisons = compare_splits(views, share, groups=groups, **test)
    look = Look(100, level=test.get("significance", FIRST_LOOK))
    return decide_all(comparisons, look, measure=measure, units="questions", note=note)


def outcome(before, after, first: int = 0) -> Outcome:
    questions = np.arange(first, first + len(before))
    return Outcome(questions, np.array(before, dtype=float), np.array(after, dtype=float))


def drawn(gain: float, size: int, seed: int, first: int = 0) -> Outcome:
    rng = np.random.default_rng(seed)
    before = rng.random(size)
    return outcome(before, before + gain + 0.1 * rng.normal(size=size), first)


def scipy_p(differences: np.ndarray, alternative: str = "two-sided") -> float:
    """By random signs; two-sided, or of a gain alone."""
    return stats.permutation_test(
        (differences, np.zeros_like(differences)),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        alternative=alternative,
        rng=3,
    ).pvalue


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_figures_against_scipy(seed, share):
    views = {"random": drawn(0.03, 40, seed), "unseen": drawn(0.0, 9, seed + 50, first=35)}
    verdict = decide(views, share, "ndcg@10")
    mix = mixed(views, share)
    differences = {
        **{name: each.after - each.before for name, each in views.items()},
        "mix": (mix.after - mix.before) * len(mix.units),
    }
    for name, each in differences.items():
        figures = verdict.views[name]
        assert figures["difference"] == pytest.approx(each.mean(), abs=1e-12)
        alternative = "greater" if name == "mix" else "two-sided"
        assert figures["p"] == pytest.approx(scipy_p(each, alternative), abs=0.02)
        assert figures["queries"] == len(each)
        assert figures["after"] - figures["before"] == pytest.approx(each.mean(), abs=1e-12)
        low, high = figures["interval"]
        assert low <= each.mean() <= high
    z = stats.norm.isf(FIRST_LOOK)
    more = [np.append(differences[name], -0.5) for name in views]
    safe = all(each.mean() - z * stats.sem(each) > -TOLERANCE for each in more) and all(
        stats.bootstrap(
            (differences[name],),
            np.mean,
            confidence_level=1 - 2 * FIRST_LOOK,
            rng=1,
        ).confidence_interval.low
        > -TOLERANCE
        for name in views
    )
    gained = verdict.views["mix"]["p"] < FIRST_LOOK and differences["mix"].mean() > 0
    assert verdict.promote == (gained and safe)
    json.dumps(verdict.views, allow_nan=False)


def test_a_gain_that_leaves_no_doubt_is_promoted():
    verdict = decide({"random": drawn(0.2, 90, 1), "unseen": drawn(0.1, 90, 2)}, 0.5, "ndcg@10")
    assert verdict.promote
    assert verdict.reason.startswith(
        "The gain in ndcg@10 is significant at the level 0.0180, and a loss is ruled out on random "
        "questions and unseen documents ("
    )
    assert "ndcg@10: random questions" in verdict.reason


def test_a_loss_on_unseen_documents_is_never_promoted():
    """However large the gain on the mix is."""
    views = {"random": drawn(0.5, 60, 1), "unseen": drawn(-0.1, 60, 2)}
    verdict = decide(views, 0.9, "ndcg@10")
    assert verdict.views["mix"]["difference"] > 0.3
    assert verdict.views["mix"]["p"] < 0.001
    assert not verdict.promote
    assert verdict.reason.startswith("It loses on unseen documents (")


def test_a_loss_on_random_questions_is_not_either():
    verdict = decide({"random": drawn(-0.1, 60, 1), "unseen": drawn(0.5, 60, 2)}, 0.1, "ndcg@10")
    assert not verdict.promote
    assert verdict.reason.startswith("It loses on random questions (")


def test_a_loss_that_is_not_ruled_out_holds_a_gain_back():
    """Four questions prove nothing of new documents; with the same spread, some thousand would."""
    spread = np.std([-0.1, -0.1, 0.2, 0.05], ddof=1)
    views = {
        "random": drawn(0.3, 60, 1),
        "unseen": outcome([0.5] * 4, [0.4, 0.4, 0.7, 0.55], first=60),
    }
    verdict = decide(views, 0.8, "ndcg@10")
    assert verdict.views["mix"]["p"] < 0.001
    assert not verdict.promote
    said = verdict.reason
    assert "a loss of more than 0.01 is not ruled out on unseen documents: that takes" in said
    enough = 4 + int(said.split("takes about ")[1].split(" more held-out")[0].replace(",", ""))
    assert said.split("if nothing is lost, and ")[1].startswith("there are 4 (")
    # As many are enough, and a quarter of them is not: the power is 0.8.
    for size, promoted in ((enough, True), (enough // 4, False)):
        unseen = outcome(np.full(size, 0.5), 0.5125 + spread * standard(size), first=60)
        assert decide({**views, "unseen": unseen}, 0.8, "ndcg@10").promote == promoted


def standard(size: int) -> np.ndarray:
    """Numbers with a mean of 0 and a standard deviation of 1."""
    values = np.random.default_rng(1).normal(size=size)
    return (values - values.mean()) / values.std()


def test_a_larger_tolerance_accepts_more():
    unseen = outcome(np.full(30, 0.5), 0.5 + 0.1 * standard(30), first=60)
    views = {"random": drawn(0.3, 60, 1), "unseen": unseen}
    assert not decide(views, 0.8, "ndcg@10").promote
    assert decide(views, 0.8, "ndcg@10", tolerance=0.1).promote


def test_what_new_documents_do_not_feel_is_safe():
    """As where only examples serve as keys, and no held-out question is near one: once so many
    were asked that one with a large loss would be among them."""
    for size, promoted in ((8, False), (200, True)):
        same = outcome([0.5] * size, [0.5] * size, first=60)
        views = {"random": drawn(0.3, 60, 1), "unseen": same, "new": same}
        assert decide(views, 0.5, "n").promote is promoted


def test_looks_at_growing_data_share_one_budget_of_errors():
    """By simulation: what never gains is taken for a gain by any of thirty looks in one of twenty
    collections, and nightly trainings without new data give no further chance."""
    rng, chances = np.random.default_rng(5), 40_000
    looks: list[int] = []
    sums, missed = np.zeros(chances), np.ones(chances, dtype=bool)
    groups = 20.0
    while len(looks) < 30:
        look = Look.after(looks, int(groups))
        assert look.counts
        added = int(groups) - (looks[-1] if looks else 0)
        sums += rng.normal(0, np.sqrt(added), chances)
        missed &= sums / np.sqrt(groups) < stats.norm.isf(look.level)
        looks.append(int(groups))
        assert not Look.after(looks, int(groups * 1.3)).counts
        groups = np.ceil(groups * GROWTH) + 1
    assert 1 - missed.mean() == pytest.approx(SIGNIFICANCE, abs=0.004)


def test_a_look_that_does_not_count_promotes_nothing_and_says_when_one_does():
    views = {"random": drawn(0.2, 90, 1), "unseen": drawn(0.1, 90, 2)}
    criteria = compare_splits(views, 0.5)
    for looks, promoted in (([60], True), ([80], False)):
        look = Look.after(looks, 90)
        verdict = decide_all(criteria, look, measure="ndcg@10", units="questions")
        assert verdict.promote is promoted
    assert "the next chance comes with about 18 more that are not alike" in verdict.reason


def test_the_eighteenth_look_still_promotes():
    """A gain from .2 to .9, which no earlier one had."""
    looks = [round(20 * GROWTH**number) for number in range(17)]
    look = Look.after(looks, 2 * looks[-1])
    gain = outcome(np.full(1000, 0.2), np.full(1000, 0.9))
    criteria = compare_splits({"random": gain}, 0.5, significance=look.level)
    assert (look.number, look.counts) == (18, True)
    assert decide_all(criteria, look, measure="ndcg@10", units="questions").promote


@pytest.mark.parametrize("questions", [20, 50, 100, 300])
def test_rare_large_losses_are_not_called_safe(questions):
    """Of 2 % of the questions each loses all; most small samples show none of them."""
    rng, safe = np.random.default_rng(2), 0
    before = np.ones(questions)
    for lost in np.unique(rng.binomial(questions, 0.02, 400), return_counts=True)[0]:
        after = before - (np.arange(questions) < lost)
        chance = stats.binom.pmf(lost, questions, 0.02)
        safe += chance * Criterion("unseen", "unseen documents", before, after).safe
    assert safe <= 0.05


@pytest.mark.parametrize(("loss", "questions", "most"), [(0.01, 100, 0.09), (0.02, 300, 0.03)])
def test_a_true_loss_is_hardly_ever_called_safe(loss, questions, most):
    """By simulation, with the spread of nDCG@10 between questions."""
    rng, safe = np.random.default_rng(7), []
    for _ in range(100):
        gains = np.where(rng.random(questions) < 0.3, rng.normal(0, 0.25, questions), 0.0) - loss
        before = np.full(questions, 0.5)
        safe.append(Criterion("unseen", "unseen documents", before, before + gains).safe)
    assert np.mean(safe) <= most


def test_what_may_be_chance_is_not_promoted():
    rng = np.random.default_rng(3)
    noise = outcome(np.full(30, 0.5), 0.52 + 0.3 * rng.normal(size=30))
    verdict = decide({"random": noise}, 0.5, "ndcg@10")
    gained = verdict.views["mix"]["difference"] > 0
    assert not verdict.promote
    assert gained
    p = verdict.views["mix"]["p"]
    assert verdict.reason.startswith(
        f"The gain in ndcg@10 may be chance: p is {p:.4f} on 30 held-out questions, and has to be "
        f"below 0.0180; about "
    )


def test_a_loss_that_may_be_chance_is_called_no_loss():
    """Ten questions of which six lose a little: p is far above any level."""
    gains = np.array([0.3, 0.2, 0.25, -0.2, -0.3, -0.25, -0.1, -0.15, 0.2, -0.1])
    few = outcome(np.full(10, 0.5), 0.5 + gains)
    verdict = decide({"random": few, "unseen": few}, 0.5, "ndcg@10")
    assert verdict.views["unseen"]["difference"] < -TOLERANCE
    assert verdict.views["unseen"]["p"] > 0.3
    assert "It loses" not in verdict.reason
    said, rest = verdict.reason.split(". Besides, ")
    assert said.startswith("Nothing was found that is better on 10 held-out questions, which would")
    assert "not ruled out on random questions and unseen documents: that takes about" in rest
    assert "held-out questions if nothing is lost, and there are 10" in rest


@pytest.mark.parametrize("level", [FIRST_LOOK, LATER_LOOK])
def test_as_many_units_as_are_named_show_the_gain_four_times_in_five(level):
    """By simulation: what is estimated from a sample holds for new samples of that size."""
    rng = np.random.default_rng(11)

    def drawn_of(size: int) -> Criterion:
        before = np.full(size, 0.5)
        after = before + 0.08 + 0.3 * rng.normal(size=size)
        return Criterion("mix", "the mix", before, after, gain=True, significance=level)

    first = drawn_of(2000)
    size = first.units_for(0.08)
    assert size is not None
    # The normal approximation by SciPy: the effect over its standard error.
    power = stats.norm.sf(stats.norm.isf(level) - 0.08 / (0.3 / np.sqrt(size)))
    assert power == pytest.approx(0.8, abs=0.06)
    assert np.mean([drawn_of(size).gained for _ in range(100)]) == pytest.approx(0.8, abs=0.13)
    assert first.units_for(first.detectable) == 2000
    assert first.units_for(0.0) is None


@pytest.mark.parametrize(("gain", "promoted"), [(0.003, False), (0.012, True)])
def test_a_gain_as_small_as_of_labels_without_meaning_is_not_promoted(gain, promoted):
    before = np.random.default_rng(1).random(200)
    views = {"random": outcome(before, before + gain)}
    verdict = decide(views, 0.5, "ndcg@10", least=LEAST_GAIN)
    assert verdict.views["mix"]["p"] < 0.01
    assert verdict.promote is promoted
    assert ("below 0.005: labels without meaning" in verdict.reason) is not promoted


def test_no_difference_at_all():
    verdict = decide({"random": outcome([0.5] * 30, [0.5] * 30)}, 0.5, "ndcg@10")
    assert not verdict.promote
    assert verdict.views["mix"]["p"] == 1
    assert verdict.reason.startswith("Nothing was found that is better on 30 held-out questions. ")


def test_one_question_has_no_interval():
    verdict = decide({"random": outcome([0.5], [0.9])}, 0.5, "ndcg@10")
    assert verdict.views["random"]["interval"] is None
    assert not verdict.promote


def test_a_question_in_both_views_is_one_question():
    """Counted twice, ten questions that gain would look like twenty."""
    gains = np.array([0.3, 0.2, 0.4, 0.1, -0.2])
    both = outcome(np.full(5, 0.5), 0.5 + gains)
    verdict = decide({"random": both, "unseen": both}, 0.5, "ndcg@10")
    assert verdict.views["mix"]["queries"] == 5
    assert verdict.views["mix"]["p"] == pytest.approx(scipy_p(gains, "greater"), abs=1e-12)


def test_questions_in_other_words_are_one_observation():
    """Ten groups of twenty that gain or lose together: certain by question, which it is not."""
    rng = np.random.default_rng(4)
    groups = np.repeat(np.arange(10), 20)
    gains = np.array([0.2, 0.15, -0.1, 0.12, -0.08, 0.1, -0.05, 0.08, -0.1, 0.05])
    shift = gains[groups] + rng.normal(0, 0.01, 200)
    view = {"random": outcome(np.full(200, 0.5), 0.5 + shift)}
    alone, together = decide(view, 0.5, "ndcg@10"), decide(view, 0.5, "ndcg@10", groups)
    sums = np.array([shift[groups == group].sum() for group in range(10)])
    for name in ("random", "mix"):
        figures = together.views[name]
        assert figures["difference"] == pytest.approx(shift.mean(), abs=1e-12)
        alternative = "greater" if name == "mix" else "two-sided"
        assert figures["p"] == pytest.approx(scipy_p(sums, alternative), abs=0.02)
        assert (figures["queries"], figures["groups"]) == (200, 10)
    assert alone.promote
    assert not together.promote


def test_what_was_not_measured_is_not_said():
    rng = np.random.default_rng(0)
    verdict = decide({"random": outcome(np.full(40, 0.2), 0.5 + rng.normal(0, 0.1, 40))}, 0.5, "n")
    assert verdict.promote
    assert "could not be measured" in verdict.reason
