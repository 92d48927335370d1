"""What hits have besides their documents: titles, texts, passages, highlights, explanations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attend.api.search import SearchRequest
from attend.core.types import Json
from attend.search.attend import Attention
from attend.search.highlighting import highlights
from attend.search.listing import Listing, Match, explanations, matches
from attend.search.queries import Search
from attend.search.tokens import TokenReader, query_text, token_shares, with_rest
from attend.store import CollectionStore, StoredDocument
from attend.values import display_title, whole_text

TOKENS = "explain=tokens"
"""The option that shows the shares of pairs of tokens."""


def shown_columns(
    store: CollectionStore,
    attention: Attention,
    query: int,
    search: Search,
    documents: Sequence[StoredDocument],
    listing: Listing,
    tokens: TokenReader,
) -> dict[str, Sequence[Any]]:
    """Return the attributes of hits that a request names, each with a value for each hit.

    Args:
        query: the number of the search among those that share the attention.
        documents: those that are listed, with their texts.
        tokens: the reader of the collection's tokens.

    Raises:
        Vanished: a document was deleted meanwhile.
    """
    options = search.request
    columns: dict[str, Sequence[Any]] = {}
    if options.title:
        columns["title"] = [display_title(*document[1:]) for document in documents]
    if not (options.highlight or options.explain or options.include):
        return columns
    matched = matches(store, attention.scoring, query, documents)
    columns |= texts_of(documents, matched, options.include or ())
    if options.highlight:
        texts = search.query.texts  # type: ignore[union-attr]  # encoded
        every = [text for pairs in texts for text, _ in pairs]
        columns["highlight"] = highlights(store, matched, every)
    if options.explain:
        names = part_names(options)
        explained = explanations(attention, query, listing.ranks, matched, names)
        if options.explain == "tokens":
            text = query_text(search, TOKENS)
            encoder = tokens.encoder(TOKENS)
            shares = token_shares(store, attention.scoring, query, matched, encoder, text)
            explained = [
                {**parts, "tokens": with_rest(pairs, parts)}
                for parts, pairs in zip(explained, shares, strict=True)
            ]
        columns["explanation"] = explained
    return columns


def texts_of(
    documents: Sequence[StoredDocument], matched: Sequence[Match], include: Sequence[str]
) -> dict[str, list[str]]:
    """Return the columns of hits that `include` names: whole texts, and passages that matched."""
    if not include:
        return {}
    texts = [whole_text(document.fields) for document in documents]
    # An own vector or a learned query may have matched, which is no passage.
    passages = [match.passage or text for match, text in zip(matched, texts, strict=True)]
    columns = {"passage": passages}
    return {"text": texts, **columns} if "text" in include else columns


def part_names(request: SearchRequest) -> list[Mapping[str, Json]]:
    """Return what names the parts of a mixture: their places, and ids or texts."""
    return [
        {"part": number, **part.model_dump(include={"id", "text"}, exclude_none=True)}
        for number, part in enumerate(request.query.mixture or ())
    ]
