"""The estimators: scikit-learn's own checks, and beside its nearest neighbours."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from attend.connect.sklearn import AttentionClassifier, AttentionRegressor, EmbeddingProjector


@parametrize_with_checks([AttentionClassifier(), AttentionRegressor(), EmbeddingProjector()])
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return train_test_split(x[:1000], y[:1000], random_state=0)


def test_the_weights_are_a_softmax_over_the_nearest_training_vectors(digits):
    x, queries, y, _ = (part[:200] for part in digits)
    model = AttentionClassifier(attend=20, temperature=2.0, learn=False).fit(x, y)
    mean = x.mean(axis=0)
    spread = np.sqrt(((x - mean) ** 2).sum(axis=1).mean())

    def lifted(vectors):
        rows = np.column_stack([vectors - mean, np.full(len(vectors), spread)])
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    z = lifted(queries) @ lifted(x).T
    z = np.where(z >= np.sort(z, axis=1)[:, [-20]], z, -np.inf)
    expected = softmax(z * model.scale_ / 2.0, axis=1)
    assert np.allclose(model.attention(queries), expected, atol=1e-6)
    onehot = y[:, None] == model.classes_
    assert np.allclose(model.predict_proba(queries), expected @ onehot, atol=1e-6)


def test_digits_are_told_as_well_as_by_neighbours_and_probabilities_are_far_better(digits):
    x, queries, y, truth = digits
    model, neighbours = AttentionClassifier().fit(x, y), KNeighborsClassifier().fit(x, y)
    assert model.score(queries, truth) >= neighbours.score(queries, truth) - 0.005
    assert model.score(queries, truth) > 0.95
    losses = [log_loss(truth, m.predict_proba(queries)) for m in (model, neighbours)]
    assert losses[0] < 0.5 * losses[1]


def test_numbers_have_a_mean_and_a_spread_that_holds():
    x, queries, y, truth = train_test_split(*load_diabetes(return_X_y=True), random_state=0)
    model = AttentionRegressor().fit(x, y)
    mean, std = model.predict(queries, return_std=True)
    assert np.array_equal(mean, model.predict(queries))
    assert model.score(queries, truth) > KNeighborsRegressor().fit(x, y).score(queries, truth)
    within = np.mean(np.abs(truth - mean) < 2 * std)
    assert 0.85 < within < 1


def test_a_learned_projection_keeps_classes_apart_in_few_dimensions(digits):
    x, queries, y, truth = digits
    scores = {}
    for name, labels in (("learned", y), ("components", None)):
        projector = EmbeddingProjector(4).fit(x, labels)
        assert projector.transform(queries).shape == (len(queries), 4)
        near = KNeighborsClassifier().fit(projector.transform(x), y)
        scores[name] = near.score(projector.transform(queries), truth)
    assert scores["learned"] > scores["components"] + 0.01, scores


def test_w_is_learned_where_features_differ_in_use():
    """Eight of ten features are noise, and louder than the two that tell the classes apart."""
    random = np.random.default_rng(0)
    y = random.integers(3, size=600)
    useful = np.eye(3)[y][:, :2] * 2 + random.normal(scale=0.4, size=(600, 2))
    x = np.hstack([useful, random.normal(scale=1.5, size=(600, 8))])
    plain, learned = (
        AttentionClassifier(learn=learn).fit(x[:400], y[:400]).score(x[400:], y[400:])
        for learn in (False, True)
    )
    assert learned > plain + 0.05, (plain, learned)


def test_copies_and_second_fits_are_independent(digits):
    x, queries, y, _ = digits
    model = AttentionClassifier(attend=30).fit(x[:300], y[:300])
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(queries), model.predict_proba(queries))
    assert not hasattr(clone(model), "keys_")
    other = clone(model).fit(x[300:600], y[300:600])
    model.fit(x[300:600], y[300:600])
    assert np.array_equal(other.predict_proba(queries), model.predict_proba(queries))


def test_it_works_in_a_pipeline_with_texts_as_classes(digits):
    x, queries, y, truth = (part[:300] for part in digits)
    names = np.array([f"digit {n}" for n in range(10)])
    model = make_pipeline(StandardScaler(), AttentionClassifier()).fit(x, names[y])
    assert set(model.predict(queries)) <= set(names)
    assert model.score(queries, names[truth]) > 0.85


@pytest.mark.parametrize("wrong", [{"attend": 0}, {"temperature": 0.0}])
def test_wrong_parameters_are_told(wrong):
    with pytest.raises(ValueError, match="a number from 1 up and one above 0 were expected"):
        AttentionClassifier(**wrong).fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(ValueError, match="n_components is 3, but vectors have 1"):
        EmbeddingProjector(3).fit([[0.0], [1.0]])
