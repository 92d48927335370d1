"""Documents and what they answer, as arrays to learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from attend.api.learning import TrainRequest
from attend.collection import Collection
from attend.errors import InvalidRequest
from attend.learn.answers.targets import Answers, Targets
from attend.learn.data import twins
from attend.search.values import KEY, TYPE_SAMPLE, check_path, declared_type, value_of
from attend.store import StoredDocument
from attend.training.gather import memory_of
from attend.types import Int64, Json
from attend.values import ValueType, infer

FEWEST = 20
"""Documents with values: fewer prove nothing (see `request.FEWEST_QUESTIONS`)."""

MOST_DOCUMENTS = 20_000
"""What is learned from; of more, a sample."""

TWIN_COSINE = 0.98
"""Documents nearer than this say the same but for case and stops: they share a fold, and are no
memory of each other."""

BLOCK = 4096
"""Documents read at once."""

LABELLED = ("category", "labels", "boolean")
NUMERIC = ("number", "vector")


class Material(NamedTuple):
    """What is learned from, and figures about it; or why nothing can be.

    Attributes:
        texts: (n,) of each document, as it is searched by words; empty without any.
    """

    answers: Answers | None
    reason: str
    figures: Mapping[str, Json]
    texts: Sequence[str] = ()


def gathered(collection: Collection, request: TrainRequest) -> Material:
    """Read documents, their keys and what they answer.

    Raises:
        InvalidRequest: the value named is one that no answer can be learned for.
    """
    documents, type = _read(collection, request)
    figures: dict[str, Json] = {"documents": collection.store.counts()[0], "kind": type.kind}
    reason = _unblended(type)
    if reason is not None:
        return Material(None, reason, figures)
    rows, values = _usable(documents, request.value, type.kind)
    figures["values"] = len(rows)
    if len(rows) < FEWEST:
        reason = (
            f"{len(rows)} documents have a value to learn from, and {FEWEST} are the fewest from "
            f"which a gain can be proved; add more."
        )
        return Material(None, reason, figures)
    kept = sampled(np.arange(len(rows)), MOST_DOCUMENTS, np.random.default_rng(request.seed))
    targets = _targets([values[at] for at in kept.tolist()], type.kind)
    if targets is None:
        return Material(None, "All values are the same, and every answer is right.", figures)
    fields = {each.row: each.fields for each in documents}
    texts = ["\n".join(fields[row].values()) for row in rows[kept].tolist()]
    return Material(_answers(collection, rows[kept], targets), "", figures, texts)


def _unblended(type: ValueType) -> str | None:
    """Why answers of this type are not blended, if so."""
    if type.kind == "object":
        names = ", ".join(type.fields or {})
        raise InvalidRequest(
            f"The values are objects; name the field to learn, one of {names}.", field="value"
        )
    if type.kind in (*LABELLED, *NUMERIC):
        return None
    return (
        f"The values are of the kind {type.kind!r}, which answers list and do not blend; only "
        f"labels that repeat, numbers and vectors can be learned."
    )


def _read(collection: Collection, request: TrainRequest) -> tuple[list[StoredDocument], ValueType]:
    """All documents, and the type of what they answer, as a search would have it."""
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
    type = declared_type(collection.settings, path)
    if type is not None:
        return documents, type
    return documents, infer([value_of(each, path) for each in store.sample(TYPE_SAMPLE)])


def _usable(
    documents: Sequence[StoredDocument], path: str | None, kind: str
) -> tuple[Int64, list[Any]]:
    """Rows of the documents whose value has the kind, ascending, and those values."""
    held: list[tuple[int, Any]] = [(each.row, value_of(each, path)) for each in documents]
    alike = _ALIKE.get(kind, (kind,))
    found = [
        (row, value) for row, value in held if value is not None and infer([value]).kind in alike
    ]
    if kind == "vector" and found:
        widths = [len(value) for _, value in found]
        usual = max(set(widths), key=widths.count)
        found = [(row, value) for row, value in found if len(value) == usual]
    return np.array([row for row, _ in found], dtype=np.int64), [value for _, value in found]


_ALIKE = {"category": ("category", "text", "image")}
"""A single string says nothing of whether it repeats."""


def _targets(values: Sequence[Any], kind: str) -> Targets | None:
    """Values as shares of labels or as numbers; None where they are all the same."""
    if kind in NUMERIC:
        numbers = np.array(values, dtype=np.float64).reshape(len(values), -1)
        spread = float(np.sqrt(numbers.var(axis=0).mean()))
        if spread == 0:
            return None
        centred = (numbers - numbers.mean(axis=0)) / spread
        center = numbers.mean(axis=0)
        return Targets(numbers=centred.astype(np.float32), center=center, spread=spread)
    labels = [tuple(dict.fromkeys(each)) if kind == "labels" else (each,) for each in values]
    names, columns = np.unique([str(name) for each in labels for name in each], return_inverse=True)
    if len(names) < 2:
        return None
    counts = np.array([len(each) for each in labels])
    shares = np.repeat(1 / counts, counts).astype(np.float32)
    pointers = np.concatenate([[0], np.cumsum(counts)])
    shape = len(labels), len(names)
    return Targets(shares=sparse.csr_array((shares, columns, pointers), shape=shape))


def _answers(collection: Collection, rows: Int64, targets: Targets) -> Answers:
    """The keys of some documents (rows ascending), with what they answer."""
    memory, settings = memory_of(collection, rows), collection.settings
    if not np.array_equal(memory.rows, rows):
        raise InvalidRequest("Documents went while they were read; train again.")
    totals = np.add.reduceat(memory.embeddings, memory.starts)
    queries = (totals / memory.counts[:, None]).astype(np.float32)
    if settings.unit_embeddings:
        length = np.linalg.norm(queries, axis=1, keepdims=True)
        queries = (queries / np.where(length == 0, 1, length)).astype(np.float32)
    return Answers(memory, queries, twins(queries, TWIN_COSINE), targets)


def sampled(given: Int64, most: int, random: np.random.Generator) -> Int64:
    """Some of what is given, ascending; all if there are no more than `most`."""
    if len(given) <= most:
        return given
    return np.sort(random.choice(given, most, replace=False))
