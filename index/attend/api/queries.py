"""Queries: a text, a vector, stored documents, or several of these.

A blend is one query, the weighted mean of its parts. In a mixture each part attends
by itself, and their attention is mixed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator, Field, FiniteFloat, model_validator

from attend.api.base import DocumentId, Request, Text, Vector, check_one

MAX_PARTS = 1000
"""Documents or parts of one query."""


class QueryPart(Request):
    """One part of a blend: a text, a vector, both or a document id, and its weight."""

    text: Text | None = None
    vector: Vector | None = None
    """Compared with the keys; a text beside it is for BM25 and highlights, and is not encoded."""
    id: DocumentId | None = None
    weight: FiniteFloat = Field(1.0, ge=-1e6, le=1e6)
    """Its share, relative to the others'; below zero it pushes away."""

    @model_validator(mode="after")
    def _exactly_one(self) -> QueryPart:
        if self.id is not None or (self.text is None and self.vector is None):
            check_one(self, "a part of a blend", ("text", "vector", "id"))
        return self


class MixturePart(QueryPart):
    """One part of a mixture, which attends by itself."""

    weight: FiniteFloat = Field(1.0, ge=0, le=1e6)
    """Its share of the attention, relative to the others'."""


def _spelled_out(query: object) -> object:
    """Return a query that is only a text or a vector as an object."""
    if isinstance(query, str):
        return {"text": query}
    return {"vector": query} if isinstance(query, list | tuple | np.ndarray) else query


Parts = Annotated[
    list[
        Annotated[
            QueryPart,
            BeforeValidator(_spelled_out, json_schema_input_type=Text | Vector | QueryPart),
        ]
    ],
    Field(min_length=1, max_length=MAX_PARTS),
]


MixtureParts = Annotated[
    list[
        Annotated[
            MixturePart,
            BeforeValidator(_spelled_out, json_schema_input_type=Text | Vector | MixturePart),
        ]
    ],
    Field(min_length=1, max_length=MAX_PARTS),
]


class Query(Request):
    """A query spelled out: one of text, vector, id, ids, blend and mixture, or text and vector."""

    text: Text | None = None
    vector: Vector | None = None
    """Compared with the keys; a text beside it is for BM25 and highlights, and is not encoded."""
    id: DocumentId | None = None
    """More like this document."""
    ids: list[DocumentId] | None = Field(None, min_length=1, max_length=MAX_PARTS)
    """More like these documents: a blend of them, with equal weights."""
    blend: Parts | None = None
    """Several queries as one: the weighted mean of embeddings and word scores."""
    mixture: MixtureParts | None = None
    """Several queries, each with its own attention; a document's weight is the weighted mean of its
    weights, and `explain` adds the share of each part."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Query:
        others = [self.id, self.ids, self.blend, self.mixture]
        if (self.text is None and self.vector is None) or others != [None] * 4:
            check_one(self, "a query", ("text", "vector", "id", "ids", "blend", "mixture"))
        for name in ("blend", "mixture"):
            parts = getattr(self, name)
            if parts is not None and not any(part.weight for part in parts):
                raise ValueError(f"every weight of the {name} is zero; give one that is not")
        return self

    def parts(self) -> Sequence[QueryPart]:
        """Return the parts of the query; their absolute weights sum to one."""
        weighed = self.blend or self.mixture
        if weighed is not None:
            total = math.fsum(abs(part.weight) for part in weighed)
            shares = [(part, part.weight / total) for part in weighed]
            return [part.model_copy(update={"weight": share}) for part, share in shares]
        if self.ids is not None:
            share = 1 / len(self.ids)
            return [QueryPart(id=id, weight=share) for id in self.ids]
        return [QueryPart.model_construct(text=self.text, vector=self.vector, id=self.id)]


AnyQuery = Annotated[
    Query,
    BeforeValidator(_spelled_out, json_schema_input_type=Text | Vector | Query),
    Field(
        description='Text, a vector, or one of {"text": …}, {"vector": […]}, {"id": …}, '
        '{"text": …, "vector": […]} (the text for words, the vector for keys), '
        '{"ids": […]}, {"blend": [{"text": …, "weight": 2}, {"id": …, "weight": -1}]} and '
        '{"mixture": [{"id": …}, {"text": …, "weight": 2}]}.'
    ),
]
