"""What is stored, as arrays to learn from: keys, and examples with their questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from attend.api.learning import TrainRequest
from attend.collection import Collection
from attend.errors import InvalidRequest
from attend.feedback import propensity
from attend.learn.data import Memory, Questions, Sparse
from attend.store import ExampleSet, Lexical, compile_filter
from attend.types import Bool, Float32, Float64, Int64, Json

MOST_QUESTIONS = 10_000
MOST_DOCUMENTS = 100_000
"""What is learned from at once; beyond, a sample with every document that examples speak of."""

MOST_MATCHES = 50_000_000
FEWEST_MATCHES = 1000
"""Documents that share words with questions, of all together and of one: 400 MB and no less than
ten times as many as can come into an answer."""

LEAST_PROPENSITY = 0.1
"""A click far down the page counts no more than ten at the top: one must not outvote them all."""


@dataclass(frozen=True)
class Material:
    """What a training learns from.

    Attributes:
        known: which questions and judgements the active version learned from.
    """

    memory: Memory
    questions: Questions
    known: Questions
    figures: Mapping[str, Json]


def gathered(collection: Collection, last: int, request: TrainRequest) -> Material:
    """Read examples and keys.

    Args:
        last: the last example that the active version learned from.
    """
    with collection.store.reading():  # all of one moment
        learned = collection.store.examples()
        memory = memory_of(collection, _wanted(collection, learned, request.seed))
        labels = _labels(learned, memory)
        kept = _most(labels(learned.ids >= 0)[0], request.seed)
        lexical, coverage = _lexical(collection, [learned.texts[at] for at in kept], memory)
        documents = collection.store.counts()[0]

    def questions(chosen: Bool) -> Questions:
        relevant, judged = (each[kept] for each in labels(chosen))
        return Questions(learned.embeddings[kept], relevant, judged, lexical, coverage)

    figures: dict[str, Json] = {
        "questions": len(learned.texts),
        "examples": len(learned.ids),
        "documents": documents,
        "last_example": int(learned.ids.max(initial=-1)),
    }
    everything, known = questions(learned.ids >= 0), questions(learned.ids <= last)
    return Material(memory, everything, known, figures)


def _labels(learned: ExampleSet, memory: Memory) -> Callable[[Bool], tuple[Sparse, Sparse]]:
    """Of some of the examples (e,): what is relevant to each question, and all that was judged."""
    at = np.minimum(np.searchsorted(memory.rows, learned.rows), memory.documents - 1)
    there = memory.rows[at] == learned.rows
    shape = len(learned.texts), memory.documents
    weights = _debiased(learned)

    def labels(chosen: Bool) -> tuple[Sparse, Sparse]:
        chosen = chosen & there
        place = learned.questions[chosen], at[chosen]
        grades = np.maximum(weights[chosen], 0).astype(np.float32)
        against = (1 + np.maximum(-weights[chosen], 0)).astype(np.float32)
        relevant = sparse.csr_array((grades, place), shape=shape)
        relevant.eliminate_zeros()
        return _sorted(relevant), _sorted(sparse.csr_array((against, place), shape=shape))

    return labels


def memory_of(collection: Collection, wanted: Int64 | None) -> Memory:
    """The keys of the documents of some rows, ascending; of all if None."""
    with collection.store.all_keys() as (_, batches):
        kept = []
        for batch in batches:
            chosen = slice(None) if wanted is None else np.isin(batch.documents, wanted)
            kept.append((batch.ids[chosen], batch.documents[chosen], batch.embeddings[chosen]))
    if not kept:
        raise InvalidRequest(
            f"The collection {collection.name!r} has no documents to learn about; add some."
        )
    ids, documents, embeddings = (np.concatenate(part) for part in zip(*kept, strict=True))
    rows, starts = np.unique(documents, return_index=True)
    unit = collection.settings.unit_embeddings or collection.settings.scorer == "cosine"
    return Memory(np.ascontiguousarray(embeddings), starts.astype(np.int64), ids, rows, unit)


def start_of(memory: Memory, dimensions: int | None) -> Float32:
    """Where W_Q and W_K begin: the identity, or the directions in which embeddings vary most."""
    width = memory.embeddings.shape[1]
    if dimensions is None:
        return np.eye(width, dtype=np.float32)
    if dimensions > width:
        raise InvalidRequest(
            f"dimensions is {dimensions}, but embeddings have {width}; send at most that.",
            field="dimensions",
        )
    # Uncentred, as scores are inner products: the best approximation of all of them (Eckart
    # and Young 1936).
    moments = memory.embeddings.T.astype(np.float64) @ memory.embeddings
    _, directions = np.linalg.eigh(moments)
    return np.ascontiguousarray(directions[:, ::-1][:, :dimensions].T.astype(np.float32))


def _wanted(collection: Collection, learned: ExampleSet, seed: int) -> Int64 | None:
    """Rows of the documents to learn about; None for all."""
    if collection.store.counts()[0] <= MOST_DOCUMENTS:
        return None
    rows = collection.store.matching(compile_filter({}))
    drawn = np.random.default_rng(seed).choice(rows, MOST_DOCUMENTS, replace=False)
    return np.union1d(drawn, learned.rows)


def _debiased(learned: ExampleSet) -> Float64:
    """Weights (e,) by inverse propensity where the place on the page is known."""
    shown = (learned.positions > 0) & (learned.weights > 0)
    weights = learned.weights.copy()
    weights[shown] /= [
        max(propensity(int(at), 1.0), LEAST_PROPENSITY) for at in learned.positions[shown]
    ]
    return weights


def _wordless(text: str, limit: int | None = None) -> Lexical:
    """Of an engine that does not know which words documents have."""
    return Lexical(np.empty(0, dtype=np.int64), np.empty(0), 0.0, 0.0, ())


def _lexical(
    collection: Collection, texts: Sequence[str | None], memory: Memory
) -> tuple[Sparse, Float32]:
    """BM25 over each question's maximum (q, n), and its coverage (q,).

    Of each question the best documents by words, as many as there is room for.
    """
    room = max(FEWEST_MATCHES, MOST_MATCHES // max(1, len(texts)))
    words = collection.store.lexical if collection.capabilities.lexical else _wordless
    pointers, columns, shares, coverage = [0], [], [], []
    for text in texts:
        found = words(text or "", room)
        some = len(found.rows) > 0 and found.maximum > 0
        at = np.minimum(np.searchsorted(memory.rows, found.rows), memory.documents - 1)
        kept = (memory.rows[at] == found.rows) & some
        columns.append(at[kept].astype(np.int32))
        shares.append((found.scores[kept] / (found.maximum or 1)).astype(np.float32))
        pointers.append(pointers[-1] + int(kept.sum()))
        coverage.append(min(1.0, found.maximum / found.ideal) if some else 0.0)
    shape = len(texts), memory.documents
    if not columns:
        return sparse.csr_array(shape, dtype=np.float32), np.zeros(0, dtype=np.float32)
    entries = np.concatenate(shares), np.concatenate(columns), np.array(pointers)
    return sparse.csr_array(entries, shape=shape), np.array(coverage, dtype=np.float32)


def _most(relevant: Sparse, seed: int) -> Int64:
    """Which questions to learn from: those with anything relevant, or a sample of them."""
    usable = np.flatnonzero(np.diff(relevant.indptr) > 0)
    if len(usable) <= MOST_QUESTIONS:
        return usable
    return np.sort(np.random.default_rng(seed).choice(usable, MOST_QUESTIONS, replace=False))


def _sorted(matrix: Any) -> Sparse:
    matrix.sort_indices()
    return matrix
