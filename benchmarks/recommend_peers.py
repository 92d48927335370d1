"""What recommending is compared with: the usual methods, and the settings tried of each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from attend.core.types import Int64
from attend.measure.interactions import CUT


def popularity(met: Any) -> Int64:
    """What most users met."""
    counts = np.asarray(met.sum(axis=0)).ravel()
    return _top(met, lambda part: np.tile(counts, (part.shape[0], 1)))


def ease(met: Any, weight: float, seen: Any = None) -> Int64:
    """Steck 2019, "Embarrassingly shallow autoencoders": B = I − P / diag(P), where P is the
    inverse of X'X + λI; of few users by that of XX' + λI (Woodbury)."""
    users, documents = met.shape
    if documents <= users:
        items = regressed((met.T @ met).toarray(), weight)
        return _top(met, lambda part: part @ items, seen=seen)
    kernel = (met @ met.T).toarray() + weight * np.eye(users)
    half = np.linalg.solve(kernel, met.toarray().astype(np.float64))
    diagonal = 1 - met.multiply(half).sum(axis=0)
    return _top(met, lambda part: part - (part - part @ met.T @ half) / diagonal, seen=seen)


def cease(met: Any, words: Any, weight: float, side: float) -> Int64:
    """Jeunen, Van Balen and Goethals 2020: EASE of X'X + αSS', with the words S of the texts."""
    items = regressed((met.T @ met + side * (words @ words.T)).toarray(), weight)
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
    items = regressed((met.T @ met).toarray(), weight)
    kernel = by_words[np.ix_(warm, warm)] + ridge * np.eye(len(warm))
    items[:, cold] = items[:, warm] @ np.linalg.solve(kernel, by_words[np.ix_(warm, cold)])
    items[:, cold] += likeness * by_words[:, cold]
    return _top(met, lambda part: part @ items, among)


def regressed(gram: Any, weight: float) -> Any:
    """B of a Gram matrix: the inverse of G + λI over its diagonal, which becomes zero."""
    inverse = np.linalg.inv(gram.astype(np.float64) + weight * np.eye(len(gram)))
    items = -inverse / np.diag(inverse)
    np.fill_diagonal(items, 0)
    return items


def _top(
    met: Any, score: Callable[[Any], Any], among: Any = None, step: int = 1024, seen: Any = None
) -> Int64:
    found = []
    for at in range(0, met.shape[0], step):
        part = met[at : at + step]
        scores = np.array(score(part), dtype=np.float64)
        scores[(part if seen is None else seen[at : at + step]).nonzero()] = -np.inf
        if among is not None:
            scores[:, ~among] = -np.inf
        found.append(np.argsort(-scores, axis=1, kind="stable")[:, :CUT])
    return np.concatenate(found)


def by_library(met: Any, model: str, **options: Any) -> Int64:
    """A model of the library `implicit`, by its module and class."""
    module, name = model.split(".")
    fitted = getattr(import_module(f"implicit.{module}"), name)(num_threads=1, **options)
    given = sparse.csr_matrix(met, dtype=np.float32)
    with warnings.catch_warnings():
        # It converts its own matrices, and says so.
        warnings.simplefilter("ignore")
        fitted.fit(given, show_progress=False)
        found, _ = fitted.recommend(
            np.arange(given.shape[0]), given, N=CUT, filter_already_liked_items=True
        )
    return np.asarray(found, dtype=np.int64)


def item_knn(met: Any, kind: str, neighbours: int) -> Int64:
    return by_library(met, f"nearest_neighbours.{kind}", K=neighbours)


als = partial(by_library, model="als.AlternatingLeastSquares", iterations=15, random_state=0)
bpr = partial(by_library, model="bpr.BayesianPersonalizedRanking", random_state=0)


class Peer(NamedTuple):
    """Another method.

    Attributes:
        fit: of histories (u, n) and settings: (u, 10) documents, best first.
        grid: the values that are tried of each setting.
        quick: the settings of a quick run, which a full run chose; one without takes no part in it.
        reads: it is given the words (n, t) of the texts, too.
    """

    fit: Callable[..., Int64]
    grid: Mapping[str, tuple[Any, ...]] = {}
    quick: Mapping[str, Any] | None = None
    reads: bool = False


PEERS: Mapping[str, Peer] = {
    "popularity": Peer(popularity, quick={}),
    "bpr": Peer(
        bpr, {"factors": (64, 128), "learning_rate": (0.02, 0.05), "iterations": (100, 200)}
    ),
    "als": Peer(
        als, {"factors": (64, 128, 256), "regularization": (0.01, 1.0), "alpha": (10.0, 30.0)}
    ),
    "itemknn": Peer(
        item_knn,
        {
            "kind": ("CosineRecommender", "TFIDFRecommender", "BM25Recommender"),
            "neighbours": (50, 200, 1000),
        },
        quick={"kind": "CosineRecommender", "neighbours": 1000},
    ),
    "ease": Peer(
        ease, {"weight": (10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)}, quick={"weight": 50.0}
    ),
    "tfidf": Peer(tf_idf, reads=True),
    "cease": Peer(
        cease,
        {"weight": (20.0, 50.0, 100.0, 200.0, 500.0), "side": (5.0, 10.0, 20.0, 50.0)},
        quick={"weight": 50.0, "side": 10.0},
        reads=True,
    ),
}

WITHHELD: Mapping[str, tuple[Peer, Mapping[str, Any]]] = {
    "tfidf": (PEERS["tfidf"], {}),
    "lifted": (Peer(lifted, reads=True), {"weight": 100.0, "ridge": 1.0, "likeness": 0.02}),
}
"""Peers for documents that nobody met, with settings chosen on a part of the training set."""


def settings(name: str) -> Iterator[dict[str, Any]]:
    """All that are tried of a peer."""
    grid = PEERS[name].grid
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))
