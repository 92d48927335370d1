"""Requests and answers about collections, aliases and documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Annotated, Any, Literal, Protocol, TypeAlias

from pydantic import BeforeValidator, Field, FiniteFloat, JsonValue

from attend.api import base
from attend.core.errors import InvalidRequest
from attend.core.types import WHOLE, Document, ScorerName

MAX_TEXTS = 64
"""Texts of one document, by name."""

MAX_VECTORS = 1024
"""Own vectors of one document under one name."""


def _by_name(vectors: object) -> object:
    """Return vectors by name; those without one are of the whole document."""
    if isinstance(vectors, Mapping):
        return {name: _listed(item) for name, item in vectors.items()}
    return {WHOLE: _listed(vectors)}


def _listed(vectors: object) -> object:
    """Return one vector or several as a list of vectors."""
    items = vectors.tolist() if hasattr(vectors, "tolist") else vectors
    is_one = isinstance(items, list | tuple) and items and isinstance(items[0], int | float)
    return [items] if is_one else items


VectorList = Annotated[list[base.Vector], Field(min_length=1, max_length=MAX_VECTORS)]
NamedVectors = Annotated[
    dict[str, VectorList],
    Field(min_length=1, max_length=MAX_TEXTS),
    BeforeValidator(
        _by_name, json_schema_input_type=VectorList | dict[str, base.Vector | VectorList]
    ),
]


class DocumentRequest(base.Request):
    """One document to store: its texts, its own vectors or both, and what to return for it.

    A document without text and vector is stored and found by filters, and by no search.
    """

    id: base.DocumentId
    text: base.JoinedText | None = None
    """Short for fields: {text: …}. A list of strings is joined by commas."""
    fields: dict[str, base.JoinedText] | None = Field(None, min_length=1, max_length=MAX_TEXTS)
    """Texts by name. A collection with an encoder encodes each, so that each has its own keys;
    words, `match`, highlights and titles are of them in any collection."""
    vector: base.Vector | None = None
    """An own embedding of the whole document; its texts are then not encoded."""
    vectors: NamedVectors | None = None
    """Several own embeddings: a list stands for the whole document, as `vector` does; an object has
    one or several for each text field, and other fields are encoded as usual."""
    value: JsonValue = None
    """The value to return for it."""
    payload: dict[str, JsonValue] = Field(default_factory=dict)
    """Fields for filters and displays."""

    def check(self) -> None:
        for pair in (("text", "fields"), ("vector", "vectors")):
            if all(getattr(self, name) is not None for name in pair):
                sentence = f"a document has {pair[0]} or {pair[1]}; both were given"
                raise base.WrongField(pair[1], sentence)
        blank = [name for name, text in self.texts().items() if not text.strip()]
        if blank:
            raise ValueError(f"the text of {', '.join(blank)} is empty")

    def texts(self) -> dict[str, str]:
        """Return the texts by field."""
        if self.fields is not None:
            return dict(self.fields)
        return {"text": self.text} if self.text else {}

    def document(self) -> Document:
        vectors: Mapping[str, Any] = self.vectors or {}
        if self.vector is not None:
            vectors = {WHOLE: self.vector}
        return Document(self.id, self.texts(), vectors, self.value, self.payload)


class UpsertRequest(base.Request):
    """Documents to insert or replace: all of them or, if one is wrong, none."""

    documents: list[DocumentRequest] = Field(max_length=base.MAX_DOCUMENTS)


class ArrowTable(Protocol):
    """A table that Arrow can read: of pandas, Polars, DuckDB or pyarrow itself."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


Documents: TypeAlias = Iterable[Document | Mapping[str, Any]] | ArrowTable
"""Documents as a caller has them: each with the fields of `DocumentRequest`, or a table of them."""


@contextmanager
def located(place: int, id: object) -> Iterator[None]:
    """Let an error of one document begin with its position and its id."""
    try:
        yield
    except InvalidRequest as error:
        fault = InvalidRequest(f"documents.{place} (id {id!r:.80}): {error}", field=error.field)
        fault.details = [
            {**detail, "field": f"documents.{place}.{detail['field']}"} for detail in error.details
        ]
        raise fault from None


class UpdateRequest(base.Request):
    """A change of a stored document's value or payload; its texts and keys stay."""

    value: JsonValue = None
    """The new value, whole; null is one too."""
    payload: dict[str, JsonValue] = Field(default_factory=dict)
    """Merged into the stored payload as RFC 7396 has it: null removes a member, objects merge
    member by member, anything else replaces."""

    def check(self) -> None:
        if not self.model_fields_set:
            raise base.WrongField(
                "value", "a revision has a value, a payload or both; neither was given"
            )


About = dict[
    Literal["title", "description", "licence", "source"],
    Annotated[str, Field(min_length=1, max_length=2000)],
]
"""What a collection holds, for people: a title, a description, the licence and the source of its
documents."""


LogDays = Annotated[FiniteFloat, Field(gt=0, le=36_500)]
LogBytes = Annotated[int, Field(ge=2**20, le=2**40)]
LogSwaps = Annotated[FiniteFloat, Field(ge=0, le=1)]
Interleave = Annotated[
    list[Annotated[int, Field(ge=1, le=base.MAX_ROW)]], Field(min_length=2, max_length=2)
]


class CollectionSettings(base.Request):
    """The settings of a collection; most are fixed once it holds documents."""

    encoder: str | None = Field(None, max_length=1024)
    """Model name or folder; the packaged MiniLM if absent."""
    dimension: int | None = Field(None, ge=1, le=base.MAX_WIDTH)
    """Width of the vectors that documents bring; such a collection has no encoder."""
    normalize: bool | None = None
    """Scale brought vectors to length one, or keep them as they are. If absent, the first write
    decides: true if all its vectors have length one already."""
    scorer: ScorerName = "dot"
    """The default comparison of queries and keys."""
    scale: Annotated[FiniteFloat, Field(gt=0)] | None = None
    """The default factor on it: 20 for embeddings of length one, else 1/√d."""
    passages: bool = True
    """Split texts longer than the encoder's window."""
    overlap: int | None = Field(None, ge=0)
    """Tokens that neighbouring passages share; a quarter if absent."""
    recall: Annotated[FiniteFloat, Field(gt=0, le=1)] = 0.95
    """The share of the ten nearest that searches find at least, once there are too many keys for
    exact search; 1 stays exact."""
    exact_below: int | None = Field(None, ge=0)
    """Search exactly below this many keys; by default as many as take 5 ms."""
    values: JsonValue = None
    """Declared value types, such as "number" or {"module": "category"}."""
    about: About | None = None
    """The title, description, licence and source that the collection's page shows. What exists
    keeps its own if this is absent."""
    log: bool = Field(False, strict=True)
    """Log searches (see `SettingsChange`). What exists keeps its own if this is absent, or one of
    the next three."""
    log_days: LogDays = 90.0
    log_bytes: LogBytes = 2**30
    log_swaps: LogSwaps = 0.0

    def check(self) -> None:
        if self.encoder is not None and self.dimension is not None:
            raise base.WrongField(
                "encoder",
                "a collection has an encoder (documents bring text) or a dimension "
                "(documents bring vectors); both were given",
            )


class SettingsChange(base.Request):
    """Settings that may change while the collection holds documents; null restores a default."""

    nullable = ("exact_below", "scale", "about", "interleave")

    recall: Annotated[FiniteFloat, Field(gt=0, le=1)] = 0.95
    """The share of the ten nearest to find where keys are too many for exact search."""
    exact_below: int | None = Field(None, ge=0)
    """Search exactly below this number of keys; by default as many as take 5 ms. Fewer than 1,000
    keys are always searched exactly."""
    scale: Annotated[FiniteFloat, Field(gt=0)] | None = None
    """The factor on scores before the softmax: 20 for embeddings of length one, else 1/√d."""
    values: JsonValue = None
    """Declared value types, such as "number" or {"module": "category"}."""
    log: bool = Field(False, strict=True)
    """Log searches: the query as text, the version, the hits. Answers then have the id of their
    search, and `used` takes which hits served. What was logged stays where it is switched off."""
    log_days: LogDays = 90.0
    """The time that a logged search is kept."""
    log_bytes: LogBytes = 2**30
    """The size of the log, above which the oldest searches go."""
    log_swaps: LogSwaps = 0.0
    """The share of logged searches in which two neighbouring hits, drawn at random, change places
    with chance 1/2: what is used then tells how much less a lower rank is looked at. Only first
    pages that are listed by score alone; weights and answer stay."""
    interleave: Interleave | None = None
    """Two versions to compare on live searches. While one of them is active, first pages that are
    listed by score alone are drafted from the lists of both in turn; all else of the answer is the
    active version's, and a hit that it does not list has the other's score and weight. A search
    then takes about as long as two. Only where searches are logged."""
    about: About | None = None
    """The title, description, licence and source that the collection's page shows; replaced as a
    whole."""

    def check(self) -> None:
        if not self.model_fields_set:
            raise ValueError("name at least one setting to change")


class DeletionRequest(base.Request):
    """The documents to delete: by id or by filter."""

    ids: list[base.DocumentId] | None = Field(None, max_length=base.MAX_DOCUMENTS)
    filter: base.Filter | None = None

    def check(self) -> None:
        if (self.ids is None) == (self.filter is None):
            raise base.WrongField("ids", "send exactly one of ids and filter")


CONSISTENCY = (
    "bounded: what others wrote in the last seconds may be missing; strong: it is there. A data "
    "folder is always strong."
)


class ListingRequest(base.Request):
    """The documents to list."""

    limit: int = Field(100, ge=0, le=base.MAX_PAGE)
    """The most to list; 0 to count only."""
    cursor: str | None = Field(None, max_length=base.MAX_CURSOR)
    """`next` of the previous page, with the same filter. Writes shift nothing: no document comes
    twice, and none that stays is skipped."""
    filter: base.Filter | None = None
    title: bool = False
    """Add a display title to each document, as a search does to its hits."""
    consistency: base.Consistency | None = Field(None, description=CONSISTENCY)


class ReadRequest(base.Request):
    """Options of reading a document."""

    title: bool = False
    """Add a display title, as a search does to its hits."""
    consistency: base.Consistency | None = Field(None, description=CONSISTENCY)


class FacetsRequest(base.Request):
    """The fields whose values to count, and the documents over which."""

    fields: list[base.Path] = Field(min_length=1, max_length=base.MAX_FACETS)
    """Fields of value or payload (dotted)."""
    filter: base.Filter | None = None
    limit: int = Field(10, ge=1, le=base.MAX_VALUES)
    """How many values of each, the most frequent first."""


class CollectionInfo(base.Reply):
    """A collection in figures."""

    name: str
    documents: int
    keys: int
    examples: int
    """The number of judgements to learn from: a query, a document, a label."""
    questions: int
    """The number of different queries among them."""
    interactions: int
    """The number of interactions: a user, a document, a value, a time."""
    users: int
    """The number of different users among them."""
    searches: int | None
    """The number of searches in the log; null where none is kept."""
    used: int | None
    """The number of those of which somebody said which hits served."""
    dimension: int
    encoder: str | None
    formats: Mapping[str, int] | None
    """The number of keys by the number format that their texts were encoded in: bfloat16, float32
    or int8, "unknown" of older keys, "mapped" of those of another encoder. Null where the engine
    does not store it."""
    scale: float
    """The factor on the product of a query and an untrained key: 20 where embeddings have length
    one, unless the settings name another."""
    projection: int
    memory: float
    """How far stored feedback moves a query that names no document, as searches do that say
    nothing else: 0 not at all, 0.5 before a training unless stored questions say that it does not
    help."""
    generation: int
    """The revision of the collection; it grows with every write."""
    index: Mapping[str, Any]
    foreign: Mapping[str, Any] | None
    """The test that tells queries foreign to the collection before any training: the passages
    asked, the documents there were, the projection version, and the score below which 5 % of the
    passages lie. Null until one was made."""
    hints: Sequence[str] | None
    """What searches lack: the test of foreign queries; feedback, where it does not help; and alarms
    about drift, with what to do. Null where nothing is missing."""
    bridge: Mapping[str, Any] | None
    """The state of a change of the encoder while mapped keys of the encoder before stand for texts
    that are not encoded yet: `pending` documents, the encoder before, whether mapped keys answer,
    the kind of map and its recall. Null where nothing is mapped."""
    settings: Mapping[str, Any]
    capabilities: Mapping[str, Any]
    """The features that the engine supports."""


class Written(base.Reply):
    """The result of a write, in documents."""

    added: int = 0
    updated: int = 0
    revised: int = 0
    """The number of documents of which only value or payload changed; nothing was encoded."""
    unchanged: int = 0
    encoded: int = 0
    """The number of texts that were encoded."""

    def __add__(self, other: Written) -> Written:
        names = [field.name for field in fields(self)]
        return Written(*(getattr(self, name) + getattr(other, name) for name in names))


class Deleted(base.Reply):
    """The number of entries that were deleted; unknown ones are not counted."""

    deleted: int


class Restored(base.Reply):
    """The figures of a restored collection, and the time of its snapshot."""

    name: str
    created: str
    documents: int
    keys: int
    change: int
