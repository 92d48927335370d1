"""Documents whose queries are turned: what a training finds, a test knows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import expm

from attend.write.feedback import add_feedback
from tests.index.drawn import unit
from tests.index.helpers import vector_data

WIDTH = 8


def turn(rng: np.random.Generator, angle: float, width: int = WIDTH) -> np.ndarray:
    """A rotation; at angle 0 none."""
    plane = rng.normal(size=(width, width))
    plane = plane - plane.T
    return np.asarray(expm(plane * angle * np.sqrt(width) / np.linalg.norm(plane)))


class Planted:
    """Documents, and queries that are documents turned, with some noise."""

    def __init__(self, seed: int, documents: int, angle: float, noise: float) -> None:
        self.rng = np.random.default_rng(seed)
        self.documents = unit(self.rng.normal(size=(documents, WIDTH)))
        self.turned, self.noise = turn(self.rng, angle), noise

    def collection(self, folder: Path):
        made = vector_data(folder).create(dimension=WIDTH, normalize=True)
        made.upsert(
            [{"id": f"d{at}", "vector": each.tolist()} for at, each in enumerate(self.documents)]
        )
        return made

    def asked(self, which: Sequence[int] | np.ndarray) -> np.ndarray:
        found = self.documents[which] @ self.turned.T
        return np.asarray(found + self.noise * self.rng.normal(size=found.shape))

    def teach(self, collection, count: int, *, shuffled: bool = False) -> None:
        which = self.rng.permutation(len(self.documents))[:count]
        labels = self.rng.permutation(which) if shuffled else which
        teach_vectors(collection, self.asked(which), labels)


def teach_vectors(collection, queries: np.ndarray, labels: Any, label: float = 1.0) -> None:
    items = zip(queries.tolist(), labels, strict=True)
    add_feedback(collection, [{"query": q, "id": f"d{at}", "label": label} for q, at in items])


def answers(
    collection, queries: np.ndarray, **options: Any
) -> list[list[tuple[str, float, float]]]:
    """Ids, scores and weights of the ten best, for each query."""
    found = [collection.search(query.tolist(), k=10, **options) for query in queries]
    return [[(hit.id, hit.score, hit.weight) for hit in answer.hits] for answer in found]


def reciprocal_ranks(collection, queries: np.ndarray, labels: Any, **options: Any) -> np.ndarray:
    listed = [[id for id, _, _ in hits] for hits in answers(collection, queries, **options)]
    ranks = [
        ids.index(f"d{at}") if f"d{at}" in ids else np.inf
        for ids, at in zip(listed, labels, strict=True)
    ]
    return 1 / (1 + np.array(ranks))


def versions(collection) -> list[tuple[int, bool]]:
    return [(each.version, each.active) for each in collection.projections()]
