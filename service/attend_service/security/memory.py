"""Memory that a request takes: by its own figures at first, then by the documents that it reads.

The figures are those of documents of a few kilobytes with embeddings of some 384 numbers. Larger
documents are weighed one by one as they are read, and a request whose documents weigh more than it
was granted is run again with more.
"""

from __future__ import annotations

from flask import request

from attend.api.base import MAX_ATTEND, Request
from attend.api.documents import ListingRequest
from attend.api.feedback import FeedbackListing, InteractionListing
from attend.api.learning import CompareRequest
from attend.api.recommend import RecommendRequest
from attend.api.search import AcrossRequest, BatchRequest, MapRequest, SearchOptions
from attend.core.deadline import deadline, limits
from attend.core.errors import LimitExceeded
from attend.core.settings import MAX_RERANK
from attend.search.values import KEY
from attend_service.shared import NeedsMemory

MAX_MEMORY = 512 * 1024 * 1024
"""Bytes that heavy requests work in at once; more wait."""

LEAST = MAX_MEMORY // 4
"""Bytes that a heavy request counts at least: no more than four work at once."""

LIGHT = 16 * 1024 * 1024
"""Bytes that any request may take without waiting."""

MAX_READ = 2 * MAX_MEMORY
"""Bytes of documents that one request may read: alone, it takes this for a moment."""

MAX_WAITING = 64
"""Requests that may wait for memory; so they leave places in the queue to others."""

GRANTED = "attend.memory"
"""The bytes of memory that a request was granted, in its environment."""

MANY = 500
"""Documents in one list that make a request heavy."""

DOCUMENT_BYTES = 5_000
"""Of a document that is read, a hit with its explanation, or an entry of a history."""

KEY_BYTES = 50_000
"""Of an embedding as JSON, where hits or values are embeddings."""

WEIGHT_BYTES = 64
"""Of a document that is attended to, without reading it."""

TOKENS_BYTES = 500_000
"""Of the tokens of a passage."""

MATRIX_BYTES = 250_000_000
"""Of a matrix of as many cells as are sent."""

VALUE_BYTES = 250
"""Of a value in a JSON body, once it is parsed and validated."""


def need_memory(size: int) -> None:
    """Raise NeedsMemory where the request takes more than it may without waiting."""
    granted = request.environ.get(GRANTED)  # absent where there is no gateway
    if granted is not None and size > LIGHT and max(size, LEAST) > granted:
        raise NeedsMemory(max(size, LEAST), deadline())


def need_to_read(size: int) -> None:
    """Raise NeedsMemory for a request whose documents take more than it was granted.

    Raises:
        LimitExceeded: they take more than any request is granted.
    """
    if limits.most < MAX_MEMORY:
        raise NeedsMemory(min(max(4 * int(limits.most), LEAST), MAX_MEMORY), deadline())
    if size > MAX_READ:
        raise LimitExceeded(
            f"The documents that the request reads take more than {MAX_READ:,} bytes, the most "
            f"that one may take; ask for fewer at once: k, limit or attend."
        )


def parsed_size(text: bytes) -> int:
    """Return the bytes that a JSON body takes once it is parsed and validated."""
    return VALUE_BYTES * (text.count(b",") + text.count(b"{") + text.count(b"["))


def working_size(sent: Request) -> int:
    """Return the bytes that it takes to answer a request, apart from its body."""
    match sent:
        case BatchRequest():
            matrix = MATRIX_BYTES if sent.matrix else 0
            tokens = max(map(_tokens_size, sent.searches), default=0)
            return matrix + tokens + sum(map(_search_size, sent.searches))
        case AcrossRequest():
            return _search_size(sent) * len(sent.collections) + _tokens_size(sent)
        case SearchOptions(rerank=0, explain=bool()):
            return _search_size(sent)
        case SearchOptions():
            return _search_size(sent) + _tokens_size(sent)
        case RecommendRequest():
            items = (sent.history, sent.positive, sent.negative, sent.facts, sent.target or ())
            return _listed_size(sent.k) + DOCUMENT_BYTES * sum(map(len, items))
        case MapRequest(method="tsne" | "umap"):
            return MAX_MEMORY  # nothing interrupts it, and it is soonest done alone
        case MapRequest() | ListingRequest() | FeedbackListing() | InteractionListing():
            return _listed_size(sent.limit)
        case CompareRequest():
            return LEAST
    return 0


def _search_size(search: SearchOptions) -> int:
    weighed = 0 if search.attend == "all" else search.attend  # of all only the best are kept
    reads_all = search.group_by is not None or (search.mode == "soft" and weighed > 0)
    count = MAX_ATTEND if search.attend == "all" else search.attend
    size = KEY_BYTES if search.value == KEY else DOCUMENT_BYTES
    read = size * count if reads_all else 0
    return WEIGHT_BYTES * weighed + read + _listed_size(search.k, size)


def _tokens_size(search: SearchOptions) -> int:
    """Return the bytes of the tokens of one search; the searches of a batch take turns."""
    compared = search.rerank + (search.k if search.explain == "tokens" else 0)
    return TOKENS_BYTES * min(compared, MAX_RERANK)


def _listed_size(documents: int, size: int = DOCUMENT_BYTES) -> int:
    return max(size * documents, LEAST if documents > MANY else 0)
