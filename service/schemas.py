"""The bodies that only HTTP has: lists of the requests of `index`, and what is answered."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from index import DEFAULT_COLLECTION
from index.search.requests import (
    MAX_BATCH,
    MAX_CURSOR,
    MAX_DOCUMENTS,
    NAME_PATTERN,
    DocumentId,
    DocumentRequest,
    Path,
    Request,
    SearchOptions,
    SearchRequest,
    Text,
)
from index.store.facets import MAX_FACETS, MAX_VALUES

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
    cursor: str | None = Field(
        None,
        max_length=MAX_CURSOR,
        description="`next` of the page before, with the same filter. What is written between two "
        "pages moves nothing: no document comes twice, and none that stays is passed over.",
    )
    filter: Filter | None = None


class Counting(Request):
    """Which fields to count the values of, over which documents."""

    fields: list[Path] = Field(
        min_length=1, max_length=MAX_FACETS, description="Fields of value or payload (dotted)."
    )
    filter: Filter | None = None
    limit: int = Field(
        10, ge=1, le=MAX_VALUES, description="How many values of each, the most frequent first."
    )


class AliasTarget(Request):
    """What an alias stands for."""

    collection: str = Field(pattern=NAME_PATTERN, examples=["books"])


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
    interactions: int = Field(description="What users met: a user, a document, a value, a time.")
    users: int = Field(description="Different users among them.")
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
    next: str | None
    total: int


class CountReply(Reply):
    """A value, and how many documents have it."""

    value: JsonValue
    documents: int


class FacetReply(Reply):
    """The values of one field; a list counts once for each of its different values."""

    values: list[CountReply]
    distinct: int = Field(description="Different values, listed or not.")
    missing: int = Field(description="Documents without the field, or where it is null.")


class FacetsReply(Reply):
    """By field; `total` counts the documents that match."""

    facets: dict[str, FacetReply]
    total: int


class DeletedReply(Reply):
    deleted: int = Field(description="Documents that were there and are no more.")


class HighlightReply(Reply):
    """The passage that matched: `start` and `stop` in its text field, in characters.

    `spans` are the words of the query in the passage, in characters of it. `passage` is null
    where no text was matched.
    """

    field: str
    start: int
    stop: int
    passage: str | None
    spans: list[tuple[int, int]]


class HitReply(Reply):
    """One attended document; weights of all attended sum to `confidence`."""

    id: str
    score: float
    weight: float
    value: JsonValue
    payload: dict[str, JsonValue]
    explanation: dict[str, JsonValue] = Field(default={}, description="When asked for.")
    highlight: HighlightReply | None = Field(None, description="When asked for.")
    group: JsonValue = Field(None, description="The value of `group_by`, when asked for.")
    group_size: int | None = Field(None, description="The attended documents that have it.")
    group_weight: float | None = Field(None, description="Their weights together.")


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
    next: str | None = Field(
        None, description="The `cursor` of the hits that follow; null where there are none."
    )
    facets: dict[str, FacetReply] | None = Field(None, description="By field, when asked for.")
    timings: dict[str, float] | None = Field(
        None, description="Milliseconds by stage, when asked to explain."
    )


class FarHitReply(HitReply):
    """A hit of one of several collections; its weight is a share of all their attention."""

    collection: str


class AcrossReply(Reply):
    """What several collections answer, merged by weight where their logits have one scale.

    `merged` is false, and hits, confidence and shares are absent, where they have not: by other
    encoders, projections, scorers, scales, temperatures or tunings, or with several heads.
    """

    hits: list[FarHitReply]
    merged: bool
    confidence: float | None
    shares: dict[str, float] | None = Field(
        description="Each collection's share of the attention; they sum to `confidence`."
    )
    answers: dict[str, AnswerReply] = Field(description="Each collection's own, by name.")
    took_ms: float


class AliasReply(Reply):
    alias: str
    collection: str


class AliasesReply(Reply):
    aliases: list[AliasReply]


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


class RestoredReply(Reply):
    """What a snapshot held: the figures of the collection, and when it was taken."""

    name: str
    created: str
    documents: int
    keys: int
    change: int


class HealthReply(Reply):
    status: str = Field(examples=["alive"])


class ReadinessReply(Reply):
    """`failed` names collections that cannot be opened, and the kind of error."""

    status: str = Field(examples=["ready"])
    failed: dict[str, str] = {}
