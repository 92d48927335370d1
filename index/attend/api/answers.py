"""Answers to searches and recommendations.

Each class is written once: Python gets its objects, the command line and HTTP the same as JSON, and
the OpenAPI document its schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from html import escape
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import GetPydanticSchema

from attend.api.base import ABSENT, Reply
from attend.core.frames import Tabular, column, table_stream

LONGEST = 60
"""Characters of a value or text in a line."""

LONGEST_CELL = 240
"""Characters of a value or text in a cell of a table."""

SHOWN_HITS = 3
"""Hits that the line of an answer names."""

BAR = "background:#4c78a8;height:.7em;display:inline-block;width:{width:.0f}px"
"""The style of a bar; a weight of one is 120 pixels."""


def shortened(content: Any, longest: int = LONGEST) -> str:
    """Return a value or a text on one line.

    >>> shortened({"price": 3})
    '{"price": 3}'
    """
    text = content if isinstance(content, str) else json.dumps(content, default=str)
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def answer_text(answer: Mapping[str, Any]) -> str:
    """Return what an answer says, in a few words.

    >>> answer_text({"type": "number", "mean": 4.2, "std": 0.31, "coverage": 1.0})
    '4.2 ± 0.31'
    >>> answer_text({"type": "category", "value": "red", "distribution": {"red": 0.9}})
    'red (0.90)'
    """
    kind = answer.get("type")
    if kind == "nothing":
        return f"no answer: {answer.get('reason')}"
    if kind == "object":
        fields = (answer.get("fields") or {}).items()
        return shortened(", ".join(f"{name} {answer_text(part)}" for name, part in fields))
    if kind == "vector" and answer.get("vector") is not None:
        return f"a vector of {len(answer['vector'])} numbers"
    if answer.get("mean") is not None:
        spread = "" if answer.get("std") is None else f" ± {answer['std']:.2g}"
        return f"{answer['mean']:.4g}{spread}"
    if answer.get("value") is None:
        return "no value"
    value = shortened(answer["value"])
    share = (answer.get("distribution") or {}).get(str(answer["value"]))
    return value if share is None else f"{value} ({share:.2f})"


def hits_line(hits: Sequence[Any]) -> str:
    """Return the best hits of a list, on one line."""
    named = [f"{hit.id!r} {hit.weight:.3f}" for hit in hits[:SHOWN_HITS]]
    more = ["…"] if len(hits) > SHOWN_HITS else []
    noun = "hit" if len(hits) == 1 else "hits"
    return f"{len(hits)} {noun}" + (f": {', '.join([*named, *more])}" if hits else "")


def hits_table(hits: Sequence[Any], summary: str) -> str:
    """Return hits as a table in HTML, with a bar for each weight; all text is escaped."""
    rows = [
        (
            str(rank),
            escape(shortened(hit.id)),
            f'<span style="{BAR.format(width=120 * min(max(hit.weight, 0.0), 1.0))}"></span> '
            f"{hit.weight:.3f}",
            "" if hit.value is None else escape(shortened(hit.value, LONGEST_CELL)),
            escape(shortened(hit._words or hit.payload or "", LONGEST_CELL)),
        )
        for rank, hit in enumerate(hits, start=1)
    ]
    return table(("", "id", "weight", "value", "text"), rows, escape(summary))


def table(head: Iterable[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    """Return a table in HTML; the cells and the caption are HTML already."""
    names = "".join(f"<th>{name}</th>" for name in head)
    lines = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f"<p>{caption}</p><table><thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table>"


def name_of(part: Mapping[str, Any]) -> str:
    """Return what names a target or a part of a history."""
    name = next((part[kind] for kind in ("id", "text") if part.get(kind) is not None), "a vector")
    return shortened(str(name))


class Shown:
    """A document in a list, for people: one line in a terminal, a table in a notebook."""

    @property
    def _words(self: Any) -> Any:
        """Return the words that tell it from others: its title, its passage or its text."""
        return self.title or self.passage or self.text

    def __repr__(self: Any) -> str:
        parts = [repr(self.id), f"weight {self.weight:.3f}"]
        parts += [] if self.value is None else [f"value {shortened(self.value)}"]
        parts += [repr(shortened(self._words))] if self._words else []
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_html_(self) -> str:
        return hits_table([self], repr(self))


class Highlight(Reply):
    """The passage that matched."""

    field: str
    start: int
    """Begin of the passage in the text of its field, in characters."""
    stop: int
    passage: str | None
    """Null where no text matched."""
    spans: Sequence[tuple[int, int]]
    """Positions of the words of the query in the passage, in characters."""


Calibrated: TypeAlias = Literal["collection", "examples"] | None
"""Where a confidence comes from."""


class AttendedShare(Reply):
    """The share of the softmax over all documents that falls to the attended ones.

    `share` lies between `low` and `high` in 95 of 100 cases; all three are equal where it is exact.
    """

    share: float
    low: float
    high: float


class Weighing(Reply):
    """The numbers that turn logits into weights: enough to repeat the calculation elsewhere.

    With z_h(d) of each hit's explanation and N = `null`, head h gives d the weight exp(z_h(d) / t)
    over the sum of that over all attended documents, plus exp(N_h / t) where there is a no-answer
    score; a weight is the mean over heads by `gates`.
    """

    temperature: float
    """t: the fitted temperature times the requested one."""
    gates: Sequence[float]
    """The weight of each head; they sum to one."""
    null: Sequence[float] | None
    """The no-answer score of each head; null where none was fitted for this request."""
    threshold: float | None
    """The version's own `min_confidence`, which applies where a request names none."""
    mass: AttendedShare
    """The attended documents' share of the weight of all that pass filter and mask, without the
    no-answer score."""


class Coverage(Reply):
    """Whether a list has a right document among its hits at the requested rate.

    The rate is that of questions which have an answer here, as they were held out in the training.
    """

    rate: float
    """As it was requested."""
    covers: bool
    """False if no list of at most `k` documents does; then these are the best `k`."""
    listed: int
    k: int
    """The most to list."""


class MemoryShare(Reply):
    """A stored question that moved a query towards its relevant documents."""

    query: str | None
    """Its text; null for a vector."""
    documents: Sequence[str]
    share: float
    """Of the attention over stored questions; what is missing from one moves nothing."""


class Hit(Shown, Reply, repr=False):
    """One attended document; the weights of all attended documents sum to one, or where a training
    has fitted a no-answer score to `confidence`.

    >>> hit = books.search([1.0, 0.1], k=1, fields=["year"]).hits[0]
    >>> hit.id, hit.value, hit.payload
    ('whale', {'stars': 4.0}, {'year': 1851})
    """

    id: str
    score: float
    """The logit (one head) or the log of the weight (several heads). Higher is better; comparable
    within one query and one projection version."""
    weight: float
    value: Any
    """The field that the request's `value` names, or the document's whole value."""
    payload: Mapping[str, Any]
    explanation: Mapping[str, Any] | None = None
    """The key that matched, logits and weights by head, and in `parts` what adds up to the score:
    `meaning` (the encoder alone), `learned` (what the version changes of it), `memory` (feedback),
    `lexical` (BM25), `recency` (its age), `layer` (the second layer), `rerank`, and with several
    heads `partition` (the score is the log of the weight then). `dense`, `lexical`, `layer` and
    `memory` beside it are parts of the logit, as a mean over heads. With "tokens", `tokens` and
    `words` have the pairs; the `shares` of words, `mean` and `remainder` add up to `meaning` and
    `learned`. Present if requested."""
    highlight: Highlight | None = None
    """Present if requested."""
    title: str | None = None
    """A display title; present if requested."""
    text: str | None = None
    """The texts of the document, one after the other; present if `include` names text, and empty
    where a document has none."""
    passage: str | None = None
    """The passage that matched; the whole text where something else than a text did. Present if
    requested by `include`."""
    group: Any = field(default_factory=lambda: ABSENT)
    """The value of `group_by`; present if requested."""
    group_size: int | None = None
    """The number of attended documents in the group."""
    group_weight: float | None = None
    """The sum of their weights."""


class FacetValue(Reply):
    """A value, and the number of documents that have it."""

    value: Any
    documents: int


class Facet(Tabular, Reply):
    """The values of one field; a list counts once for each of its different values."""

    listed: ClassVar = ("values", FacetValue)

    values: Sequence[FacetValue]
    """The most frequent first; among equals numbers before texts, each ascending."""
    distinct: int
    """The number of different values, listed or not."""
    missing: int
    """The number of documents in which the field is missing or null."""


Facets = Mapping[str, Facet]
"""By field."""


class ValueShare(Reply):
    """One of the values with the highest weights."""

    id: str
    value: Any
    weight: float


class NearestValue(Reply):
    """The stored document whose value is nearest to a blended vector."""

    id: str
    value: Any
    cosine: float
    distance: float


class ValueAnswer(Reply):
    """The value that documents give together; its keys are always the same, and null where one does
    not apply to the type of the values. In Python it is a plain dictionary."""

    type: str
    """number, category, labels, boolean, vector, object, text, image or mixed; nothing, where
    there is no answer."""
    value: Any
    """The likeliest label, boolean, text or other value."""
    distribution: Mapping[str, float] | None
    """The share of each label, the largest first."""
    probability: float | None
    """The share of true."""
    mean: float | None
    std: float | None
    effective_sample_size: float | None
    """The number of equal weights that give a mean of the same certainty."""
    vector: Sequence[float] | None
    fields: Mapping[str, ValueAnswer] | None
    """The answer of each field of an object."""
    values: Sequence[ValueShare] | None
    """Texts, image references and mixed values: the heaviest, with their weights."""
    decoded: NearestValue | None
    coverage: float
    """The share of the weight on documents that have a value of the type; where it is 0, the keys
    of the type are null, but for the fields of an object."""
    reason: str | None
    """Why there is no answer."""


VALUE_KEYS: Mapping[str, Sequence[str]] = {
    "number": ("mean", "std", "effective_sample_size"),
    "category": ("value", "distribution"),
    "labels": ("value", "distribution"),
    "boolean": ("value", "probability", "distribution"),
    "vector": ("vector", "decoded"),
    "object": ("fields",),
    "text": ("value", "values"),
    "image": ("value", "values"),
    "mixed": ("value", "values"),
    "nothing": ("reason", "fields"),
}
"""By type, the keys of a `ValueAnswer` that may be there; those of other types are null."""


class Answer(Tabular, Reply):
    """The answer to one query: documents by attention, and the value that they give together.

    Data frames read its hits: `pandas.DataFrame.from_arrow(answer)`, `polars.DataFrame(answer)`.

    >>> answer = books.search([1.0, 0.1], mode="soft", value="year", k=1)
    >>> len(answer.hits), answer.attended, answer.answered, answer.answer["type"]
    (1, 3, True, 'number')
    """

    listed: ClassVar = ("hits", Hit)

    hits: Sequence[Hit]
    """The listed documents, best first."""
    answer: Annotated[Mapping[str, Any], GetPydanticSchema(lambda _, handler: handler(ValueAnswer))]
    """The blend (soft) or the best document's value (hard). Its keys are always the same, null
    where one does not apply: by `type`, number has mean and std, category a distribution, and so
    on; without an answer, `type` is nothing and `reason` says why. A hard answer is one document's
    value, and has no distribution, probability or std."""
    attended: int
    """The number of documents that share the weights; 0 if none passed filter and mask."""
    answered: bool
    """False if no document was attended, or the confidence was too low for an answer; hits are
    listed all the same."""
    confidence: float | None
    """After a training, one minus the weight of the no-answer score. Before one, the share of
    passages of this collection that, asked as queries, match it no better than this query does:
    near 0 for a query that is foreign to it. Null where neither is known for this request."""
    calibrated: Calibrated
    """examples: temperature and no-answer score were fitted for this request. collection: the
    confidence comes from the collection's own texts. Null: neither is known, or not for this
    temperature."""
    exact: bool
    """True if no better document can have been missed."""
    generation: int
    """The revision of the collection that answered; it grows with every write."""
    projection: int
    """The projection version that answered."""
    took_ms: float
    next: str | None
    """The `cursor` of the hits that follow; null on the last page."""
    hints: Sequence[str] | None = None
    """Why there may be no documents: fields of the filter that no document has, or values that
    documents have in another spelling. With documents: fields of `group_by` and `facets` that no
    document has, that the rate of `coverage` was measured without the filter, and why the
    collection cannot tell yet whether it answers a text. Present where there are any."""
    facets: Facets | None = None
    """The most frequent values by field, over all documents that pass filter and mask; present if
    requested."""
    coverage: Coverage | None = None
    """Whether the list covers at the requested rate; present if requested."""
    timings: Mapping[str, float] | None = None
    """Milliseconds by stage, of all searches answered together; present with `explain`."""
    weighing: Weighing | None = None
    """Present with `explain`."""
    memory: Sequence[MemoryShare] | None = None
    """The stored questions that moved the query most; present with `explain`."""
    recall: float | None = None
    """The measured share of the ten nearest keys that searches find; present where keys are
    quantised."""
    search: str | None = None
    """The id of this search, by which `used` takes what served; present where searches are
    logged."""

    def shares(self) -> list[float]:
        """Return confidence × weight of each hit, from 0 to 1: its calibrated score.

        After a training the weights sum to the confidence already; before one they sum to one.

        >>> books.search([1.0, 0.1], k=1, attend=1).shares()
        [1.0]
        """
        factor = self.confidence if self.calibrated == "collection" else 1.0
        return [hit.weight * (1.0 if factor is None else factor) for hit in self.hits]

    def __repr__(self) -> str:
        confidence = "not fitted yet" if self.confidence is None else f"{self.confidence:.3f}"
        line = f"{answer_text(self.answer)!r}; {hits_line(self.hits)}; confidence {confidence}"
        return f"Answer({line})"

    def _repr_html_(self) -> str:
        return hits_table(self.hits, repr(self))


class Matrix(Reply):
    """Whole matrices of attention: q queries over n documents, H heads."""

    documents: Sequence[str]
    """(n,) ids, in the order of the columns."""
    logits: Sequence[Sequence[Sequence[float]]]
    """(q, H, n)"""
    head_weights: Sequence[Sequence[Sequence[float]]]
    """(q, H, n)"""
    weights: Sequence[Sequence[float]]
    """(q, n), mixed over heads; each row sums to one with the weight of the no-answer score."""
    generation: int
    projection: int

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a row for each query and document: `query` counts from 0, and logits are by head.

        >>> import pyarrow
        >>> pyarrow.table(books.matrix([{"query": {"id": "emma"}}])).to_pylist()[0]["id"]
        'whale'
        """
        count = len(self.documents)
        columns = {
            "query": column([q for q in range(len(self.weights)) for _ in range(count)], "int"),
            "id": column([*self.documents] * len(self.weights), "text"),
            "weight": column([*chain.from_iterable(self.weights)], "float"),
        }
        for name in ("logits", "head_weights"):  # (q, H, n) -> (q * n, H)
            cells = [head for heads in getattr(self, name) for head in zip(*heads, strict=True)]
            columns[name] = column(cells, ["list", "float"])
        return table_stream(columns, requested_schema)


class CollectionHit(Hit, repr=False):
    """A hit of one of several collections; its weight is a share of all their attention."""

    collection: str = field(kw_only=True)


class AcrossAnswer(Tabular, Reply):
    """The answer of several collections, merged by weight where their logits have one scale.

    They have not where encoders, projections, scorers, scales, temperatures or tunings differ, or
    with several heads; then `merged` is false, and `hits`, `confidence` and `shares` are empty.
    """

    listed: ClassVar = ("hits", CollectionHit)

    hits: Sequence[CollectionHit]
    """The hits of all collections, best first."""
    merged: bool
    confidence: float | None
    """One minus the weight of the no-answer score in the merged attention; null where none was
    fitted."""
    shares: Mapping[str, float] | None
    """Each collection's share of the attention; they sum to `confidence`."""
    answers: Mapping[str, Answer]
    """Each collection's own answer, with its own weights and confidence, by name."""
    took_ms: float

    def __repr__(self) -> str:
        state = hits_line(self.hits) if self.merged else "not merged; see `answers`"
        return f"AcrossAnswer({', '.join(self.answers)}: {state})"

    def _repr_html_(self) -> str:
        if self.merged:
            return hits_table(self.hits, repr(self))
        return "".join(answer._repr_html_() for answer in self.answers.values())


class Recommendation(Shown, Reply, repr=False):
    """One recommended document."""

    id: str
    score: float
    """The log of the weight, minus what negative examples take from it. Higher is better;
    comparable within one answer."""
    weight: float
    """Its share of the history's attention."""
    value: Any
    payload: Mapping[str, Any]
    because: Sequence[Mapping[str, Any]] | None = None
    """Each part of the history (`id`, `text`, `fact` or `vector`) with its share of the weight, the
    largest first; the shares sum to one. Present with `explain`."""
    against: Sequence[Mapping[str, Any]] | None = None
    """Each negative example (`id`, `text` or `vector`) with its share of what positive and negative
    examples give the document together, the largest first. One minus their sum is what `weight` is
    multiplied by: the score is the log of that product. Present with `explain` where there are
    negative examples."""
    title: str | None = None
    """A display title; present if requested."""
    text: str | None = None
    """The texts of the document, one after the other; present if `include` names text."""
    passage: str | None = None
    """The passage that matched the history; present if requested by `include`."""


class RecommendAnswer(Reply):
    """The recommended documents (`hits`), or the predictions for the targets (`predictions`)."""

    history: Mapping[str, int]
    """The number of parts `given` and `used`: of long histories the heaviest and latest."""
    missing: Sequence[Mapping[str, Any]]
    """The requested ids, and the user, that do not exist."""
    generation: int
    """The revision of the collection that answered; it grows with every write."""
    projection: int
    """The version that answered; 0 is the untrained one."""
    took_ms: float


class Recommended(Tabular, RecommendAnswer):
    """The documents recommended to a user."""

    listed: ClassVar = ("hits", Recommendation)

    hits: Sequence[Recommendation]
    attended: int
    """The number of documents that share the weights."""
    exact: bool
    """True if no better document can have been missed; where it is false because keys are
    quantised, weights are estimated from a sample."""

    def __repr__(self) -> str:
        return f"Recommended({hits_line(self.hits)}; from {self.history['used']} documents)"

    def _repr_html_(self) -> str:
        return hits_table(self.hits, repr(self))


class Predicted(Tabular, RecommendAnswer):
    """The predicted values of some targets for a user."""

    listed: ClassVar = ("predictions", None)

    predictions: Sequence[Mapping[str, Any]]
    """For each target its name (`id`, `text` or `vector`); an answer by the `type` of the values
    (a number has `mean`, `std` and the `baseline` that it shrinks to); `confidence`, one minus the
    weight `null` of the no-answer score; `calibrated`, true if the std was fitted to held-out
    ratings; `known`, the user's own value for this document, which had no part here; and `because`,
    the attended parts of the history with value and weight, the heaviest first (all with
    `explain`; these weights and `null` sum to one)."""

    def __repr__(self) -> str:
        lines = [f"{name_of(item)!r} {answer_text(item)}" for item in self.predictions]
        return f"Predicted({'; '.join(lines)})"

    def _repr_html_(self) -> str:
        rows = [
            (escape(name_of(item)), escape(answer_text(item)), f"{item['confidence']:.3f}")
            for item in self.predictions
        ]
        return table(("target", "prediction", "confidence"), rows, escape(repr(self)))


Place = tuple[float, float]


class MapPoint(Reply):
    """A document on a map, at the mean of its keys."""

    id: str
    title: str
    """A display title."""
    place: Place
    was: Place | None
    """Its place under the version named by `before`."""
    weight: float | None
    """Its share of the query's attention; null if it was not attended."""
    payload: Mapping[str, Any]


class MapQuery(Reply):
    """The place of the query among the keys, now and under the version before."""

    place: Place
    was: Place | None


class KeyMap(Tabular, Reply):
    """The keys in two dimensions: a sample of the documents, and all that the query attends to."""

    listed: ClassVar = ("points", MapPoint)

    points: Sequence[MapPoint]
    query: MapQuery | None
    method: str
    explained: Sequence[float] | None
    """The share of the variance that each axis shows; null with UMAP."""
    projection: int
    before: int | None
    documents: int
    """The number of documents in the collection."""


class ClusterLabel(Reply):
    """Words that documents of one part of a map have and others have not."""

    place: Place
    words: Sequence[str]
    documents: int
    """The number of documents of the part, of those whose words were read."""
    level: int
    """0 for parts of the whole map, 1 for smaller ones."""


class MapPending(Reply):
    """The progress of a layout that is being computed."""

    stage: str
    done: float
    """The share that is done, from 0 to 1."""


class MapColumns(Reply):
    """The keys in two dimensions as columns, in the order of `ids`."""

    ids: Sequence[str]
    x: Sequence[float]
    y: Sequence[float]
    was_x: Sequence[float] | None
    was_y: Sequence[float] | None
    """The places under the version named by `before`."""
    colour: str | None
    numbers: Sequence[float | None] | None
    """The values of the field `colour` if they are numbers."""
    names: Sequence[str] | None
    """The values of the field `colour` otherwise, the most frequent first; at most 1,000."""
    codes: Sequence[int] | None
    """The position of each document's value in `names`; -1 for another value or none."""
    labels: Sequence[ClusterLabel]
    method: str
    explained: Sequence[float] | None
    """The share of the variance that each axis shows; null with t-SNE."""
    pending: MapPending | None
    """The progress of the requested layout while a simpler one is returned."""
    projection: int
    before: int | None
    moved: bool
    """True if the keys of `before` differ from those of `projection`."""
    queries_moved: bool
    """True if the two versions project queries differently."""
    documents: int
    """The number of documents in the collection."""
