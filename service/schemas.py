"""The bodies that only HTTP has: lists of the requests of `index`, and what is answered."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from index import DEFAULT_COLLECTION
from index.requests import (
    MAX_BATCH,
    MAX_DOCUMENTS,
    NAME_PATTERN,
    DocumentId,
    DocumentRequest,
    Request,
    SearchOptions,
    SearchRequest,
    Text,
)

MAX_PAGE = 1000
MAX_ROW = 2**63 - 1

Filter = Annotated[
    dict[str, JsonValue],
    Field(description='Conditions on payload and value, such as {"year": {"gte": 1900}}.'),
]


class Upsert(Request):
    """Documents to insert or replace: all of them or, if one is wrong, none."""

    documents: list[DocumentRequest] = Field(max_length=MAX_DOCUMENTS)


class Batch(Request):
    """Searches to answer together, with one call of the encoder."""

    searches: list[SearchRequest] = Field(max_length=MAX_BATCH)
    matrix: bool = Field(
        False,
        description="Add the logits and weights of every query over every document that filter "
        "and mask let pass; with {id: …} as queries, self-attention.",
    )


class Deletion(Request):
    """The documents to delete: by id or by filter."""

    ids: list[DocumentId] | None = Field(None, max_length=MAX_DOCUMENTS)
    filter: Filter | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Deletion:
        if (self.ids is None) == (self.filter is None):
            raise ValueError("exactly one of ids and filter says what to delete")
        return self


class Listing(Request):
    """Which documents to list."""

    limit: int = Field(100, ge=0, le=MAX_PAGE, description="How many; 0 to count only.")
    after: int = Field(0, ge=0, le=MAX_ROW, description="The `next` of the page before.")
    filter: Filter | None = None


class PlainSearch(SearchOptions):
    """A search that fits into an address line."""

    q: Text | None = Field(
        None,
        description="The text to search for; without it a browser gets a form.",
        examples=["a white whale"],
    )
    collection: str = Field(DEFAULT_COLLECTION, pattern=NAME_PATTERN)

    def request(self) -> dict[str, Any]:
        """The same as a `SearchRequest` has it."""
        return {"query": self.q, **self.model_dump(exclude={"q", "collection"})}


class Reply(BaseModel):
    """Base of everything that is answered."""

    model_config = ConfigDict(extra="forbid")


class Wrong(Reply):
    """One thing wrong with a request."""

    field: str = Field(examples=["documents.3.vector"])
    reason: str


class ProblemReply(Reply):
    """An error, as RFC 9457 has it."""

    type: str = Field(description="What /docs says of this kind of problem.")
    title: str
    status: int
    detail: str = Field(description="What is wrong here, and what to do.")
    instance: str | None = Field(None, description="The path that was asked for.")
    errors: list[Wrong] = Field(default=[], description="The fields that are wrong.")


class Summary(Reply):
    """A collection in a list; `error` where it cannot be opened."""

    name: str
    documents: int | None = None
    dimension: int | None = None
    encoder: str | None = None
    error: str | None = None


class Summaries(Reply):
    collections: list[Summary]


class CollectionReply(Reply):
    """A collection in figures."""

    name: str
    documents: int
    keys: int
    examples: int = Field(description="Judgements to learn from: a query, a document, a label.")
    questions: int = Field(description="Different queries among them.")
    dimension: int
    encoder: str | None
    projection: int
    generation: int = Field(description="Grows with every write.")
    index: dict[str, JsonValue]
    settings: dict[str, JsonValue]


class WrittenReply(Reply):
    """What became of the documents; `encoded` counts texts that met the encoder."""

    added: int
    updated: int
    revised: int = Field(description="Only value or payload are new: nothing was encoded.")
    unchanged: int
    encoded: int


class DocumentReply(Reply):
    """A document as stored, without its vectors."""

    id: str
    fields: dict[str, str]
    value: JsonValue
    payload: dict[str, JsonValue]


class DocumentsReply(Reply):
    """A page of documents; `next` is null on the last, `total` counts all that match."""

    documents: list[DocumentReply]
    next: int | None
    total: int


class DeletedReply(Reply):
    deleted: int = Field(description="Documents that were there and are no more.")


class HitReply(Reply):
    """One attended document; weights of all attended sum to `confidence`."""

    id: str
    score: float
    weight: float
    value: JsonValue
    payload: dict[str, JsonValue]
    explanation: dict[str, JsonValue] = Field(default={}, description="When asked for.")


class AnswerReply(Reply):
    """Documents by attention, and the answer they make together."""

    hits: list[HitReply]
    answer: dict[str, JsonValue] = Field(
        description="By `type`: number has mean and std, category a distribution, and so on."
    )
    attended: int
    answered: bool = Field(
        description="False where nothing was attended, or confidence was too low for an answer."
    )
    confidence: float = Field(description="One less the weight of the null key.")
    calibrated: bool = Field(
        description="Whether temperature and null key were fitted for what was asked."
    )
    exact: bool
    generation: int
    projection: int
    took_ms: float


class FailedReply(Reply):
    """A search of a batch that has no answer; the others have theirs."""

    error: ProblemReply


class MatrixReply(Reply):
    """Queries in rows, documents in columns, heads between them."""

    documents: list[str]
    logits: list[list[list[float]]]
    head_weights: list[list[list[float]]]
    weights: list[list[float]]
    generation: int
    projection: int


class AnswersReply(Reply):
    """In the order of the searches."""

    answers: list[AnswerReply | FailedReply]
    matrix: MatrixReply | None = None
    took_ms: float


class HealthReply(Reply):
    status: str = Field(examples=["alive"])


class ReadinessReply(Reply):
    """`failed` names collections that cannot be opened, and the kind of error."""

    status: str = Field(examples=["ready"])
    failed: dict[str, str] = {}
