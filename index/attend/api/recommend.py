"""Requests to recommend."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, JsonValue

from attend.api import base
from attend.api.search import Query

MAX_HISTORY = 100_000
"""Entries of one history; of more than `MAX_USED` the heaviest and latest are used."""

MAX_USED = 1000
"""Parts that attend: as many as a mixture may have."""

MAX_EXAMPLES = 1000
"""Positive or negative examples, or facts."""

MAX_TARGETS = 256

OF_LISTS = (
    *("k", "offset", "attend", "filter", "exclude_seen", "liked_from", "diversity", "reserve"),
    *("fields", "include", "recall", "title"),
)
"""Fields of a request that predictions do not use."""


def _as_id(item: object) -> object:
    """Return an item that is only an id as an object."""
    is_id = isinstance(item, str | int) and not isinstance(item, bool)
    return {"id": item} if is_id else item


def _as_text(item: object) -> object:
    return {"text": item} if isinstance(item, str) else item


class HistoryItem(base.Request):
    """A document of a history."""

    id: base.DocumentId
    weight: FiniteFloat = Field(1.0, ge=-1e6, le=1e6)
    """Its weight relative to the others. Below zero it is a negative example; zero only keeps it
    out of the answer, which is the default for documents with a value that is no like (but not in
    predictions)."""
    value: JsonValue = None
    """The user's own value; predictions (`target`) are made of these."""
    time: base.Time | None = None


class ExampleItem(base.Request):
    """An example, or a target: exactly one of id, text and vector."""

    id: base.DocumentId | None = None
    text: base.Text | None = None
    vector: base.Vector | None = None
    weight: FiniteFloat = Field(1.0, ge=1e-6, le=1e6)

    def check(self) -> None:
        base.check_one(self, "an example", ("id", "text", "vector"))


class ProfileItem(base.Request):
    """An entry of a user's profile: a text, or a field with its value."""

    text: base.Text | None = None
    field: base.Path | None = None
    """A field of value or payload (dotted)."""
    value: str | float | bool | None = None
    """Stands for the documents that have it in this field."""
    weight: FiniteFloat = Field(1.0, ge=1e-6, le=1e6)

    def check(self) -> None:
        if (self.text is None) == (self.field is None):
            raise ValueError("a fact has a text, or a field with its value; give one of them")
        if (self.field is None) != (self.value is None):
            raise ValueError("a fact's field and value belong together; give both or neither")


AnyHistoryItem = Annotated[
    HistoryItem, BeforeValidator(_as_id, json_schema_input_type=HistoryItem | base.DocumentId)
]
AnyExampleItem = Annotated[
    ExampleItem, BeforeValidator(_as_id, json_schema_input_type=ExampleItem | base.DocumentId)
]
AnyProfileItem = Annotated[
    ProfileItem, BeforeValidator(_as_text, json_schema_input_type=ProfileItem | base.Text)
]


def _listed(target: object) -> object:
    return target if isinstance(target, list | tuple) or target is None else [target]


class RecommendRequest(base.Request):
    """A user, for whom to recommend documents, or to predict a value of some (`target`)."""

    history: list[AnyHistoryItem] = Field(
        default_factory=list,
        max_length=MAX_HISTORY,
        description="The user's documents, by id or with weight, value and time. Of more "
        f"than {MAX_USED}, the heaviest are used, and of equals the latest.",
    )
    user: base.UserId | None = None
    """A user whose stored interactions join the history."""
    positive: list[AnyExampleItem] = Field(default_factory=list, max_length=MAX_EXAMPLES)
    """More like these."""
    negative: list[AnyExampleItem] = Field(default_factory=list, max_length=MAX_EXAMPLES)
    """Less like these: a document's weight is multiplied by the share of it that positive examples
    have in what positive and negative ones give it."""
    facts: list[AnyProfileItem] = Field(default_factory=list, max_length=MAX_EXAMPLES)
    """A profile; joins the history."""
    target: Annotated[
        list[AnyExampleItem] | None,
        BeforeValidator(
            _listed, json_schema_input_type=list[AnyExampleItem] | AnyExampleItem | None
        ),
    ] = Field(None, min_length=1, max_length=MAX_TARGETS)
    """Predict the user's value of these, instead of recommending."""
    k: int = Field(10, ge=1, le=base.MAX_K)
    """The number of documents to list."""
    offset: int = Field(0, ge=0, le=base.MAX_K)
    """The number of documents to skip before the first that is listed."""
    attend: base.AttendSize = "all"
    """The number of documents over which weights sum to one."""
    filter: dict[str, JsonValue] | None = None
    """Conditions on payload and value, such as {"genre": "sea"}."""
    exclude_seen: bool = True
    """Leave out documents of the history."""
    liked_from: FiniteFloat | None = None
    """Numbers from here up are likes in a history; as for stored interactions if absent."""
    on_missing: Literal["error", "skip"] = "error"
    """Unknown ids: refuse the request, or skip them. `missing` lists them."""
    half_life: FiniteFloat | None = Field(None, gt=0, le=base.HALF_LIFE)
    """Days after which a document of the history counts half; by `time`."""
    diversity: base.Diversity = 0.0
    """0 ranks by score alone, 1 by the difference to the documents before: one minus the λ of
    maximal marginal relevance."""
    reserve: FiniteFloat = Field(0.0, ge=0, le=1)
    """The least share of the list for documents without interactions."""
    fields: list[base.Path] | None = Field(None, max_length=base.MAX_FIELDS)
    """The fields of the payload (dotted), and text fields, to return in `payload`; all of the
    payload if absent."""
    include: base.Included | None = None
    """text: add the document's text and the passage that matched; passage: the passage alone."""
    recall: Annotated[FiniteFloat, Field(gt=0, le=1)] | None = None
    """The share of its nearest keys that each part of the history finds, where keys are quantised;
    1 is exact."""
    title: bool = False
    """Add a display title to each hit, as in a search."""
    explain: bool = False
    """Add to each hit the share of each part of the history."""
    projection: int | None = Field(None, ge=1, le=base.MAX_ROW)
    """A version instead of the active one."""

    def check(self) -> None:
        for name in OF_LISTS if self.target is not None else ():
            if getattr(self, name) != RecommendRequest.model_fields[name].default:
                raise base.WrongField(
                    name,
                    f"{name} is about a list of recommendations, and target asks for predictions "
                    f"instead. Leave {name} or target out",
                )
        listed = self.k + self.offset
        base.check_page(listed, self.attend)
        base.check_diverse(self.diversity, listed)


def query_of(example: ExampleItem) -> Query:
    """Return an example as a query."""
    return Query.model_construct(text=example.text, vector=example.vector, id=example.id)
