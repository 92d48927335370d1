"""Documents as callers send them: texts, own vectors, a value and a payload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeAlias

import numpy as np
from pydantic import BeforeValidator, Field, JsonValue, model_validator

from attend.api.base import (
    MAX_DOCUMENTS,
    DocumentId,
    JoinedText,
    Request,
    Vector,
    WrongField,
)
from attend.core.errors import InvalidRequest
from attend.core.types import WHOLE, Document

MAX_TEXTS = 64
"""Texts of one document, by name."""

MAX_VECTORS = 1024
"""Own vectors of one document under one name."""


def _by_name(vectors: object) -> object:
    """Return vectors by name; those without one are of the whole document."""
    if isinstance(vectors, Mapping):
        return {name: _listed(item) for name, item in vectors.items()}
    return {WHOLE: _listed(vectors)}


def _listed(vectors: object) -> object:
    """Return one vector or several as a list of vectors."""
    items = vectors.tolist() if isinstance(vectors, np.ndarray) else vectors
    is_one = isinstance(items, list | tuple) and items and isinstance(items[0], int | float)
    return [items] if is_one else items


VectorList = Annotated[list[Vector], Field(min_length=1, max_length=MAX_VECTORS)]
NamedVectors = Annotated[
    dict[str, VectorList],
    Field(min_length=1, max_length=MAX_TEXTS),
    BeforeValidator(_by_name, json_schema_input_type=VectorList | dict[str, Vector | VectorList]),
]


class DocumentRequest(Request):
    """One document to store: its texts, its own vectors or both, and what to return for it.

    A document without text and vector is stored and found by filters, and by no search.
    """

    id: DocumentId
    text: JoinedText | None = None
    """Short for fields: {text: …}. A list of strings is joined by commas."""
    fields: dict[str, JoinedText] | None = Field(None, min_length=1, max_length=MAX_TEXTS)
    """Texts by name. A collection with an encoder encodes each, so that each has its own keys;
    words, `match`, highlights and titles are of them in any collection."""
    vector: Vector | None = None
    """An own embedding of the whole document; its texts are then not encoded."""
    vectors: NamedVectors | None = None
    """Several own embeddings: a list stands for the whole document, as `vector` does; an object has
    one or several for each text field, and other fields are encoded as usual."""
    value: JsonValue = None
    """The value to return for it."""
    payload: dict[str, JsonValue] = Field(default_factory=dict)
    """Fields for filters and displays."""

    @model_validator(mode="after")
    def _consistent(self) -> DocumentRequest:
        for pair in (("text", "fields"), ("vector", "vectors")):
            if all(getattr(self, name) is not None for name in pair):
                sentence = f"a document has {pair[0]} or {pair[1]}; both were given"
                raise WrongField(pair[1], sentence)
        blank = [name for name, text in self.texts().items() if not text.strip()]
        if blank:
            raise ValueError(f"the text of {', '.join(blank)} is empty")
        return self

    def texts(self) -> dict[str, str]:
        """Return the texts by field."""
        if self.fields is not None:
            return dict(self.fields)
        return {"text": self.text} if self.text else {}

    def document(self) -> Document:
        vectors: Mapping[str, Any] = self.vectors or {}
        if self.vector is not None:
            vectors = {WHOLE: self.vector}
        return Document(self.id, self.texts(), vectors, self.value, self.payload)


class UpsertRequest(Request):
    """Documents to insert or replace: all of them or, if one is wrong, none."""

    documents: list[DocumentRequest] = Field(max_length=MAX_DOCUMENTS)

    @property
    def parsed(self) -> Sequence[Document]:
        """The documents as collections take them."""
        return [item.document() for item in self.documents]


@dataclass(frozen=True)
class ArrowDocuments:
    """The documents of a body in Arrow's format, as `UpsertRequest` has those of JSON."""

    parsed: Sequence[Document]


class ArrowTable(Protocol):
    """A table that Arrow can read: of pandas, Polars, DuckDB or pyarrow itself."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


Documents: TypeAlias = Iterable[Document | Mapping[str, Any]] | ArrowTable
"""Documents as a caller has them: each with the fields of `DocumentRequest`, or a table of them."""


@contextmanager
def located(place: int, id: object) -> Iterator[None]:
    """Let an error of one document begin with its position and its id."""
    try:
        yield
    except InvalidRequest as error:
        fault = InvalidRequest(f"documents.{place} (id {id!r:.80}): {error}", field=error.field)
        fault.details = [
            {**detail, "field": f"documents.{place}.{detail['field']}"} for detail in error.details
        ]
        raise fault from None
