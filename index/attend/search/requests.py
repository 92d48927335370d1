"""What callers may ask, validated once for Python, the command line and HTTP.

Each model refuses unknown fields, and a wrong value becomes an `InvalidRequest` whose
sentence names the field. The service publishes the same models as its OpenAPI schemas,
so a limit is stated in one place.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, JsonValue, model_validator

from attend.consistency import Consistency
from attend.search.queries import AnyQuery, Query, QueryPart
from attend.store.facets import MAX_FACETS
from attend.tuning import MAX_LEXICAL
from attend.types import Document
from attend.validation import (
    MAX_ATTEND,
    MAX_DETAILS,
    MAX_ID,
    MAX_TEXT,
    MAX_WIDTH,
    NAME_PATTERN,
    DocumentId,
    Request,
    Text,
    Vector,
    invalid,
    parse,
)

__all__ = [
    "MAX_ATTEND",
    "MAX_BATCH",
    "MAX_CURSOR",
    "MAX_DETAILS",
    "MAX_DOCUMENTS",
    "MAX_ID",
    "MAX_K",
    "MAX_TEXT",
    "NAME_PATTERN",
    "AnyQuery",
    "CollectionSettings",
    "DocumentId",
    "DocumentRequest",
    "Mask",
    "Path",
    "Query",
    "QueryPart",
    "Request",
    "Revision",
    "SearchOptions",
    "SearchRequest",
    "Text",
    "invalid",
    "parse",
]

MAX_K = 10_000
MAX_BATCH = 256
MAX_DOCUMENTS = 10_000
MAX_CURSOR = 1024
MAX_FIELDS = 256


def attend_size(given: object) -> object:
    """Checked before the union is tried: its report would name both of its branches."""
    number = int(given) if isinstance(given, str) and given.isdecimal() else given
    whole = isinstance(number, int) and not isinstance(number, bool)
    if number == "all" or (whole and 1 <= number <= MAX_ATTEND):  # type: ignore[operator]
        return number
    raise ValueError(f"Send a whole number from 1 to {MAX_ATTEND}, or 'all'")


def _lexical(given: object) -> object:
    """Checked before the union is tried, as `attend_size`; on an address line all is text."""
    words = {"true": True, "on": True, "false": False, "off": False}
    known = words.get(given.lower(), given) if isinstance(given, str) else given
    try:
        number = known if isinstance(known, bool) else float(known)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = -1.0
    if 0 <= number <= MAX_LEXICAL:
        return number
    raise ValueError(f"Send true, false or a number from 0 to {MAX_LEXICAL:g}")


Path = Annotated[str, Field(min_length=1, max_length=256)]


class Mask(Request):
    """Document ids to leave out of the attended set, or the only ones to keep in it."""

    exclude: list[DocumentId] = Field(default_factory=list, max_length=MAX_ATTEND)
    only: list[DocumentId] | None = Field(default=None, max_length=MAX_ATTEND)


class SearchOptions(Request):
    """Everything about a search except its query."""

    k: int = Field(10, ge=1, le=MAX_K, description="How many of the attended documents to list.")
    offset: int = Field(0, ge=0, le=MAX_K, description="How many of them to pass over first.")
    attend: Annotated[
        Annotated[int, Field(ge=1, le=MAX_ATTEND)] | Literal["all"], BeforeValidator(attend_size)
    ] = Field(100, description="The size of the attended set, over which weights sum to one.")
    filter: dict[str, JsonValue] | None = Field(
        None, description='Conditions on payload and value, such as {"year": {"gte": 2000}}.'
    )
    mask: Mask | None = Field(None, description="Documents to leave out, or the only ones to keep.")
    mode: Literal["hard", "soft"] = Field(
        "hard", description="hard: the best document's value; soft: the blend of all attended."
    )
    value: str | None = Field(
        None,
        max_length=256,
        description="Which value to return: a field of the value or payload (dotted), "
        '"@id", or "@key" for the key itself; the document\'s whole value if absent.',
    )
    temperature: FiniteFloat = Field(
        1.0, gt=0, description="Relative to the fitted one: below 1 sharper, above 1 flatter."
    )
    scorer: Literal["dot", "cosine", "laplace", "additive"] | None = Field(
        None, description="How a query and a key are compared; the collection's own if absent."
    )
    scale: Annotated[FiniteFloat, Field(gt=0)] | None = Field(
        None, description="The factor on the scorer's result; the collection's own if absent."
    )
    heads: list[Annotated[FiniteFloat, Field(ge=0, le=1e6)]] | None = Field(
        None, max_length=256, description="One weight per head instead of the projection's own."
    )
    pool: Literal["max", "sum"] | None = Field(
        None,
        description="A document's logit: its best key (max), or the log-sum-exp of its keys "
        "(sum); the projection version's own if absent, which is max until one was trained.",
    )
    recall: Annotated[FiniteFloat, Field(gt=0, le=1)] | None = Field(
        None,
        description="The share of the ten nearest that is to be found, where keys are quantised: "
        "more takes longer, and 1 is exact; the collection's own if absent.",
    )
    lexical: (
        Annotated[
            bool | Annotated[FiniteFloat, Field(ge=0, le=MAX_LEXICAL)], BeforeValidator(_lexical)
        ]
        | None
    ) = Field(
        None,
        description="How much words shared with a document count beside its keys: a factor on "
        "BM25 (as a share of the query's largest) on the scorer's scale, true for the default "
        "one, false for none; the projection version's own if absent.",
    )
    min_confidence: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = Field(
        None,
        description="Below this confidence, if it is calibrated, the answer is that nothing here "
        "answers; 0 always answers. The projection version's own if absent.",
    )
    projection: int | None = Field(
        None,
        ge=1,
        le=2**63 - 1,
        description="Answer with this projection version instead of the active one.",
    )
    decode: bool = Field(False, description="Name the stored value nearest to a blended vector.")
    cursor: str | None = Field(
        None,
        max_length=MAX_CURSOR,
        description="`next` of the page before: what ranks after it is listed, and nothing twice, "
        "even where documents came or went meanwhile. All else must be asked as before, but k.",
    )
    min_score: FiniteFloat | None = Field(
        None,
        description="List nothing of a lower score. As k, it changes neither weights nor answer.",
    )
    group_by: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="List only the best of the documents that have the same in this field of value "
        "or payload (dotted), with the group's size and its weight among the attended. A document "
        "without the field is a group of its own.",
    )
    fields: list[Path] | None = Field(
        None,
        max_length=MAX_FIELDS,
        description="The fields of the payload (dotted) to return with a hit; all if absent.",
    )
    facets: list[Path] | None = Field(
        None,
        max_length=MAX_FACETS,
        description="Fields of value or payload whose most frequent values are counted, over all "
        "documents that filter and mask let pass.",
    )
    consistency: Consistency | None = Field(
        None,
        description="bounded: what others wrote in the last seconds may be missing; strong: what "
        "was acknowledged is there, which takes a server some 200 ms. The engine's default if "
        "absent; a data folder is always strong.",
    )
    exclude_self: bool = Field(
        True,
        description="Whether documents that are the query (or part of it) are masked; those that "
        "`mask.only` names are not.",
    )
    title: bool = Field(
        False,
        description="Add what to call a document before people: a title, name, headline or "
        "question of payload, value or texts, else the first line of a text, else the id.",
    )
    highlight: bool = Field(
        False,
        description="Add the passage that matched, where it lies in its text, and which parts of "
        "it the query's words are, in characters.",
    )
    explain: bool = Field(
        False,
        description="Add logits and weights by head, what words add, the rank before they were "
        "added, and the passage that matched.",
    )

    @model_validator(mode="after")
    def _listed_are_attended(self) -> SearchOptions:
        asked = {"k", "offset"} & self.model_fields_set
        if asked and self.attend != "all" and self.k + self.offset > self.attend:
            raise ValueError(
                f"k + offset is {self.k + self.offset}, but only {self.attend} documents are "
                f"attended; lower k or raise attend"
            )
        if self.cursor is not None and self.offset:
            raise ValueError("a cursor says where to go on; leave out offset, or the cursor")
        if self.heads is not None and not math.fsum(self.heads) > 0:
            raise ValueError("heads must hold at least one weight above zero")
        return self


class SearchRequest(SearchOptions):
    """One search: a query and how to answer it."""

    query: AnyQuery


class DocumentRequest(Request):
    """One document to store: `text`, `fields` or `vector`, and what to return for it."""

    id: DocumentId
    text: Text | None = Field(None, description="Short for fields: {text: …}.")
    fields: dict[str, Text] | None = Field(
        None, min_length=1, max_length=64, description="Key fields: each gets keys of its own."
    )
    vector: Vector | None = Field(None, description="An embedding of the caller's own.")
    value: JsonValue = Field(None, description="What the caller wants back.")
    payload: dict[str, JsonValue] = Field(
        default_factory=dict, description="What filters and displays use."
    )

    @model_validator(mode="after")
    def _one_kind_of_key(self) -> DocumentRequest:
        given = [name for name in ("text", "fields", "vector") if getattr(self, name) is not None]
        if len(given) != 1:
            named = " and ".join(given) or "none of them"
            raise ValueError(
                f"a document has exactly one of text, fields and vector; {named} was given"
            )
        blank = [name for name, text in self.texts().items() if not text.strip()]
        if blank:
            raise ValueError(f"the text of {', '.join(blank)} is empty")
        return self

    def texts(self) -> dict[str, str]:
        return (
            dict(self.fields)
            if self.fields is not None
            else ({"text": self.text} if self.text else {})
        )

    def document(self) -> Document:
        vectors = {"vector": self.vector} if self.vector is not None else {}
        return Document(self.id, self.texts(), vectors, self.value, self.payload)


class Revision(Request):
    """What to change of a stored document; its texts and keys stay as they are."""

    value: JsonValue = Field(None, description="The new value, whole; null is one too.")
    payload: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Merged into the stored payload as RFC 7396 has it: null removes a member, "
        "objects merge member by member, anything else replaces.",
    )

    @model_validator(mode="after")
    def _changes_something(self) -> Revision:
        if not self.model_fields_set:
            raise ValueError("a revision has a value, a payload or both; neither was given")
        return self


class CollectionSettings(Request):
    """How a collection turns documents into keys and answers; fixed once it holds any."""

    encoder: str | None = Field(
        None, max_length=1024, description="Model name or folder; the packaged MiniLM if absent."
    )
    dimension: int | None = Field(
        None,
        ge=1,
        le=MAX_WIDTH,
        description="Width of the vectors that documents bring; such a collection has no encoder.",
    )
    normalize: bool = Field(False, description="Scale brought vectors to length one.")
    scorer: Literal["dot", "cosine", "laplace"] = Field(
        "dot", description="The default comparison of queries and keys."
    )
    scale: Annotated[FiniteFloat, Field(gt=0)] | None = Field(
        None, description="The default factor on it: 20 for normalised embeddings, else 1/√d."
    )
    passages: bool = Field(True, description="Split texts longer than the encoder's window.")
    overlap: int | None = Field(
        None, ge=0, description="Tokens that neighbouring passages share; a quarter if absent."
    )
    recall: Annotated[FiniteFloat, Field(gt=0, le=1)] = Field(
        0.95,
        description="The share of the ten nearest that searches find at least, once there are too "
        "many keys for exact search; 1 stays exact.",
    )
    exact_below: int | None = Field(
        None,
        ge=0,
        description="Search exactly below so many keys; as many as take 10 ms if absent.",
    )
    values: JsonValue = Field(
        None, description='Declared value types, such as "number" or {"module": "category"}.'
    )

    @model_validator(mode="after")
    def _encoder_or_vectors(self) -> CollectionSettings:
        if self.encoder is not None and self.dimension is not None:
            raise ValueError(
                "a collection has an encoder (documents bring text) or a dimension "
                "(documents bring vectors); both were given"
            )
        return self
