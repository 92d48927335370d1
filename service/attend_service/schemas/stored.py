"""Answers about what is stored: collections, documents, their values, aliases."""

from __future__ import annotations

from pydantic import Field, JsonValue

from attend_service.schemas.base import Reply


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
    capabilities: dict[str, JsonValue] = Field(description="What the engine can do.")


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


class AliasReply(Reply):
    alias: str
    collection: str


class AliasesReply(Reply):
    aliases: list[AliasReply]


class RestoredReply(Reply):
    """What a snapshot held: the figures of the collection, and when it was taken."""

    name: str
    created: str
    documents: int
    keys: int
    change: int
