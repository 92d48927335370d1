"""Text to embedding: any sentence-transformers model, and the passages its window allows.

Importing this package loads neither torch nor a model; `load` does both.
"""

from __future__ import annotations

from attend.encoder.cache import EmbeddingCache
from attend.encoder.loading import DEFAULT, canonical_name, load
from attend.encoder.model import CachedEncoder, Encoder, SentenceEncoder
from attend.encoder.passages import Passage
from attend.encoder.tokens import TokenStates

__all__ = [
    "DEFAULT",
    "CachedEncoder",
    "EmbeddingCache",
    "Encoder",
    "Passage",
    "SentenceEncoder",
    "TokenStates",
    "canonical_name",
    "load",
]
