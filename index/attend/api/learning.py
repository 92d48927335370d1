"""Requests to learn: trainings, feedback, and comparisons of versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, FiniteFloat, model_validator

from attend.api.base import MAX_DOCUMENTS, MAX_PAGE, MAX_ROW, DocumentId, Request
from attend.api.queries import AnyQuery, Query
from attend.store import Role
from attend.types import MAX_WEIGHT, Example

Objective = Literal["ranking", "answers", "interactions", "ratings"]

OBJECTIVE_ROLES: Mapping[Objective, Role] = {
    "ranking": "search",
    "answers": "search",
    "interactions": "recommend",
    "ratings": "predict",
}
"""The role in which a version answers that was trained for an objective."""

Part = Literal["matrices", "offsets", "examples", "words"]

PARTS: tuple[Part, ...] = ("matrices", "offsets", "examples", "words")
"""What may take part in an answer: W_Q and W_K, learned key offsets, example queries as keys, and
BM25 (hybrid)."""


class TrainRequest(Request):
    """How to train; every field has a default."""

    objective: Objective = Field(
        "ranking",
        description="ranking: find what examples call relevant; answers: make the blended value "
        "right, learned from the stored values themselves; interactions: recommend what comes "
        "next, learned from what users met; ratings: predict what a user would give a document, "
        "learned from the numbers they gave others.",
    )
    value: str | None = Field(
        None, max_length=256, description="With answers: a field of the value, else all of it."
    )
    share_seen: float = Field(
        0.5, ge=0, le=1, description="Of queries in use, those about documents in the examples."
    )
    dimensions: int | None = Field(
        None, ge=1, le=65_536, description="Width of projected keys; that of embeddings if absent."
    )
    heads: int | None = Field(
        None,
        ge=1,
        le=1,
        description="1: one head is learned. A version of several heads is added with its "
        "matrices.",
    )
    parts: list[Part] = Field(
        list(PARTS),
        min_length=1,
        max_length=len(PARTS),
        description="What may be learned and take part: W_Q and W_K (matrices), learned key "
        "offsets, example queries as keys, and BM25 (words). With matrices alone, all of it can "
        "be exported.",
    )
    error_rate: float = Field(
        0.05, gt=0, lt=1, description="Answerable queries that may be told there is no answer."
    )
    seed: int = Field(0, ge=0, lt=2**32, description="Of all that is drawn.")
    promote: bool = Field(True, description="False: store what was learned, activate nothing.")

    @model_validator(mode="after")
    def _parts_can_be_learned(self) -> TrainRequest:
        if self.objective != "ranking" and "parts" in self.model_fields_set:
            raise ValueError(
                f"parts are chosen for the objective ranking, and {self.objective} has its own. "
                f"Leave parts out, or train for ranking"
            )
        if OBJECTIVE_ROLES[self.objective] != "search" and self.dimensions is not None:
            raise ValueError(
                "dimensions are chosen for searches; what recommends or predicts keeps those of "
                "the embeddings. Leave dimensions out"
            )
        if "offsets" in self.parts and "matrices" not in self.parts:
            raise ValueError(
                f"parts are {', '.join(self.parts)}, but key offsets are learned together with "
                f"matrices; add matrices, or leave offsets out"
            )
        return self


def _check_number(label: object) -> object:
    """Pydantic would take "yes" for true, and true for 1."""
    if isinstance(label, bool):
        return float(label)
    if not isinstance(label, int | float | np.number):
        raise ValueError("a label is a number, true or false")
    return label


def _check_query(query: Query) -> Query:
    if query.text is None and query.vector is None:
        raise ValueError("a document's id is no question; send the text or vector of the query")
    if query.text is not None and not query.text.strip():
        raise ValueError("the query is empty")
    return query


Label = Annotated[
    FiniteFloat,
    Field(ge=-MAX_WEIGHT, le=MAX_WEIGHT),
    BeforeValidator(_check_number, json_schema_input_type=float | bool),
]


class FeedbackItem(Request):
    """A label: how well a document answers a query."""

    query: Annotated[AnyQuery, AfterValidator(_check_query)]
    id: DocumentId
    label: Label = Field(
        1.0,
        description="Above 0: relevant, by degree; 0 or false: judged and not relevant; "
        "below 0: explicitly not relevant.",
    )
    position: int | None = Field(
        None, ge=1, lt=2**63, description="The rank at which the document was shown, from 1."
    )
    source: str | None = Field(None, max_length=256, description="Where the label comes from.")

    def example(self) -> Example:
        query = self.query.text if self.query.text is not None else self.query.vector or ()
        return Example(query, self.id, self.label, self.position, self.source)


class FeedbackRequest(Request):
    """Labels of documents for queries."""

    items: list[FeedbackItem] = Field(max_length=MAX_DOCUMENTS)


class FeedbackDeletion(Request):
    """The feedback to delete: by its own ids, all about some documents, or all there is."""

    ids: list[Annotated[int, Field(ge=1, le=MAX_ROW)]] | None = Field(
        None, max_length=MAX_DOCUMENTS, description="Ids of examples."
    )
    documents: list[DocumentId] | None = Field(
        None, max_length=MAX_DOCUMENTS, description="Ids of documents."
    )
    all: bool = Field(False, strict=True, description="True: everything, whatever it is about.")

    @model_validator(mode="after")
    def _one_of_them(self) -> FeedbackDeletion:
        named = [self.ids is not None, self.documents is not None, self.all]
        if sum(named) != 1:
            raise ValueError(
                "exactly one of ids, documents and all says what to delete; "
                '{"all": true} deletes all feedback'
            )
        return self


class FeedbackListing(Request):
    """Which feedback to list."""

    limit: int = Field(0, ge=0, le=MAX_PAGE, description="How many; 0 to count only.")
    before: int | None = Field(
        None, ge=1, le=MAX_ROW, description="`next` of the page before: what is older follows."
    )


class RollbackRequest(Request):
    """What to go back in."""

    role: Role = Field("search", description="What the version answers.")


class CompareRequest(Request):
    """Which versions to compare, on which judgements."""

    before: Annotated[int, Field(ge=1, le=MAX_ROW)]
    after: Annotated[int, Field(ge=1, le=MAX_ROW)] | None = Field(
        None, description="The active version if absent."
    )
    items: list[FeedbackItem] | None = Field(
        None,
        max_length=MAX_DOCUMENTS,
        description="Queries with documents that answer them; the newest examples if absent, which "
        "a version may have learned from.",
    )
    by: str = Field("ndcg@10", max_length=32, description="The measure by which gains are told.")
