"""Embedding to query or key: matrices with heads, trained or not, versioned by fingerprint."""

from __future__ import annotations

from attend.projection.kinds import (
    Spectrum,
    given,
    identity,
    lsi,
    mean_gates,
    pca,
    spectrum,
    split_heads,
)
from attend.projection.projection import RAW_KEYS, Asked, Projection
from attend.projection.tensors import KINDS

__all__ = [
    "KINDS",
    "RAW_KEYS",
    "Asked",
    "Projection",
    "Spectrum",
    "given",
    "identity",
    "lsi",
    "mean_gates",
    "pca",
    "spectrum",
    "split_heads",
]
