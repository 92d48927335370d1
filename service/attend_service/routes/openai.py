"""Embeddings in the form of OpenAI's API, and re-ranking in that of Cohere and Jina.

A model is an encoder, or a collection with what it has learned.
"""

from __future__ import annotations

import base64
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from attend import Collection, encoder
from attend.api.base import Reply, Text
from attend.core import errors
from attend.core.arrays import unit
from attend.core.types import Float32
from attend.encoder import Encoder
from attend.search.texts import cosine_scores, embeddings_of
from attend_service import security
from attend_service.context import collection_of, context
from attend_service.operations import ForeignRequest, Operations, need_memory
from attend_service.security import MAX_BATCH_BODY

log = logging.getLogger("attend")

operations = Operations("OpenAI")

MAX_INPUTS = 2048
"""Texts to embed at once, as many as OpenAI takes."""

MAX_RANKED = 1000
"""Texts to rank at once, as many as Cohere advises."""

NUMBER_BYTES = 64
"""Of a number of an embedding, computed and as JSON."""

CHARACTERS_PER_TOKEN = 4
"""By which tokens are estimated: counting them takes as long as a short search."""

ENCODING = 4
"""How many times the usual deadline encoding may take."""

TOKEN_IDS = (
    "Token ids were sent, and the models here have another vocabulary; send texts. For the "
    "OpenAIEmbeddings of LangChain set check_embedding_ctx_length=False"
)


RANKING: Mapping[str, Any] = {
    "example": {
        "model": encoder.DEFAULT,
        "query": "life on a ship",
        "documents": ["A castaway is forced to work on a sealing ship.", "A girl in a garden."],
        "top_n": 2,
    },
    "body_limit": MAX_BATCH_BODY,
    "scope": "read",
    "checks_collections": True,
    "patience": ENCODING,
    "also": (404, 409, 503),
}


def _texts(sent: object) -> object:
    """Return one text as a list of one; refuse tokens before each is reported as no text."""
    items = [sent] if isinstance(sent, str) else sent
    if isinstance(items, list) and any(isinstance(item, int | list) for item in items):
        raise ValueError(TOKEN_IDS)
    return items


def _text(sent: object) -> object:
    """Return the text of a document that is an object."""
    return sent.get("text", sent) if isinstance(sent, dict) else sent


class EmbeddingsRequest(ForeignRequest):
    """Texts to embed."""

    input: Annotated[
        list[Text],
        Field(min_length=1, max_length=MAX_INPUTS),
        BeforeValidator(_texts, json_schema_input_type=Text | list[Text]),
    ]
    """A text, or up to 2,048. One longer than the encoder reads has the mean of its passages."""
    model: str = Field(max_length=1024)
    """An encoder, or a collection for its keys: embeddings as its active version projects them."""
    encoding_format: Literal["float", "base64"] | None = None
    """float is the default; base64 is of float32, the lowest byte first."""
    dimensions: int | None = Field(None, ge=1)
    """Fewer numbers than the model has: only of a collection whose projection is of the kind pca or
    lsi, which orders them."""
    input_type: str | None = Field(None, max_length=64)
    """query, or search_query: the texts are queries; documents if absent."""


class Embedded(Reply):
    """The embedding of one text."""

    index: int
    embedding: Sequence[float] | str
    object: str = "embedding"


class TokenUsage(Reply):
    """Tokens, estimated at four characters each."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Reply):
    """Embeddings, in the order of the texts."""

    data: Sequence[Embedded]
    model: str
    usage: TokenUsage
    object: str = "list"


class ServedModel(Reply):
    """An encoder, or a collection (as `owned_by` says)."""

    id: str
    owned_by: str
    created: int = 0
    """Not known."""
    object: str = "model"


class ModelList(Reply):
    """The models that serve here."""

    data: Sequence[ServedModel]
    object: str = "list"


class RankRequest(ForeignRequest):
    """Texts to put in order for a query."""

    model: str = Field(max_length=1024)
    """A collection, whose learned projection, words and no-answer score then count; or an
    encoder."""
    query: Text
    documents: list[
        Annotated[
            Annotated[str, Field(max_length=1_000_000)],
            BeforeValidator(_text, json_schema_input_type=str | dict[str, Any]),
        ]
    ] = Field(min_length=1, max_length=MAX_RANKED)
    """Texts, or objects with a `text`."""
    top_n: int | None = Field(None, ge=1)
    """The number to return; all if absent."""
    return_documents: bool | None = False
    """Return the texts, too."""


class RankedText(Reply):
    """The text of a ranked document."""

    text: str


class RerankResult(Reply):
    """A document's place in the request, and how well it answers the query."""

    index: int
    relevance_score: float
    """From 0 to 1, comparable between queries. Of a trained collection it is the weight that the
    document alone has beside the no-answer score; else (1 + cosine) / 2."""
    document: RankedText | None = None


class RankMeta(Reply):
    """The version of Cohere's form."""

    api_version: dict[str, str]


class RankAnswer(Reply):
    """Documents, best first."""

    results: Sequence[RerankResult]
    meta: RankMeta
    id: str


def with_encoder() -> Iterator[Collection]:
    """Yield the collections with an encoder that the request's key opens."""
    for name in security.visible(context().data.names()):
        try:
            collection = collection_of(name)
        except errors.OutOfFiles:
            raise
        # One collection that cannot be opened must not hide the others.
        except Exception as error:
            log.warning("The collection %r cannot be opened: %s", name, error)
            continue
        if collection.settings.encoder is not None:
            yield collection


@operations.add("GET", "/v1/models", checks_collections=True)
def list_models() -> ModelList:
    """List the encoders that serve here, and the collections that have one."""
    collections = list(with_encoder())
    encoders = [ServedModel(name, "encoder") for name in _encoders(collections)]
    return ModelList([*encoders, *(ServedModel(one.name, "collection") for one in collections)])


@operations.add(
    "POST",
    "/v1/embeddings",
    example={"model": encoder.DEFAULT, "input": ["A castaway on a ship."]},
    body_limit=MAX_BATCH_BODY,
    scope="read",
    checks_collections=True,
    patience=ENCODING,
    also=(404, 409, 503),
)
def embed(body: EmbeddingsRequest) -> EmbeddingList:
    """Embed texts, by an encoder or as the keys of a collection.

    The encoder's name gives its embeddings, of length one. A collection's name gives what its
    active version makes of them: keys, which are the plain embeddings where only W_Q was learned,
    or queries with `"input_type": "query"`.
    """
    model, are_queries = _model(body.model), body.input_type in ("query", "search_query")
    collection = model if isinstance(model, Collection) else None
    width = model.settings.dimension if isinstance(model, Collection) else model.dimension
    need_memory(NUMBER_BYTES * width * len(body.input))
    if isinstance(model, Collection):
        vectors = model.readers.texts.embeddings(body.input, queries=are_queries)
    else:
        vectors = embeddings_of(model, body.input, queries=are_queries)
    vectors = _shortened(vectors, body.dimensions, body.model, collection)
    rows: Sequence[Any] = vectors.tolist() if body.encoding_format != "base64" else [
        base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors
    ]  # fmt: skip
    tokens = sum(-(-len(text) // CHARACTERS_PER_TOKEN) for text in body.input)
    data = [Embedded(place, row) for place, row in enumerate(rows)]
    return EmbeddingList(data, body.model, TokenUsage(tokens, tokens))


@operations.add("POST", "/v1/rerank", **RANKING)
def rank(body: RankRequest) -> RankAnswer:
    """Put texts in order for a query, as Jina and Cohere's first version do.

    The texts need not be in any collection. Every one is returned, best first, unless `top_n` says
    otherwise; a long one counts by its best passage.
    """
    return _ranked(body)


@operations.add("POST", "/v2/rerank", **RANKING)
def rank_again(body: RankRequest) -> RankAnswer:
    """Do the same as /v1/rerank, at the path that Cohere's client takes."""
    return _ranked(body)


def _ranked(body: RankRequest) -> RankAnswer:
    model = _model(body.model)
    if isinstance(model, Collection):
        scores = model.readers.texts.scores(body.query, body.documents)
    else:
        scores = cosine_scores(model, body.query, body.documents)
    shown = [RankedText(text) if body.return_documents else None for text in body.documents]
    order = np.argsort(-scores, kind="stable")[: body.top_n].tolist()
    results = [RerankResult(place, float(scores[place]), shown[place]) for place in order]
    return RankAnswer(results, RankMeta({"version": "2"}), secrets.token_hex(8))


def _shortened(
    vectors: Float32, dimensions: int | None, name: str, collection: Collection | None
) -> Float32:
    """Return the first numbers of embeddings, where these say most.

    Raises:
        InvalidRequest: the model does not order its numbers, or has fewer.
    """
    width = vectors.shape[1]
    if dimensions is None or dimensions == width:
        return vectors
    projection = collection and collection.views.current().version.projection
    if projection and projection.kind.startswith(("pca", "lsi")) and dimensions < width:
        return unit(vectors[:, :dimensions]) if projection.normalized else vectors[:, :dimensions]
    raise errors.InvalidRequest(
        f"{dimensions} dimensions were asked for, but the model {name!r} has {width}, the first of "
        f"which mean nothing alone. Leave dimensions out, or name a collection that answers by a "
        f"projection of the kind pca or lsi.",
        field="dimensions",
    )


def _encoders(collections: Sequence[Collection]) -> list[str]:
    used = [collection.settings.encoder or "" for collection in collections]
    return list(dict.fromkeys([encoder.DEFAULT, *used]))


def _model(name: str) -> Collection | Encoder:
    """Return an encoder or a collection by its name.

    Raises:
        InvalidRequest: neither has the name, or the collection has no encoder.
    """
    data, offered = context().data, (encoder.DEFAULT, *context().settings.allow_encoder)
    canonical = encoder.canonical_name(name)
    if canonical in map(encoder.canonical_name, offered):
        return data.encoder(name)
    target = data.aliases().get(name, name)
    opens = security.is_allowed(name) or security.is_allowed(target)
    if opens and target in data.names():
        collection = collection_of(target)
        if collection.settings.encoder is not None:
            return collection
    collections = list(with_encoder())
    encoders = _encoders(collections)
    if canonical in encoders:
        return data.encoder(canonical)
    names = [*encoders, *(collection.name for collection in collections)]
    raise errors.InvalidRequest(
        f"There is no model {name[:80]!r}; the models are {', '.join(names[:20])}"
        f"{' and others, see GET /v1/models' if len(names) > 20 else ''}.",
        field="model",
    )
