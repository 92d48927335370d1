"""Requests to search: options, one search, several at once, several collections, a map."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, JsonValue, model_validator

from attend.api import base
from attend.core.errors import InvalidRequest
from attend.core.settings import LEAST_COVERAGE, MAX_LEXICAL, MAX_RERANK, MOST_COVERAGE
from attend.core.types import ScorerName

MAX_PARTS = 1000
"""Documents or parts of one query."""


class QueryPart(base.Request):
    """One part of a blend: a text, a vector, both or a document id, and its weight."""

    alternatives = (("text", "vector"), ("vector",), ("id",))

    text: base.Text | None = None
    vector: base.Vector | None = None
    """Compared with the keys; a text beside it is for BM25 and highlights, and is not encoded."""
    id: base.DocumentId | None = None
    weight: FiniteFloat = Field(1.0, ge=-1e6, le=1e6)
    """Its share, relative to the others'; below zero it pushes away."""

    def check(self) -> None:
        if self.id is not None or (self.text is None and self.vector is None):
            base.check_one(self, "a part of a blend", ("text", "vector", "id"))


class MixturePart(QueryPart):
    """One part of a mixture, which attends by itself."""

    weight: FiniteFloat = Field(1.0, ge=0, le=1e6)
    """Its share of the attention, relative to the others'."""


def _spelled_out(query: object) -> object:
    """Return a query that is only a text or a vector as an object."""
    if isinstance(query, str):
        return {"text": query}
    return (
        {"vector": query} if isinstance(query, list | tuple) or hasattr(query, "tolist") else query
    )


AnyPart = Annotated[
    QueryPart,
    BeforeValidator(_spelled_out, json_schema_input_type=base.Text | base.Vector | QueryPart),
]
AnyMixturePart = Annotated[
    MixturePart,
    BeforeValidator(_spelled_out, json_schema_input_type=base.Text | base.Vector | MixturePart),
]


class Query(base.Request):
    """A query spelled out: one of text, vector, id, ids, blend and mixture, or text and vector."""

    alternatives = (("text", "vector"), ("vector",), ("id",), ("ids",), ("blend",), ("mixture",))

    text: base.Text | None = None
    vector: base.Vector | None = None
    """Compared with the keys; a text beside it is for BM25 and highlights, and is not encoded."""
    id: base.DocumentId | None = None
    """More like this document."""
    ids: list[base.DocumentId] | None = Field(None, min_length=1, max_length=MAX_PARTS)
    """More like these documents: a blend of them, with equal weights."""
    blend: list[AnyPart] | None = Field(None, min_length=1, max_length=MAX_PARTS)
    """Several queries as one: the weighted mean of embeddings and word scores."""
    mixture: list[AnyMixturePart] | None = Field(None, min_length=1, max_length=MAX_PARTS)
    """Several queries, each with its own attention; a document's weight is the weighted mean of its
    weights, and `explain` adds the share of each part."""

    def check(self) -> None:
        others = [self.id, self.ids, self.blend, self.mixture]
        if (self.text is None and self.vector is None) or others != [None] * 4:
            base.check_one(self, "a query", ("text", "vector", "id", "ids", "blend", "mixture"))
        for name in ("blend", "mixture"):
            parts = getattr(self, name)
            if parts is not None and not any(part.weight for part in parts):
                raise ValueError(f"every weight of the {name} is zero; give one that is not")

    def parts(self) -> Sequence[QueryPart]:
        """Return the parts of the query; their absolute weights sum to one."""
        weighed = self.blend or self.mixture
        if weighed is not None:
            total = math.fsum(abs(part.weight) for part in weighed)
            shares = [(part, part.weight / total) for part in weighed]
            return [part.model_copy(update={"weight": share}) for part, share in shares]
        if self.ids is not None:
            share = 1 / len(self.ids)
            return [QueryPart(id=id, weight=share) for id in self.ids]
        return [QueryPart.model_construct(text=self.text, vector=self.vector, id=self.id)]


AnyQuery = Annotated[
    Query,
    BeforeValidator(_spelled_out, json_schema_input_type=base.Text | base.Vector | Query),
    Field(
        description='Text, a vector, or one of {"text": …}, {"vector": […]}, {"id": …}, '
        '{"text": …, "vector": […]} (the text for words, the vector for keys), '
        '{"ids": […]}, {"blend": [{"text": …, "weight": 2}, {"id": …, "weight": -1}]} and '
        '{"mixture": [{"id": …}, {"text": …, "weight": 2}]}.'
    ),
]


MAX_BATCH = 256
MAX_BATCH_HITS = 100_000
"""Hits to list in all searches of a batch together."""
KEY_HITS = 10
"""Hits that one with an embedding as its value (`@key`) counts for."""
MAX_BATCH_PARTS = 10_000
"""Documents and parts of the queries of a batch together."""
MAX_BATCH_CONDITIONS = 1024
MAX_BATCH_MASKED = 100_000
"""Ids in the masks, and conditions in the filters, of a batch; those of equal ones count once."""
MAX_BATCH_RERANK = 2000
"""Documents to score once more in all searches of a batch: some 15 seconds of the encoder."""
MAX_COLLECTIONS = 32
MAX_POINTS = 3000
MAX_DOTS = 100_000
"""Documents of a map in columns."""


TRUTH = {"true": True, "on": True, "false": False, "off": False}
"""Words for truth values in an address line, where everything is text."""


def _lexical(weight: Any) -> object:
    """Check the weight before the union is tried: its report would name both of its branches."""
    value = TRUTH.get(weight.lower(), weight) if isinstance(weight, str) else weight
    try:
        number = value if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = -1.0
    if 0 <= number <= MAX_LEXICAL:
        return number
    raise ValueError(f"Send true, false or a number from 0 to {MAX_LEXICAL:g}")


LexicalWeight = Annotated[
    bool | Annotated[FiniteFloat, Field(ge=0, le=MAX_LEXICAL)], BeforeValidator(_lexical)
]


def _explained(value: object) -> object:
    """Check before the union is tried; in an address line everything is text."""
    words = {**TRUTH, "1": True, "0": False}
    value = words.get(value.lower(), value) if isinstance(value, str) else value
    if isinstance(value, bool) or value == "tokens":
        return value
    raise ValueError("tokens, true or false was expected")


Explained = Annotated[bool | Literal["tokens"], BeforeValidator(_explained)]


class Recency(base.Request):
    """The time of a document as a part of its logit: older documents weigh less."""

    field: base.Path
    """The field of value or payload with the time of a document: seconds since 1970 or an ISO 8601
    date, in UTC where it names no zone; of a list the latest."""
    half_life: FiniteFloat = Field(gt=0, le=base.HALF_LIFE)
    """Days by which a document has to be older, all else equal, for half the weight."""

    @classmethod
    def of(cls, sent: object) -> Recency | Literal[False]:
        """Check before the union is tried; as a text, in an address line, FIELD:DAYS."""
        if isinstance(sent, str):
            field, _, days = sent.rpartition(":")
            with suppress(KeyError, ValueError):
                sent = {"field": field, "half_life": float(days)} if field else TRUTH[sent.lower()]
        if sent is False or isinstance(sent, Recency):
            return sent
        if not isinstance(sent, Mapping):
            raise ValueError('{"field": …, "half_life": days}, FIELD:DAYS or false was expected')
        try:
            return base.parse(cls, sent, strict=True)
        except InvalidRequest as error:
            raise ValueError(str(error).rstrip(".")) from None


TimeWeight = Annotated[
    Recency | Literal[False],
    BeforeValidator(Recency.of, json_schema_input_type=Recency | str | Literal[False]),
]


class Mask(base.Request):
    """Document ids to leave out before the softmax, or the only ones to keep."""

    exclude: list[base.DocumentId] = Field(default_factory=list, max_length=base.MAX_ATTEND)
    only: list[base.DocumentId] | None = Field(default=None, max_length=base.MAX_ATTEND)


UNCOVERED = {
    **{"offset": 0, "cursor": None, "min_score": None, "group_by": None, "rerank": 0},
    "diversity": 0.0,
}
"""What no search with `coverage` has, and how it is absent: these change what is listed."""


class SearchOptions(base.Request):
    """Everything about a search except its query."""

    k: int = Field(10, ge=1, le=base.MAX_K)
    """The number of attended documents to list."""
    offset: int = Field(0, ge=0, le=base.MAX_K)
    """The number of documents to skip before the first that is listed."""
    attend: base.AttendSize = 100
    """The number of top documents over which weights sum to one."""
    filter: dict[str, JsonValue] | None = None
    """Conditions on payload and value, such as {"year": {"gte": 2000}}."""
    mask: Mask | None = None
    """Documents to leave out, or the only ones to keep."""
    mode: Literal["hard", "soft"] = "hard"
    """hard: the best document's value; soft: the blend of all attended."""
    value: str | None = Field(None, max_length=256)
    """Which value to return: a field of the value or payload (dotted), "@id", or "@key" for the key
    itself; the document's whole value if absent."""
    temperature: FiniteFloat = Field(1.0, gt=0)
    """Relative to the fitted one: below 1 sharper, above 1 flatter."""
    scorer: Literal[ScorerName, "additive"] | None = None
    """How a query and a key are compared; the collection's own if absent."""
    scale: Annotated[FiniteFloat, Field(gt=0)] | None = None
    """The factor on the scorer's result; the collection's own if absent."""
    heads: list[Annotated[FiniteFloat, Field(ge=0, le=1e6)]] | None = Field(None, max_length=256)
    """One weight per head instead of the projection's own."""
    pool: Literal["max", "sum"] | None = None
    """A document's logit: its best key (max), or the log-sum-exp of its keys (sum); the projection
    version's own if absent, which is max until one was trained."""
    recall: Annotated[FiniteFloat, Field(gt=0, le=1)] | None = None
    """The share of the ten nearest keys to find, where keys are quantised: a larger share takes
    longer, and 1 is exact; the collection's own if absent."""
    lexical: LexicalWeight | None = None
    """The BM25 (hybrid) weight of words shared with a document: a factor on BM25 (as a share of the
    query's largest) on the scorer's scale, true for the default one, false for none; the projection
    version's own if absent, which is the default one before a training, where an encoder reads the
    texts."""
    recency: TimeWeight | None = None
    """Let later documents weigh more: the weight halves with every half-life by which a document is
    older, at temperature 1. A document without such a time is as old as the median of the others.
    As a text FIELD:DAYS; false for none; what the projection version learned if absent."""
    now: base.Time | None = None
    """The time of the search for `recency`: later documents count as new. The clock's if absent."""
    memory: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = None
    """How far stored feedback moves a query that names no document towards where the answers of
    similar queries lie, 0 not at all; the projection version's own if absent. That is 0.5 until one
    was trained, and 0 where stored questions say that it does not help."""
    rerank: int = Field(0, ge=0, le=MAX_RERANK)
    """The number of best documents to score once more, token by token (MaxSim), for a query that is
    a text; the others stay below them."""
    min_confidence: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = None
    """Give no answer below this confidence; 0 always answers. If absent, the threshold of the
    training, or before one 0.05: the share of the collection's own passages that it refuses."""
    coverage: Annotated[FiniteFloat, Field(ge=LEAST_COVERAGE, le=MOST_COVERAGE)] | None = None
    """List as many documents as it takes for a right one to be among them at this rate, as measured
    on held-out questions of the training: few where the collection is sure, and many where it is
    not. k is the most to list then, and all attended if absent."""
    projection: int | None = Field(None, ge=1, le=base.MAX_ROW)
    """Answer with this projection version instead of the active one."""
    decode: bool = False
    """Name the stored value nearest to a blended vector."""
    cursor: str | None = Field(None, max_length=base.MAX_CURSOR)
    """`next` of the previous page, unchanged; writes between two pages do not shift them. All other
    fields must be as before, except k."""
    min_score: FiniteFloat | None = None
    """List no hit with a lower score; as with k, weights and answer stay."""
    group_by: str | None = Field(None, min_length=1, max_length=256)
    """List only the best document of each group, with the group's size and weight among the
    attended; a group has one value in this field of value or payload. A document without the field
    is a group of its own."""
    diversity: base.Diversity = 0.0
    """0 lists by score alone, 1 by the difference to the hits before: one minus the λ of maximal
    marginal relevance. It chooses among the attended, or the 1,000 best of them; as with k, weights
    and answer stay."""
    fields: list[base.Path] | None = Field(None, max_length=base.MAX_FIELDS)
    """The fields of the payload (dotted), and text fields, to return in `payload`; all of the
    payload if absent."""
    include: base.Included | None = None
    """text: add the document's text and the passage that matched; passage: the passage alone."""
    facets: list[base.Path] | None = Field(None, max_length=base.MAX_FACETS)
    """Fields of value or payload whose most frequent values are counted, over all documents that
    filter and mask let pass."""
    consistency: base.Consistency | None = None
    """bounded: what others wrote in the last seconds may be missing; strong: what was acknowledged
    is there, which takes a server some 200 ms. The engine's default if absent; a data folder is
    always strong."""
    exclude_self: bool = True
    """Mask documents that are the query (or part of it), except those that `mask.only` names."""
    title: bool = False
    """Add a display title: a title, name, headline or question of payload, value or texts, else the
    first line of a text, else the id."""
    highlight: bool = False
    """Add the passage that matched, its position in its text, and the positions of the query's
    words in it, in characters."""
    explain: Explained = False
    """Add logits and weights by head, the parts of the score, the rank without words, and the
    passage that matched; with "tokens" the share of each pair of tokens, and of words, besides."""

    def check(self) -> None:
        if {"k", "offset"} & self.model_fields_set:
            base.check_page(self.k + self.offset, self.attend)
        if self.rerank and (self.attend == "all" or self.rerank > self.attend):
            raise base.WrongField(
                "rerank",
                f"rerank is {self.rerank}, but attend is {self.attend}; give an attend that is a "
                f"number, and at most as large a rerank",
            )
        if self.cursor is not None and self.offset:
            raise base.WrongField("cursor", "send a cursor or an offset, not both")
        if self.cursor is not None and self.diversity:
            raise base.WrongField(
                "diversity", "a page by diversity begins at an offset; leave out the cursor"
            )
        base.check_diverse(self.diversity, self.k + self.offset)
        if self.heads is not None and not math.fsum(self.heads) > 0:
            raise base.WrongField("heads", "heads must hold at least one weight above zero")
        if self.coverage is not None:
            changed = [name for name, no in UNCOVERED.items() if getattr(self, name) != no]
            if changed or self.attend == "all":
                name = changed[0] if changed else "attend"
                raise base.WrongField(name, f"coverage does not go with {name}; leave one out")

    @property
    def most(self) -> int:
        """The number of documents to list at most."""
        by_coverage = self.coverage is not None and "k" not in self.model_fields_set
        return int(self.attend) if by_coverage else self.k


class SearchRequest(SearchOptions):
    """One search: a query and how to answer it."""

    query: AnyQuery
    vector: base.Vector | None = None
    """The vector of a query that is a text, which then is not encoded: the vector is compared with
    the keys, and the text is for BM25 and highlights. Short for a query of both."""

    @model_validator(mode="before")
    @classmethod
    def _with_vector(cls, sent: Any) -> Any:
        """Return a request whose query has the vector that was sent beside it."""
        if not isinstance(sent, Mapping) or sent.get("vector") is None:
            return sent
        query = sent.get("query")
        text = query.get("text") if isinstance(query, Mapping) and len(query) == 1 else query
        if not isinstance(text, str):
            sentence = "vector goes with a query that is a text; send the text, or no vector"
            raise base.WrongField("vector", sentence)
        joined = {"text": text, "vector": sent["vector"]}
        return {**sent, "query": joined, "vector": None}


class AcrossRequest(SearchRequest):
    """One search over several collections, with one set of options."""

    collections: list[Annotated[str, Field(pattern=base.NAME_PATTERN)]] = Field(
        min_length=1, max_length=MAX_COLLECTIONS
    )
    """Their names, or aliases of them."""

    def check(self) -> None:
        super().check()
        for name in ("cursor", "diversity"):
            if getattr(self, name):
                raise base.WrongField(
                    name, f"{name} is for one collection; leave it out across several"
                )
        if self.coverage is not None:
            raise base.WrongField(
                "coverage", "coverage was measured in one collection; leave it out across several"
            )
        if self.group_by is not None and self.attend == "all":
            raise base.WrongField(
                "group_by",
                "group_by across several collections takes an attend that is a number; give one",
            )

    def of_each(self) -> SearchRequest:
        """Return the search of each collection: as many hits as the page may take from it alone.

        Of groups, all: one that is last here may be first together with another's part of it.
        """
        same = {name: getattr(self, name) for name in self.model_fields_set - {"collections"}}
        k = self.k + self.offset if self.group_by is None else int(self.attend)
        return SearchRequest.model_construct(**{**same, "k": k, "offset": 0})


class BatchRequest(base.Request):
    """Searches to answer together, with one call of the encoder."""

    searches: list[SearchRequest] = Field(max_length=MAX_BATCH)
    matrix: bool = False
    """Add the logits and weights of every query over every document that filter and mask let pass;
    with {id: …} as queries, self-attention."""

    def check(self) -> None:
        searches = self.searches
        masks = {one.mask.model_dump_json(): one.mask for one in searches if one.mask is not None}
        filters = {json.dumps(one.filter): one.filter for one in searches}
        hits = sum(one.most * (KEY_HITS if one.value == "@key" else 1) for one in searches)
        queries = [one.query for one in searches]
        parts = sum(len(query.ids or query.blend or query.mixture or ()) for query in queries)
        masked = sum(len(mask.exclude) + len(mask.only or ()) for mask in masks.values())
        sums = (
            ("hits (k)", hits, MAX_BATCH_HITS),
            ("parts", parts, MAX_BATCH_PARTS),
            ("ids in masks", masked, MAX_BATCH_MASKED),
            ("conditions", sum(map(_conditions, filters.values())), MAX_BATCH_CONDITIONS),
            ("documents to rerank", sum(one.rerank for one in searches), MAX_BATCH_RERANK),
        )
        for noun, count, limit in sums:
            if count > limit:
                sentence = (
                    f"the searches have {count:,} {noun} together, but at most {limit:,} are "
                    f"taken; send several batches"
                )
                raise base.WrongField("searches", sentence)


def _conditions(filter: JsonValue) -> int:
    """Count the conditions of a filter; what is wrong with it is told where it is compiled."""
    if isinstance(filter, list):
        return sum(map(_conditions, filter))
    if not isinstance(filter, dict):
        return 0
    return sum(
        _conditions(operand)
        if name.startswith("$")
        else (len(operand) if isinstance(operand, dict) else 1)
        for name, operand in filter.items()
    )


class PlainSearch(SearchOptions):
    """A search that fits into an address line."""

    q: base.Text | None = Field(None, examples=["a white whale"])
    """The text to search for; without it a browser gets a form."""
    collection: str = Field(base.DEFAULT_COLLECTION, pattern=base.NAME_PATTERN)

    def request(self) -> dict[str, Any]:
        """Return the fields of a `SearchRequest`."""
        sent = self.model_dump(exclude={"q", "collection"}, exclude_unset=True)
        return {"query": self.q, **sent}


class MapRequest(base.Request):
    """The keys to show, and the query and the version to show beside them."""

    query: AnyQuery | None = None
    """Show its place and its weights."""
    projection: int | None = Field(None, ge=1, le=base.MAX_ROW)
    """The version to show; the active one if absent."""
    before: int | None = Field(None, ge=1, le=base.MAX_ROW)
    """Also show the places under this version."""
    limit: int = Field(1000, ge=1, le=MAX_POINTS)
    """The most documents to show."""
    method: Literal["pca", "tsne", "umap"] = "pca"
    """pca takes no time; tsne keeps neighbourhoods better and takes seconds; umap is an earlier
    name of tsne."""
    fields: list[base.Path] = Field([], max_length=16)
    """Fields of the payload to return."""
    filter: base.Filter | None = None
    """The query attends only to documents that pass."""


class MapColumnsRequest(base.Request):
    """The keys to show as columns: all documents, or those that pass a filter."""

    projection: int | None = Field(None, ge=1, le=base.MAX_ROW)
    """The version to show; the active one if absent."""
    before: int | None = Field(None, ge=1, le=base.MAX_ROW)
    """Also return the places under this version."""
    limit: int = Field(MAX_DOTS, ge=0, le=MAX_DOTS)
    """The most documents to return; of more, every second, third, … is returned."""
    method: Literal["pca", "tsne"] = "tsne"
    """Without a stored t-SNE of a large collection the answer has pca, and says so in `method`."""
    colour: base.Path | None = None
    """A field of payload or value, or `@value`, to return."""
    filter: base.Filter | None = None
    """Return only documents that pass."""
