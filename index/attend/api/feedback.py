"""Requests and answers about what people said and did: feedback and interactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from numbers import Real
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    FiniteFloat,
    JsonValue,
)

from attend.api import base
from attend.api.search import AnyQuery, Query
from attend.core.frames import Tabular
from attend.core.types import MAX_WEIGHT, Example, Interaction


def _check_number(label: object) -> object:
    """Pydantic would take "yes" for true, and true for 1."""
    if isinstance(label, bool):
        return float(label)
    if not isinstance(label, Real):
        raise ValueError("a label is a number, true or false")
    return label


def _check_query(query: Query) -> Query:
    if query.text is None and query.vector is None:
        raise ValueError("a document's id is no question; send the text or vector of the query")
    if query.text is not None and query.vector is not None:
        raise ValueError(
            "a label is about the text of a query or about its vector; both were given, send one"
        )
    if query.text is not None and not query.text.strip():
        raise ValueError("the query is empty")
    return query


Label = Annotated[
    FiniteFloat,
    Field(ge=-MAX_WEIGHT, le=MAX_WEIGHT),
    BeforeValidator(_check_number, json_schema_input_type=float | bool),
]


class FeedbackItem(base.Request):
    """A label: how well a document answers a query."""

    query: Annotated[AnyQuery, AfterValidator(_check_query)]
    id: base.DocumentId
    label: Label = 1.0
    """Above 0: relevant, by degree; 0 or false: judged and not relevant; below 0: explicitly not
    relevant."""
    position: int | None = Field(None, ge=1, lt=2**63)
    """The rank at which the document was shown, from 1."""
    source: str | None = Field(None, max_length=256)
    """Where the label comes from."""

    def example(self) -> Example:
        query = self.query.text if self.query.text is not None else self.query.vector or ()
        return Example(query, self.id, self.label, self.position, self.source)


class FeedbackRequest(base.Request):
    """Labels of documents for queries."""

    items: list[FeedbackItem] = Field(max_length=base.MAX_DOCUMENTS)
    delete_stored: bool = False
    """Delete the feedback stored before, in the same step."""


class FeedbackDeletion(base.Request):
    """The feedback to delete: by its ids, about some documents or queries, or all there is."""

    ids: list[Annotated[int, Field(ge=1, le=base.MAX_ROW)]] | None = Field(
        None, max_length=base.MAX_DOCUMENTS
    )
    """Ids of examples."""
    documents: list[base.DocumentId] | None = Field(None, max_length=base.MAX_DOCUMENTS)
    """Ids of documents."""
    queries: list[base.Text] | None = Field(None, max_length=base.MAX_DOCUMENTS)
    """Texts of queries, as they were sent."""
    all: bool = Field(False, strict=True)
    """True: everything, whatever it is about."""

    def check(self) -> None:
        named = [field is not None for field in (self.ids, self.documents, self.queries)]
        if sum(named) + self.all != 1:
            raise base.WrongField(
                "ids",
                "send exactly one of ids, documents, queries and all; "
                '{"all": true} deletes all feedback',
            )


class FeedbackListing(base.Request):
    """The feedback to list."""

    limit: int = Field(0, ge=0, le=base.MAX_PAGE)
    """The most to list; 0 to count only."""
    before: int | None = Field(None, ge=1, le=base.MAX_ROW)
    """`next` of the previous page."""
    document: base.DocumentId | None = None
    """Only that about this document; the counts are of all."""


class InteractionItem(base.Request):
    """An interaction of a user with a document: a purchase, a view, a rating."""

    user: base.UserId
    id: base.DocumentId
    """The document's id."""
    value: JsonValue = None
    """The user's rating, label, … of the document; predictions are of such values."""
    time: base.Time | None = None

    def interaction(self) -> Interaction:
        time = None if self.time is None else float(self.time)
        return Interaction(self.user, self.id, self.value, time)


class InteractionsRequest(base.Request):
    """Interactions to store, all or none."""

    nullable = ("liked_from",)

    items: list[InteractionItem] = Field(max_length=base.MAX_DOCUMENTS)
    liked_from: FiniteFloat | None = None
    """From now on numbers from here up are likes, of all that are stored; null: chosen from the
    data again. Stays as it is if absent."""
    delete_stored: bool = False
    """Delete the interactions stored before, in the same step."""


class InteractionListing(base.Request):
    """The interactions to list."""

    user: base.UserId | None = None
    """Only those of this user."""
    limit: int = Field(100, ge=0, le=base.MAX_PAGE)
    """The most to list; 0 to count only."""
    cursor: str | None = Field(None, max_length=base.MAX_CURSOR)
    """`next` of the previous page, of the same user."""


class UserListing(base.Request):
    """The users to list."""

    contains: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Only users whose name contains this text; the case of ASCII letters is ignored."""
    limit: int = Field(20, ge=0, le=100)
    """The most to list; 0 to count only."""
    cursor: str | None = Field(None, max_length=base.MAX_CURSOR)
    """`next` of the previous page, with the same text."""


class InteractionDeletion(base.Request):
    """The interactions to delete: a user's, those with documents, or a user's with these."""

    user: base.UserId | None = None
    documents: list[base.DocumentId] | None = Field(None, max_length=base.MAX_DOCUMENTS)
    all: bool = False
    """All there are."""

    def check(self) -> None:
        if self.all == (self.user is not None or self.documents is not None):
            raise base.WrongField("user", 'send user, documents or both; or "all": true alone')


class FeedbackAdded(base.Reply):
    """The result of adding feedback."""

    added: int
    replaced: int
    """The number of judgements that replaced one of the same query and document."""
    examples: int
    """The number of judgements stored now."""
    questions: int | None = None
    """The number of different queries among those sent; only the command line gives it."""


class StoredExample(base.Reply):
    """An example as it was added; `query` is None for a vector."""

    id: int
    query: str | None
    document: str
    label: float
    position: int | None
    source: str
    created: str


class FeedbackPage(Tabular, base.Reply):
    """The number of stored judgements, and some of them if requested, the newest first."""

    listed: ClassVar = ("items", StoredExample)

    examples: int
    """The number of judgements: a query, a document, a label."""
    questions: int
    """The number of different queries among them."""
    relevant: int
    """The number of queries with a relevant document: a training for ranking learns from these."""
    needed: int
    """The number of such queries below which a training for ranking proves nothing."""
    items: Sequence[StoredExample] | None = None
    """Present if `limit` is above 0; `query` is null where it was a vector."""
    next: int | None = field(default_factory=lambda: base.ABSENT)
    """The `before` of the next page; null on the last, and absent where `limit` is 0."""


class InteractionsAdded(base.Reply):
    """The result of adding interactions."""

    added: int
    replaced: int
    """The number of interactions that replaced one of the same user and document."""
    interactions: int
    """The number of interactions stored now."""
    users: int
    liked_from: float | None = field(default_factory=lambda: None)
    """Numbers from here up are likes, by what was set or by the data; null: all above zero are."""


class InteractionEntry(base.Reply):
    """One stored interaction."""

    user: str
    id: str
    """The document's id."""
    value: Any
    time: float | None
    """Seconds since 1970."""


class InteractionsAnswer(Tabular, base.Reply):
    """A page of interactions; the counts are of all that are stored."""

    listed: ClassVar = ("items", InteractionEntry)

    items: Sequence[InteractionEntry]
    next: str | None
    """The cursor of the next page; null on the last."""
    interactions: int
    users: int
    liked_from: float | None
    """Numbers from here up are likes; null: all above zero are."""


class UsedRequest(base.Request):
    """Which hits of a logged search served."""

    search: str = Field(max_length=64)
    """The field `search` of an answer."""
    ids: list[base.DocumentId] = Field(max_length=base.MAX_DOCUMENTS)
    """Ids of hits that served; an empty list says that none did."""
    value: Annotated[FiniteFloat, Field(gt=0, le=MAX_WEIGHT)] = 1.0
    """How much each of them served."""
    source: str | None = Field(None, min_length=1, max_length=256)
    """Who says so, such as a user or an application: one that says far more than others, or what no
    others do, counts less."""


class Used(base.Reply):
    """The result of saying which hits served."""

    used: int
    replaced: int
    """The number of hits of this search that were said to serve before."""


class LoggedHit(base.Reply):
    """A document that a search listed."""

    id: str
    rank: int
    """From 1."""
    used: float | None
    """How much it served; null where it did not, or nobody said."""


class LoggedSearch(base.Reply):
    """A search of the log."""

    search: str
    time: float
    """Seconds since 1970."""
    projection: int
    """The version that answered; 0 for a search before a change of the encoder."""
    query: str | None
    """The text of the query; null where it was a vector or documents."""
    hits: Sequence[LoggedHit]
    """Without documents that were deleted since."""
    judged: bool
    """Whether somebody said which hits served."""
    pair: int | None
    """The upper rank of two hits that were to change places with chance 1/2 (`log_swaps`), as
    `hits` has them; null where none were."""
    interleaved: Sequence[int] | None
    """The versions from whose lists the page was drafted; null for one version's list."""
    source: str | None
    """Who said what served, as its caller named it."""


class SearchesListing(base.Request):
    """The searches of the log to list."""

    limit: int = Field(100, ge=0, le=base.MAX_PAGE)
    """The most to list; 0 to count only."""
    before: str | None = Field(None, max_length=64)
    """`next` of the previous page."""


class SearchesPage(Tabular, base.Reply):
    """Searches of the log, the newest first; the counts are of all."""

    listed: ClassVar = ("items", LoggedSearch)

    items: Sequence[LoggedSearch]
    next: str | None
    """The `before` of the next page; null on the last."""
    searches: int
    used: int
    """The number of searches of which somebody said which hits served."""


class LatestDocument(base.Reply):
    """A document of a user's interactions."""

    id: str
    title: str
    """Its display title."""


class UserEntry(base.Reply):
    """A user whose interactions are stored."""

    user: str
    interactions: int
    latest: Sequence[LatestDocument]
    """The documents of the latest interactions, three at most."""


class UsersAnswer(Tabular, base.Reply):
    """A page of users, those with most interactions first."""

    listed: ClassVar = ("items", UserEntry)

    items: Sequence[UserEntry]
    next: str | None
    """The cursor of the next page; null on the last."""
    users: int
    """The number of all users whose interactions are stored."""
