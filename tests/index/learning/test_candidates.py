"""The candidates of held-out questions, against dense loops in float64 and published measures."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import ir_measures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from attend.learning import data
from attend.learning.fit import Fitted, unlearned
from attend.learning.ranking_model import NEVER, Candidates, find_candidates
from tests.index.drawn import drawn_questions, memory_of, questions_of, unit

WIDTH = 4


class Weights(NamedTuple):
    """α, λ and γ."""

    examples: float
    lexical: float
    coverage: float = 0.0


def fitted_of(memory, seed: int, offsets: int = 3, d_k: int = 3) -> Fitted:
    rng = np.random.default_rng(seed)
    keys = np.sort(rng.choice(len(memory.vectors), offsets, replace=False)).astype(np.int64)
    w = rng.normal(size=(2, d_k, WIDTH)).astype(np.float32)
    deltas = rng.normal(size=(offsets, WIDTH)).astype(np.float32)
    return Fitted(w[0], w[1], 20.0, keys, deltas)


def plain_scores(memory, fitted, known, asked, weights: Weights) -> np.ndarray:
    """(q, n): every document's score by the formula, one pair after the other."""
    length = unit if memory.unit else np.asarray
    offsets = dict(zip(fitted.offset_keys.tolist(), fitted.offsets.astype(float), strict=True))
    w_q, w_k = fitted.w_q.astype(float), fitted.w_k.astype(float)
    keys = [
        length(w_k @ (embedding.astype(float) + offsets.get(at, 0.0)))
        for at, embedding in enumerate(memory.vectors)
    ]
    stored = [length(w_q @ embedding.astype(float)) for embedding in known.embeddings]
    knows, words = known.relevant.toarray() > 0, asked.lexical.toarray().astype(float)
    found = np.empty((asked.count, len(memory)))
    for q in range(asked.count):
        query = length(w_q @ asked.embeddings[q].astype(float))
        strength = weights.lexical * float(asked.coverage[q]) ** weights.coverage
        for d in range(len(memory)):
            first = int(memory.starts[d])
            own = [float(query @ keys[first + at]) for at in range(int(memory.counts[d]))]
            if weights.examples > 0:
                own += [
                    weights.examples * float(query @ stored[k]) for k in np.flatnonzero(knows[:, d])
                ]
            found[q, d] = max(own) + strength * words[q, d]
    return found


def everything(found, scored, documents: int) -> np.ndarray:
    """Padded scores (q, c) as (q, n), -inf where a document is no candidate."""
    dense = np.full((len(scored), documents), -np.inf)
    for q, at in enumerate(found.documents):
        dense[q, at[at >= 0]] = scored[q][at >= 0]
    return dense


weightings = st.builds(
    Weights,
    st.sampled_from([0.0, 0.7, 1.0]),
    st.sampled_from([0.0, 0.4]),
    st.sampled_from([0.0, 1.0, 0.5]),
)


# -- scores ----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), weightings, st.booleans(), st.sampled_from([1, 3]))
def test_scores_and_ndcg_against_dense_loops(seed, weights, at_length_one, most):
    counts = np.random.default_rng(seed).integers(1, most + 1, 25).tolist()
    memory = memory_of(counts, WIDTH, seed, at_length_one=at_length_one)
    known = drawn_questions(6, 25, WIDTH, seed + 1, at_length_one=at_length_one)
    asked = drawn_questions(5, 25, WIDTH, seed + 2, share=0.3, at_length_one=at_length_one)
    fitted = fitted_of(memory, seed)
    [found] = find_candidates(memory, fitted, known, asked)
    scored = found.scores(*weights)
    expected = plain_scores(memory, fitted, known, asked, weights)
    # Fewer documents than are taken from each way: all are candidates.
    actual = everything(found, scored, 25)
    np.testing.assert_allclose(actual, expected, atol=2e-5, rtol=2e-5)
    values = found.ndcg(scored)
    grades = asked.relevant.toarray()
    for q in range(asked.count):
        best = np.sort(expected[q])[::-1][:11]
        if np.diff(-best).min() > 1e-4:  # else rounding decides
            one = ndcg_score(grades[q : q + 1], expected[q : q + 1], k=10, ignore_ties=True)
            assert values[q] == pytest.approx(one, abs=1e-6)


@pytest.mark.parametrize("weights", [Weights(0.0, 0.0), Weights(0.9, 0.0), Weights(0.0, 2.0, 1.0)])
def test_of_many_documents_the_best_are_candidates(weights, monkeypatch):
    """By one way of being found alone, the ten best are exact; compared to ir_measures."""
    monkeypatch.setattr(data, "BLOCK", 8000)  # blocks of a few questions
    documents = 400
    memory = memory_of([1] * documents, WIDTH, 1)
    known = drawn_questions(9, documents, WIDTH, 2, share=0.02)
    asked = drawn_questions(12, documents, WIDTH, 3, share=0.02)
    fitted = fitted_of(memory, 4)
    [found] = find_candidates(memory, fitted, known, asked)
    assert found.documents.shape[1] < documents
    values = found.ndcg(found.scores(*weights))
    expected = plain_scores(memory, fitted, known, asked, weights)
    grades = asked.relevant.toarray()
    qrels = {
        str(q): {str(d): int(grade) for d, grade in enumerate(row) if grade > 0}
        for q, row in enumerate(grades)
    }
    run = {str(q): {str(d): float(s) for d, s in enumerate(row)} for q, row in enumerate(expected)}
    measured = {
        int(each.query_id): each.value
        for each in ir_measures.iter_calc([ir_measures.nDCG @ 10], qrels, run)
    }
    assert len(measured) == asked.count
    assert max(measured.values()) > 0
    np.testing.assert_allclose(values, [measured[q] for q in range(asked.count)], atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), weightings)
def test_candidates_among_some_documents_against_dense_loops(seed, weights):
    """As if the others were not there, except for BM25, whose maximum is the collection's."""
    memory = memory_of(np.random.default_rng(seed).integers(1, 4, 25).tolist(), WIDTH, seed)
    known = drawn_questions(6, 25, WIDTH, seed + 1)
    asked = drawn_questions(5, 25, WIDTH, seed + 2, share=0.3)
    fitted = fitted_of(memory, seed)
    among = np.random.default_rng(seed).random(25) < 0.6
    every, found = find_candidates(memory, fitted, known, asked, [None, among])
    expected = plain_scores(memory, fitted, known, asked, weights)
    np.testing.assert_allclose(everything(every, every.scores(*weights), 25), expected, atol=2e-5)
    expected[:, ~among] = -np.inf
    actual = everything(found, found.scores(*weights), 25)
    np.testing.assert_allclose(actual, expected, atol=2e-5, rtol=2e-5)
    grades = asked.relevant.toarray() * among
    ideal = -np.sort(-grades, axis=1)[:, :10] @ (1 / np.log2(np.arange(2, 12)))
    np.testing.assert_allclose(found.ideal, ideal, atol=1e-6)


def test_a_relevant_document_that_nothing_finds_counts_in_the_ideal_alone():
    memory = memory_of([1] * 300, WIDTH, 1)
    asked = questions_of(-memory.vectors[:1], np.eye(1, 300))  # as far as can be
    known = asked.some(np.empty(0, dtype=np.int64))
    [found] = find_candidates(memory, unlearned(memory, np.eye(4, dtype=np.float32)), known, asked)
    assert 0 not in found.documents[0]
    assert found.ideal.tolist() == [1.0]
    assert found.ndcg(found.scores(0.0, 0.0)).tolist() == [0.0]


def test_documents_at_a_score_of_zero_stand_before_those_below():
    """Vectors of few numbers meet at right angles often."""
    memory = replace(memory_of([1] * 13, 2), vectors=np.array([[0, 1]] * 12 + [[-1, 0]], "f4"))
    asked = questions_of([[1.0, 0.0]], np.eye(13)[12:])
    known = asked.some(np.empty(0, dtype=np.int64))
    [found] = find_candidates(memory, unlearned(memory, np.eye(2, dtype=np.float32)), known, asked)
    assert found.ndcg(found.scores(0.0, 0.0)).tolist() == [0.0]


# -- the parts of a score --------------------------------------------------------------------------


def handmade(**changed) -> Candidates:
    """One question with three candidates, and one with two."""
    made = Candidates(
        documents=np.array([[1, 4, 6], [0, 2, -1]]),
        dense=np.array([[0.5, 0.2, -0.4], [0.1, 0.3, NEVER]], np.float32),
        examples=np.array([[NEVER, 0.9, -0.5], [NEVER, NEVER, NEVER]], np.float32),
        lexical=np.array([[0.0, 0.0, 1.0], [0.5, 0.0, 0.0]], np.float32),
        votes=np.zeros((2, 3), np.float32),
        grades=np.array([[0, 0, 2], [1, 0, 0]], np.float32),
        ideal=np.array([2.0, 1.0]),
        coverage=np.array([0.25, 0.0], np.float32),
    )
    return made._replace(**changed)


def test_examples_are_discounted_and_the_best_counts():
    found = handmade().scores(0.8, 0.0)
    np.testing.assert_allclose(found[0], [0.5, 0.72, -0.4], atol=1e-6)
    np.testing.assert_allclose(found[1, :2], [0.1, 0.3], atol=1e-6)
    np.testing.assert_allclose(handmade().scores(0.0, 0.0)[0], [0.5, 0.2, -0.4])


def test_words_count_by_how_many_of_them_are_known():
    np.testing.assert_allclose(handmade().scores(0.0, 0.4)[0], [0.5, 0.2, 0.0], atol=1e-6)
    half = handmade().scores(0.0, 0.4, 0.5)
    np.testing.assert_allclose(half[0], [0.5, 0.2, -0.2], atol=1e-6)
    np.testing.assert_allclose(half[1, :2], [0.1, 0.3], atol=1e-6)  # coverage 0
    np.testing.assert_allclose(handmade().scores(0.0, 0.4)[1, 0], 0.3, atol=1e-6)


def test_what_is_padded_is_never_ranked():
    for weights in (Weights(0.0, 0.0), Weights(1.0, 1.0)):
        assert (handmade().scores(*weights)[1, 2] < -1e6).all()


def test_of_equals_the_lower_document_comes_first():
    grades = np.zeros((1, 30), np.float32)
    grades[0, 7] = 3
    equal = Candidates(
        documents=np.arange(30)[None],
        dense=np.full((1, 30), 0.5, np.float32),
        examples=np.full((1, 30), NEVER, np.float32),
        lexical=np.zeros((1, 30), np.float32),
        votes=np.zeros((1, 30), np.float32),
        grades=grades,
        ideal=np.array([3.0]),
        coverage=np.ones(1, np.float32),
    )
    assert equal.ndcg(equal.dense) == pytest.approx(1 / np.log2(9))
    beyond = equal._replace(grades=np.roll(grades, 10))
    assert beyond.ndcg(beyond.dense) == 0


def test_without_relevant_documents_there_is_nothing_to_gain():
    blank = handmade(grades=np.zeros((2, 3), np.float32), ideal=np.zeros(2))
    assert blank.ndcg(blank.dense).tolist() == [0.0, 0.0]


# -- keys ------------------------------------------------------------------------------------------


def test_offsets_move_their_keys_and_no_others():
    memory = memory_of([2, 1, 3], WIDTH, 5)
    kept = memory.vectors.copy()
    fitted = fitted_of(memory, 6, offsets=2)
    moved, still = fitted.keys(memory), fitted.without_offsets().keys(memory)
    changed = np.flatnonzero(np.abs(moved - still).max(axis=1) > 1e-6)
    assert changed.tolist() == fitted.offset_keys.tolist()
    np.testing.assert_array_equal(memory.vectors, kept)
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 1, atol=1e-6)


def test_a_vector_of_zeros_has_no_direction():
    memory = memory_of([1], WIDTH)
    plain = unlearned(memory, np.eye(WIDTH, dtype=np.float32))
    assert plain.queries(memory, np.zeros((1, WIDTH), np.float32)).tolist() == [[0.0] * WIDTH]
