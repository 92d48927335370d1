"""Folds: what is held out, and what training must not know of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from attend.learning.data import answerable
from attend.learning.ranking_model import (
    DIVIDED,
    MOST_DIVISIONS,
    observations,
    question_folds,
)
from attend.learning.selection import SPLITS
from tests.index.drawn import drawn_questions, questions_of


@st.composite
def divided(draw):
    """Questions with groups, and their folds."""
    seed, count = draw(st.integers(0, 10**6)), draw(st.integers(1, 80))
    documents, share = draw(st.integers(1, 60)), draw(st.sampled_from([0.0, 0.02, 0.2]))
    questions = drawn_questions(count, documents, 3, seed, share=share, negatives=0.1)
    if draw(st.booleans()):  # as when only negative labels were given to some
        emptied = np.random.default_rng(seed).random((count, 1)) < 0.2
        grades = questions.relevant.toarray() * ~emptied
        questions = questions_of(
            questions.embeddings, grades, judged=questions.judged.toarray() > 0
        )
    names = draw(st.integers(1, max(1, count)))
    groups = np.random.default_rng(seed + 1).integers(0, names, count) * 3
    parts = draw(st.integers(2, 5))
    return questions, groups, parts, question_folds(questions, groups, parts, seed)


@settings(max_examples=150, deadline=None)
@given(divided())
def test_no_group_is_divided(case):
    _, groups, _, found = case
    for fold in found:
        assert not set(groups[fold.held_out]) & set(groups[fold.trained])


@settings(max_examples=150, deadline=None)
@given(divided())
def test_a_question_is_held_out_at_most_once_in_a_view_of_each_division(case):
    questions, groups, parts, found = case
    divisions = max(1, min(MOST_DIVISIONS, DIVIDED // questions.count))
    for view in SPLITS:
        held = [at for fold in found if view in fold.splits for at in fold.held_out.tolist()]
        assert max(np.bincount(held), default=0) <= divisions
        assert sum(view in fold.splits for fold in found) <= parts * divisions
    can_learn = set(groups[answerable(questions)])
    if len(can_learn) >= 3 * parts and np.bincount(groups).max() == 1:
        random = [at for fold in found if "random" in fold.splits for at in fold.held_out.tolist()]
        assert (np.bincount(random, minlength=questions.count) == divisions).all()


@settings(max_examples=150, deadline=None)
@given(divided())
def test_what_a_fold_trains_on(case):
    questions, _, _, found = case
    for fold in found:
        assert len(fold.held_out) > 0
        assert fold.training.count == fold.trained.sum() > 0
        assert answerable(fold.training).all()
        np.testing.assert_array_equal(fold.training.embeddings, questions.embeddings[fold.trained])
        expected = np.where(fold.blocked, 0, questions.relevant.toarray())[fold.trained]
        np.testing.assert_array_equal(fold.training.relevant.toarray(), expected)
        if "random" in fold.splits:
            assert not fold.blocked.any()


@settings(max_examples=150, deadline=None)
@given(divided())
def test_an_unseen_fold_knows_nothing_of_the_documents_it_is_judged_by(case):
    questions, _, _, found = case
    relevant, judged = questions.relevant.toarray() > 0, questions.judged.toarray() > 0
    for fold in found:
        if "unseen" not in fold.splits:
            continue
        about = fold.blocked
        judging = fold.judging(questions)
        # Each judges by those of its documents that are withheld; its others are not ranked.
        assert answerable(judging).all()
        own = relevant[fold.held_out]
        np.testing.assert_array_equal(judging.relevant.toarray() > 0, own & about)
        np.testing.assert_array_equal(judging.left_out.toarray() > 0, own & ~about)
        for label in (fold.training.relevant, fold.training.judged):
            assert not label.toarray()[:, about].any()
        # All else is known still.
        kept = judged[fold.trained] & ~about
        np.testing.assert_array_equal(fold.training.judged.toarray() > 0, kept)


@settings(max_examples=150, deadline=None)
@given(divided())
def test_new_documents_are_those_that_no_training_question_labels(case):
    """The documents that judge are among them, and nothing else is known of any."""
    _, _, _, found = case
    for fold in found:
        labelled = (fold.training.judged.toarray() > 0).any(axis=0)
        np.testing.assert_array_equal(fold.new_documents, ~labelled)
        assert fold.ranked("random") is fold.ranked("unseen") is None
        if "new" in fold.splits:
            assert fold.ranked("new")[fold.blocked].all()


def test_every_question_is_judged_by_unseen_documents_however_many_it_has():
    questions = drawn_questions(500, 300, 12, 3, share=0.0)
    groups = np.arange(500)
    unseen = [fold for fold in question_folds(questions, groups, 5) if "unseen" in fold.splits]
    held = np.bincount(np.concatenate([fold.held_out for fold in unseen]), minlength=500)
    assert (held == len(unseen) / 5).all()
    labels = questions.relevant.nnz
    for fold in unseen:  # four fifths of the questions, and of the documents
        assert fold.training.relevant.nnz > 0.5 * labels


def test_questions_with_the_same_only_answer_are_one_observation():
    answers = np.zeros((6, 5))
    answers[[0, 1, 2, 3], [0, 0, 1, 2]] = 1
    answers[4, [0, 3]] = 1  # it has another answer as well
    answers[5, 3] = 1
    joint, documents = observations(questions_of(np.eye(6), answers), np.array([0, 1, 2, 2, 3, 4]))
    assert joint[0] == joint[1]  # by their answer
    assert joint[2] == joint[3]  # by their words
    assert len(set(joint.tolist())) == 4
    assert documents[1] == documents[2] == joint[2]
    assert len(set(documents[[0, 1, 3, 4]].tolist())) == 4


def test_folds_are_of_a_size_and_the_same_for_a_seed():
    questions = drawn_questions(90, 400, 3, 1, share=0.0)
    groups = np.arange(90)
    first, again, other = (question_folds(questions, groups, 3, seed) for seed in (5, 5, 6))
    assert [fold.splits for fold in first] == 2 * ([("random",)] * 3 + [("unseen", "new")] * 3)
    assert [len(fold.held_out) for fold in first if "new" not in fold.splits] == [30] * 6
    assert all(20 <= len(fold.held_out) <= 40 for fold in first)
    for a, b, c in zip(first, again, other, strict=True):
        assert a.held_out.tolist() == b.held_out.tolist() != c.held_out.tolist()
    # The two views are drawn apart, and so are the divisions.
    assert first[0].held_out.tolist() != first[6].held_out.tolist()
    assert first[0].held_out.tolist() != first[3].held_out.tolist()


def test_questions_that_are_all_one_group_have_no_folds():
    assert question_folds(drawn_questions(30, 40, 3, 1), np.zeros(30, dtype=np.int64), 3, 0) == []


def test_where_all_ask_for_one_document_nothing_can_be_unseen():
    questions = questions_of(np.eye(30), np.eye(1, 5).repeat(30, axis=0))
    found = question_folds(questions, np.arange(30), 3, 0)
    assert {fold.splits for fold in found} == {("random",)}
