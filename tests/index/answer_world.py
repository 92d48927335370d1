"""Collections of vectors with values, as the tests of learned answers have them."""

from __future__ import annotations

import numpy as np

from attend.api.base import parse
from attend.api.search import SearchRequest
from tests.index.helpers import vector_data

WIDTH = 24


def told_apart(rng, count, noise=0.6, classes=4):
    """Vectors of which the first few numbers tell the class, and the others nothing."""
    labels = rng.integers(0, classes, count)
    shown = np.eye(classes)[labels] + 0.3 * rng.standard_normal((count, classes))
    rest = noise * rng.standard_normal((count, WIDTH - classes))
    return np.hstack([shown, rest]), labels


def stored(folder, vectors, values, **settings):
    """A collection of vectors with values."""
    collection = vector_data(folder).create(
        "default", encoder=None, dimension=len(vectors[0]), normalize=True, **settings
    )
    documents = [
        {"id": f"d{at}", "vector": [float(x) for x in vector], "value": value}
        for at, (vector, value) in enumerate(zip(vectors, values, strict=True))
    ]
    collection.upsert(documents)
    return collection


def asked(collection, vectors, **options):
    searches = [
        parse(
            SearchRequest,
            {
                "query": {"vector": [float(x) for x in vector]},
                "mode": "soft",
                "min_confidence": 0,
                **options,
            },
        )
        for vector in vectors
    ]
    return [
        answer
        for at in range(0, len(searches), 200)
        for answer in collection.search_many(searches[at : at + 200])
    ]


def named(labels):
    return [f"label {label}" for label in labels]
