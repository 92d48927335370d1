"""Memories, questions and near-duplicates, against loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attend.core.arrays import top_mask
from attend.learning import data
from attend.learning.data import answerable, top_places, twins
from tests.index.drawn import drawn_questions, memory_of, questions_of, unit

# -- memory ----------------------------------------------------------------------------------------

counts = st.lists(st.integers(1, 4), min_size=1, max_size=12)


@given(counts, st.data())
def test_positions_against_a_loop(counts, draw):
    memory = memory_of(counts, 2)
    places = st.lists(st.integers(0, len(counts) - 1), max_size=20)
    chosen = draw.draw(places)
    expected = [
        int(memory.starts[document]) + key for document in chosen for key in range(counts[document])
    ]
    assert memory.positions(np.array(chosen, dtype=np.int64)).tolist() == expected


@given(counts)
def test_a_memory_in_figures(counts):
    memory = memory_of(counts, 2)
    assert len(memory) == len(counts)
    assert memory.counts.tolist() == counts
    assert memory.single == (max(counts) == 1)


# -- scores ----------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 12))
def test_the_best_places_against_a_sort_that_keeps_equals_in_order(seed, width, count):
    random = np.random.default_rng(seed)
    scores = random.integers(0, 9, (5, width)).astype(np.float32)  # many equals
    scores[random.random(scores.shape) < 0.2] = -np.inf
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    assert top_places(scores, count).tolist() == expected.tolist()
    marked = [np.flatnonzero(row).tolist() for row in top_mask(scores, count)]
    assert marked == np.sort(expected, axis=1).tolist()


# -- questions -------------------------------------------------------------------------------------


def dense(matrix) -> np.ndarray:
    return matrix.toarray()


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 9))
def test_without_documents_as_if_nothing_had_been_said_of_them(seed, count, documents):
    questions = drawn_questions(count, documents, 3, seed, share=0.4, negatives=0.3)
    before = dense(questions.relevant), dense(questions.judged)
    gone = np.random.default_rng(seed).random(documents) < 0.5
    found = questions.without(gone)
    for kept, whole in zip((found.relevant, found.judged), before, strict=True):
        np.testing.assert_array_equal(dense(kept), np.where(gone, 0, whole))
        assert (kept.data != 0).all(), "a zero that is stored would count as a label"
    assert answerable(found).tolist() == (np.where(gone, 0, before[0]) > 0).any(axis=1).tolist()
    np.testing.assert_array_equal(dense(questions.relevant), before[0])
    np.testing.assert_array_equal(dense(found.lexical), dense(questions.lexical))


@given(st.integers(0, 10**6))
def test_some_of_the_questions_by_place_or_by_mask(seed):
    questions = drawn_questions(7, 9, 3, seed, share=0.3, negatives=0.3)
    mask = np.random.default_rng(seed).random(7) < 0.5
    at = np.flatnonzero(mask)
    for found in (questions.some(mask), questions.some(at)):
        assert found.count == len(at)
        np.testing.assert_array_equal(found.embeddings, questions.embeddings[at])
        np.testing.assert_array_equal(found.coverage, questions.coverage[at])
        for name in ("relevant", "judged", "lexical"):
            np.testing.assert_array_equal(
                dense(getattr(found, name)), dense(getattr(questions, name))[at]
            )


def test_a_row_of_labels():
    questions = questions_of(np.eye(2), [[0, 2, 0, 1], [0, 0, 0, 0]])
    assert questions.relevant[[0]].nonzero()[1].tolist() == [1, 3]
    assert questions.relevant[[0]].data.tolist() == [2, 1]
    assert questions.relevant[[1]].nnz == 0
    assert answerable(questions).tolist() == [True, False]


# -- twins -----------------------------------------------------------------------------------------


def brute_groups(vectors: np.ndarray, cosine: float) -> set[frozenset[int]]:
    """Connected components, joined pair by pair until nothing changes."""
    away, same = products(vectors)
    groups = [{at} for at in range(len(vectors))]
    for i in range(len(vectors)):
        for j in range(len(vectors)):
            if away[i, j] > cosine or same[i, j] > data.SAME_COSINE:
                merged = groups[i] | groups[j]
                for at in merged:
                    groups[at] = merged
    return {frozenset(group) for group in groups}


def products(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosines (q, q) less the mean direction, and as they are; 0 for what has no length."""
    same = directed(vectors)
    away = directed(same - same.mean(axis=0))
    return away @ away.T, same @ same.T


def directed(vectors: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 1e-9)


def as_sets(groups: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(groups == name).tolist()) for name in np.unique(groups)}


@settings(deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 25),
    st.sampled_from([0.1, 0.3, 0.6]),
    st.sampled_from([0.5, 0.9]),
    st.sampled_from([1, 40, 1 << 24]),
)
def test_twins_against_brute_force(seed, count, noise, cosine, block):
    rng = np.random.default_rng(seed)
    near = unit(rng.normal(size=(4, 3)))[rng.integers(0, 4, count)]
    vectors = (near + noise * rng.normal(size=(count, 3))) * rng.uniform(0.1, 9, (count, 1))
    vectors[rng.random(count) < 0.1] = 0
    vectors = vectors.astype(np.float32)
    away, same = products(vectors.astype(float))
    # All in one place but for rounding: their differences have no direction to speak of.
    assume(count > 1 and np.abs(away.diagonal() - 1).max() < 1e-9)
    assume((np.abs(away - cosine) > 1e-4).all() and (np.abs(same - data.SAME_COSINE) > 1e-5).all())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "PAIRS", block)
        groups = twins(vectors, cosine)
    assert groups.shape == (count,)
    assert as_sets(groups) == brute_groups(vectors.astype(float), cosine)


def test_twins_by_way_of_others_are_one_group():
    angles = np.radians([0, 20, 40, 60, 150, 270])
    vectors = np.column_stack([np.cos(angles), np.sin(angles)]).astype(np.float32)
    vectors = np.vstack([vectors, -vectors])  # their mean is zero
    # 20 degrees are .94 apart; 0 and 60 degrees are not near, but for those between them.
    groups = twins(vectors, 0.9)[:6]
    assert as_sets(groups) == {frozenset({0, 1, 2, 3}), frozenset({4}), frozenset({5})}


def test_an_encoder_that_places_all_texts_near_each_other_makes_no_twins():
    """Cosines above .9 throughout, yet what differs differs."""
    rng = np.random.default_rng(0)
    vectors = (4 * np.ones(64) / 8 + unit(rng.normal(size=(200, 64)))).astype(np.float32)
    vectors[1] = vectors[0]
    vectors[3] = vectors[2] + 0.02 * rng.normal(size=64)
    unit_vectors = directed(vectors.astype(float))
    assert np.median(unit_vectors @ unit_vectors.T) > 0.9
    found = as_sets(twins(vectors))
    assert len(found) == 198
    assert {frozenset({0, 1}), frozenset({2, 3})} <= found


@pytest.mark.parametrize("count", [2, 20])
def test_one_question_many_times_is_one_group(count):
    vectors = np.tile(np.random.default_rng(1).normal(size=(1, 32)), (count, 1))
    assert as_sets(twins(vectors.astype(np.float32))) == {frozenset(range(count))}


def test_no_questions_have_no_twins():
    assert twins(np.empty((0, 3), dtype=np.float32)).tolist() == []
