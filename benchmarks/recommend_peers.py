"""What a user would pick instead to recommend: popularity, ItemKNN, ALS and BPR of the library
`implicit` (github.com/benfred/implicit), and EASE in its closed form.

Each takes who met what, sparse (u, n), and gives everybody's ten best that are not in their
history. Settings are chosen on a part of the training interactions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
from scipy import sparse

from attend.types import Int64

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
    gram = (met.T @ met).toarray().astype(np.float64)
    inverse = np.linalg.inv(gram + weight * np.eye(len(gram)))
    items = -inverse / np.diag(inverse)
    np.fill_diagonal(items, 0)
    return _top(met, lambda part: part @ items)


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
}

GRIDS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "popularity": {},
    "bpr": {"factors": (64, 128), "learning_rate": (0.02, 0.05), "iterations": (100, 200)},
    "als": {"factors": (64, 128, 256), "regularization": (0.01, 1.0), "alpha": (10.0, 30.0)},
    "itemknn": {
        "kind": ("CosineRecommender", "TFIDFRecommender", "BM25Recommender"),
        "neighbours": (50, 200, 1000),
    },
    "ease": {"weight": (10.0, 20.0, 50.0, 100.0, 200.0)},
}

QUICK: Mapping[str, Mapping[str, Any]] = {
    "popularity": {},
    "itemknn": {"kind": "CosineRecommender", "neighbours": 1000},
    "ease": {"weight": 50.0},
}
"""Peers of a quick run, with the settings that a full run chose."""


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


def _top(met: Any, score: Callable[[Any], Any], step: int = 1024) -> Int64:
    found = []
    for at in range(0, met.shape[0], step):
        part = met[at : at + step]
        scores = np.array(score(part), dtype=np.float64)
        scores[part.nonzero()] = -np.inf
        found.append(np.argsort(-scores, axis=1, kind="stable")[:, :CUT])
    return np.concatenate(found)
