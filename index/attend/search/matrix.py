"""Matrices of attention: every query over every document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attend.api.answers import Matrix
from attend.api.search import SearchRequest
from attend.attention import Attended
from attend.errors import InvalidRequest, LimitExceeded
from attend.search.answer import attention_options
from attend.search.attend import attend
from attend.search.encode import QueryEncoder
from attend.search.schedule import (
    Search,
    Vanished,
    queries_of,
    texts_of,
    until_stable,
)
from attend.search.words import score_words
from attend.settings import Settings
from attend.store import CollectionStore
from attend.types import Float64, Int64
from attend.view import Selects

MAX_CELLS = 1_000_000
"""Cells of an attention matrix in one response: about 20 MB of JSON."""


def searches_of(requests: Sequence[SearchRequest], encoder: QueryEncoder) -> list[Search]:
    """Return requests that have one set of options, with their queries encoded.

    Raises:
        InvalidRequest: the requests differ in more than their queries.
    """
    if len({request.model_dump_json(exclude={"query"}) for request in requests}) != 1:
        raise InvalidRequest(
            "A matrix has one set of options for all of its queries; send the same with each.",
            field="searches",
        )
    queries = [request.query for request in requests]
    if any(query.mixture for query in queries):
        raise InvalidRequest(
            "A matrix has a row for each query, and a mixture is several; send its parts as "
            "queries, or search.",
            field="searches",
        )
    encoded = zip(requests, encoder.encode(queries), strict=True)
    return [Search(request, (), 0.0, query) for request, query in encoded]


@until_stable
def attention_matrix(
    searches: Sequence[Search], settings: Settings, select: Selects, store: CollectionStore
) -> Matrix:
    """Return logits and weights of every query over every document that may be attended to.

    Raises:
        LimitExceeded: the matrix has more cells than are sent at once.
    """
    options = searches[0].request.model_copy(update={"attend": "all"})
    view, rows, contents = select(options, ())
    width = view.keys.documents if rows is None else len(rows)
    if len(searches) * width > MAX_CELLS:
        raise LimitExceeded(
            f"{len(searches)} queries over {width} documents are more than the "
            f"{MAX_CELLS} cells that are sent at once; filter, or send fewer queries."
        )
    words = score_words(store, texts_of(searches), options.lexical, view.made.tuning)
    every = replace(attention_options(options), best=None)
    queries = queries_of(searches, view.made, words)
    attended = attend(view, settings, queries, every, rows).attended
    columns = np.unique(np.concatenate([top.documents for top in attended]))
    documents = contents.documents(columns, texts=False)
    if len(documents) < len(columns):
        raise Vanished
    by_query = [_by_column(top, columns) for top in attended]
    return Matrix(
        documents=[documents[row].id for row in columns.tolist()],
        logits=[logits.tolist() for logits, _, _ in by_query],
        head_weights=[heads.tolist() for _, heads, _ in by_query],
        weights=[weights.tolist() for _, _, weights in by_query],
        generation=view.change,
        projection=view.made.number,
    )


def _by_column(top: Attended, columns: Int64) -> tuple[Float64, Float64, Float64]:
    """Return logits (H, n), head weights (H, n) and weights (n,) in the order of the columns."""
    places = np.searchsorted(columns, top.documents)
    logits = np.full((len(top.logits), len(columns)), -np.inf)
    heads, weights = np.zeros_like(logits), np.zeros(len(columns))
    logits[:, places], heads[:, places] = top.logits, top.head_weights
    weights[places] = top.weights
    return logits, heads, weights
