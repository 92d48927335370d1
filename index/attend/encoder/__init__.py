"""Text to embedding: any sentence-transformers model, and the passages its window allows.

Importing this package loads neither torch nor a model; `load` does both.
"""

from __future__ import annotations

from attend.encoder.loading import (
    DEFAULT,
    CachedEncoder,
    Encoder,
    SentenceEncoder,
    canonical_name,
    load,
)
from attend.encoder.passages import Passage
from attend.encoder.precision import RECORD, Precision, precisions
from attend.encoder.tokens import EmbeddingCache, TokenStates

__all__ = [
    "DEFAULT",
    "RECORD",
    "CachedEncoder",
    "EmbeddingCache",
    "Encoder",
    "Passage",
    "Precision",
    "SentenceEncoder",
    "TokenStates",
    "canonical_name",
    "load",
    "precisions",
]
