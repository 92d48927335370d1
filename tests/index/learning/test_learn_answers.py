"""Fitting to stored values, against plain loops in float64, finite differences and SciPy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import minimize_scalar
from scipy.special import expit, logit, logsumexp, softmax

from attend.core.errors import Conflict
from attend.learning import answer_model as answers_module
from attend.learning.answer_model import (
    NULL_SHARE,
    RECIPE,
    AnswerModel,
    Answers,
    AnswerScores,
    AnswerTargets,
    Blends,
    DocumentFold,
    Held,
    attend_fold,
    fit_scale,
    fold_scores,
    joined,
)
from attend.learning.answer_model import fit_answers as fit
from attend.learning.calibration import UNANSWERED
from attend.learning.fit import Fitted, unlearned
from tests.index.drawn import memory_from

SURE = replace(RECIPE, drop=0.0)


def fitted_of(w_q, w_k) -> Fitted:
    plain = np.empty(0, dtype=np.int64), np.empty((0, w_q.shape[1]), dtype=np.float32)
    return Fitted(w_q, w_k, 20.0, *plain)


def attended(answers, fitted, fold, attend=100) -> Held:
    return attend_fold(answers, fold, fold_scores(answers, fitted, fold), attend)


def gains(held, targets, scale):
    return Blends(held, targets, scale).gains()


def guards(held, targets, scale):
    return Blends(held, targets, scale).guards()


def likeliest(held, targets, scale):
    return Blends(held, targets, scale).likeliest()


def labelled(labels) -> AnswerTargets:
    """One label each, or several."""
    rows = [each if isinstance(each, tuple) else (each,) for each in labels]
    width = max(max(each) for each in rows) + 1
    shares = np.zeros((len(rows), width), dtype=np.float32)
    for at, each in enumerate(rows):
        shares[at, list(each)] = 1 / len(each)
    return AnswerTargets(shares=sparse.csr_array(shares))


def numbered(numbers) -> AnswerTargets:
    return AnswerTargets(numbers=np.asarray(numbers, dtype=np.float32).reshape(len(numbers), -1))


def made(targets, counts, rng, *, unit=True, groups=None, width=5) -> Answers:
    """Documents with that many keys each, drawn."""
    starts = np.cumsum(counts) - counts
    embeddings = rng.standard_normal((int(np.sum(counts)), width)).astype(np.float32)
    queries = (np.add.reduceat(embeddings, starts) / np.asarray(counts)[:, None]).astype(np.float32)
    n = len(counts)
    memory = memory_from(embeddings, starts, np.arange(len(embeddings)), np.arange(n), unit)
    return Answers(memory, queries, np.arange(n) if groups is None else groups, targets)


def oracle_scores(answers, w_q, w_k, asked, members) -> np.ndarray:
    """(b, k) in float64, document by document and key by key."""
    memory, found = answers.memory, np.full((len(asked), len(members)), -np.inf)
    ends = memory.starts[1:]
    for i, one in enumerate(asked):
        q = w_q @ answers.queries[one].astype(float)
        for j, other in enumerate(members):
            for key in memory.vectors[memory.starts[other] : ends[other]].astype(float):
                k = w_k @ key
                lengths = np.linalg.norm(q) * np.linalg.norm(k) if memory.unit else 1.0
                found[i, j] = max(found[i, j], q @ k / lengths)
    return found


def oracle_loss(answers, weight, scale, null, asked, members) -> float:
    """The loss by its definition: each query answered by all but its own group."""
    losses = []
    scores = oracle_scores(answers, weight, weight, asked, members)
    for i, one in enumerate(asked):
        others = [j for j, m in enumerate(members) if answers.groups[m] != answers.groups[one]]
        z = scale * scores[i, others]
        kept = np.asarray(members)[others]
        if answers.targets.numbers is not None:
            blend = softmax(z) @ answers.targets.numbers[kept].astype(float)
            losses.append(((blend - answers.targets.numbers[one]) ** 2).mean())
            continue
        shares = answers.targets.shares.toarray().astype(float)
        right = shares[kept] @ (shares[one] > 0)
        if not right.any():
            continue
        crossed = -math.log(softmax(z) @ right)
        wrong = logsumexp(z[right == 0]) if (right == 0).any() else -np.inf
        told = -math.log(expit(logsumexp(z) - null)) - math.log(expit(null - wrong))
        losses.append((1 - NULL_SHARE) * crossed + NULL_SHARE * told)
    return float(np.mean(losses))


TARGETS = {
    "categories": labelled([0, 1, 2] * 4),
    "labels": labelled([(0, 1), (1,), (0, 2), (2, 3, 1)] * 3),
    "numbers": numbered(np.linspace(-2, 2, 12) ** 2),
    "vectors": numbered(np.random.default_rng(5).standard_normal((12, 3))),
}


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("kind", TARGETS)
def test_the_loss_and_its_slopes_are_those_of_the_definition(kind, unit):
    rng = np.random.default_rng(3)
    groups = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 2])
    answers = made(TARGETS[kind], rng.integers(1, 4, 12), rng, unit=unit, groups=groups)
    asked, members = np.array([0, 2, 5, 9]), np.arange(12)
    start = (np.eye(5) + 0.2 * rng.standard_normal((5, 5))).astype(np.float32)
    run = AnswerModel(answers, members, SURE, start, seed=0)
    loss = run.loss((asked, members))
    scale, null = float(run.maps.log_scale.detach().exp()), float(run.null.detach())

    def plain(weight):
        return oracle_loss(answers, weight, scale, null, asked, members)

    assert float(loss.detach()) == pytest.approx(plain(start.astype(float)), rel=2e-4, abs=1e-5)
    loss.backward()
    for place in [(0, 0), (1, 3), (4, 2)]:
        step = np.zeros((5, 5))
        step[place] = 1e-5
        slope = (plain(start + step) - plain(start - step)) / 2e-5
        assert float(run.maps.delta_q.grad[place]) == pytest.approx(slope, rel=5e-3, abs=2e-4)


def test_a_query_never_finds_itself_nor_its_near_duplicates(monkeypatch):
    monkeypatch.setattr(answers_module, "NULL_SHARE", 0.0)
    # Every document points its own way, but for one duplicate of the first: with itself in the
    # memory each answer would be right already, and there would be nothing to learn.
    embeddings = np.eye(8, dtype=np.float32)
    embeddings[1] = embeddings[0]
    memory = memory_from(embeddings, np.arange(8), np.arange(8), np.arange(8), True)
    groups = np.array([0, 0, 2, 3, 4, 5, 6, 7])
    answers = Answers(memory, embeddings, groups, labelled([0, 0, 0, 1, 1, 1, 2, 2]))
    members = np.arange(8)
    run = AnswerModel(answers, members, SURE, np.eye(8, dtype=np.float32), 0)
    batch = members, members
    z = run.logits(batch).detach().numpy()
    masked = groups[:, None] == groups[None]
    assert (z[masked] < -1e3).all()
    assert (np.abs(z[~masked]) < 30).all()
    # Of six documents that are all as far off, one answers the first; of seven, two the others.
    expected = np.mean([math.log(6)] * 2 + [math.log(7 / 2)] * 4 + [math.log(7)] * 2)
    assert float(run.loss(batch).detach()) == pytest.approx(expected, rel=1e-5)


def test_queries_that_nothing_else_answers_teach_nothing():
    answers = made(labelled([0, 1, 2, 3]), [1] * 4, np.random.default_rng(0))
    run = AnswerModel(answers, np.arange(4), SURE, np.eye(5, dtype=np.float32), 0)
    assert run.loss((np.arange(4), np.arange(4))) is None
    learned = fit(answers, np.arange(4), recipe=SURE, start=np.eye(5, dtype=np.float32))
    np.testing.assert_array_equal(learned.w_q, np.eye(5))


def classes(rng, count=240, signal=4, noise=28):
    """Four classes told apart in a few directions, under noise in all the others."""
    labels = rng.integers(0, 4, count)
    shown = 1.0 * np.eye(signal)[labels] + 0.35 * rng.standard_normal((count, signal))
    x = np.hstack([shown, 0.6 * rng.standard_normal((count, noise))]).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    memory = memory_from(x, np.arange(count), np.arange(count), np.arange(count), True)
    return Answers(memory, x, np.arange(count), labelled(labels.tolist()))


def test_learning_sees_what_tells_answers_apart():
    answers = classes(np.random.default_rng(1))
    members, held = np.arange(160), np.arange(160, 240)
    eye = np.eye(32, dtype=np.float32)
    learned = fit(answers, members, recipe=replace(RECIPE, drop=0.1), start=eye)
    before, after = (
        fit_scale(attended(answers, each, DocumentFold(held, members)), answers.targets, 20)
        for each in (fitted_of(eye, eye), learned)
    )
    assert after[1] > before[1] + 0.05


def test_one_seed_gives_one_fit_and_another_another():
    answers = classes(np.random.default_rng(2), count=60)
    eye = np.eye(32, dtype=np.float32)
    first, again, other = (
        fit(answers, np.arange(60), recipe=replace(RECIPE, steps=(5, 5)), start=eye, seed=seed).w_q
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_whoever_watches_may_stop_it():
    def stop(done):
        raise KeyboardInterrupt

    answers = classes(np.random.default_rng(2), count=30)
    with pytest.raises(KeyboardInterrupt):
        fit(answers, np.arange(30), recipe=SURE, start=np.eye(32, dtype=np.float32), watch=stop)


def test_numbers_without_bounds_stop_with_a_sentence():
    answers = made(numbered([1e30, -1e30, 1e25, 0]), [1] * 4, np.random.default_rng(0))
    with pytest.raises(Conflict, match="not finite"):
        fit(answers, np.arange(4), recipe=SURE, start=np.eye(5, dtype=np.float32))


# -- held-out answers -----------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), attend=st.integers(1, 9), unit=st.booleans())
def test_what_is_attended_to_is_what_a_loop_finds(seed, attend, unit):
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 4, 9)
    answers = made(labelled(rng.integers(0, 3, 9).tolist()), counts, rng, unit=unit)
    w_q, w_k = (rng.standard_normal((4, 5)).astype(np.float32) for _ in range(2))
    asked, members = np.array([1, 4]), np.array([0, 2, 3, 5, 6, 8])
    held = attended(answers, fitted_of(w_q, w_k), DocumentFold(asked, members), attend)
    scores = oracle_scores(answers, w_q.astype(float), w_k.astype(float), asked, members)
    labels = answers.targets.shares.toarray().argmax(axis=1)
    for at, one in enumerate(asked):
        best = np.sort(scores[at])[::-1][:attend]
        np.testing.assert_allclose(held.scores[at], best, rtol=1e-4, atol=1e-5)
        same = labels[held.documents[at]] == labels[one]
        np.testing.assert_array_equal(held.right[at] > 0, same)
        others = np.sort(scores[at][labels[members] != labels[one]])[::-1][:attend]
        left = held.hidden[at][np.isfinite(held.hidden[at])]
        np.testing.assert_allclose(left, others, rtol=1e-4, atol=1e-5)
        assert held.answered[at] == (labels[members] == labels[one]).any()


def test_words_move_scores_by_lambda():
    answers = made(labelled([0, 1, 0, 1]), [1] * 4, np.random.default_rng(0))
    fold = DocumentFold(np.array([0, 1]), np.array([2, 3]))
    words = np.array([[0.0, 0.5], [1.0, 0.25]], np.float16)
    held = attend_fold(answers, fold, lambda part: np.zeros((2, 2)), words=words, lexical=0.4)
    np.testing.assert_allclose(held.scores, [[0.2, 0.0], [0.4, 0.1]], atol=1e-3)


def test_hidden_answers_leave_no_trace_in_the_words_of_others():
    """What is left counts by its own best match, as in a memory of it alone."""
    rng = np.random.default_rng(9)
    answers = made(labelled([0, 0, 1, 1, 2, 2, 0, 1]), [1] * 8, rng)
    asked, members = np.array([0, 2]), np.arange(3, 8)
    plain = unlearned(answers.memory, np.eye(5, dtype=np.float32))
    # The best match of each is right, and hidden.
    shares = np.array([[0.2, 0.5, 0.0, 1.0, 0.4], [1.0, 0.0, 0.0, 0.3, 0.6]], np.float32)

    def held_by(shares, members):
        fold = DocumentFold(asked, members)
        scores = fold_scores(answers, plain, fold)
        return attend_fold(answers, fold, scores, words=shares.astype(np.float16), lexical=0.3)

    held = held_by(shares, members)
    for at in range(len(asked)):
        left = answers.targets.agreement(asked, members)[at] == 0
        best = shares[at][left].max()
        alone = held_by(shares[:, left] / best, members[left])
        expected = alone.hidden[at][np.isfinite(alone.hidden[at])]
        found = held.hidden[at][np.isfinite(held.hidden[at])]
        np.testing.assert_allclose(found, expected, atol=1e-3)


def drawn(rng, count=4000, scale=9.0) -> tuple[Held, AnswerTargets]:
    """Queries whose right answer was drawn from a softmax at a known scale: 20 documents, each
    of its own label."""
    scores = -np.sort(-rng.uniform(0.2, 0.9, (count, 20)), axis=1)
    weights = softmax(scale * scores, axis=1)
    choice = (weights.cumsum(axis=1) < rng.random((count, 1))).sum(axis=1).clip(max=19)
    documents = np.tile(np.arange(20), (count, 1))
    right = (documents == choice[:, None]).astype(float)
    hidden = np.where(right > 0, -np.inf, scores)
    shares = sparse.csr_array(np.eye(20, dtype=np.float32)[np.append(np.arange(20), choice)])
    queries = 20 + np.arange(count)
    held = Held(queries, documents, scores, right, hidden, np.ones(count, dtype=bool))
    return held, AnswerTargets(shares=shares)


def test_the_scale_that_answers_were_drawn_by_is_found():
    held, targets = drawn(np.random.default_rng(0))
    scale, gain = fit_scale(held, targets, 20.0)
    assert scale == pytest.approx(9.0, rel=0.06)
    assert gain == pytest.approx(gains(held, targets, scale).mean())
    found = AnswerScores(held, targets, 20.0, 0.05).fit()
    assert found.ece_after < 0.02 < found.ece_before
    assert found.nll_after < found.nll_before


def likeliest_null(known, hidden) -> float:
    """The maximum of a logistic regression's likelihood, one view counted more than the other."""

    def loss(null):
        right, wrong = np.log(expit(known - null)).mean(), np.log(expit(null - hidden)).mean()
        return -((1 - UNANSWERED) * right + UNANSWERED * wrong)

    bounds = (min(known.min(), hidden.min()) - 9, known.max() + 9)
    return float(minimize_scalar(loss, bounds=bounds, method="bounded").x)


def test_the_null_is_that_of_a_logistic_regression_and_refuses_its_share():
    held, targets = drawn(np.random.default_rng(1), count=500)
    found = AnswerScores(held, targets, 20.0, 0.1).fit()
    known = logsumexp(found.scale * held.scores, axis=1)
    hidden = logsumexp(found.scale * held.hidden, axis=1)
    assert found.null == pytest.approx(likeliest_null(known, hidden), abs=1e-3)
    assert (expit(known - found.null) < found.threshold).mean() == pytest.approx(0.1, abs=0.005)


@pytest.mark.parametrize("labels", [6, 50])
@pytest.mark.parametrize("share", [0.5, 2 / 3])
def test_null_and_threshold_are_those_of_the_whole_memory(share, labels):
    """A memory of which a share was there, against new queries with all of it there.

    Of six labels each has twenty documents; of fifty, two or three, so that with a part of them
    a label goes unanswered.
    """
    rng = np.random.default_rng(8)
    queries, documents = 4000, 120
    of = np.arange(documents) % labels
    truth = rng.integers(0, labels, queries)
    targets = AnswerTargets(
        shares=sparse.csr_array(np.eye(labels, dtype=np.float32)[np.append(of, truth)])
    )

    def seen(there):
        alike = of[None] == truth[:, None]
        scores = np.where(there, rng.normal(0.35 * alike + 0.2, 0.15), -np.inf)
        right = (alike & there).astype(float)
        hidden = np.where(right > 0, -np.inf, scores)
        at = np.tile(np.arange(documents), (queries, 1))
        return Held(documents + np.arange(queries), at, scores, right, hidden, right.any(axis=1))

    part, whole = (seen(rng.random((queries, documents)) < each) for each in (share, 1.0))
    found = AnswerScores(part, targets, 20.0, 0.05, share).fit()
    stale = AnswerScores(part, targets, 20.0, 0.05).fit()
    known, hidden = (logsumexp(found.scale * each, axis=1) for each in (whole.scores, whole.hidden))
    right, least = likeliest_null(known, hidden), np.quantile(known, 0.05)
    assert abs(found.null - right) < 0.4 * abs(stale.null - right)

    def away(fitted):
        """How far the threshold lies from where 5 % would be refused, as a logit."""
        return abs(fitted.null + logit(fitted.threshold) - least)

    assert away(found) < 0.4 * away(stale)


def test_everything_right_leaves_nothing_for_a_null():
    held, targets = drawn(np.random.default_rng(2), count=30)
    blank = held._replace(hidden=np.full_like(held.hidden, -np.inf))
    found = AnswerScores(blank, targets, 20.0, 0.05).fit()
    assert (found.null, found.threshold) == (None, None)
    assert found.note


def test_numbers_are_judged_by_their_blended_mean():
    rng = np.random.default_rng(4)
    answers = made(numbered(rng.standard_normal((30, 2))), [1] * 30, rng)
    eye = np.eye(5, dtype=np.float32)
    asked, members = np.arange(10), np.arange(10, 30)
    held = attended(answers, fitted_of(eye, eye), DocumentFold(asked, members), 7)
    for at, one in enumerate(asked):
        w = softmax(3.0 * held.scores[at])
        mean = w @ answers.targets.numbers[held.documents[at]].astype(float)
        error = mean - answers.targets.numbers[one]
        assert gains(held, answers.targets, 3.0)[at] == pytest.approx(-(error**2).mean())
        assert guards(held, answers.targets, 3.0)[at] == pytest.approx(-np.abs(error).mean())


def test_folds_are_joined_whatever_their_widths():
    rng = np.random.default_rng(6)
    answers = made(labelled(rng.integers(0, 3, 12).tolist()), [1] * 12, rng)
    plain = unlearned(answers.memory, np.eye(5, dtype=np.float32))
    parts = [
        attended(answers, plain, DocumentFold(np.array([0, 1]), np.arange(2, 5))),
        attended(answers, plain, DocumentFold(np.array([2]), np.arange(3, 12))),
    ]
    both = joined(parts)
    assert both.scores.shape == (3, 9)
    for measure in (gains, guards):
        apart = [measure(part, answers.targets, 20.0) for part in parts]
        np.testing.assert_allclose(measure(both, answers.targets, 20.0), np.concatenate(apart))
    np.testing.assert_allclose(
        likeliest(both, answers.targets, 20.0)[0][2], likeliest(parts[1], answers.targets, 20.0)[0]
    )
