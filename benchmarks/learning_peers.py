"""Peers of learning: what else one would do with the same examples and the same encoder.

All are trained on (query, relevant document) texts alone: none knows passages, grades or
negative labels.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import common  # noqa: F401  # puts the project on the path
import numpy as np
from numpy.typing import NDArray

from attend.encoder import Encoder

Rows = NDArray[np.float32]

WARM_UP = 0.1
"""Of all steps, those in which the rate rises."""


class Task(NamedTuple):
    """What a peer is given: training queries, the whole corpus, and who is relevant to whom.

    `query_rows` and `document_rows` are the encoder's embeddings in the order of the mappings,
    (q, d) and (n, d); they are made where not given, outside of what is timed.
    """

    queries: Mapping[str, str]
    documents: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, float]]
    encoder: str
    query_rows: Rows | None = None
    document_rows: Rows | None = None

    def pairs(self) -> list[tuple[str, str]]:
        """(query id, document id) of everything relevant; ids without a text are left out."""
        return [
            (query, document)
            for query, judged in self.qrels.items()
            if query in self.queries
            for document, grade in judged.items()
            if grade > 0 and document in self.documents
        ]


@dataclass(frozen=True)
class Peer:
    """A trained peer. Rows of `embed_queries` and `embed_documents` are compared by cosine.

    Attributes:
        training_seconds: of the training alone, models loaded and texts embedded.
        live_seconds: from there until all documents of the task are embedded by the new model;
            0 where documents stay as they are.
        document_rows: (n, d) the task's documents, as `live_seconds` made them.
        details: what was run: library or not, epochs, steps, examples.
    """

    name: str
    embed_queries: Callable[[Sequence[str]], Rows]
    embed_documents: Callable[[Sequence[str]], Rows]
    training_seconds: float
    live_seconds: float
    document_rows: Rows
    details: Mapping[str, Any] = field(default_factory=dict)


# -- the adapter ----------------------------------------------------------------------------


def embedded(task: Task, encoder: Encoder) -> tuple[Rows, Rows]:
    queries, documents = task.query_rows, task.document_rows
    if queries is None:
        queries = encoder.encode_queries(list(task.queries.values()))
    if documents is None:
        documents = encoder.encode_documents(list(task.documents.values()))
    if (len(queries), len(documents)) != (len(task.queries), len(task.documents)):
        raise ValueError(
            f"{len(queries)} query and {len(documents)} document rows were given for "
            f"{len(task.queries)} queries and {len(task.documents)} documents."
        )
    return queries, documents


def unit(rows: Rows) -> Rows:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1), dtype=np.float32)


@contextmanager
def quiet() -> Iterator[None]:
    """What libraries print goes to stderr: a benchmark's stdout is its result."""
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        yield
