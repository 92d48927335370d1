"""The benchmark of recommending: its peers in closed form, and how it divides what users met."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import recommend
import recommend_peers
import recommend_ratings
from recommend_ratings import simulated

from attend.store import Interaction
from tests.index.drawn import sparse_of


def drawn(seed: int, users: int = 60):
    met = np.random.default_rng(seed).random((users, 25)) < 0.25
    return sparse_of(met)


@pytest.mark.parametrize(("weight", "users"), [(5.0, 60), (50.0, 60), (5.0, 20)])
def test_ease_is_a_ridge_regression_of_each_item_on_all_others(weight, users):
    met = drawn(0, users)
    dense = met.toarray().astype(np.float64)
    items = np.zeros((25, 25))
    for item in range(25):
        others = np.delete(np.arange(25), item)
        x, y = dense[:, others], dense[:, item]
        items[others, item] = np.linalg.solve(x.T @ x + weight * np.eye(24), x.T @ y)
    scores = np.where(dense > 0, -np.inf, dense @ items)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    np.testing.assert_array_equal(recommend_peers.ease(met, weight), expected)


def test_popularity_lists_what_most_met_and_the_user_did_not():
    met = drawn(1)
    counts = met.sum(axis=0)
    for user, listed in enumerate(recommend_peers.popularity(met)):
        own = set(met[[user]].indices.tolist())
        assert not own & set(listed.tolist())
        left = [at for at in np.argsort(-counts, kind="stable").tolist() if at not in own]
        assert counts[listed].tolist() == counts[left[:10]].tolist()


def test_settings_are_all_combinations():
    assert list(recommend_peers.settings("popularity")) == [{}]
    assert len(list(recommend_peers.settings("als"))) == 12
    assert {"weight": 50.0} in list(recommend_peers.settings("ease"))


def test_what_users_met_is_divided():
    met = [Interaction(f"u{user}", f"d{at}") for user in range(5) for at in range(2 * user)]
    books = recommend.Books([], met, [], ["d3"])
    part = books.divided(seed=0)
    assert sorted([*part.train, *part.test]) == sorted(met)
    taken = [sum(each.user == f"u{user}" for each in part.test) for user in range(5)]
    assert taken == [0, 0, 1, 1, 2]
    assert part.train != books.divided(seed=1).train
    assert {each.document for each in books.warm().train} == {f"d{at}" for at in range(8)} - {"d3"}


def test_histories_as_a_matrix():
    met = [Interaction("u", "b"), Interaction("v", "a"), Interaction("u", "a")]
    books = recommend.Books([{"id": "a"}, {"id": "b"}, {"id": "c"}], met, [], [])
    found = recommend.Contest(books, protocol=None)
    assert found.users == ["u", "v"]
    assert found.met.toarray().tolist() == [[1, 1, 0], [1, 0, 0]]


def test_cease_is_ease_with_a_row_for_each_word():
    met, words = drawn(0), sparse_of(np.random.default_rng(3).random((25, 8)))
    stacked = np.vstack([met.toarray(), np.sqrt(5.0) * words.toarray().T]).astype(np.float64)
    inverse = np.linalg.inv(stacked.T @ stacked + 50 * np.eye(25))
    items = -inverse / np.diag(inverse)
    np.fill_diagonal(items, 0)
    scores = np.where(met.toarray() > 0, -np.inf, met.toarray() @ items)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    np.testing.assert_array_equal(recommend_peers.cease(met, words, 50.0, 5.0), expected)


def test_words_rank_withheld_books_alone():
    met = drawn(0).toarray()
    met[:, 20:] = 0
    words = sparse_of(np.random.default_rng(3).random((25, 8)))
    among = np.arange(25) >= 12
    scores = met @ (words @ words.T).toarray()
    expected = np.argsort(-np.where(among & (met == 0), scores, -np.inf), kind="stable")[:, :5]
    listed = recommend_peers.tf_idf(sparse_of(met), words, among)[:, :5]
    np.testing.assert_array_equal(listed, expected)
    dense = words.toarray()
    kernel, items = dense @ dense.T, recommend_peers.regressed(met.T @ met, 100.0)
    shares = np.linalg.solve(kernel[:20, :20] + np.eye(20), kernel[:20, 20:])
    items[:, 20:] = items[:, :20] @ shares + 0.02 * kernel[:, 20:]
    scores = np.where(met > 0, -np.inf, met @ items)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    lifted = recommend_peers.lifted(sparse_of(met), words, 100.0, 1.0, 0.02)
    np.testing.assert_array_equal(lifted, expected)


def test_ratings_that_judge_are_of_another_seed_than_those_that_chose(monkeypatch, tmp_path):
    """The generator is asked for the judging seed alone, and its draws differ from the others."""
    seeds: list[int] = []

    def drawing(embeddings, *, seed, **options):
        seeds.append(seed)
        return recommend_ratings.Ratings(*np.zeros((3, 1)), 1, 1)

    vectors = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    monkeypatch.setattr(recommend_ratings, "_books", lambda data, folder: (None, [], vectors))
    monkeypatch.setattr(recommend_ratings, "simulated", drawing)
    monkeypatch.setattr(recommend_ratings, "_rows", lambda *given: iter(()))
    assert list(recommend_ratings.rows(True, tmp_path)) == []
    assert seeds == [recommend_ratings.JUDGING]
    chosen, judging = (
        simulated(vectors, users=30, ratings=700, seed=seed)
        for seed in (recommend_ratings.CHOOSING, recommend_ratings.JUDGING)
    )
    assert len(chosen.items) != len(judging.items) or (chosen.items != judging.items).any()


FILMS = ["movieId,title,genres", *(f"{film},A Title ({film}),Drama|War" for film in range(10))]


@pytest.mark.parametrize("has_numbers", [False, True])
def test_films_are_divided_by_time_and_likes_alone_count(tmp_path, has_numbers):
    folder = tmp_path / "films"
    folder.mkdir()
    (folder / "movies.csv").write_text("\n".join(FILMS))
    rows = [f"{user},{film},{0.5 + film % 5},{100 - film}" for user in "ab" for film in range(10)]
    (folder / "ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *rows]))
    given = recommend.films_of(tmp_path, True, has_numbers, 0)
    assert given.documents[3] == {"id": "3", "text": "A Title (3)\nDrama, War"}
    latest = {(user, film) for user in "ab" for film in "01"}
    assert {(each.user, each.document) for each in given.test} == latest
    given = given._replace(liked_from=3.5)
    contest = recommend.Contest(given, protocol=None)
    assert contest.seen.sum() == 16
    assert contest.met.sum() == (8 if has_numbers else 16)
    listed = recommend_peers.ease(contest.met, 5.0, seen=contest.seen)
    assert {*map(int, listed[0][:2])} == {0, 1}
