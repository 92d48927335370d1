"""An encoder whose embeddings a test can work out: the mean of one fixed vector per word."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.soak.load import WORDS

WIDTH = 24
VECTORS = np.random.default_rng(7).standard_normal((len(WORDS) + 1, WIDTH)).astype(np.float32)
"""The first is that of an unknown word."""


def save(folder: Path, vectors: np.ndarray = VECTORS) -> None:
    """A real sentence-transformers model."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: at for at, word in enumerate(["?", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, vectors)], device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)


def embed(texts: Sequence[str]) -> np.ndarray:
    """(n, WIDTH), of length one."""
    rows = [[WORDS.index(word) + 1 for word in text.split()] for text in texts]
    means = np.array([VECTORS[row].astype(np.float64).mean(axis=0) for row in rows])
    unit: np.ndarray = means / np.linalg.norm(means, axis=1, keepdims=True)
    return unit
