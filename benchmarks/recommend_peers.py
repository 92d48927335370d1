"""What a user would pick instead to recommend: popularity, ItemKNN, ALS and BPR of the library
`implicit` (github.com/benfred/implicit), EASE in its closed form, the same with words as side
information, and likeness by words alone.

Each takes who met what, sparse (u, n), and gives everybody's ten best that are not in their
history. Settings are chosen on a part of the training interactions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from scipy import sparse

from attend.core.types import Int64

CUT = 10

Fit = Callable[..., Int64]
"""Of histories (u, n) and settings: (u, 10) documents, best first."""


def popularity(met: Any) -> Int64:
    """What most users met."""
    counts = np.asarray(met.sum(axis=0)).ravel()
    return _top(met, lambda part: np.tile(counts, (part.shape[0], 1)))


def ease(met: Any, weight: float) -> Int64:
    """Steck 2019, "Embarrassingly shallow autoencoders": B = I − P / diag(P), where P is the
    inverse of X'X + λI."""
    items = _regressed((met.T @ met).toarray(), weight)
    return _top(met, lambda part: part @ items)


def cease(met: Any, words: Any, weight: float, side: float) -> Int64:
    """Jeunen, Van Balen and Goethals 2020: EASE of X'X + αSS', with the words S of the texts."""
    items = _regressed((met.T @ met + side * (words @ words.T)).toarray(), weight)
    return _top(met, lambda part: part @ items)


def tf_idf(met: Any, words: Any, among: Any = None) -> Int64:
    """Likeness by words, summed over the history."""
    likeness = (words @ words.T).toarray()
    return _top(met, lambda part: part @ likeness, among)


def lifted(
    met: Any, words: Any, weight: float, ridge: float, likeness: float, among: Any = None
) -> Int64:
    """EASE, whose columns a kernel ridge regression on words predicts for documents that nobody
    met, and likeness by words."""
    counts = np.asarray(met.sum(axis=0)).ravel()
    warm, cold = np.flatnonzero(counts), np.flatnonzero(counts == 0)
    by_words = (words @ words.T).toarray()
    items = _regressed((met.T @ met).toarray(), weight)
    kernel = by_words[np.ix_(warm, warm)] + ridge * np.eye(len(warm))
    items[:, cold] = items[:, warm] @ np.linalg.solve(kernel, by_words[np.ix_(warm, cold)])
    items[:, cold] += likeness * by_words[:, cold]
    return _top(met, lambda part: part @ items, among)


def _regressed(gram: Any, weight: float) -> Any:
    """B of a Gram matrix: the inverse of G + λI over its diagonal, which becomes zero."""
    inverse = np.linalg.inv(gram.astype(np.float64) + weight * np.eye(len(gram)))
    items = -inverse / np.diag(inverse)
    np.fill_diagonal(items, 0)
    return items


def item_knn(met: Any, kind: str, neighbours: int) -> Int64:
    from implicit import nearest_neighbours

    model = getattr(nearest_neighbours, kind)(K=neighbours, num_threads=1)
    return _by_library(model, met)


def als(met: Any, factors: int, regularization: float, alpha: float) -> Int64:
    from implicit.als import AlternatingLeastSquares

    model = AlternatingLeastSquares(
        factors=factors,
        regularization=regularization,
        alpha=alpha,
        iterations=15,
        random_state=0,
        num_threads=1,
    )
    return _by_library(model, met)


def bpr(met: Any, factors: int, learning_rate: float, iterations: int) -> Int64:
    from implicit.bpr import BayesianPersonalizedRanking

    model = BayesianPersonalizedRanking(
        factors=factors,
        learning_rate=learning_rate,
        iterations=iterations,
        random_state=0,
        num_threads=1,
    )
    return _by_library(model, met)


PEERS: Mapping[str, Fit] = {
    "popularity": popularity,
    "bpr": bpr,
    "als": als,
    "itemknn": item_knn,
    "ease": ease,
    "tfidf": tf_idf,
    "cease": cease,
}

BY_WORDS: Mapping[str, Fit] = {"tfidf": tf_idf, "cease": cease, "lifted": lifted}
"""Peers that read the texts, too."""

WITHHELD: Mapping[str, Mapping[str, Any]] = {
    "tfidf": {},
    "lifted": {"weight": 100.0, "ridge": 1.0, "likeness": 0.02},
}
"""Peers for documents that nobody met, with settings chosen on a part of the training set."""

GRIDS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "popularity": {},
    "bpr": {"factors": (64, 128), "learning_rate": (0.02, 0.05), "iterations": (100, 200)},
    "als": {"factors": (64, 128, 256), "regularization": (0.01, 1.0), "alpha": (10.0, 30.0)},
    "itemknn": {
        "kind": ("CosineRecommender", "TFIDFRecommender", "BM25Recommender"),
        "neighbours": (50, 200, 1000),
    },
    "ease": {"weight": (10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)},
    "tfidf": {},
    "cease": {"weight": (20.0, 50.0, 100.0, 200.0, 500.0), "side": (5.0, 10.0, 20.0, 50.0)},
}

QUICK: Mapping[str, Mapping[str, Any]] = {
    "popularity": {},
    "itemknn": {"kind": "CosineRecommender", "neighbours": 1000},
    "ease": {"weight": 50.0},
    "cease": {"weight": 50.0, "side": 10.0},
}
"""Peers of a quick run, with the settings that a full run chose."""


def peer(name: str, words: Any) -> Fit:
    """A peer by its name; those that read texts are bound to their words (n, t)."""
    return partial(BY_WORDS[name], words=words) if name in BY_WORDS else PEERS[name]


def settings(name: str) -> Iterator[dict[str, Any]]:
    """All that are tried of a peer."""
    grid = GRIDS[name]
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _by_library(model: Any, met: Any) -> Int64:
    given = sparse.csr_matrix(met, dtype=np.float32)
    with warnings.catch_warnings():
        # It converts its own matrices, and says so.
        warnings.simplefilter("ignore")
        model.fit(given, show_progress=False)
        found, _ = model.recommend(
            np.arange(given.shape[0]), given, N=CUT, filter_already_liked_items=True
        )
    return np.asarray(found, dtype=np.int64)


def _top(met: Any, score: Callable[[Any], Any], among: Any = None, step: int = 1024) -> Int64:
    found = []
    for at in range(0, met.shape[0], step):
        part = met[at : at + step]
        scores = np.array(score(part), dtype=np.float64)
        scores[part.nonzero()] = -np.inf
        if among is not None:
            scores[:, ~among] = -np.inf
        found.append(np.argsort(-scores, axis=1, kind="stable")[:, :CUT])
    return np.concatenate(found)
