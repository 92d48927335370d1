"""What the tests of learning share: memories and questions drawn at random, and plain formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from attend.learning.data import Memory, Questions


def unit(vectors: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(length == 0, 1, length)


def memory_from(vectors, starts, ids, rows, unit: bool) -> Memory:
    """A memory from where each document's keys begin (n,)."""
    return Memory(rows, np.append(starts, len(vectors)), vectors, ids, unit=unit)


def memory_of(
    counts: list[int], width: int, seed: int = 0, *, at_length_one: bool = True
) -> Memory:
    """Documents with so many keys each."""
    rng = np.random.default_rng(seed)
    embeddings = rng.normal(size=(sum(counts), width))
    embeddings = unit(embeddings) if at_length_one else embeddings
    starts = np.cumsum([0, *counts[:-1]]).astype(np.int64)
    rows = 3 + 2 * np.arange(len(counts), dtype=np.int64)
    ids = 100 + np.arange(len(embeddings), dtype=np.int64)
    return memory_from(embeddings.astype(np.float32), starts, ids, rows, at_length_one)


def sparse_of(dense: Any) -> Any:
    found = sparse.csr_array(np.asarray(dense, dtype=np.float32))
    found.sort_indices()
    return found


def questions_of(
    embeddings: Any, grades: Any, *, judged: Any = None, lexical: Any = None, coverage: Any = None
) -> Questions:
    """Questions from dense matrices (q, n): grades above zero are relevant."""
    grades = np.asarray(grades, dtype=np.float32)
    said = np.asarray(grades > 0 if judged is None else judged, dtype=np.float32)
    words = np.zeros_like(grades) if lexical is None else lexical
    covered = np.ones(len(grades)) if coverage is None else coverage
    return Questions(
        np.asarray(embeddings, dtype=np.float32),
        sparse_of(grades * (grades > 0)),
        sparse_of(said),
        sparse_of(words),
        np.asarray(covered, dtype=np.float32),
    )


def drawn_questions(
    count: int,
    documents: int,
    width: int,
    seed: int,
    *,
    share: float = 0.05,
    negatives: float = 0.0,
    at_length_one: bool = True,
) -> Questions:
    """Questions of grades 1 to 3, at least one each, and some negative labels."""
    rng = np.random.default_rng(seed)
    grades = rng.integers(1, 4, (count, documents)) * (rng.random((count, documents)) < share)
    grades[np.arange(count), rng.integers(0, documents, count)] = 1
    judged = (grades > 0) | (rng.random(grades.shape) < negatives)
    embeddings = rng.normal(size=(count, width))
    words = rng.random(grades.shape) * (rng.random(grades.shape) < 0.3)
    return questions_of(
        unit(embeddings) if at_length_one else embeddings,
        grades,
        judged=judged,
        lexical=words,
        coverage=rng.random(count),
    )


def communities(rng, users: int = 240, documents: int = 60, groups: int = 4, told: bool = True):
    """Users who meet what is of their group; texts tell groups in a few directions, or nothing."""
    group = np.arange(documents) % groups
    noise = rng.normal(size=(documents, 12))
    signal = np.eye(groups)[group] * 1.0 if told else rng.normal(size=(documents, groups)) * 0.1
    embeddings = unit(np.hstack([signal, noise])).astype(np.float32)
    starts = np.arange(documents, dtype=np.int64)
    memory = memory_from(embeddings, starts, starts + 100, starts + 1, True)
    own = group[None] == rng.integers(0, groups, users)[:, None]
    dense = (rng.random((users, documents)) < 0.5) & own
    return memory, sparse_of(dense), group
