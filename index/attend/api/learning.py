"""Requests and answers about learning: trainings, versions, and their comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from attend.api.base import MAX_DOCUMENTS, MAX_ROW, Reply, Request, WrongField
from attend.api.feedback import FeedbackItem
from attend.core.types import Role

Objective = Literal["ranking", "answers", "interactions", "ratings"]

OBJECTIVE_ROLES: Mapping[Objective, Role] = {
    "ranking": "search",
    "answers": "search",
    "interactions": "recommend",
    "ratings": "predict",
}
"""The role in which a version answers that was trained for an objective."""

Part = Literal["matrices", "offsets", "examples", "words", "recency"]

PARTS: tuple[Part, ...] = ("matrices", "examples", "words", "recency")
"""What takes part in an answer where the held-out splits want it: W_Q and W_K, example queries as
keys, BM25 (hybrid), and the times of documents. Key offsets only where a request names them."""


FOR_OBJECTIVES: Mapping[str, Sequence[Objective]] = {
    "value": ["answers"],
    "share_seen": ["ranking", "interactions"],
    "dimensions": ["ranking", "answers"],
    "parts": ["ranking"],
    "deep": ["ranking"],
    "error_rate": ["ranking", "answers"],
    "used": ["ranking"],
}
"""The fields of a training that not every objective uses."""


class TrainRequest(Request):
    """Options of a training; every field has a default."""

    objective: Objective = "ranking"
    """ranking: find what examples call relevant; answers: make the blended value right, learned
    from the stored values themselves; interactions: recommend what comes next, learned from
    the interactions of users; ratings: predict what a user would give a document, learned from the
    numbers that they gave others."""
    value: str | None = Field(None, max_length=256)
    """With answers: a field of the value, else all of it."""
    share_seen: float = Field(0.5, ge=0, le=1)
    """Of queries in use, those about documents in the examples. Of the next interactions, those
    with documents that somebody interacted with before: read from the stored ones where a request
    leaves it out."""
    dimensions: int | None = Field(None, ge=1, le=65_536)
    """Width of projected keys; that of embeddings if absent."""
    heads: int | None = Field(None, ge=1, le=1)
    """1: one head is learned. A version of several heads is added with its matrices."""
    parts: list[Part] = Field(list(PARTS), min_length=1, max_length=len(PARTS) + 1)
    """What may be learned and take part: W_Q and W_K (matrices), example queries as keys, BM25
    (words), the times of documents in a field that looks like times (recency, with a half-life),
    and key offsets, which move each document with examples away from the queries of all
    others: for collections in which every document answers one query, such as the entries of a
    dictionary; elsewhere they hide the documents that have examples. With matrices alone, all of
    it can be exported."""
    deep: bool = False
    """Also learn a change of the encoder's layers for the texts of queries, for minutes and not
    seconds; keys stay as they are. It answers only where held-out questions gain by it."""
    error_rate: float = Field(0.05, gt=0, lt=1)
    """Answerable queries that may be told there is no answer."""
    tolerance: float = Field(0.01, gt=0, le=1)
    """The loss on a held-out split that has to be ruled out before a promotion, in units of the
    measure."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Of the fit of the new version; what is tried and judged has seeds of its own."""
    promote: bool = True
    """False: store what was learned, activate nothing."""
    used: bool = True
    """Where searches are logged, first make examples of the hits that served: a use counts by how
    rarely its rank is looked at. They take the place of those made before, and labels that
    somebody gave stay."""

    def check(self) -> None:
        for name, objectives in FOR_OBJECTIVES.items():
            is_default = getattr(self, name) == TrainRequest.model_fields[name].default
            if self.objective not in objectives and not is_default:
                raise WrongField(
                    name,
                    f"{name} is for the objective {' or '.join(objectives)}, and {self.objective} "
                    f"does not use it. Leave {name} out, or train for {' or '.join(objectives)}",
                )
        if self.deep and "matrices" not in self.parts:
            raise WrongField(
                "deep",
                f"deep is learned together with matrices, but parts are {', '.join(self.parts)}; "
                f"add matrices, or leave deep out",
            )
        if "offsets" in self.parts and "matrices" not in self.parts:
            raise WrongField(
                "parts",
                f"parts are {', '.join(self.parts)}, but key offsets are learned together with "
                f"matrices; add matrices, or leave offsets out",
            )


class ActivateRequest(Request):
    """Whether to activate a version all the same."""

    force: bool = False
    """Also one that its training has not promoted; its report then says so."""
    expected: int | None = Field(None, ge=0, le=MAX_ROW)
    """Activate only while this version answers; 0 is the untrained one."""


class RollbackRequest(Request):
    """The role to roll back."""

    role: Role = "search"
    """The requests that the version answers."""


class CompareRequest(Request):
    """The versions to compare, and the judgements."""

    before: Annotated[int, Field(ge=1, le=MAX_ROW)]
    after: Annotated[int, Field(ge=1, le=MAX_ROW)] | None = None
    """The active version if absent."""
    items: list[FeedbackItem] | None = Field(None, max_length=MAX_DOCUMENTS)
    """Queries with documents that answer them; the newest examples if absent, which a version may
    have learned from."""
    by: str = Field("ndcg@10", max_length=32)
    """The measure by which gains are told."""
    from_log: bool = False
    """Compare by what people used of logged searches, and not by judgements."""

    def check(self) -> None:
        for name in {"items", "by"} & self.model_fields_set if self.from_log else ():
            raise WrongField(name, f"{name} is for judgements, and from_log uses none; send one")


class Evidence(Reply):
    """What is proved of a version, as a sentence and in its parts.

    The figures are those of the promotion test, on held-out questions.
    """

    state: Literal["encoded", "added", "proved", "fitted", "unproved"]
    """encoded: nothing was learned; added: its matrices were; proved: the promotion test was
    passed; fitted: it has a fitted confidence, and no gain is proved; unproved: neither."""
    sentence: str
    verdict: str
    """The same as the head of a report, with what the promotion test decided by."""
    measure: str | None = None
    """The measure of `before` and `after`, which the promotion test decided by."""
    before: float | None = None
    after: float | None = None
    questions: int | None = None
    """The held-out questions, documents, users or ratings."""
    more: int | None = None
    """About how many more would prove the gain that was measured; null where it is proved, where
    nothing was gained, and where that cannot be told."""
    rolled_back: bool = False
    """Whether the version before has answered again because use showed that it is better."""


class StoredProjection(Reply):
    """A row of the table of projections, without its weights.

    `parent` is the version that was active before the last activation of this one: a rollback
    returns to it. 0 is the untrained version, in roles other than search.
    """

    version: int
    kind: str
    fingerprint: str
    created: str
    note: Mapping[str, Any]
    tuning: Mapping[str, Any]
    report: Mapping[str, Any]
    parent: int | None
    active: bool
    role: Role = "search"
    evidence: Evidence | None = None
    """What is proved of it; null where versions are read from the store itself."""


class LearnedFromUse(Reply):
    """What trainings by the log of searches have changed."""

    promotions: int
    rollbacks: int
    gain: float
    """The sum of the gains in nDCG@10, on held-out questions, of promotions that stayed."""
    sentence: str


class ProjectionList(Reply):
    """All versions, with the heads of their reports."""

    active: int
    """The version that answers searches."""
    roles: Mapping[Role, int]
    """The active version by role; a role that is absent is answered untrained."""
    projections: Sequence[StoredProjection]
    learned: LearnedFromUse
    """What trainings by the log of searches have changed."""


class Activated(Reply):
    """The version that answers from now on."""

    active: int


class RolledBack(Reply):
    """The version that answers again; 0 is the untrained one."""

    projection: int


class Bin(Reply):
    """The number of confidences in [low, high), their mean, and the share that was correct.

    The last bin includes 1.
    """

    low: float
    high: float
    size: int
    predicted: float | None
    """Null in an empty bin, like `observed`."""
    observed: float | None


class Reliability(Reply):
    """Bins of equal width over [0, 1], and the expected calibration error over them."""

    bins: Sequence[Bin]
    ece: float


class ComparedVersion(Reply):
    """One of two versions."""

    projection: int
    calibrated: bool
    measures: Mapping[str, float]
    intervals: Mapping[str, Sequence[float] | None]
    """The 95 % interval of each measure; null of one query."""
    reliability: Mapping[str, Reliability]
    """Of the `weight` of the best document, against the share of these that is relevant; and of the
    `confidence`, against the share of queries with a relevant document ranked."""


class Difference(Reply):
    """A mean difference, its 95 % interval (null of one query), and the p-value of none."""

    mean: float
    interval: Sequence[float] | None
    p: float


class LoggedVersion(Reply):
    """A version by what people used of the pages that they were shown."""

    projection: int
    wins: int
    """The number of interleaved searches of which it ranks higher what was used."""
    gain: float | None
    """The mean gain of a use, 1/log2(rank + 1), where this version orders the hits that were shown;
    a use at a rank that few look at counts more. It is nDCG@10 where a query has one right
    document. Null without used searches of texts."""
    interval: Sequence[float] | None
    """Its 95 % interval, for one look at the log."""
    coverage: float | None
    """The share of this version's first hits that the pages showed; the gain says nothing of the
    others."""


class LogComparison(Reply):
    """Two versions by what people used; differences are after less before."""

    before: LoggedVersion
    after: LoggedVersion
    better: int | None
    """The version that interleaved searches tell to be better, at the level 0.05 however often one
    looks; null where they do not."""
    sentence: str
    interleaved: int
    """The number of interleaved searches of which something was used."""
    advantage: Difference | None
    """How much further up what was used is ranked, in powers of 16, with an interval and a p-value
    that hold whenever one looks. A use of a hit that many passed over counts less."""
    more: int | None
    """About how many more would tell a difference of this size; null where that cannot be told, or
    has been."""
    searches: int
    """The number of used searches, interleaved or not, behind the gains of both."""
    gain: float | None
    """The difference of the gains."""
    gain_interval: Sequence[float] | None


class Review(Reply):
    """What use says of two interleaved versions, and what came of it."""

    active: int
    """The version that answers now."""
    event: Literal["promoted", "rolled_back"] | None
    """Whether the newer one answers from now on, or the older one again; null for neither."""
    ended: bool
    """Whether they are interleaved no longer."""
    comparison: LogComparison


class RankedDocument(Reply):
    """A document's id, the beginning of its text, and its grade (null: not judged)."""

    id: str
    text: str
    grade: float | None


class QueryDifference(Reply):
    """One query's measure and its first documents, before and after."""

    query: str
    text: str
    """The query for people; of a vector, its first numbers."""
    before: float
    after: float
    gain: float
    documents_before: Sequence[RankedDocument]
    documents_after: Sequence[RankedDocument]


class ChangedQuestions(Reply):
    """Held-out questions of a training whose best document changed, from a wrong one to a right one
    or back.

    Their texts are feedback. One whose feedback is deleted is left out.
    """

    questions: int
    """The number of questions that were held out, in a random split."""
    right_first: Sequence[int]
    """Of how many the best document was right, before and after."""
    measure: str
    items: Sequence[QueryDifference]
    """The largest gain first; of many those with the largest gains and losses. `query` is the id
    of an example."""


class ComparisonAnswer(Reply):
    """Two versions on the same judged queries; every difference and gain is after less before."""

    before: ComparedVersion
    after: ComparedVersion
    differences: Mapping[str, Difference]
    """By measure."""
    measure: str
    """The measure of the gains."""
    gained: int
    lost: int
    unchanged: int
    most_gained: Sequence[QueryDifference]
    """The largest gain first."""
    most_lost: Sequence[QueryDifference]
    histogram: Mapping[str, Sequence[float]]
    """The number of queries by gain: `counts` between `edges`; those without a change left out."""
    queries: int
    unknown_documents: int
    disturbed: bool
    """True if the collection changed meanwhile."""
    plots: Sequence[str] | None = None
    """The files that were written."""
