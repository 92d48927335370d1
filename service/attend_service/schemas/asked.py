"""The bodies and parameters that only HTTP has, around the requests of `index`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, JsonValue, model_validator

from attend import DEFAULT_COLLECTION
from attend.consistency import Consistency
from attend.search.requests import (
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
from attend.store.facets import MAX_FACETS, MAX_VALUES

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


CONSISTENCY = (
    "bounded: what others wrote in the last seconds may be missing; strong: it is there. A data "
    "folder is always strong."
)


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
    consistency: Consistency | None = Field(None, description=CONSISTENCY)


class Showing(Request):
    """How to read a document."""

    consistency: Consistency | None = Field(None, description=CONSISTENCY)


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
