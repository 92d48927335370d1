"""The closed form of items and words against plain formulas, and the weights as they are stored."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attend.learning import next_items as closed_form
from attend.learning.next_items import ClosedForm, ItemModel, item_weights
from attend.recommend.weights import ItemWeights
from tests.index.drawn import sparse_of, unit

KNOWN, ALL, WORDS = 15, 20, 6


def drawn(seed: int = 0, count: int = WORDS):
    """Histories (50, 20) in which five documents never occur, and words (20, count)."""
    rng = np.random.default_rng(seed)
    met = (rng.random((50, ALL)) < 0.2) & (np.arange(ALL) < KNOWN)
    words = unit(rng.random((ALL, count)) * (rng.random((ALL, count)) < 0.5))
    return sparse_of(met), sparse_of(words)


def ridge_by_item(met, words, form: ClosedForm) -> np.ndarray:
    """Regress each item on all others, with one more row for each word."""
    mean = met.nnz / KNOWN
    side = np.sqrt(form.words * mean) * words.toarray()[:KNOWN].T
    rows = np.vstack([met.toarray()[:, :KNOWN], side]).astype(np.float64)
    weights = np.zeros((KNOWN, KNOWN))
    for item in range(KNOWN):
        others = np.delete(np.arange(KNOWN), item)
        x, y = rows[:, others], rows[:, item]
        system = x.T @ x + form.ridge * mean * np.eye(KNOWN - 1)
        weights[others, item] = np.linalg.solve(system, x.T @ y)
    return weights


@pytest.mark.parametrize("form", [ClosedForm(2.0, 0.0), ClosedForm(2.0, 0.5)])
def test_each_document_is_a_ridge_regression_on_all_others(form):
    met, words = drawn()
    weights = item_weights(met, words, form).toarray()
    expected = ridge_by_item(met, words, form)
    np.testing.assert_allclose(weights[:KNOWN, :KNOWN], expected, atol=1e-6)


@pytest.mark.parametrize("form", [ClosedForm(2.0, 0.0), ClosedForm(2.0, 0.5, 0.3)])
def test_weights_add_up_over_a_history(form):
    """Also those for documents without interactions; what is in the history is left out."""
    met, words = drawn()
    ranked = np.arange(ALL) % 3 != 0
    sums = ItemModel(met, words).fitted(form).added(met, ranked)
    expected = (met @ item_weights(met, words, form)).toarray()
    expected[met.nonzero()] = -np.inf
    np.testing.assert_allclose(sums, expected[:, ranked], rtol=1e-4, atol=1e-5)


def inverse_of(met, words, form: ClosedForm, mean: float) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of the Gram matrix of the documents with interactions, and its ridge."""
    counts = met.toarray()[:, :KNOWN].sum(axis=0)
    side = np.sqrt(form.words * mean) * words.toarray()[:KNOWN].T
    rows = np.vstack([met.toarray()[:, :KNOWN], side]).astype(np.float64)
    ridge = form.ridge * mean + form.dropout / (1 - form.dropout) * counts
    return np.linalg.inv(rows.T @ rows + np.diag(ridge)), ridge


@pytest.mark.parametrize("users", [50, 12])
@pytest.mark.parametrize("is_slack", [False, True])
def test_dropout_is_a_ridge_by_interactions_and_slack_relaxes_the_diagonal(users, is_slack):
    """Also where there are fewer users than documents, and that side is inverted."""
    met, words = drawn()
    dense = met.toarray()[:users]
    dense[0, :KNOWN] = 1  # every document has an interaction, also of few users
    met = sparse_of(dense)
    form = ClosedForm(0.3, 0.5, dropout=0.4)
    inverse, ridge = inverse_of(met, words, form, mean=3.0)
    itself = 1 - ridge * np.diag(inverse)
    slack = float(np.median(itself)) if is_slack else 0.0
    form = form._replace(slack=slack)
    expected = -inverse * np.where(itself <= slack, ridge, (1 - slack) / np.diag(inverse))
    np.fill_diagonal(expected, 0)
    weights = item_weights(met, words, form, mean=3.0).toarray()[:KNOWN, :KNOWN]
    np.testing.assert_allclose(weights, expected, atol=1e-5)


@pytest.mark.parametrize("count", [WORDS, 2 * KNOWN])
def test_documents_without_interactions_have_what_their_words_predict(count):
    met, words = drawn(count=count)
    form = ClosedForm(2.0, 0.5)
    weights = item_weights(met, words, form).toarray()
    warm, cold = words.toarray()[:KNOWN], words.toarray()[KNOWN:]
    kernel = warm @ warm.T + closed_form.WORD_RIDGE * np.eye(KNOWN)
    shares = np.linalg.solve(kernel, warm @ cold.T)  # kernel ridge: (15, 5)
    items, likeness = ridge_by_item(met, words, form), closed_form.LIKENESS
    to_cold = closed_form.UNSHRUNK * (items @ shares + likeness * warm @ cold.T)
    known = met.toarray()[:, :KNOWN]
    level = (known @ items).mean() / (known @ to_cold).mean()
    np.testing.assert_allclose(weights[:KNOWN, KNOWN:], min(1, level) * to_cold, atol=1e-6)
    np.testing.assert_allclose(
        weights[KNOWN:, :KNOWN], shares.T @ items + likeness * cold @ warm.T, atol=1e-6
    )


def test_long_histories_are_not_filled_with_documents_that_nobody_met():
    """Every document is like all others by words, and each history has most of those known."""
    rng = np.random.default_rng(1)
    met = sparse_of((rng.random((50, ALL)) < 0.6) & (np.arange(ALL) < KNOWN))
    words = sparse_of(unit(1 + 0.1 * rng.random((ALL, WORDS))))
    weights = item_weights(met, words, ClosedForm(16.0, 0.0)).toarray()
    expected = met.toarray() @ weights  # (50, 20)
    assert expected[:, KNOWN:].mean() == pytest.approx(expected[:, :KNOWN].mean())


def test_without_words_nothing_is_said_of_documents_without_interactions():
    met, _ = drawn()
    weights = item_weights(met, sparse_of(np.zeros((ALL, 0))), ClosedForm(2.0, 0.5)).toarray()
    assert not weights[KNOWN:].any()
    assert not weights[:, KNOWN:].any()


def test_all_directions_together_are_the_inverse(monkeypatch):
    met, words = drawn()
    exact = item_weights(met, words, ClosedForm(2.0, 0.5)).toarray()
    monkeypatch.setattr(closed_form, "MOST_EXACT", 0)
    truncated = item_weights(met, words, ClosedForm(2.0, 0.5)).toarray()
    np.testing.assert_allclose(truncated, exact, atol=1e-6)


def test_only_the_largest_weights_and_the_documents_of_most_interactions_remain(monkeypatch):
    met, words = drawn()
    every = item_weights(met, words, ClosedForm(2.0, 0.5)).toarray()
    monkeypatch.setattr(closed_form, "ENTRIES", 3)
    monkeypatch.setattr(closed_form, "COVERED", 0.0)
    few = item_weights(met, words, ClosedForm(2.0, 0.5)).toarray()
    assert (np.count_nonzero(few[:, :KNOWN], axis=1) == 3).all()
    least = np.sort(np.abs(every[:, :KNOWN]), axis=1)[:, -3]
    np.testing.assert_allclose(
        few[:, :KNOWN], np.where(np.abs(every[:, :KNOWN]) >= least[:, None], every[:, :KNOWN], 0)
    )
    monkeypatch.setattr(closed_form, "MOST_ITEMS", 4)
    most = np.argsort(-np.bincount(met.indices, minlength=ALL), kind="stable")[:4]
    assert set(np.flatnonzero(item_weights(met, words, ClosedForm(2.0, 0.5)).toarray().any(1))) <= {
        *most.tolist()
    }


def test_rows_name_as_many_documents_as_hold_most_of_their_squares(monkeypatch):
    met, words = drawn()
    form = ClosedForm(2.0, 0.0)
    monkeypatch.setattr(closed_form, "ENTRIES", 1)
    every = item_weights(met, words, form).toarray()[:KNOWN, :KNOWN]
    squares = -np.sort(-(ridge_by_item(met, words, form) ** 2), axis=1)
    shares = np.cumsum(squares, axis=1) / squares.sum(axis=1, keepdims=True)
    needed = [1 + int(np.count_nonzero(row < closed_form.COVERED)) for row in shares]
    count = math.ceil(np.mean(needed))
    assert 1 < count < KNOWN - 1
    assert (np.count_nonzero(every, axis=1) == count).all()
    monkeypatch.setattr(closed_form, "MOST_ENTRIES", 4 * KNOWN)
    fewer = item_weights(met, words, form).toarray()[:KNOWN, :KNOWN]
    assert (np.count_nonzero(fewer, axis=1) == 4).all()


def test_stored_weights_are_those_of_a_loop():
    met, words = drawn()
    matrix = item_weights(met, words, ClosedForm(2.0, 0.5))
    dense, rows = matrix.toarray(), (1 << 33) + 3 * np.arange(ALL)
    stored = ItemWeights.unpacked(ItemWeights.of(rows, matrix).packed())
    np.testing.assert_allclose(stored.matrix(rows).toarray(), dense, rtol=1e-6)
    history, gates = np.array([rows[2], 0, rows[17]]), np.array([1.0, 2.0, 0.5])
    documents = np.array([rows[9], 7, rows[0], rows[19]])
    scores = stored.scores(history, gates).of(documents)
    says = np.zeros((3, 4))
    for part, source in enumerate((2, None, 17)):
        for column, target in enumerate((9, None, 0, 19)):
            if source is not None and target is not None:
                says[part, column] = dense[source, target]
    expected = says + 5.0 * (gates / gates.sum()) @ says
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-9)
    long = stored.scores(np.tile(history, 15), np.tile(gates, 15)).of(documents)  # 45 parts
    expected = says + 9.0 * (gates / gates.sum()) @ says
    np.testing.assert_allclose(long, np.tile(expected, (15, 1)), rtol=1e-5, atol=1e-9)


def test_documents_that_left_have_no_weight():
    met, words = drawn()
    rows = np.arange(1, ALL + 1)
    terms = ItemWeights.of(rows, item_weights(met, words, ClosedForm(2.0, 0.5))).packed()
    left = terms._replace(rows=terms.rows[1:], vectors=terms.vectors[1:])
    stored = ItemWeights.unpacked(left)
    assert not stored.scores(rows, np.ones(ALL)).of(np.array([1])).any()
    assert stored.scores(rows, np.ones(ALL)).of(np.array([3])).any()
