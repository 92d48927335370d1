"""Words for the groups of a map: what their documents say more often than all others do.

Groups are those of k-means over the places, a few for the whole and more for those who look
closer. Their words are ranked by c-TF-IDF (Grootendorst 2022), by documents and not by mentions.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import faiss
import numpy as np

from attend.api.answers import ClusterLabel
from attend.core.types import Float32, Int64, StoredDocument
from attend.store import CollectionStore
from attend.values.select import display_title, whole_text

READ = 2000
"""Documents whose words are read, from all over the map."""

LONGEST = 2000
"""Characters of a text that are read."""

WORDS = 3
"""Words of a label."""

FEW = 24
"""Documents below which a map has no groups to name."""

COMMON = 0.25
"""The share of all documents from which on a word tells no group from the others."""

LEVELS = (8, 32)
"""The most groups of the whole map, and of one that is looked at closely."""

_WORD = re.compile(r"[^\W\d_]{3,24}")


def cluster_labels(store: CollectionStore, rows: Int64, places: Float32) -> list[ClusterLabel]:
    """Return labels for the groups of places (n, 2) of documents `rows` (n,)."""
    if len(rows) < FEW:
        return []
    places_read = np.unique(np.linspace(0, len(rows) - 1, READ).astype(np.int64))
    documents = store.documents(rows[places_read])
    places_read = places_read[[int(rows[place]) in documents for place in places_read]]
    words = [words_of(documents[int(rows[place])]) for place in places_read]
    labels: list[ClusterLabel] = []
    for level, most in enumerate(LEVELS):
        count = min(most, len(places_read) // (FEW // 2))
        if level == 0 or count > LEVELS[0]:
            labels += _labels(places[places_read], words, max(count, 2), level)
    return labels


def words_of(document: StoredDocument) -> set[str]:
    """Return the words of a document's title and texts."""
    title = display_title(*document[1:])
    text = f"{title if title != document.id else ''}\n{whole_text(document.fields)[:LONGEST]}"
    return {word.casefold() for word in _WORD.findall(text)}


def _labels(
    places: Float32, words: Sequence[set[str]], count: int, level: int
) -> list[ClusterLabel]:
    kmeans = faiss.Kmeans(2, count, niter=20, seed=0, min_points_per_centroid=1)
    kmeans.train(np.ascontiguousarray(places, np.float32))
    _, assigned = kmeans.index.search(np.ascontiguousarray(places, np.float32), 1)
    groups = [np.flatnonzero(assigned[:, 0] == group) for group in range(count)]
    groups.sort(key=len, reverse=True)
    named = characteristic([[words[int(place)] for place in group] for group in groups])
    # Of neighbours with the same words the larger group has them.
    is_first = [label not in named[:rank] for rank, label in enumerate(named)]
    return [
        ClusterLabel(
            tuple(np.median(places[group], axis=0).astype(float).round(4).tolist()),
            label,
            len(group),
            level,
        )
        for group, label, first in zip(groups, named, is_first, strict=True)
        if label and first
    ]


def characteristic(groups: Sequence[Sequence[set[str]]]) -> list[list[str]]:
    """Return the words of each group of documents that tell it from the others.

    >>> sea, garden = [{"the", "whale"}] * 4, [{"the", "rose"}] * 4
    >>> characteristic([sea, garden])
    [['whale'], ['rose']]
    """
    counts = [Counter(word for document in group for word in document) for group in groups]
    total: Counter[str] = sum(counts, Counter())
    documents = sum(map(len, groups))
    average = total.total() / max(len(groups), 1)
    labels = []
    for group, counter in zip(groups, counts, strict=True):
        scores = {}
        for word, count in counter.items():
            inside = count / len(group)
            outside = (total[word] - count) / max(documents - len(group), 1)
            if count >= 2 and outside < COMMON and inside > 2 * outside:
                scores[word] = inside * math.log1p(average / total[word])
        ranked = sorted((-score, word) for word, score in scores.items())
        labels.append([word for _, word in ranked[:WORDS]])
    return labels
