"""Answers that are numbers and vectors, learned from end to end: nearer, and through W_V."""

from __future__ import annotations

import numpy as np
import pytest

from attend.learning import train
from attend.projection import Projection, given
from tests.index.answer_world import WIDTH, asked, stored


def test_numbers_come_nearer(tmp_path):
    rng = np.random.default_rng(6)
    x = rng.standard_normal((500, WIDTH))
    y = 10 + 3 * np.sin(x[:, 0]) + 2 * x[:, 1] + 0.3 * rng.standard_normal(500)
    collection = stored(tmp_path, x[:350], y[:350].tolist())

    def rmse():
        found = asked(collection, x[350:])
        assert {each.answer["type"] for each in found} == {"number"}
        return float(np.sqrt(np.mean((np.array([e.answer["mean"] for e in found]) - y[350:]) ** 2)))

    before = rmse()
    report = train(collection, objective="answers")
    assert report["promoted"]
    assert report["after"]["squared error"] < report["before"]["squared error"]
    assert rmse() < 0.93 * before
    assert asked(collection, x[350:351])[0].calibrated
    collection.close()


def in_parts(rng, count):
    """Vectors, and values of which two numbers are told by them and two are noise."""
    x = rng.standard_normal((count, WIDTH))
    x[:, :2] *= 3
    told = np.column_stack([np.sin(x[:, 0] / 3), x[:, 1] / 3])
    values = np.hstack([told, rng.standard_normal((count, 2))])
    return x, values + np.array([5.0, 0.0, -2.0, 1.0])


def test_vectors_go_through_a_learned_w_v(tmp_path):
    rng = np.random.default_rng(10)
    x, y = in_parts(rng, 400)
    collection = stored(tmp_path, x, [{"v": each.tolist(), "w": each.tolist()} for each in y])

    def errors(path="v"):
        found = asked(collection, fresh, value=path)
        return np.array([each.answer["vector"] for each in found]) - truth

    fresh, truth = in_parts(rng, 200)
    before = errors()
    report = train(collection, objective="answers", value="v")
    assert report["promoted"], report["reason"]
    assert report["chosen"]["ridge"] is not None
    after = errors()
    assert (after**2).mean() < 0.97 * (before**2).mean()
    assert (after**2).mean() / y.var(axis=0).mean() == pytest.approx(
        report["after"]["squared error"], abs=0.1
    )
    # What is noise is answered by its mean: W_V lets nothing of it through.
    w_v = Projection.from_bytes(collection.store.version(report["version"]).weights).w_v
    kept = np.diag(w_v[0])
    assert np.abs(kept[2:]).max() < 0.4 < kept[:2].min()
    # It was learned for these values and for no others, whatever their width.
    assert np.abs(errors("w") - after).max() > 0.05
    again = train(collection, objective="answers", value="v")
    assert not again["promoted"], again["reason"]
    assert again["before"]["squared error"] == pytest.approx(
        report["after"]["squared error"], abs=0.05
    )
    collection.close()


def test_a_w_v_that_is_given_stands_trial(tmp_path):
    rng = np.random.default_rng(12)
    x, y = in_parts(rng, 150)
    collection = stored(tmp_path, x, y.tolist())
    apart = given(np.eye(WIDTH), np.eye(WIDTH), w_v=np.zeros((4, 4)), b_v=y.mean(axis=0))
    collection.activate(collection.add_projection(apart))
    report = train(collection, objective="answers", promote=False)
    # Whatever is asked, its answer is the mean, whose squared error is the variance.
    assert report["before"]["squared error"] == pytest.approx(1, abs=1e-4)
    collection.close()
