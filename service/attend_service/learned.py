"""The bodies of learning: feedback, jobs, versions."""

from __future__ import annotations

from pydantic import Field, JsonValue

from attend.store import Role
from attend_service.jobs import State
from attend_service.schemas.base import ProblemReply, Reply


class ProjectionReply(Reply):
    """A version: matrices, and the numbers that were fitted beside them."""

    version: int
    kind: str
    fingerprint: str
    created: str
    note: dict[str, JsonValue]
    tuning: dict[str, JsonValue] = Field(description="What differs from an untrained version.")
    report: dict[str, JsonValue] = Field(description="Of the training that made it.")
    parent: int | None = Field(
        description="The version that a rollback goes back to; 0 is the untrained one."
    )
    active: bool
    role: Role = Field(description="What it answers; each role has one active version.")


class ComparisonReply(Reply):
    """Two versions on the same judged queries; every difference is after less before."""

    before: dict[str, JsonValue] = Field(description="Measures, their intervals, reliability.")
    after: dict[str, JsonValue]
    differences: dict[str, JsonValue] = Field(description="By measure: mean, interval, p.")
    measure: str
    gained: int
    lost: int
    unchanged: int
    most_gained: list[dict[str, JsonValue]]
    most_lost: list[dict[str, JsonValue]]
    histogram: dict[str, list[float]] = Field(description="How many queries gained how much.")
    queries: int
    unknown_documents: int
    disturbed: bool = Field(description="Whether the collection changed meanwhile.")


class ProjectionsReply(Reply):
    """Every version there is, with the heads of the reports; `active` is the one that searches."""

    active: int
    roles: dict[Role, int] = Field(
        description="The active version by role; a role without is answered untrained."
    )
    projections: list[ProjectionReply]


class ActivatedReply(Reply):
    active: int


class RolledBackReply(Reply):
    projection: int = Field(description="The version that answers now; 0 is the untrained one.")


class TaughtReply(Reply):
    """What became of the feedback."""

    added: int
    replaced: int = Field(description="The same query and document had been judged before.")
    examples: int = Field(description="How many there are now.")


class ExampleReply(Reply):
    """One judgement as it is stored; `query` is null where it was a vector."""

    id: int
    query: str | None
    document: str
    label: float
    position: int | None
    source: str
    created: str


class FeedbackReply(Reply):
    """How much there is to learn from, and as much of it as was asked for, the newest first."""

    examples: int = Field(description="Judgements: a query, a document, a label.")
    questions: int = Field(description="Different queries among them.")
    items: list[ExampleReply] | None = Field(None, description="Where `limit` asks for some.")
    next: int | None = Field(None, description="To go on with as `before`; null at the end.")


class ForgottenReply(Reply):
    deleted: int = Field(description="Examples that were there and are no more.")


class ProgressReply(Reply):
    """How far a job is."""

    stage: str
    fraction: float = Field(description="Of the whole, 0 to 1.")
    message: str = Field(description="One sentence for whoever waits.")


class JobSummary(Reply):
    """A training in a list of jobs. Times are UTC, as ISO 8601 has them."""

    id: int
    collection: str
    state: State
    progress: ProgressReply
    created: str
    started: str | None
    finished: str | None


class JobReply(JobSummary):
    """A training, with what was asked and what came of it."""

    request: dict[str, JsonValue]
    result: dict[str, JsonValue] | None = Field(description="The report of a finished one.")
    problem: ProblemReply | None = Field(description="Why it failed.")


class JobsReply(Reply):
    """The newest first; the last hundred finished ones are remembered."""

    jobs: list[JobSummary]
