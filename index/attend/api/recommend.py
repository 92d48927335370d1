"""Requests to recommend."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, JsonValue, model_validator

from attend.api.base import (
    MAX_FIELDS,
    MAX_K,
    MAX_ROW,
    AttendSize,
    DocumentId,
    Path,
    Request,
    Text,
    Time,
    UserId,
    Vector,
)
from attend.api.queries import Query

MAX_HISTORY = 100_000
"""Entries of one history; of more than `MAX_USED` the heaviest and latest are used."""

MAX_USED = 1000
"""Parts that attend: as many as a mixture may have."""

MAX_EXAMPLES = 1000
"""Positive or negative examples, or facts."""

MAX_TARGETS = 256

MAX_DIVERSE = 1000
"""Places that diversity may reorder: each is compared with all before it."""

HALF_LIFE = 36_500.0
"""Days, at most."""


def _as_id(given: object) -> object:
    """An id may stand for itself."""
    is_id = isinstance(given, str | int) and not isinstance(given, bool)
    return {"id": given} if is_id else given


def _as_text(given: object) -> object:
    return {"text": given} if isinstance(given, str) else given


class HistoryItem(Request):
    """A document of a history."""

    id: DocumentId
    weight: FiniteFloat = Field(
        1.0,
        ge=-1e6,
        le=1e6,
        description="How much it counts, relative to the others; below zero it is a negative "
        "example, and zero only keeps it out of the answer, as it is by default for what has a "
        "value of 0 or below (but to predictions).",
    )
    value: JsonValue = Field(
        None, description="What the user gave it; predictions (`target`) are made of these."
    )
    time: Time | None = None


class ExampleItem(Request):
    """An example, or a target: exactly one of id, text and vector."""

    id: DocumentId | None = None
    text: Text | None = None
    vector: Vector | None = None
    weight: FiniteFloat = Field(1.0, ge=1e-6, le=1e6)

    @model_validator(mode="after")
    def _exactly_one(self) -> ExampleItem:
        found = [name for name in ("id", "text", "vector") if getattr(self, name) is not None]
        if len(found) != 1:
            named = " and ".join(found) or "none of them"
            raise ValueError(
                f"an example has exactly one of id, text and vector; {named} was given"
            )
        return self


class ProfileItem(Request):
    """Something known of the user: a text, or a field with its value."""

    text: Text | None = None
    field: Path | None = Field(None, description="A field of value or payload (dotted).")
    value: str | float | bool | None = Field(
        None, description="Stands for the documents that have it in this field."
    )
    weight: FiniteFloat = Field(1.0, ge=1e-6, le=1e6)

    @model_validator(mode="after")
    def _exactly_one(self) -> ProfileItem:
        if (self.text is None) == (self.field is None):
            raise ValueError("a fact has a text, or a field with its value; give one of them")
        if (self.field is None) != (self.value is None):
            raise ValueError("a fact's field and value belong together; give both or neither")
        return self


AnyHistoryItem = Annotated[
    HistoryItem, BeforeValidator(_as_id, json_schema_input_type=HistoryItem | DocumentId)
]
AnyExampleItem = Annotated[
    ExampleItem, BeforeValidator(_as_id, json_schema_input_type=ExampleItem | DocumentId)
]
AnyProfileItem = Annotated[
    ProfileItem, BeforeValidator(_as_text, json_schema_input_type=ProfileItem | Text)
]


def _listed(given: object) -> object:
    return given if isinstance(given, list | tuple) or given is None else [given]


class RecommendRequest(Request):
    """What a user might want next, or would think of some documents (`target`)."""

    history: list[AnyHistoryItem] = Field(
        default_factory=list,
        max_length=MAX_HISTORY,
        description="Documents that the user met, by id or with weight, value and time. Of more "
        f"than {MAX_USED}, the heaviest are used, and of equals the latest.",
    )
    user: UserId | None = Field(
        None, description="A user whose stored interactions join the history."
    )
    positive: list[AnyExampleItem] = Field(
        default_factory=list, max_length=MAX_EXAMPLES, description="More like these."
    )
    negative: list[AnyExampleItem] = Field(
        default_factory=list,
        max_length=MAX_EXAMPLES,
        description="Less like these: a document's weight is multiplied by the share of it that "
        "positive examples have in what positive and negative ones give it.",
    )
    facts: list[AnyProfileItem] = Field(
        default_factory=list, max_length=MAX_EXAMPLES, description="A profile; joins the history."
    )
    target: Annotated[
        list[AnyExampleItem] | None,
        BeforeValidator(
            _listed, json_schema_input_type=list[AnyExampleItem] | AnyExampleItem | None
        ),
    ] = Field(
        None,
        min_length=1,
        max_length=MAX_TARGETS,
        description="What the user would think of these, instead of what comes next.",
    )
    k: int = Field(10, ge=1, le=MAX_K, description="How many are listed.")
    offset: int = Field(0, ge=0, le=MAX_K, description="How many are passed over first.")
    attend: AttendSize = Field(
        "all", description="The number of documents over which weights sum to one."
    )
    filter: dict[str, JsonValue] | None = Field(
        None, description='Conditions on payload and value, such as {"genre": "sea"}.'
    )
    exclude_seen: bool = Field(True, description="Leave out what the user met.")
    on_missing: Literal["error", "skip"] = Field(
        "error",
        description="Ids that nothing has: refuse, or go on without. `missing` lists them.",
    )
    half_life: FiniteFloat | None = Field(
        None,
        gt=0,
        le=HALF_LIFE,
        description="Days after which a document of the history counts half; by `time`.",
    )
    diversity: FiniteFloat = Field(
        0.0,
        ge=0,
        le=1,
        description="0 lists by score alone, 1 by how much a document differs from those before "
        "it: one less the λ of maximal marginal relevance.",
    )
    reserve: FiniteFloat = Field(
        0.0,
        ge=0,
        le=1,
        description="The share of the list that goes at least to documents without interactions.",
    )
    fields: list[Path] | None = Field(
        None,
        max_length=MAX_FIELDS,
        description="The fields of the payload (dotted) to return; all if absent.",
    )
    recall: Annotated[FiniteFloat, Field(gt=0, le=1)] | None = Field(
        None,
        description="The share of its nearest that each part of the history is to find, where keys "
        "are quantised; 1 is exact.",
    )
    title: bool = Field(
        False, description="Add to each hit what to call it before people, as a search has it."
    )
    explain: bool = Field(
        False, description="Add to each hit what of the history put it there, and how much."
    )
    projection: int | None = Field(
        None, ge=1, le=MAX_ROW, description="A version instead of the active one."
    )

    @model_validator(mode="after")
    def _fits(self) -> RecommendRequest:
        listed = self.k + self.offset
        if self.attend != "all" and listed > self.attend:
            raise ValueError(
                f"k + offset is {listed}, but only {self.attend} documents are attended; lower k "
                f"or raise attend"
            )
        if self.diversity and listed > MAX_DIVERSE:
            raise ValueError(
                f"k + offset is {listed}, but diversity reorders at most {MAX_DIVERSE} places; "
                f"lower k, or leave out diversity"
            )
        return self


def query_of(given: ExampleItem) -> Query:
    """An example as the query that it is."""
    return Query.model_construct(
        text=given.text, vector=given.vector, id=given.id, ids=None, blend=None, mixture=None
    )
