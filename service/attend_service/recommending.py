"""The bodies of recommending: interactions, recommendations, predictions."""

from __future__ import annotations

from pydantic import ConfigDict, Field, JsonValue

from attend_service.schemas.base import Reply


class RecordedReply(Reply):
    """What became of the interactions."""

    added: int
    replaced: int = Field(description="The same user and document had met before.")
    interactions: int = Field(description="How many there are now.")
    users: int


class InteractionReply(Reply):
    user: str
    id: str
    value: JsonValue
    time: float | None = Field(description="Seconds since 1970.")


class InteractionsReply(Reply):
    """A page of interactions; `next` is null on the last. The counts are of all there are."""

    items: list[InteractionReply]
    next: str | None
    interactions: int
    users: int


class ForgottenInteractionsReply(Reply):
    deleted: int = Field(description="Interactions that were there and are no more.")


class RecommendationReply(Reply):
    """One document that may come next."""

    id: str
    score: float = Field(description="Log of the weight, less what negative examples take.")
    weight: float = Field(description="Its share of the history's attention.")
    value: JsonValue
    payload: dict[str, JsonValue]
    because: list[dict[str, JsonValue]] = Field(
        default=[],
        description="When asked to explain: the parts of the history (`id`, `text`, `fact` or "
        "`vector`) with their shares of the weight, which sum to one.",
    )
    title: str | None = Field(None, description="What to call it before people, when asked for.")


class PredictionReply(Reply):
    """What the user would think of one target; besides this, an answer of the values' type."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="number has mean, std and baseline; category a distribution, …")
    confidence: float = Field(description="One less the weight of the null key.")
    null: float = Field(description="How much nothing in the history speaks to the target.")
    calibrated: bool = Field(description="Whether the std was fitted to held-out ratings.")
    known: JsonValue = Field(description="What the user gave this document; it had no part here.")
    because: list[dict[str, JsonValue]] = Field(
        description="What was attended to of the history, the heaviest first; all of it when "
        "asked to explain, and then the weights and the null's sum to one."
    )


class RecommendedReply(Reply):
    """What may come next (`hits`), or what the user would think of the targets (`predictions`)."""

    hits: list[RecommendationReply] | None = Field(None, description="Without `target`.")
    predictions: list[PredictionReply] | None = Field(None, description="With `target`.")
    history: dict[str, int] = Field(
        description="How many parts were `given`, and how many `used`: of long histories the "
        "heaviest and latest."
    )
    missing: list[dict[str, JsonValue]] = Field(
        description="Ids, and the user, that were named and are not there."
    )
    attended: int | None = Field(None, description="Documents that share the weights.")
    exact: bool | None = None
    generation: int
    projection: int = Field(description="The version that answered; 0 is the untrained one.")
    took_ms: float
