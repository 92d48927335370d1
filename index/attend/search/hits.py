"""Hits: which attended documents a page shows, what it shows of them, and explanations."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import sqlite3
import threading
import time
from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attend.api.answers import AttendedShare, Coverage, Highlight
from attend.api.base import MAX_DIVERSE
from attend.api.recommend import RecommendRequest
from attend.api.search import SearchOptions, SearchRequest
from attend.attention import Attended, Softmax, inclusion
from attend.collection.versions import Vanished, View
from attend.core.arrays import locate, unit
from attend.core.deadline import forgetting
from attend.core.errors import InvalidRequest, LimitExceeded
from attend.core.settings import LEAST_COVERAGE
from attend.core.types import Float32, Float64, Int64, Json
from attend.search.attend import Attention
from attend.search.queries import Queries, RecencyScores, score_times
from attend.search.scoring import Scoring
from attend.search.values import values_of
from attend.store import CollectionStore, StoredDocument, StoredKey
from attend.store.words import (
    SPLIT,
    TOKENIZER,
    is_letter,
    letter_spans,
    quoted,
    readable,
    traced_text,
)
from attend.values.select import display_title, only, whole_text

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
        coverage: what a list that was to cover does; None where that was not requested.
    """

    ranks: Int64
    next: str | None
    extras: list[dict[str, Any]]
    coverage: Coverage | None = None


def listed(store: CollectionStore, attention: Attention, request: SearchRequest) -> Listing:
    """Return the page that a request wants of its attended documents.

    Raises:
        InvalidRequest: a cursor of another request, or a coverage that nothing was calibrated for.
        Vanished: a document was deleted meanwhile.
    """
    if request.coverage is not None:
        return _covering(attention, request, request.coverage)
    attended, labels = attention.attended, list[Json]()
    ranks, numbers = np.arange(len(attended.documents)), np.empty(0, dtype=np.int64)
    is_grouped = request.group_by is not None
    if is_grouped:  # the best document of each group; without a label it is one itself
        with forgetting():
            labels = values_of(read_documents(store, attended.documents), request.group_by)
        groups: dict[str, int] = {}
        keys = [group_key(label, rank) for rank, label in enumerate(labels)]
        numbers = np.array([groups.setdefault(key, len(groups)) for key in keys], dtype=np.int64)
        ranks = np.unique(numbers, return_index=True)[1]
    if request.min_score is not None:
        ranks = ranks[attended.scores[ranks] >= request.min_score]
    if request.diversity:
        ranks = ranks[:MAX_DIVERSE]
        documents, scores = attended.documents[ranks], attended.scores[ranks]
        view, last = attention.scoring.view, request.offset + request.k
        ranks = ranks[diversified(view, documents, scores, request.diversity, last)]
    times = attention.scoring.queries.recency
    moment = [] if times is None else [times.now]  # which all pages share
    belongs_to = ""  # the request but for the page, and the version
    if request.cursor is not None or len(ranks) > request.offset + request.k:
        query = request.query.vector or ()
        # As JSON a vector takes more time than most searches for it.
        options = request.model_dump_json(exclude=PAGE | ({"query"} if query else set()))
        vector = (array("d", query).tobytes(),) if query else ()
        version = str(attention.scoring.view.version.number)
        belongs_to = fingerprint(version, options, *vector)
    if request.cursor is not None:
        score, row = place(request.cursor, belongs_to, 2 + len(moment))[:2]
        scores, rows = attended.scores[ranks], attended.documents[ranks]
        # Of equal scores the lower row comes first.
        ranks = ranks[(scores < score) | ((scores == score) & (rows > row))]
    page = ranks[request.offset : request.offset + request.k]
    extras: list[dict[str, Any]] = [{} for _ in page]
    if is_grouped:
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
    end = [float(attended.scores[page[-1]]), int(attended.documents[page[-1]]), *moment]
    return Listing(page, cursor(belongs_to, end), extras)


def _covering(attention: Attention, request: SearchRequest, rate: float) -> Listing:
    """Return the list in which a right document is at this rate, or the `k` best where none is."""
    scoring, attended = attention.scoring, attention.attended
    version = scoring.view.version
    levels, is_moved = version.tuning.inclusion, request.memory not in (None, version.memory)
    if levels is None or is_moved or not scoring.plan.calibrated:
        raise InvalidRequest(
            f"coverage is {rate:g}, but no list was calibrated for this search: a training on "
            f"examples does it, for the defaults of attend, pool, scorer, temperature, lexical and "
            f"memory. Train first (attend train), leave these options out, or leave out coverage.",
            field="coverage",
        )
    level = math.ceil(round(100 * (rate - LEAST_COVERAGE), 6))  # between two, the next
    needed = most = min(request.most, len(attended.documents))
    covers = level < len(levels)
    if covers:
        needed = int(np.count_nonzero(inclusion(attended.scores) <= levels[level]))
    covers, listed = covers and 0 < needed <= most, min(needed, most)
    coverage = Coverage(rate, covers, listed, request.most)
    return Listing(np.arange(listed), None, [{} for _ in range(listed)], coverage)


def diversified(
    view: View, documents: Int64, scores: Float64, diversity: float, count: int
) -> Int64:
    """Return positions of `count` documents by maximal marginal relevance, one after the other.

    Each has the largest (1 - diversity) * relevance - diversity * likeness, where likeness is
    its largest cosine with those before it, by the means of their keys as the snapshot has them,
    and relevance its score between the lowest, 0, and the highest, 1 (Carbonell and Goldstein
    1998).

    Args:
        documents: (n,) rows of a snapshot; scores: (n,).

    Raises:
        Vanished: a document was deleted meanwhile.
    """
    keys = view.keys.lookup(documents)
    if len(keys) < len(documents):
        raise Vanished
    order = np.argsort(keys.rows)
    places = order[locate(keys.rows[order], documents).places]
    vectors = unit(keys.means())[places]  # (n, d)
    spread = float(np.ptp(scores)) if len(scores) else 0.0
    relevance = (scores - scores.min(initial=np.inf)) / spread if spread else np.zeros(len(scores))
    likeness = np.zeros(len(scores))
    positions: list[int] = []
    remaining = np.ones(len(scores), dtype=bool)
    for _ in range(min(count, len(scores))):
        gain = (1 - diversity) * relevance - diversity * likeness
        best = int(np.argmax(np.where(remaining, gain, -np.inf)))
        positions.append(best)
        remaining[best] = False
        cosines = (vectors @ vectors[best]).astype(np.float64)
        likeness = cosines if len(positions) == 1 else np.maximum(likeness, cosines)
    return np.array(positions, dtype=np.int64)


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


def decoded(cursor: str) -> bytes:
    """Return the JSON of a cursor: the fingerprint of its request, and a place."""
    return base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))


def place(cursor: str, request: str, length: int) -> list[float]:
    """Return the place that a cursor holds, `length` numbers.

    Raises:
        InvalidRequest: it is not a cursor, or one of another request.
    """
    belongs_to, numbers = _read(cursor)
    if belongs_to is None or len(numbers) != length:
        raise InvalidRequest(
            f"{str(cursor)[:40]!r} is not a cursor; send the `next` of the previous page "
            f"unchanged.",
            field="cursor",
        )
    if belongs_to != request:
        raise InvalidRequest(
            "The cursor belongs to another request, or to another projection version; send the "
            "request as before, or begin again without it.",
            field="cursor",
        )
    return [float(number) if isinstance(number, float) else number for number in numbers]


def _read(cursor: str) -> tuple[str | None, list[Any]]:
    """Return what a cursor belongs to, None where it is not one, and its numbers."""
    try:
        belongs_to, *numbers = json.loads(decoded(str(cursor)))
    except (ValueError, TypeError, RecursionError):
        return None, []
    # Python's JSON reads NaN and Infinity, and integers of any length.
    sound = all(isinstance(number, int | float) and abs(number) < 2**63 for number in numbers)
    return (belongs_to, numbers) if isinstance(belongs_to, str) and sound else (None, [])


def timed_scores(
    store: CollectionStore, options: SearchOptions, view: View
) -> RecencyScores | None:
    """Return what the times of documents add to the logits of a search.

    Its own time is the requested one, that of the first of its pages, or the clock's.
    """
    now = options.now
    if now is None:
        numbers = _read(options.cursor)[1] if options.cursor else []
        now = numbers[2] if len(numbers) == 3 else time.time()
    return score_times(store, options.recency, view.version.tuning, float(now))


# -- contents -------------------------------------------------------------------------------


def read_documents(
    store: CollectionStore, rows: Int64, *, texts: bool = True
) -> list[StoredDocument]:
    """Return documents by their rows (n,), in that order.

    Raises:
        Vanished: one was deleted meanwhile.
    """
    documents = store.documents(rows, texts=texts)
    if len(documents) < len(rows):
        raise Vanished
    return [documents[row] for row in rows.tolist()]


def read_embeddings(store: CollectionStore, keys: Sequence[int]) -> list[Float32]:
    """Return the embeddings (d,) of keys; raises Vanished if one was deleted meanwhile."""
    embeddings = store.embeddings(keys)
    if len(embeddings) < len(keys):
        raise Vanished
    return embeddings


class Match(NamedTuple):
    """The key that matched a document best, and its text; None where it was no text."""

    key: StoredKey
    passage: str | None


def best_keys(scoring: Scoring, rows: Int64) -> dict[int, int]:
    """Return for each document row the id of the key that matches the query best."""
    candidates = scoring.view.keys.lookup(rows)
    if not len(candidates):
        return {}
    keys, mechanism = scoring.by_head(candidates).vectors, scoring.mechanism
    scores = mechanism.score_keys(scoring.heads, keys)[0]  # (H, m)
    score = mechanism.gates @ scores  # (m,)
    places = np.split(np.arange(len(score)), candidates.starts[1:-1])
    best = [int(part[np.argmax(score[part])]) for part in places]
    ids = candidates.ids[best].tolist()
    return dict(zip(candidates.rows.tolist(), ids, strict=True))


def matches(
    store: CollectionStore, scoring: Scoring, documents: Sequence[StoredDocument]
) -> list[Match]:
    """Return for each document, with its texts, the key that matched the query best.

    Raises:
        Vanished: a document was deleted meanwhile.
    """
    rows = np.array([document.row for document in documents], dtype=np.int64)
    best = best_keys(scoring, rows)
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


def contents_of(
    documents: Sequence[StoredDocument],
    matched: Sequence[Match],
    options: SearchRequest | RecommendRequest,
    columns: Mapping[str, Sequence[Any]],
) -> list[dict[str, Any]]:
    """Return the fields of hits: ids, payloads, titles and texts of their documents, and others.

    Args:
        matched: the keys that matched them; needed where `include` is.
        columns: the other fields by name, with an entry for each hit.
    """
    columns = {
        **columns,
        "id": [document.id for document in documents],
        "payload": [
            document.payload
            if options.fields is None
            else only(document.payload, options.fields, document.fields)
            for document in documents
        ],
    }
    if options.title:
        columns["title"] = [display_title(*document[1:]) for document in documents]
    if options.include:
        texts = [whole_text(document.fields) for document in documents]
        if "text" in options.include:
            columns["text"] = texts
        # An own vector or a learned query may have matched, which is no passage.
        columns["passage"] = [
            match.passage or text for match, text in zip(matched, texts, strict=True)
        ]
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


# -- explanations ---------------------------------------------------------------------------

DOUBT = 0.05
"""Probability that the true share lies outside the interval, at most, for each head."""

WHOLE = AttendedShare(1.0, 1.0, 1.0)


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
    logs = scoring.log_shares(attended)[:, places]
    with np.errstate(divide="ignore"):
        by_head = Softmax.of(logs.T + np.log(scoring.mechanism.gates)).weights.T  # (p * H, k)
    heads = scoring.plan.projection.heads
    shares = by_head.reshape(len(names), heads, len(places)).sum(axis=1)  # (p, k)
    orders = np.argsort(-shares, axis=0, kind="stable").T  # (k, p)
    return [
        [{**names[part], "weight": float(share[part])} for part in order.tolist()]
        for order, share in zip(orders, shares.T, strict=True)
    ]


def unmoved_logits(scoring: Scoring, rows: Int64) -> Float64:
    """Return what keys give documents (n,) before feedback moves the query, (H, n)."""
    queries = Queries(scoring.unmoved, parts=scoring.queries.parts)
    plain = Scoring.of(scoring.view, scoring.plan, queries)
    keys = plain.by_head(scoring.view.keys.lookup(rows))
    logits = plain.mechanism.logits(plain.heads, keys, plain.shift[:, :, None])[0]
    order = np.argsort(keys.rows)
    return np.asarray(logits[:, order[locate(keys.rows[order], rows).places]])


SAMPLED = 32_768
"""Documents in a sample: 50 MB at 384 dimensions."""


def attended_share(attention: Attention, rows: Int64 | None) -> AttendedShare:
    """Return the share of a query's top documents in the softmax over all documents.

    What the others add is estimated from a random sample of them. The interval is the empirical
    Bernstein bound of Maurer and Pontil 2009: no other document has a larger part than the last of
    the top ones, so that the bound needs no assumption.

    Args:
        rows: the documents that filter and mask let pass, ascending; None for all.
    """
    scoring, top = attention.scoring, attention.attended
    keys = scoring.view.keys
    sample, total = keys.sample(rows, SAMPLED)
    counted = np.union1d(top.documents, keys.living(scoring.masked))
    z = scoring.mechanism.logits(scoring.heads, scoring.by_head(sample), scoring.bias(sample.rows))
    sampled, others = z[0][:, ~locate(counted, sample.rows).present], total - len(counted)
    if not len(top.documents) or others <= 0 or not sampled.shape[1]:
        return WHOLE
    sampled = sampled.astype(np.float64)  # (H, m)
    tau, gates = scoring.mechanism.temperature, scoring.mechanism.gates
    peak = np.maximum(top.logits.max(axis=1), sampled.max(axis=1))[:, None]
    inside = np.exp((top.logits - peak) / tau).sum(axis=1)  # (H,)
    parts = np.exp((sampled - peak) / tau)
    # By several heads together documents are ranked; one of them may find more in another.
    largest = parts.max(axis=1)
    if scoring.mechanism.heads == 1:
        largest = np.maximum(largest, np.exp((top.logits.min(axis=1) - peak[:, 0]) / tau))
    size, rest, error = parts.shape[1], parts.sum(axis=1), np.zeros(len(parts))
    if size < others:
        log = np.log(4 / DOUBT)  # half the doubt for either side
        spread = parts.var(axis=1, ddof=1) if size > 1 else largest**2
        error = np.sqrt(2 * spread * log / size) + 7 * largest * log / (3 * max(1, size - 1))
        rest, error = others * parts.mean(axis=1), others * error
    shares = [
        float(gates @ (inside / (inside + np.maximum(0, rest + sign * error))))
        for sign in (0, 1, -1)
    ]
    return AttendedShare(*shares)


# -- highlights -----------------------------------------------------------------------------

BEGIN, END = "\ufdd0", "\ufdd1"
"""Marks that no text can hold on purpose: Unicode's noncharacters, which separate words."""

_BLANK = str.maketrans({BEGIN: " ", END: " "})

_ENGLISH = (
    "a about all am an and any are as at be been but by can could did do does for from had has "
    "have he her him his how i if in into is it its me my no not of on or our she should so "
    "some such than that the their them then there these they this those to us was we were "
    "what when where which who whom whose why will with would you your"
)
STOP_WORDS = frozenset(_ENGLISH.split())
"""English words that say nothing about a text. Those of other languages are found by counting:
more than half of the documents have them."""

_tables = threading.local()

Span = tuple[int, int]


def highlights(
    store: CollectionStore, matched: Sequence[Match], texts: Sequence[str]
) -> list[Highlight]:
    """Return the passages that matched, with the places of the words of a query's texts."""
    passages = [match.passage or "" for match in matched]
    spans = word_spans(texts, passages, store.common_words(texts))
    return [
        Highlight(match.key.field, match.key.start, match.key.stop, match.passage, places)
        for match, places in zip(matched, spans, strict=True)
    ]


def word_spans(
    query: Sequence[str], texts: Sequence[str], common: Collection[str] = ()
) -> list[list[Span]]:
    """Return for each text where words of the query stand in it, by their stems, in order.

    Stop words count only in a query that has no other words.

    Args:
        common: stems that are left out as stop words are.

    >>> word_spans(["the databases"], ["A database of the Databases."])
    [[(2, 10), (18, 27)]]
    """
    stems = {stem: word for text in query for stem, word in TOKENIZER.words(text).items()}
    telling = [
        word for stem, word in stems.items() if word not in STOP_WORDS and stem not in common
    ]
    words = telling or list(stems.values())
    if not words or not texts:
        return [[] for _ in texts]
    # FTS5 marks whole tokens, and a single letter of a script without blanks begins longer ones.
    letters = [word for word in words if is_letter(word)]
    pattern = " OR ".join(quoted(word) for word in words if word not in letters)
    traced = [traced_text(readable(text.translate(_BLANK))) for text in texts]
    marked = _marked(pattern, [text for text, _ in traced])
    return [
        _merged([*_spans(with_marks), *letter_spans(text, letters)], places)
        for with_marks, (text, places) in zip(marked, traced, strict=True)
    ]


def _marked(pattern: str, texts: Sequence[str]) -> list[str]:
    """Return the texts with a mark before and after each match."""
    if not pattern:
        return list(texts)
    db: sqlite3.Connection | None = getattr(_tables, "db", None)
    if db is None:  # each thread has a table in memory, empty between two calls
        db = _tables.db = sqlite3.connect(":memory:", isolation_level=None)
        db.execute(f'CREATE VIRTUAL TABLE texts USING fts5(text, tokenize = "porter {SPLIT}")')
    db.execute("BEGIN")
    try:
        db.executemany("INSERT INTO texts (rowid, text) VALUES (?, ?)", enumerate(texts))
        rows = db.execute(
            "SELECT rowid, highlight(texts, 0, ?, ?) FROM texts WHERE texts MATCH ?",
            [BEGIN, END, pattern],
        )
        marked = dict(rows.fetchall())
        return [marked.get(place, text) for place, text in enumerate(texts)]
    finally:
        db.execute("ROLLBACK")


def _spans(marked: str) -> list[Span]:
    """Return where the marks stand, in the text without them."""
    spans = []
    before, *rest = marked.split(BEGIN)
    length = len(before)
    for part in rest:
        inside, after = part.split(END)
        spans.append((length, length + len(inside)))
        length += len(inside) + len(after)
    return spans


def _merged(spans: Sequence[Span], places: Sequence[Span] | None) -> list[Span]:
    """Return spans of an indexed text as spans of the original, those that overlap as one."""
    if places is not None:
        spans = [(places[start][0], places[stop - 1][1]) for start, stop in spans]
    merged: list[Span] = []
    for start, stop in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged
