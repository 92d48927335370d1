"""Explanations of hits: the key that matched, its passage, what made the logit, and a title."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attend.api.answers import Highlight
from attend.attention import Attended
from attend.errors import LimitExceeded
from attend.search.attend import Attention
from attend.search.schedule import Vanished
from attend.search.scoring import Scoring
from attend.store import CollectionStore, StoredDocument, StoredKey
from attend.store.words import SPLIT, TOKENIZER
from attend.types import Int64, Json

MAX_SHARES = 200_000
"""Shares of parts in hits, in one response: about 10 MB of JSON."""

TITLES = ("title", "name", "headline", "question")
"""Fields that are titles where they are texts, the likeliest first."""

LONGEST_TITLE = 120
"""Characters; of a longer text only the beginning is a title."""

BEGIN, END = "\ufdd0", "\ufdd1"
"""Marks that no text can hold on purpose: Unicode's noncharacters, which part words."""

_BLANK = str.maketrans({BEGIN: " ", END: " ", "\x00": " "})

_tables = threading.local()


class Match(NamedTuple):
    """The key that matched a document best, and its text; None where it was no text."""

    key: StoredKey
    passage: str | None


def matches(
    store: CollectionStore, attention: Attention, query: int, documents: Sequence[StoredDocument]
) -> list[Match]:
    """Return for each document, with its texts, the key that matched the query best.

    Raises:
        Vanished: a document was deleted meanwhile.
    """
    rows = np.array([document.row for document in documents], dtype=np.int64)
    best = attention.scoring.best_keys(query, rows)
    keys = store.keys_of(np.array(list(best.values()), dtype=np.int64))
    matched = []
    for document in documents:
        key = keys.get(best.get(document.row, 0))
        if key is None:
            raise Vanished
        text = document.fields.get(key.field)
        matched.append(Match(key, None if text is None else text[key.start : key.stop]))
    return matched


def highlights(matched: Sequence[Match], texts: Sequence[str]) -> list[Highlight]:
    """Return the passages that matched, with the places of the words of a query's texts."""
    spans = word_spans(texts, [match.passage or "" for match in matched])
    return [
        Highlight(match.key.field, match.key.start, match.key.stop, match.passage, places)
        for match, places in zip(matched, spans, strict=True)
    ]


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
    shares = scoring.part_shares(attended, places)  # (p, k)
    orders = np.argsort(-shares, axis=0, kind="stable").T  # (k, p)
    return [
        [{**names[part], "weight": float(share[part])} for part in order.tolist()]
        for order, share in zip(orders, shares.T, strict=True)
    ]


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
    lexical = scoring.lexical(query, attended.documents)  # (n,)
    dense = scoring.mechanism.gates @ attended.logits - lexical  # (n,)
    before = np.empty(len(dense), dtype=np.int64)  # ranks, from 1; equals as they stand
    before[np.argsort(-dense, kind="stable")] = np.arange(1, len(dense) + 1)
    terms = list(scoring.terms(query))
    shares = explain_parts(scoring, attended, places, parts) if parts else None
    return [
        {
            "field": match.key.field,
            "start": match.key.start,
            "stop": match.key.stop,
            "passage": match.passage,
            **({} if shares is None else {"because": shares[rank]}),
            "question": match.key.question,
            "rank": place + 1,
            "rank_before_words": int(before[place]),
            "logits": attended.logits[:, place].tolist(),
            "weights": attended.head_weights[:, place].tolist(),
            "lexical": float(lexical[place]),
            "dense": float(dense[place]),
            "terms": terms,
        }
        for rank, (place, match) in enumerate(zip(places.tolist(), matched, strict=True))
    ]


def word_spans(query: Sequence[str], texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Return for each text where words of the query stand in it, by their stems, in order.

    >>> word_spans(["databases"], ["A database of Databases."])
    [[(2, 10), (14, 23)]]
    """
    words = {word for text in query for word in TOKENIZER.words(text).values()}
    if not words or not texts:
        return [[] for _ in texts]
    pattern = " OR ".join('"' + word.replace('"', '""') + '"' for word in words)
    return [_spans(text) for text in _marked(pattern, texts)]


def _marked(pattern: str, texts: Sequence[str]) -> list[str]:
    """Return the texts with a mark before and after each match."""
    db: sqlite3.Connection | None = getattr(_tables, "db", None)
    if db is None:  # each thread has a table in memory, empty between two calls
        db = _tables.db = sqlite3.connect(":memory:", isolation_level=None)
        db.execute(f"CREATE VIRTUAL TABLE texts USING fts5(text, tokenize = 'porter {SPLIT}')")
    db.execute("BEGIN")
    try:
        # Half a surrogate pair is no UTF-8; as '?' it has the same length, and parts words.
        plain = [text.translate(_BLANK).encode("utf-8", "replace").decode() for text in texts]
        db.executemany("INSERT INTO texts (rowid, text) VALUES (?, ?)", enumerate(plain))
        rows = db.execute(
            "SELECT rowid, highlight(texts, 0, ?, ?) FROM texts WHERE texts MATCH ?",
            [BEGIN, END, pattern],
        )
        marked = dict(rows.fetchall())
        return [marked.get(place, text) for place, text in enumerate(plain)]
    finally:
        db.execute("ROLLBACK")


def _spans(marked: str) -> list[tuple[int, int]]:
    """Return where the marks stand, in the text without them."""
    spans = []
    before, *rest = marked.split(BEGIN)
    length = len(before)
    for part in rest:
        inside, after = part.split(END)
        spans.append((length, length + len(inside)))
        length += len(inside) + len(after)
    return spans


def display_title(document: StoredDocument) -> str:
    """Return a title of payload, value or texts, else the first line of a text, else the id.

    >>> display_title(StoredDocument(1, "a", {"text": "Call me Ishmael. Some years ago"}, None, {}))
    'Call me Ishmael. Some years ago'
    >>> display_title(StoredDocument(1, "a", {"name": "Moby-Dick"}, 9.5, {"year": 1851}))
    'Moby-Dick'
    >>> display_title(StoredDocument(1, "a", {}, 9.5, {}))
    'a'
    """
    title = next(_titles(document), None)
    if title is None:
        title = next((text for text in document.fields.values() if text.strip()), document.id)
    line = next(iter(title.strip().splitlines()), title)  # an id may be blank
    return line if len(line) <= LONGEST_TITLE else f"{line[: LONGEST_TITLE - 1].rstrip()}…"


def _titles(document: StoredDocument) -> Iterator[str]:
    places = (document.payload, document.value, document.fields)
    objects = [place for place in places if isinstance(place, dict)]
    for name in TITLES:
        for place in objects:
            text = place.get(name)
            if isinstance(text, str) and text.strip():
                yield text
