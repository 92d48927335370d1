"""Adding feedback to a collection: labels of documents for queries, interactions of users.

A label is at once an example key of its document, and W_Q and W_K are learned from it at the next
training. An interaction is at once part of its user's history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from attend.api.base import ABSENT, Request, parse
from attend.api.feedback import FeedbackAdded, FeedbackItem, InteractionItem, InteractionsAdded
from attend.core.arrays import same_question
from attend.core.errors import AttendError, InvalidRequest, SourceError, UnknownDocument
from attend.core.liking import Liking
from attend.core.settings import Settings
from attend.core.types import MAX_WEIGHT, Example, Float32, OnStage, QueryInput
from attend.engines.engine import StoredCollection
from attend.source import RowItem, RowProblem
from attend.store import Interaction, NewExample, Question, moved
from attend.write.ingest import as_embedding, check_id, encoded, refuse

Item = TypeVar("Item", bound=Request)
FeedbackEntry = TypeVar("FeedbackEntry", Example, Interaction)

BATCH = 512
"""Queries encoded between two reports of progress."""

FEW = 32
"""Below this number, encoding the texts is faster than reading all stored questions."""

PROBES = 8
"""Texts that are encoded again, to detect that the encoder has changed."""

SOURCE = "given"
"""The source of examples that name none."""


def add_feedback(
    collection: StoredCollection,
    items: Iterable[FeedbackItem | Example | Mapping[str, Any]],
    *,
    delete_stored: bool = False,
    only: str | None = None,
    progress: OnStage | None = None,
) -> FeedbackAdded:
    """Store examples, all or none; of several for one query and document the last counts.

    An example replaces the stored one of its query and document. Queries that are stored already
    are not encoded again, unless the encoder has changed: then their new embeddings replace the
    old ones, as keys too.

    Args:
        delete_stored: delete the examples stored before, in the transaction that stores the new
            ones: they stay if one of these is wrong, or the process is killed.
        only: the source of the items, which are to be all of it: its other examples are deleted,
            and examples of other sources are not replaced.

    Raises:
        UnknownDocument: no document has an example's id.
        InvalidRequest: another fault of an item (DimensionMismatch: a vector of another width
            than the collection's). The sentence is about the first, the details name all.
    """
    collection.capabilities.check("examples")
    examples = [
        item if isinstance(item, Example) else _parse_item(FeedbackItem, position, item).example()
        for position, item in enumerate(items)
    ]
    wrong = []
    for position, error in unfit(collection, examples).items():
        error.field = _field_of(position, error.field)
        wrong.append((error.field, error))
    refuse(wrong, len(examples), "items")
    queries = {same_question(example.query): example.query for example in examples}
    places = {question: place for place, question in enumerate(queries)}
    last = {(same_question(example.query), example.document): example for example in examples}
    rows = [
        NewExample(places[question], document, label.weight, label.position, label.source or SOURCE)
        for (question, document), label in last.items()
    ]
    questions = _questions(collection, list(queries.values()), progress)
    added, replaced = 0, 0
    if rows or delete_stored or only:
        added, replaced = collection.store.add_examples(
            questions, rows, forget=delete_stored, only=only
        )
    collection.merge_if_due()
    return FeedbackAdded(added, replaced, collection.store.example_count(), len(questions))


def add_interactions(
    collection: StoredCollection,
    items: Iterable[InteractionItem | Interaction | Mapping[str, Any]],
    *,
    delete_stored: bool = False,
    liked_from: float | None = ABSENT,
) -> InteractionsAdded:
    """Store interactions, all or none; of several for one user and document the latest counts.

    Of equal times, or where one has none, that is the last one sent.

    Args:
        delete_stored: delete the interactions stored before, in the same transaction.
        liked_from: from now on, numbers from here up are likes; None chooses it from the data. In
            the same transaction.

    Raises:
        UnknownDocument: no document has an item's id.
        InvalidRequest: another fault of an item, of which the details name all; or liked_from is
            no finite number.

    >>> add_interactions(collection, [{"user": "ann", "id": "dune"}])  # doctest: +SKIP
    InteractionsAdded(added=1, replaced=0, interactions=1, users=1, liked_from=None)
    """
    interactions = [
        item
        if isinstance(item, Interaction)
        else _parse_item(InteractionItem, position, item).interaction()
        for position, item in enumerate(items)
    ]
    latest: dict[tuple[str, str], Interaction] = {}
    for entry in interactions:
        pair = entry.user, entry.document
        if not is_earlier(entry, latest.get(pair, entry)):
            latest[pair] = entry
    liking = None if liked_from is ABSENT else Liking(liked_from, "set")
    added, replaced = 0, 0
    if latest or delete_stored or liking is not None:
        added, replaced = collection.store.add_interactions(
            list(latest.values()), forget=delete_stored, liking=liking
        )
    counts = collection.store.interaction_counts()
    return InteractionsAdded(added, replaced, *counts, collection.store.liking().liked_from)


def _parse_item(model: type[Item], position: int, item: Item | Mapping[str, Any]) -> Item:
    """Validate one item of a list; an InvalidRequest names the fields with its position."""
    try:
        return parse(model, item)
    except InvalidRequest as error:
        renamed = InvalidRequest(
            f"Item {position}: {error}", field=_field_of(position, error.field)
        )
        renamed.details = [
            {**detail, "field": _field_of(position, detail["field"])} for detail in error.details
        ]
        raise renamed from None


def _field_of(position: int, field: str | None) -> str:
    """Return the path of a field of the item at a position."""
    return f"items.{position}.{field}" if field else f"items.{position}"


# -- checks ---------------------------------------------------------------------------------------


def unfit(
    collection: StoredCollection, entries: Sequence[Example | Interaction]
) -> dict[int, AttendError]:
    """Return the collection's errors about examples or interactions, by their positions."""
    rows = collection.store.rows_of(list({entry.document for entry in entries}))
    errors: dict[int, AttendError] = {}
    for position, entry in enumerate(entries):
        try:
            if isinstance(entry, Example):
                _check_example(entry, collection.settings)
            if entry.document not in rows:
                raise UnknownDocument(
                    f"No document has the id {entry.document!r}; store the document first, or "
                    f"correct the id.",
                    field="id",
                )
        except (InvalidRequest, UnknownDocument) as error:
            errors[position] = error
    return errors


def _check_example(example: Example, settings: Settings) -> None:
    check_id(example.document)
    # Items are checked where they are parsed; examples come from everywhere.
    if not abs(example.weight) <= MAX_WEIGHT:  # true for NaN too
        raise InvalidRequest(
            f"The label is {example.weight:g}, but a finite number between {-MAX_WEIGHT:g} and "
            f"{MAX_WEIGHT:g} is expected.",
            field="label",
        )
    if example.position is not None and not 1 <= example.position < 2**63:
        raise InvalidRequest(
            f"The position is {example.position}; send 1 for the first place, or none.",
            field="position",
        )
    if not isinstance(example.query, str):
        try:
            as_embedding(example.query, settings)
        except InvalidRequest as error:
            error.field = "query.vector"  # in an item; the same fault has other places elsewhere
            raise
    elif settings.encoder is None:
        raise InvalidRequest(
            f"The query is text, but this collection was made for vectors of {settings.dimension} "
            f"dimensions; send such a vector.",
            field="query",
        )


# -- collecting -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gathered(Generic[FeedbackEntry]):
    """The usable rows of a file.

    Attributes:
        entries: one for each query and document, or user and document.
        skipped: rows that could not be used, contradicted labels included.
        repeated: rows that another replaces without a contradiction.
    """

    entries: Sequence[FeedbackEntry]
    skipped: int
    repeated: int


def gather(
    items: Iterable[RowItem[FeedbackEntry] | RowProblem],
    unfit: Callable[[Sequence[FeedbackEntry]], Mapping[int, Exception]],
    *,
    strict: bool = False,
    on_problem: Callable[[RowProblem], None] = lambda problem: None,
) -> Gathered[FeedbackEntry]:
    """Collect the entries that a collection takes, one for each pair that they are about.

    Of several labels for one query and document the last counts, of several interactions of one
    user and document the latest.

    Args:
        unfit: the collection's errors about entries, by their positions.
        strict: stop at the first row that cannot be used.
        on_problem: called with every row that cannot be used, and with every notice.

    Raises:
        SourceError: a row could not be used, and `strict` was set.
    """
    skipped = repeated = 0

    def report(problem: RowProblem) -> None:
        nonlocal skipped
        on_problem(problem)
        skipped += problem.rejects
        if strict and problem.rejects:
            raise SourceError(f"Stopped at {problem} Nothing was stored, because of --strict.")

    rows: list[RowItem[FeedbackEntry]] = []
    for item in items:
        report(item) if isinstance(item, RowProblem) else rows.append(item)
    errors = unfit([row.item for row in rows])
    last: dict[tuple[str | bytes, str], RowItem[FeedbackEntry]] = {}
    for position, row in enumerate(rows):
        if position in errors:
            report(RowProblem(row.place, str(errors[position])))
            continue
        entry = row.item
        who = same_question(entry.query) if isinstance(entry, Example) else entry.user
        earlier = last.pop((who, entry.document), row)
        last[who, entry.document] = earlier if is_earlier(entry, earlier.item) else row
        if isinstance(entry, Example) and entry.weight != earlier.item.weight:
            fault = (
                f"The label {earlier.item.weight:g} of {entry.document!r} is contradicted by "
                f"{entry.weight:g} at {row.place}, for the same query. The later one counts."
            )
            report(RowProblem(earlier.place, fault))
        elif earlier is not row:
            repeated += 1
    return Gathered([row.item for row in last.values()], skipped, repeated)


def is_earlier(entry: Example | Interaction, other: Example | Interaction) -> bool:
    """Return whether both are interactions with a time, and the first is the earlier one.

    Of a user and document the latest interaction counts, of equal times or without one the last
    sent; `StoredInteractions.add_interactions` has the same rule against what is stored.
    """
    if not (isinstance(entry, Interaction) and isinstance(other, Interaction)):
        return False
    return entry.time is not None and other.time is not None and entry.time < other.time


# -- embeddings -----------------------------------------------------------------------------------


def _questions(
    collection: StoredCollection, queries: Sequence[QueryInput], progress: OnStage | None
) -> list[Question]:
    """Return each query with its embedding: a vector as it is stored, a text as it is encoded."""
    texts = [query for query in queries if isinstance(query, str)]
    embeddings = _stored_embeddings(collection, texts)
    fresh = [text for text in texts if text not in embeddings]
    if fresh:
        encode = collection.encoder().encode_queries
        rows = encoded(fresh, encode, "encoding queries", BATCH, progress)
        embeddings |= zip(fresh, rows, strict=True)
    return [
        Question(query, embeddings[query])
        if isinstance(query, str)
        else Question(None, as_embedding(query, collection.settings))
        for query in queries
    ]


def _stored_embeddings(collection: StoredCollection, texts: Sequence[str]) -> dict[str, Float32]:
    """Return the embeddings of texts that are stored; none if the encoder has changed since."""
    if len(texts) <= FEW:
        return {}
    stored = collection.store.question_embeddings(texts)
    probes = list(stored)[:: max(1, len(stored) // PROBES)][:PROBES]
    rows = collection.encoder().encode_queries(probes) if probes else ()
    changed = [moved(stored[text], now) for text, now in zip(probes, rows, strict=True)]
    return {} if any(changed) else stored
