"""Fitting, against the loss written as plain loops in float64 and differences of it."""

from __future__ import annotations

import math
import os
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax

from attend.core.errors import Conflict, InvalidRequest
from attend.learning import ranking_model as ranking_module
from attend.learning.data import UNIT_SCALE
from attend.learning.fit import Recipe, run_parallel, shuffled_batches, unlearned
from attend.learning.ranking_model import RankingModel
from tests.index.drawn import drawn_questions, memory_of, questions_of, unit

torch = pytest.importorskip("torch")

WIDTH = 5
RATES = {"maps": 1.5e-3, "scale": 7.5e-3, "offsets": 4e-3}
PLAIN = Recipe("plain", RATES, drop_offsets=0.0, drop=0.0, steps=(30, 30), batch=16)
EYE = np.eye(WIDTH, dtype=np.float32)


def fit(memory, questions, recipe, *, start=EYE, watch=lambda done: None, seed=0, offsets=True):
    model = RankingModel(memory, questions, recipe, start, seed=seed, offsets=offsets)
    return model.fit(watch)


def model_of(memory, questions, recipe=PLAIN, start=EYE) -> RankingModel:
    return RankingModel(memory, questions, recipe, start, seed=0, offsets=True)


def world(seed: int = 0, *, at_length_one: bool = True, keys: int = 3):
    """12 documents of one to three keys, and 8 questions that speak of some of them."""
    counts = np.random.default_rng(seed).integers(1, keys + 1, 12).tolist()
    memory = memory_of(counts, WIDTH, seed, at_length_one=at_length_one)
    options = {"share": 0.1, "negatives": 0.1, "at_length_one": at_length_one}
    return memory, drawn_questions(8, 12, WIDTH, seed + 1, **options)


def plain_loss(memory, questions, w_q, w_k, log_scale, offsets) -> float:
    """The cross-entropy of the softmax over labelled documents."""
    relevant, judged = questions.relevant.toarray(), questions.judged.toarray() > 0
    length = unit if memory.unit else np.asarray
    keys = memory.vectors.astype(np.float64)
    labelled = judged.any(axis=0)
    at = 0
    for key, document in enumerate(np.repeat(np.arange(len(memory)), memory.counts)):
        if labelled[document] and offsets is not None:
            keys[key] += offsets[at]
            at += 1
    losses = []
    projected = length(keys @ w_k.T)
    for question in range(questions.count):
        query = length(w_q @ questions.embeddings[question].astype(np.float64))
        logits, grades = [], []
        for document in np.flatnonzero(labelled):
            own = projected[memory.starts[document] :][: memory.counts[document]]
            logits.append(math.exp(log_scale) * max(float(key @ query) for key in own))
            grades.append(relevant[question, document])
        target = np.array(grades) / sum(grades)
        losses.append(-float(target @ np.log(softmax(logits))))
    return float(np.mean(losses))


def loss_of(memory, questions, fitted) -> float:
    offsets = fitted.offsets if len(fitted.offset_keys) else None
    log_scale = math.log(fitted.scale)
    return plain_loss(memory, questions, fitted.w_q, fitted.w_k, log_scale, offsets)


# -- the loss and its gradient ---------------------------------------------------------------------


@pytest.mark.parametrize("at_length_one", [True, False])
@pytest.mark.parametrize("keys", [1, 3])
def test_loss_and_gradient_against_plain_loops(at_length_one, keys):
    memory, questions = world(3, at_length_one=at_length_one, keys=keys)
    start = np.linalg.qr(np.random.default_rng(1).normal(size=(WIDTH, WIDTH)))[0][:3]
    start = start.astype(np.float32)
    model = model_of(memory, questions, start=start)
    maps, draw = model.maps, torch.Generator().manual_seed(5)
    learned = [maps.delta_q, maps.delta_k, maps.log_scale, maps.offsets]
    for each in learned:
        each.data += 0.3 * torch.randn(each.shape, generator=draw)
    loss = model.loss(np.arange(questions.count))
    loss.backward()
    here = [each.detach().double().numpy() for each in learned]
    slopes = [each.grad.double().numpy() for each in learned]
    at = [start + here[0], start + here[1], *here[2:]]
    expected = plain_loss(memory, questions, *at)
    assert float(loss.detach()) == pytest.approx(expected, abs=2e-5)
    rng = np.random.default_rng(7)
    for which in range(4):
        along = rng.normal(size=at[which].shape)
        ends = []
        for step in (1e-5, -1e-5):
            moved = [*at[:which], at[which] + step * along, *at[which + 1 :]]
            ends.append(plain_loss(memory, questions, *moved))
        expected = (ends[0] - ends[1]) / 2e-5
        assert float((slopes[which] * along).sum()) == pytest.approx(expected, rel=2e-3, abs=2e-5)


def test_drawn_candidates_stand_for_all_that_are_labelled(monkeypatch):
    monkeypatch.setattr(ranking_module, "LABELLED", 20)
    memory = memory_of([1] * 60, WIDTH)
    questions = drawn_questions(20, 40, WIDTH, 1)
    wide = questions_of(
        questions.embeddings, np.pad(questions.relevant.toarray(), ((0, 0), (0, 20)))
    )
    model, seen = model_of(memory, wide), set()
    for _ in range(80):
        own = wide.relevant[np.array([0, 1])]
        documents, log_counts = model.candidates(own)
        counts = np.exp(log_counts.astype(float))
        assert (np.diff(documents) > 0).all()
        assert set(own.indices) <= set(documents)
        assert counts[np.isin(documents, own.indices)] == pytest.approx(1)
        assert counts.sum() == pytest.approx(len(model.labelled), rel=1e-6)
        seen |= set(documents.tolist())
    assert seen == set(model.labelled.tolist())


def test_of_very_many_judgements_some_compete_at_each_step(monkeypatch):
    monkeypatch.setattr(ranking_module, "LABELLED", 8)
    monkeypatch.setattr(ranking_module, "FEWER", 8)
    memory = memory_of([1] * 60, WIDTH)
    model = model_of(memory, drawn_questions(20, 60, WIDTH, 1))
    judged, seen = model.questions.judged[np.arange(10)], set()
    assert len(np.unique(judged.indices)) > 8
    for _ in range(80):
        documents, log_counts = model.candidates(judged)
        assert np.isin(documents, judged.indices).sum() == 8
        assert np.exp(log_counts.astype(float)).sum() == pytest.approx(len(model.labelled))
        seen |= set(documents.tolist())
    assert seen == set(model.labelled.tolist())


def test_a_step_in_which_nothing_relevant_competes_teaches_nothing(monkeypatch):
    monkeypatch.setattr(ranking_module, "LABELLED", 1)
    monkeypatch.setattr(ranking_module, "FEWER", 1)
    grades = np.zeros((1, 40))
    grades[0, 3] = 1
    judged = np.ones((1, 40))
    memory, asked = memory_of([1] * 40, WIDTH), np.ones((1, WIDTH))
    model = model_of(memory, questions_of(asked, grades, judged=judged))
    losses = [model.loss(np.array([0])) for _ in range(100)]
    assert any(loss is None for loss in losses)
    assert all(loss is None or loss.item() == 0 for loss in losses)


# -- a fit -----------------------------------------------------------------------------------------


def test_no_steps_are_no_change():
    memory, questions = world()
    found = fit(memory, questions, replace(PLAIN, epochs=0, steps=(0, 0)))
    np.testing.assert_array_equal(found.w_q, EYE)
    np.testing.assert_array_equal(found.w_k, EYE)
    assert not found.offsets.any()
    assert found.scale == pytest.approx(UNIT_SCALE)
    nothing = unlearned(memory, np.eye(WIDTH, dtype=np.float32))
    assert len(nothing.offset_keys) == len(nothing.offsets) == 0
    assert nothing.scale == UNIT_SCALE


@pytest.mark.parametrize("offsets", [True, False])
def test_without_dropout_the_loss_falls(offsets):
    memory, questions = world(2)
    before = loss_of(memory, questions, unlearned(memory, EYE))
    after = loss_of(memory, questions, fit(memory, questions, PLAIN, offsets=offsets))
    longer = replace(PLAIN, steps=(120, 120))
    longer = loss_of(memory, questions, fit(memory, questions, longer, offsets=offsets))
    assert longer < after < before
    assert longer < 0.8 * before


def test_a_seed_gives_the_same_fit_whatever_else_is_drawn():
    memory, questions = world()
    recipe = replace(PLAIN, drop=0.2, drop_offsets=0.5, batch=3)

    def fits(watch):  # as in a training: sums of several threads may differ
        first = fit(memory, questions, recipe, seed=4)
        torch.manual_seed(99)
        np.random.seed(99)  # noqa: NPY002 # the global one, which must not matter
        return first, *(fit(memory, questions, recipe, seed=seed) for seed in (4, 5))

    ((first, again, other),) = run_parallel([fits], lambda done: None)
    for name in ("w_q", "w_k", "scale", "offset_keys", "offsets"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert np.abs(first.w_q - other.w_q).max() > 1e-4


def test_only_documents_that_examples_speak_of_are_moved():
    memory, questions = world(5)
    found = fit(memory, questions, PLAIN)
    judged = questions.judged.toarray().any(axis=0)
    expected = np.flatnonzero(np.repeat(judged, memory.counts))
    assert 0 < len(expected) < len(memory.vectors)
    assert found.offset_keys.tolist() == expected.tolist()
    assert found.offsets.shape == (len(expected), WIDTH)
    assert np.abs(found.offsets).max() > 0
    without = fit(memory, questions, PLAIN, offsets=False)
    assert without.offset_keys.shape == (0,)
    assert without.offsets.shape == (0, WIDTH)


def test_what_is_given_stays_as_it_was():
    memory, questions = world()
    start = np.eye(WIDTH, dtype=np.float32)[:3]
    kept = start.copy(), memory.vectors.copy(), questions.embeddings.copy()
    found = fit(memory, questions, PLAIN, start=start)
    assert found.w_q.shape == found.w_k.shape == (3, WIDTH)
    for given, before in zip((start, memory.vectors, questions.embeddings), kept, strict=True):
        np.testing.assert_array_equal(given, before)
    assert not np.shares_memory(found.w_q, start)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_part_of_the_way(share):
    memory, questions = world()
    found = fit(memory, questions, PLAIN)
    mixed = found.mixed(EYE, share)
    for name in ("w_q", "w_k"):
        expected = (1 - share) * EYE + share * getattr(found, name)
        np.testing.assert_allclose(getattr(mixed, name), expected, atol=1e-6)
        assert getattr(mixed, name).dtype == np.float32
    np.testing.assert_allclose(mixed.offsets, share * found.offsets, atol=1e-6)
    assert mixed.offsets.dtype == np.float32
    assert mixed.offset_keys.tolist() == found.offset_keys.tolist()


def test_numbers_that_are_not_finite_are_a_conflict():
    memory, questions = world(at_length_one=False)
    long = replace(memory, vectors=memory.vectors * np.float32(1e30))
    asked = replace(questions, embeddings=questions.embeddings * np.float32(1e30))
    with pytest.raises(Conflict, match="not finite; look for vectors of extreme length"):
        fit(long, asked, PLAIN)


def test_nothing_to_learn_from_is_said():
    memory, questions = world()
    with pytest.raises(InvalidRequest, match="No question with a relevant document"):
        fit(memory, questions.some(np.empty(0, dtype=np.int64)), PLAIN)


def test_progress_and_a_stop():
    memory, questions = world()
    told: list[float] = []
    fit(memory, questions, PLAIN, watch=told.append)
    assert told == [at / 30 for at in range(30)]

    def stop(done: float) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        fit(memory, questions, PLAIN, watch=stop)


def test_the_number_of_steps_is_epochs_within_bounds():
    memory, questions = world()
    for epochs, expected in ((1, 5), (4, 12), (100, 20)):
        told: list[float] = []
        recipe = replace(PLAIN, epochs=epochs, batch=3, steps=(5, 20))  # 3 batches of 8 questions
        fit(memory, questions, recipe, watch=told.append)
        assert len(told) == expected


def test_each_member_is_drawn_once_an_epoch():
    batches = list(shuffled_batches(np.arange(10, 18), 4, 6, np.random.default_rng(0)))
    for epoch in range(3):
        members = np.concatenate(batches[2 * epoch : 2 * epoch + 2])
        assert sorted(members.tolist()) == list(range(10, 18))


def test_what_one_of_several_jobs_raises_stops_the_others():
    told: list[float] = []
    running = threading.Event()

    def fails(watch):
        running.wait(10)
        raise Conflict("no")

    def goes_on(watch):
        running.set()
        for step in range(10_000):
            watch(step / 10_000)
            time.sleep(0.001)
        raise AssertionError("nobody stopped it")

    with pytest.raises(Conflict, match="no"):
        run_parallel([fails, goes_on], told.append)
    assert told == sorted(told)


def test_a_job_that_fails_as_the_last_one_stops_the_first(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    began: list[str] = []
    running = threading.Event()

    def goes_on(watch):
        running.set()
        for step in range(3000):
            watch(step / 3000)
            time.sleep(0.001)
        raise AssertionError("nobody stopped it")

    def fails(watch):
        running.wait(10)
        raise Conflict("no")

    def waits(watch):
        began.append("one that waited")

    with pytest.raises(Conflict, match="no"):
        run_parallel([goes_on, fails, *[waits] * 50], lambda done: None)
    assert len(began) < 50


def test_threads_begun_after_a_training_are_not_held_to_one_core():
    before, told = torch.get_num_threads(), []
    try:
        torch.set_num_threads(3)
        assert run_parallel([lambda watch: torch.get_num_threads()], lambda done: None) == [1]
        thread = threading.Thread(target=lambda: told.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert [*told, torch.get_num_threads()] == [3, 3]
    finally:
        torch.set_num_threads(before)
