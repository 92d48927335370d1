"""Documents with their values and their words, as arrays to learn from values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from attend.api.learning import TrainRequest
from attend.collection.stored import StoredCollection
from attend.core.arrays import unit
from attend.core.errors import InvalidRequest
from attend.core.types import Int64, Json
from attend.learning.answer_fit import Answers, AnswerTargets
from attend.learning.blends import Words
from attend.learning.data import twins
from attend.learning.held_out import DocumentFold, sampled
from attend.learning.material import memory_of
from attend.learning.task import FEWEST_QUESTIONS, NothingToLearn
from attend.search.values import KEY, TYPE_SAMPLE, check_path, declared_types, value_of
from attend.store import CollectionStore, StoredDocument
from attend.values import ValueType, infer

MOST_DOCUMENTS = 20_000
"""What is learned from; of more, a sample."""

TWIN_COSINE = 0.98
"""Documents nearer than this say the same but for case and stops: they share a fold, and are no
memory of each other."""

BLOCK = 4096
"""Documents read at once."""

TEXTS = 64
"""Texts looked up at once: the matches of each can be as many as the collection has documents."""

LABELLED = ("category", "labels", "boolean")
NUMERIC = ("number", "vector")

ALIKE = {"category": ("category", "text", "image")}
"""Kinds of a single value: one string does not show that it repeats."""


class AnswerMaterial(NamedTuple):
    """Documents with values, and figures about them.

    Attributes:
        texts: (n,) of each document, as it is searched by words; empty without any.
    """

    answers: Answers
    figures: Mapping[str, Json]
    texts: Sequence[str]


def read_answers(collection: StoredCollection, request: TrainRequest) -> AnswerMaterial:
    """Read documents, their keys and their values.

    Raises:
        InvalidRequest: the named value is one that no answer can be learned for.
        NothingToLearn: too few documents have values that can be blended.
    """
    documents, type = _read(collection, request)
    figures: dict[str, Json] = {"documents": collection.store.counts()[0], "kind": type.kind}
    if type.kind not in (*LABELLED, *NUMERIC):
        raise NothingToLearn(
            f"The values are of the kind {type.kind!r}, which answers list and do not blend; only "
            f"labels that repeat, numbers and vectors can be learned.",
            figures,
        )
    rows, values = _usable(documents, request.value, type.kind)
    figures["values"] = len(rows)
    if len(rows) < FEWEST_QUESTIONS:
        raise NothingToLearn(
            f"{len(rows)} documents have a value to learn from, and {FEWEST_QUESTIONS} are the "
            f"fewest from which a gain can be proved; add more.",
            figures,
        )
    random = np.random.default_rng(request.seed)
    members = sampled(np.arange(len(rows)), MOST_DOCUMENTS, random)
    targets = _targets([values[index] for index in members.tolist()], type.kind)
    if targets is None:
        raise NothingToLearn("All values are the same, and every answer is right.", figures)
    fields = {document.row: document.fields for document in documents}
    texts = ["\n".join(fields[row].values()) for row in rows[members].tolist()]
    return AnswerMaterial(_answers(collection, rows[members], targets), figures, texts)


def _read(
    collection: StoredCollection, request: TrainRequest
) -> tuple[list[StoredDocument], ValueType]:
    """Read all documents, and the type of their values, as a search would have it."""
    path, store = request.value, collection.store
    if path == KEY:
        raise InvalidRequest(
            f"value is {path!r}, but a key answers nothing that could be right or wrong; name a "
            f"field of the values.",
            field="value",
        )
    documents: list[StoredDocument] = []
    while block := store.scroll(documents[-1].row if documents else 0, BLOCK):
        documents += block
    check_path(path, documents)
    type = declared_types(collection.settings).get(path) or infer(
        [value_of(document, path) for document in store.sample(TYPE_SAMPLE)]
    )
    if type.kind == "object":
        names = ", ".join(type.fields or {})
        raise InvalidRequest(
            f"The values are objects; name the field to learn, one of {names}.", field="value"
        )
    return documents, type


def _usable(
    documents: Sequence[StoredDocument], path: str | None, kind: str
) -> tuple[Int64, list[Any]]:
    """Return rows of the documents whose value has the kind, ascending, and those values."""
    kinds = ALIKE.get(kind, (kind,))
    pairs: list[tuple[int, Any]] = [
        (document.row, value_of(document, path)) for document in documents
    ]
    pairs = [
        (row, value) for row, value in pairs if value is not None and infer([value]).kind in kinds
    ]
    if kind == "vector" and pairs:
        widths = [len(value) for _, value in pairs]
        usual = max(set(widths), key=widths.count)
        pairs = [(row, value) for row, value in pairs if len(value) == usual]
    return np.array([row for row, _ in pairs], dtype=np.int64), [value for _, value in pairs]


def _targets(values: Sequence[Any], kind: str) -> AnswerTargets | None:
    """Return values as shares of labels or as numbers; None where they are all the same."""
    if kind in NUMERIC:
        numbers = np.array(values, dtype=np.float64).reshape(len(values), -1)
        center, spread = numbers.mean(axis=0), float(np.sqrt(numbers.var(axis=0).mean()))
        if spread == 0:
            return None
        centred = ((numbers - center) / spread).astype(np.float32)
        return AnswerTargets(numbers=centred, center=center, spread=spread)
    labels = [tuple(dict.fromkeys(value)) if kind == "labels" else (value,) for value in values]
    everything = [str(label) for document in labels for label in document]
    names, columns = np.unique(everything, return_inverse=True)
    if len(names) < 2:
        return None
    counts = np.array([len(document) for document in labels])
    shares = np.repeat(1 / counts, counts).astype(np.float32)
    pointers = np.concatenate([[0], np.cumsum(counts)])
    shape = len(labels), len(names)
    return AnswerTargets(shares=sparse.csr_array((shares, columns, pointers), shape=shape))


def _answers(collection: StoredCollection, rows: Int64, targets: AnswerTargets) -> Answers:
    """Return the keys of some documents (rows ascending), with their values."""
    memory = memory_of(collection, rows)
    if not np.array_equal(memory.rows, rows):
        raise InvalidRequest("Documents went while they were read; train again.")
    queries = memory.with_vectors(memory.vectors).means()
    if collection.settings.unit_embeddings:
        queries = unit(queries)
    return Answers(memory, queries, twins(queries, TWIN_COSINE), targets)


def shared_words(
    fold: DocumentFold,
    store: CollectionStore,
    rows: Int64,
    texts: Sequence[str],
    watch: Callable[[], None],
) -> Words:
    """Return the words that held-out documents share with those that answer them.

    A query's best is that among the members: itself it would find first, and a new query does
    not find itself.

    Args:
        rows, texts: of all documents (n,), rows ascending.
        watch: called often; may raise to stop.
    """
    shares = np.zeros((len(fold.held_out), len(fold.members)), dtype=np.float16)
    coverage = np.zeros(len(fold.held_out), dtype=np.float32)
    members = rows[fold.members]
    for start in range(0, len(fold.held_out), TEXTS):
        watch()
        queries = fold.held_out[start : start + TEXTS].tolist()
        matches = store.lexical_many([texts[query] for query in queries])
        for query, match in enumerate(matches, start):
            index = np.minimum(np.searchsorted(members, match.rows), len(members) - 1)
            there = members[index] == match.rows
            best = float(match.scores[there].max(initial=0.0))
            if best > 0:
                shares[query, index[there]] = match.scores[there] / best
                coverage[query] = min(1.0, best / match.ideal)
    return Words(shares, coverage)
