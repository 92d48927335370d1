"""Answers to searches."""

from __future__ import annotations

from pydantic import Field, JsonValue

from attend_service.schemas.base import ProblemReply, Reply
from attend_service.schemas.stored import FacetReply


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
    title: str | None = Field(None, description="What to call it before people, when asked for.")
    group: JsonValue = Field(None, description="The value of `group_by`, when asked for.")
    group_size: int | None = Field(None, description="The attended documents that have it.")
    group_weight: float | None = Field(None, description="Their weights together.")


class MassReply(Reply):
    """The share of the softmax over all documents that those attended have; exact, or estimated."""

    share: float
    low: float = Field(description="It lies above this, and below `high`, in 95 of 100 cases.")
    high: float


class WeighingReply(Reply):
    """How logits became weights: by exp(logit / temperature) as shares of the attended and the
    null key together, head by head, and over heads by their gates."""

    temperature: float
    gates: list[float] = Field(description="By head; they sum to one.")
    null: list[float] | None = Field(description="The null key's logit by head, if it has one.")
    threshold: float | None = Field(
        description="Of the projection version: `min_confidence` where a search names none."
    )
    mass: MassReply


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
    recall: float | None = Field(
        None,
        description="Where keys are quantised, the share of the ten nearest that searches find, as "
        "measured.",
    )
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
    weighing: WeighingReply | None = Field(
        None, description="How logits became weights, when asked to explain."
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


class PointReply(Reply):
    """A document on a map, where the mean of its keys is."""

    id: str
    title: str = Field(description="What to call it before people.")
    place: tuple[float, float]
    was: tuple[float, float] | None = Field(description="Its place under the version before.")
    weight: float | None = Field(description="Its share of the query's attention, if it has one.")
    payload: dict[str, JsonValue]


class QueryPointReply(Reply):
    place: tuple[float, float]
    was: tuple[float, float] | None


class MapReply(Reply):
    """The keys in two dimensions: a sample of the documents, and all that the query attends to."""

    points: list[PointReply]
    query: QueryPointReply | None
    method: str
    explained: list[float] | None = Field(
        description="The share of the variance that each axis shows; null with t-SNE."
    )
    projection: int
    before: int | None
    documents: int = Field(description="How many there are, shown or not.")


class AnswersReply(Reply):
    """In the order of the searches."""

    answers: list[AnswerReply | FailedReply]
    matrix: MatrixReply | None = None
    took_ms: float
