"""Embedding to query or key: matrices with heads, trained or not, versioned by fingerprint."""

from __future__ import annotations

from attend.projection.kinds import given, identity, lsi, mean_gates, pca, spectrum
from attend.projection.projection import RAW_KEYS, Projection

__all__ = [
    "RAW_KEYS",
    "Projection",
    "given",
    "identity",
    "lsi",
    "mean_gates",
    "pca",
    "spectrum",
]
