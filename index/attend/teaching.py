"""Teaching: which documents answer which queries, stored to learn from.

What is taught is at once an example key of its document, and from the next training on what
W_Q and W_K are learned from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from attend.api.base import MAX_DETAILS, parse
from attend.api.learning import TeachItem
from attend.collection import Collection
from attend.errors import AttendError, Detail, InvalidRequest, UnknownDocument
from attend.examples import MAX_WEIGHT, Asked, Example, same_question
from attend.ingest import check_id, own_vector
from attend.store import NewExample, Question, moved
from attend.types import Float32

BATCH = 512
"""Queries encoded between two reports of progress."""

FEW = 32
"""So many texts are encoded sooner than all stored questions are read."""

PROBES = 8
"""Texts that are encoded again, to learn whether the encoder still says the same of them."""

SOURCE = "given"
"""Where examples come from that do not say."""

Progress = Callable[[str, float], None]
"""Told the stage, and how far it is: 0 to 1."""


class Taught(NamedTuple):
    """What teaching did.

    `added` and `replaced` count the examples given, `questions` the different queries among
    them; `examples` is how many there are now.
    """

    added: int
    replaced: int
    examples: int
    questions: int


def teach(
    collection: Collection,
    items: Iterable[TeachItem | Example | Mapping[str, Any]],
    *,
    forget: bool = False,
    progress: Progress | None = None,
) -> Taught:
    """Store examples, all or none; of several for one query and document the last counts.

    An example of a query and document that have one already replaces it. Queries that are
    stored already are not encoded again, unless the encoder has come to see them otherwise:
    then their new embeddings take the place of the old, as keys too.

    Args:
        forget: delete the examples stored before, in the step that stores the new ones: they
            stay where one of these is wrong, or the process is killed.

    Raises:
        UnknownDocument: no document has an example's id.
        InvalidRequest: another thing wrong with an item (DimensionMismatch: a vector of another
            width than the collection's). The sentence is about the first, the details name all.

    >>> teach(collection, [{"query": "a whale hunt", "id": "moby-dick"}])  # doctest: +SKIP
    Taught(added=1, replaced=0, examples=1, questions=1)
    """
    collection.capabilities.check("examples")
    examples = [_example(at, item) for at, item in enumerate(items)]
    _refuse(unfit(collection, examples), len(examples))
    keys = [same_question(example.query) for example in examples]
    asked = {key: each.query for key, each in zip(keys, examples, strict=True)}
    last = {(key, each.document): each for key, each in zip(keys, examples, strict=True)}
    places = {key: at for at, key in enumerate(asked)}
    rows = [
        NewExample(places[key], each.document, each.weight, each.position, each.source or SOURCE)
        for (key, _), each in last.items()
    ]
    questions = _questions(collection, list(asked.values()), progress)
    added, replaced = 0, 0
    if rows or forget:
        added, replaced = collection.store.add_examples(questions, rows, forget=forget)
    collection.merge_if_due()
    return Taught(added, replaced, collection.store.example_count(), len(questions))


def unfit(collection: Collection, examples: Sequence[Example]) -> dict[int, AttendError]:
    """What the collection has against examples, by their places in the list."""
    known = collection.store.hashes(list({example.document for example in examples}))
    return {
        at: error
        for at, example in enumerate(examples)
        if (error := _unfit(collection, example, known)) is not None
    }


def _unfit(
    collection: Collection, example: Example, known: Mapping[str, object]
) -> AttendError | None:
    try:
        check_id(example.document)
        _check_label(example.weight)
        if not isinstance(example.query, str):
            _check_vector(collection, example.query)
        elif collection.settings.encoder is None:
            raise InvalidRequest(
                f"The query is text, but this collection was made for vectors of "
                f"{collection.settings.dimension} dimensions; send such a vector.",
                field="query",
            )
    except InvalidRequest as error:
        return error
    if example.document not in known:
        return UnknownDocument(
            f"No document has the id {example.document!r}; store the document first, or correct "
            f"the id.",
            field="id",
        )
    return None


def _check_label(weight: float) -> None:
    """Items are checked where they are parsed; examples come from everywhere."""
    if not abs(weight) <= MAX_WEIGHT:  # true for NaN too
        raise InvalidRequest(
            f"The label is {weight:g}, but a finite number between {-MAX_WEIGHT:g} and "
            f"{MAX_WEIGHT:g} is expected.",
            field="label",
        )


def _example(at: int, item: TeachItem | Example | Mapping[str, Any]) -> Example:
    if isinstance(item, Example):
        return item
    if isinstance(item, TeachItem):
        return item.example()
    try:
        return parse(TeachItem, item).example()
    except InvalidRequest as error:
        named = InvalidRequest(f"Item {at}: {error}", field=_placed(at, error.field))
        named.details = [{**each, "field": _placed(at, each["field"])} for each in error.details]
        raise named from None


def _placed(at: int, field: str | None) -> str:
    """Where in the list of items a field is."""
    return f"items.{at}.{field}" if field else f"items.{at}"


def _refuse(wrong: Mapping[int, AttendError], count: int) -> None:
    """Raise the first error, which tells of all."""
    if not wrong:
        return
    details: list[Detail] = [
        {"field": _placed(at, error.field), "reason": str(error)} for at, error in wrong.items()
    ]
    error = next(iter(wrong.values()))
    if len(wrong) > 1:
        unknown = all(isinstance(each, UnknownDocument) for each in wrong.values())
        error = (UnknownDocument if unknown else InvalidRequest)(
            f"{len(wrong)} of {count} items cannot be taught, and none was. "
            f"{details[0]['field']}: {error}"
        )
    error.field, error.details = details[0]["field"], details[:MAX_DETAILS]
    raise error


def _questions(
    collection: Collection, queries: Sequence[Asked], progress: Progress | None
) -> list[Question]:
    """Each query with its embedding: a vector as it is stored, a text as it is encoded."""
    texts = [query for query in queries if isinstance(query, str)]
    embeddings = _still_true(collection, _stored(collection, texts))
    fresh = [text for text in texts if text not in embeddings]
    embeddings |= zip(fresh, _encoded(collection, fresh, progress), strict=True)
    return [
        Question(query, embeddings[query])
        if isinstance(query, str)
        else Question(None, _embedding(collection, query))
        for query in queries
    ]


def _check_vector(collection: Collection, vector: Sequence[float] | Float32) -> None:
    try:
        _embedding(collection, vector)
    except InvalidRequest as error:
        error.field = "query.vector"  # in an item; the same fault has other places elsewhere
        raise


def _embedding(collection: Collection, vector: Sequence[float] | Float32) -> Float32:
    # An array is a sequence in all but name.
    return own_vector(vector, collection.settings)  # type: ignore[arg-type]


def _stored(collection: Collection, texts: Sequence[str]) -> dict[str, Float32]:
    """The embeddings of the texts that were asked before."""
    if len(texts) <= FEW:
        return {}
    learned = collection.store.learned()
    wanted = set(texts)
    pairs = zip(learned.texts, learned.embeddings, strict=True)
    return {text: embedding for text, embedding in pairs if text is not None and text in wanted}


def _still_true(collection: Collection, stored: dict[str, Float32]) -> dict[str, Float32]:
    """Stored embeddings, or none of them where the encoder gives others by now."""
    probed = list(stored)[:: max(1, len(stored) // PROBES)][:PROBES]
    given = _encoded(collection, probed, None)
    changed = [moved(stored[text], each) for text, each in zip(probed, given, strict=True)]
    return {} if any(changed) else stored


def _encoded(
    collection: Collection, texts: Sequence[str], progress: Progress | None
) -> Iterator[Float32]:
    """The embeddings of texts, in batches of which `progress` is told."""
    if not texts:
        return
    encoder = collection.encoder()
    for at in range(0, len(texts), BATCH):
        if progress is not None:
            progress("encoding queries", at / len(texts))
        yield from encoder.encode_queries(texts[at : at + BATCH])
    if progress is not None:
        progress("encoding queries", 1.0)
