"""Vectors that callers bring, checked and as they are stored."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from attend.core.errors import DimensionMismatch, InvalidRequest
from attend.core.settings import Settings
from attend.core.types import WHOLE, Document, Float32

MAX_ABSOLUTE = 1e15
"""Of a vector's numbers: squares of 1e15, summed over 65,536 dimensions, fit float32."""


def own_vectors(document: Document, name: str, settings: Settings) -> Float32:
    """Return a document's vectors of one name as embeddings (n, d), as `as_embedding` does.

    Raises:
        DimensionMismatch: one has another width than the collection.
        InvalidRequest: one cannot be a key; the sentence names the document.
    """
    subject = f"The vector of the document {document.id!r}"
    field = WHOLE if name == WHOLE else f"vectors.{name}"
    try:
        with np.errstate(over="ignore"):  # what overflows is refused below
            embeddings = np.asarray(document.vectors[name], dtype=np.float32)
    except (TypeError, ValueError):
        embeddings = np.empty((0, 0, 0), dtype=np.float32)
    if embeddings.ndim == 1:
        return as_embedding(embeddings, settings, subject, field)[None]
    if embeddings.ndim != 2 or not len(embeddings):
        raise InvalidRequest(
            f"The vectors {name!r} of the document {document.id!r} are no list of vectors of "
            f"{settings.dimension} numbers; send one vector, or several as a list of lists.",
            field=field,
        )
    return np.stack([as_embedding(row, settings, subject, field) for row in embeddings])


def as_embedding(
    vector: Sequence[float] | Float32,
    settings: Settings,
    subject: str = "The vector",
    field: str = "vector",
) -> Float32:
    """Return a caller's vector as an embedding (d,), at length one if all others are.

    Args:
        subject, field: what an error is about.

    Raises:
        DimensionMismatch: it has another width than the collection.
        InvalidRequest: it holds NaN or infinity, or is all zeros.
    """
    with np.errstate(over="ignore"):  # what overflows is refused below
        embedding = np.asarray(vector, dtype=np.float32)
    if embedding.shape != (settings.dimension,):
        expected, got = settings.dimension, len(vector)
        raise DimensionMismatch(expected=expected, got=got, field=field, subject=subject)
    # In float64, where squares of float32 neither overflow nor vanish; NaN compares as false.
    wide = embedding.astype(np.float64)
    length = math.sqrt(np.dot(wide, wide))
    if not length <= MAX_ABSOLUTE and not np.abs(embedding).max() <= MAX_ABSOLUTE:
        raise InvalidRequest(
            f"{subject} holds NaN, infinity or a number beyond {MAX_ABSOLUTE:g} (products must "
            f"fit 32 bits); send finite numbers, or scale them.",
            field=field,
        )
    if length == 0:
        raise InvalidRequest(
            f"{subject} is all zeros and has no direction, so that nothing can be compared with "
            f"it; send another, or none.",
            field=field,
        )
    return (wide / length).astype(np.float32) if settings.unit_embeddings else embedding
