"""The additive scorer, against plain loops in float64 and the scorer of a search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import log_softmax

from attend.attention import Additive as Parameters
from attend.attention import scorer
from attend.learn.fit import unlearned
from attend.learn.rankings import additive
from attend.learn.rankings.additive import Recipe, _Fit, fit, inner_product, scored
from attend.learn.rankings.candidates import parts
from attend.learn.rankings.ranking import NEVER, Weights, ndcg, scores
from attend.learn.rankings.reranking import reranked
from attend.learn.space import space_of
from tests.index.learning import drawn_questions, memory_of, questions_of, unit

WIDTH = 6
SHORT = Recipe(near=8, far=4, batch=4, steps=(6, 6))


def world(documents: int = 20, keys: int = 3, seed: int = 0):
    counts = np.random.default_rng(seed).integers(1, keys + 1, documents).tolist()
    memory = memory_of(counts, WIDTH, seed)
    questions = drawn_questions(9, documents, WIDTH, seed + 1, share=0.1)
    return memory, questions, space_of(memory, unlearned(memory, np.eye(WIDTH, dtype=np.float32)))


def drawn(seed: int = 3) -> additive.Additive:
    rng = np.random.default_rng(seed)
    shapes = (5, WIDTH), (5, WIDTH), (5,), (5,)
    return additive.Additive(*(rng.normal(size=each).astype(np.float32) for each in shapes))


def by_hand(given: additive.Additive, query: np.ndarray, key: np.ndarray) -> float:
    w, u, v, b = (each.astype(np.float64) for each in given)
    return float(v @ np.tanh(w @ query + u @ key + b))


@pytest.mark.parametrize("width", [8, 384])
def test_it_starts_as_the_inner_product(width):
    rng = np.random.default_rng(1)
    queries = unit(rng.normal(size=(20, width))).astype(np.float32)
    keys = unit(rng.normal(size=(20, 200, width)) + 0.5 * np.sqrt(width) * queries[:, None] / 5)
    products = np.einsum("qd,qcd->qc", queries, keys)
    found = scored(inner_product(width), queries, keys.astype(np.float32))
    for one, other in zip(found, products, strict=True):
        slope, _ = np.polyfit(other, one, 1)
        assert np.corrcoef(one, other)[0, 1] > 0.99
        assert slope == pytest.approx(1, abs=0.1)


def test_scores_are_those_of_a_search():
    rng = np.random.default_rng(2)
    queries, keys = rng.normal(size=(3, WIDTH)), rng.normal(size=(4, WIDTH))
    given = drawn()
    expected = scorer("additive", Parameters(*given))(queries[:, None], keys[:, None])[:, 0]
    own = np.repeat(keys[None], 3, axis=0).astype(np.float32)
    found = scored(given, queries.astype(np.float32), own)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(expected[1, 2], by_hand(given, queries[1], keys[2]))


def test_candidates_are_scored_again_and_no_others(monkeypatch):
    monkeypatch.setattr("attend.learn.rankings.reranking.ATTEND", 5)
    memory, questions, space = world()
    found = parts(memory, space, questions, questions, questions.relevant)
    again = reranked(found, memory, space, questions, given := drawn())
    looked_at = 0
    for q in range(questions.count):
        near = found.documents[q][np.argsort(-found.dense[0, q])[:5]]
        words = np.argsort(-found.lexical[q])[:5]
        kept = {*near, *found.documents[q][words[found.lexical[q][words] > 0]]}
        for at, document in enumerate(found.documents[q]):
            score = again.dense[0, q, at]
            if document not in kept:
                assert score == np.float32(NEVER)
                continue
            own = memory.embeddings[memory.positions(np.array([document]))]
            query = questions.embeddings[q]
            assert score == pytest.approx(max(by_hand(given, query, key) for key in own), abs=1e-4)
            looked_at += 1
    assert looked_at > 5 * questions.count
    assert (again.examples == np.float32(NEVER)).all()


def test_the_loss_is_that_of_the_definition():
    memory, questions, space = world()
    run = _Fit(memory, questions, space, SHORT, seed=0)
    chosen = np.array([1, 4, 7])
    documents, grades = run._candidates(chosen)
    losses = []
    for row, question in enumerate(chosen):
        relevant = questions.relevant[[question]].toarray()[0]
        there = documents[row] >= 0
        assert len(set(documents[row][there])) == there.sum()
        assert set(np.flatnonzero(relevant)) <= set(documents[row][there])
        z = []
        for document in documents[row][there]:
            own = memory.embeddings[memory.positions(np.array([document]))]
            given = inner_product(WIDTH)
            z.append(max(by_hand(given, questions.embeddings[question], key) for key in own))
        target = relevant[documents[row][there]] / relevant.sum()
        losses.append(-float(target @ log_softmax(memory.scale * np.array(z))))
        np.testing.assert_array_equal(grades[row][there], relevant[documents[row][there]])
    again = _Fit(memory, questions, space, SHORT, seed=0)  # of the same draws
    assert float(again.loss(chosen).detach()) == pytest.approx(np.mean(losses), rel=1e-4)


def test_a_fit_lowers_the_loss_and_is_the_same_for_a_seed():
    memory, questions, space = world(seed=4)
    recipe = replace(SHORT, rate=3e-2, steps=(40, 40))
    first, again = (fit(memory, questions, space, recipe, seed=1) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    found = parts(memory, space, questions, questions, questions.relevant)
    values = [
        ndcg(now, scores(now, Weights(0.0, 0.0))).mean()
        for now in (
            reranked(found, memory, space, questions, first.mixed(share)) for share in (0, 1)
        )
    ]
    assert values[1] > values[0] + 0.1


def test_part_of_the_way():
    given, start = inner_product(WIDTH), inner_product(WIDTH)
    moved = additive.Additive(*(each + 1 for each in given))
    for at, half in enumerate(moved.mixed(0.5)):
        np.testing.assert_allclose(half, start[at] + 0.5, atol=1e-6)


def test_a_question_may_know_every_document():
    memory = memory_of([1] * 5, WIDTH)
    questions = questions_of(np.eye(2, WIDTH), np.ones((2, 5)))
    space = space_of(memory, unlearned(memory, np.eye(WIDTH, dtype=np.float32)))
    found = fit(memory, questions, space, SHORT)
    assert all(np.isfinite(each).all() for each in found)
