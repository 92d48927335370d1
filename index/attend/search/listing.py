"""Listing: which attended documents a page shows, page by page, and explanations of hits."""

from __future__ import annotations

import base64
import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attend.api.search import SearchRequest
from attend.attention import Attended, Softmax
from attend.collection.versions import Vanished
from attend.core.arrays import locate
from attend.core.errors import InvalidRequest, LimitExceeded
from attend.core.types import Float64, Int64, Json
from attend.search.attend import Attention
from attend.search.memory import Queries
from attend.search.scoring import ALL, Scoring
from attend.store import CollectionStore, StoredDocument, StoredKey

PAGE = {"k", "offset", "cursor", "fields", "include", "facets", "title", "highlight", "explain"}
"""Options of the page, which may change from one page to the next."""

DIGEST = 8
"""Bytes of the fingerprint; it guards against mistakes and not against attacks."""

MAX_SHARES = 200_000
"""Shares of parts in hits, in one response: about 10 MB of JSON."""


def group_key(label: Json, rank: int) -> str:
    """Return the same key for what is one group.

    It is JSON, in which 1 and true are two values, and objects with the same members one.
    """
    return f"#{rank}" if label is None else json.dumps(label, sort_keys=True)


class Listing(NamedTuple):
    """A page of the attended.

    Attributes:
        ranks: (k,) positions among the attended, best first.
        next: the cursor of the following page; None on the last.
        extras: of each hit, what it says of its group.
    """

    ranks: Int64
    next: str | None
    extras: list[dict[str, Any]]


def listed(
    attended: Attended, request: SearchRequest, version: int, labels: Sequence[Json] | None
) -> Listing:
    """Return the page that a request wants of its attended documents.

    Args:
        version: the projection that answers; a cursor belongs to one.
        labels: each attended document's value of `group_by`; None where nothing is grouped.

    Raises:
        InvalidRequest: a cursor of another request.
    """
    numbers = None if labels is None else _group_numbers(labels)
    ranks = np.arange(len(attended.documents))
    if numbers is not None:  # the best document of each group
        ranks = np.unique(numbers, return_index=True)[1]
    if request.min_score is not None:
        ranks = ranks[attended.scores[ranks] >= request.min_score]
    if request.cursor is not None:
        score, row = place(request.cursor, _fingerprint(request, version), 2)
        scores, rows = attended.scores[ranks], attended.documents[ranks]
        # Of equal scores the lower row comes first.
        ranks = ranks[(scores < score) | ((scores == score) & (rows > row))]
    page = ranks[request.offset : request.offset + request.k]
    extras: list[dict[str, Any]] = [{} for _ in page]
    if numbers is not None and labels is not None:
        sizes, weights = np.bincount(numbers), np.bincount(numbers, attended.weights)
        for rank, extra in zip(page.tolist(), extras, strict=True):
            group = numbers[rank]
            extra |= {
                "group": labels[rank],
                "group_size": int(sizes[group]),
                "group_weight": float(weights[group]),
            }
    if not len(page) or len(ranks) <= request.offset + request.k:
        return Listing(page, None, extras)
    end = (float(attended.scores[page[-1]]), int(attended.documents[page[-1]]))
    return Listing(page, cursor(_fingerprint(request, version), end), extras)


def _group_numbers(labels: Sequence[Json]) -> Int64:
    """Number the groups of documents, best first; one without a label is a group of its own."""
    numbered: dict[str, int] = {}
    keys = (group_key(label, rank) for rank, label in enumerate(labels))
    return np.array([numbered.setdefault(key, len(numbered)) for key in keys], dtype=np.int64)


def _fingerprint(request: SearchRequest, version: int) -> str:
    """Return what a cursor belongs to: the request but for the page, and the version."""
    vector = request.query.vector
    if vector is None:
        return fingerprint(str(version), request.model_dump_json(exclude=PAGE))
    # As JSON a vector takes more time than most searches for it.
    options = request.model_dump_json(exclude=PAGE | {"query"})
    return fingerprint(str(version), options, array("d", vector).tobytes())


def fingerprint(*parts: str | bytes) -> str:
    """Return what a cursor belongs to: the same for the same request."""
    digest = hashlib.blake2b(digest_size=DIGEST)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        # With its length, so that no two lists of parts read the same.
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def cursor(request: str, place: Sequence[float]) -> str:
    """Return the end of a page as a text for an address line.

    It holds the place of the last item in the order of the list. It is no position: what comes or
    goes before that place moves nothing.

    Args:
        request: the fingerprint of the request.
        place: of the last item; numbers.
    """
    text = json.dumps([request, *place], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def place(cursor: str, request: str, length: int) -> list[float]:
    """Return the place that a cursor holds, `length` numbers.

    Raises:
        InvalidRequest: it is not a cursor, or one of another request.
    """
    try:
        cursor = str(cursor)
        data = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
        belongs_to, *numbers = json.loads(data)
    except (ValueError, TypeError, RecursionError):
        belongs_to, numbers = None, []
    # Python's JSON reads NaN and Infinity, and integers of any length.
    sound = all(isinstance(number, int | float) and abs(number) < 2**63 for number in numbers)
    if not isinstance(belongs_to, str) or len(numbers) != length or not sound:
        raise InvalidRequest(
            f"{cursor[:40]!r} is not a cursor; send the `next` of the previous page unchanged.",
            field="cursor",
        )
    if belongs_to != request:
        raise InvalidRequest(
            "The cursor belongs to another request, or to another projection version; send the "
            "request as before, or begin again without it.",
            field="cursor",
        )
    return [float(number) if isinstance(number, float) else number for number in numbers]


# -- explanations ---------------------------------------------------------------------------


class Match(NamedTuple):
    """The key that matched a document best, and its text; None where it was no text."""

    key: StoredKey
    passage: str | None


def best_keys(scoring: Scoring, query: int, rows: Int64) -> dict[int, int]:
    """Return for each document row the id of the key that matches a query best."""
    candidates = scoring.view.keys.lookup(rows)
    if not len(candidates):
        return {}
    keys, mechanism = scoring.by_head(candidates).vectors, scoring.mechanism
    scores = mechanism.score_keys(scoring.heads[query : query + 1], keys)[0]  # (H, m)
    score = mechanism.gates @ scores  # (m,)
    places = np.split(np.arange(len(score)), candidates.starts[1:-1])
    best = [int(part[np.argmax(score[part])]) for part in places]
    ids = candidates.ids[best].tolist()
    return dict(zip(candidates.rows.tolist(), ids, strict=True))


def matches(
    store: CollectionStore, scoring: Scoring, query: int, documents: Sequence[StoredDocument]
) -> list[Match]:
    """Return for each document, with its texts, the key that matched the query best.

    Raises:
        Vanished: a document was deleted meanwhile.
    """
    rows = np.array([document.row for document in documents], dtype=np.int64)
    best = best_keys(scoring, query, rows)
    keys = store.keys_of(np.array(list(best.values()), dtype=np.int64))
    matched = []
    for document in documents:
        key = keys.get(best.get(document.row, 0))
        if key is None:
            raise Vanished
        key = key.within(document.fields)
        text = document.fields.get(key.field)
        matched.append(Match(key, None if text is None else text[key.start : key.stop]))
    return matched


def explain_parts(
    scoring: Scoring, attended: Attended, places: Int64, names: Sequence[Mapping[str, Json]]
) -> list[list[dict[str, Json]]]:
    """Return by document each part of a mixture with its share of the weight, largest first.

    Args:
        places: of the documents among the attended.
        names: what names each part.

    Raises:
        LimitExceeded: more shares than are sent at once.
    """
    if len(places) * len(names) > MAX_SHARES:
        raise LimitExceeded(
            f"To explain {len(places)} hits by {len(names)} parts each takes more than the "
            f"{MAX_SHARES} shares that are sent at once; lower k, or do not ask to explain.",
            field="explain",
        )
    # In logs, so that the shares sum to one even where weights underflow.
    logs = scoring.log_shares(attended, places)
    with np.errstate(divide="ignore"):
        by_head = Softmax.of(logs.T + np.log(scoring.mechanism.gates)).weights.T  # (p * H, k)
    heads = scoring.plan.projection.heads
    shares = by_head.reshape(len(names), heads, len(places)).sum(axis=1)  # (p, k)
    orders = np.argsort(-shares, axis=0, kind="stable").T  # (k, p)
    return [
        [{**names[part], "weight": float(share[part])} for part in order.tolist()]
        for order, share in zip(orders, shares.T, strict=True)
    ]


def unmoved_logits(scoring: Scoring, query: slice, rows: Int64) -> Float64:
    """Return what keys give documents (n,) before feedback moves one query, (H, n)."""
    parts = ALL if scoring.parts is not None else query
    plain = Scoring.of(
        scoring.view, scoring.plan, Queries(scoring.unmoved[parts], None, scoring.parts)
    )
    keys = plain.by_head(scoring.view.keys.lookup(rows))
    logits = plain.mechanism.logits(plain.heads, keys, plain.shift[:, :, None])[0]
    order = np.argsort(keys.rows)
    return np.asarray(logits[:, order[locate(keys.rows[order], rows).places]])


def explanations(
    attention: Attention,
    query: int,
    places: Int64,
    matched: Sequence[Match],
    parts: Sequence[Mapping[str, Json]] = (),
) -> list[dict[str, Json]]:
    """Explain the logits of the attended documents at some places (k,).

    Args:
        parts: the names of the parts of a mixture, whose shares are added.
    """
    attended, scoring = attention.attended[query], attention.scoring
    first = attended if attention.first is None else attention.first[query]
    one, gates = slice(query, query + 1), scoring.mechanism.gates
    bias = scoring.word_bias(first.documents, one)
    lexical = np.zeros(len(first.documents))  # (n,), the heads' mean by gates
    if bias is not None:
        lexical = gates @ bias[0]
    dense = gates @ first.logits - lexical  # (n,)
    before = np.empty(len(dense), dtype=np.int64)  # ranks, from 1; equals as they stand
    before[np.argsort(-dense, kind="stable")] = np.arange(1, len(dense) + 1)
    words = (scoring.words or ()) if scoring.parts is not None else (scoring.words or ())[one]
    terms = list(dict.fromkeys(term for scores in words for term in scores.terms))
    shares = explain_parts(scoring, attended, places, parts) if parts else None
    ordered = np.argsort(first.documents)
    located = ordered[locate(first.documents[ordered], attended.documents[places]).places]
    added = gates @ attended.logits[:, places] - dense[located] - lexical[located]
    memory = np.zeros(len(located))  # what feedback added by moving the query
    if scoring.moved is not None and len(located):
        unmoved = unmoved_logits(scoring, one, first.documents[located])
        memory = dense[located] - gates @ unmoved
    return [
        {
            "field": match.key.field,
            "start": match.key.start,
            "stop": match.key.stop,
            "passage": match.passage,
            **({} if shares is None else {"because": shares[rank]}),
            "question": match.key.question,
            "rank": place + 1,
            "rank_before_words": int(before[was]),
            **(
                {}
                if attention.first is None
                else {"rank_before_rerank": was + 1, "rerank": float(added[rank])}
            ),
            "logits": attended.logits[:, place].tolist(),
            "weights": attended.head_weights[:, place].tolist(),
            "lexical": float(lexical[was]),
            "dense": float(dense[was]),
            "memory": float(memory[rank]),
            "terms": terms,
        }
        for rank, (place, was, match) in enumerate(
            zip(places.tolist(), located.tolist(), matched, strict=True)
        )
    ]
