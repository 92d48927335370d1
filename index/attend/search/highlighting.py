"""Highlights: the passages that matched, with the places of the words of a query."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Sequence

from attend.api.answers import Highlight
from attend.search.listing import Match
from attend.store import CollectionStore
from attend.store.words import (
    SPLIT,
    TOKENIZER,
    is_letter,
    letter_spans,
    quoted,
    readable,
    traced_text,
)

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
