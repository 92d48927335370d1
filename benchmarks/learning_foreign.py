"""Rows of foreign queries: each set asked the questions of the others, without any labels.

A collection refuses 5 % of queries that belong to it, as it states. Its own questions should be
refused no more often, and those of other sets nearly always. Halves of one set by topic (two
means of its embeddings) are closer to each other, and are reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
from learning_answers import asked_of, banking, remembered
from learning_rows import Row, row_of
from learning_sets import SEED, TITLES, Bench, encoder, ranking_set

from attend import Collection
from attend.encoder import DEFAULT
from attend.measure.statistics import mean_interval
from attend.search.foreign import ERROR_RATE, SETTING
from attend.types import Float64

RANKINGS = ("scifact", "conala")

OWN_REFUSED, RECOGNISED = 0.07, 0.95


class Asked(NamedTuple):
    """A collection to be opened, and the questions that belong to it."""

    title: str
    collection: AbstractContextManager[Collection]
    questions: Sequence[str]


def foreign(bench: Bench) -> Iterator[Row]:
    """Ask each collection its own questions and those of the others."""
    sets = {name: _set(bench, name) for name in (*RANKINGS, "banking77")}
    for name, (title, opened, questions) in sets.items():
        with opened as collection:
            _made_again(collection)
            own = _refused(collection, questions)
            others = {
                other.title: _refused(collection, other.questions)
                for key, other in sets.items()
                if key != name
            }
            what = f"{title}, no labels, at {ERROR_RATE:.0%}: own questions refused"
            row = row_of(f"foreign.{name}.own", what, mean_interval(own), own.tolist())
            yield row.wanted("<=", OWN_REFUSED)
            for other, refused in others.items():
                what = f"  questions of {other} recognised as foreign"
                row = row_of(f"foreign.{name}.{other}", what, mean_interval(refused))
                yield row.wanted(">=", RECOGNISED)
            yield from _halves(name, collection, questions)


def _set(bench: Bench, name: str) -> Asked:
    if name in RANKINGS:
        judged = ranking_set(bench.options.sets, name, rehearse=bench.options.rehearse)
        return Asked(TITLES[name], bench.workshop.beir(judged), list(judged.test.queries.values()))
    memory, asked = banking(bench)
    return Asked("banking77", remembered(bench, memory), asked.texts)


def _halves(name: str, collection: Collection, questions: Sequence[str]) -> Iterator[Row]:
    """Keep the documents of one topic, and ask the questions of both."""
    from sklearn.cluster import KMeans

    table = collection.store.own_keys(collection.views.current().keys.rows)
    topics = KMeans(2, n_init=4, random_state=SEED).fit(table.vectors)
    leaving = np.unique(table.documents[topics.labels_ == 1])
    documents = collection.store.documents(leaving, texts=False).values()
    collection.delete([document.id for document in documents])
    _made_again(collection)
    topic = topics.predict(encoder(DEFAULT).encode_queries(list(questions)))
    refused = _refused(collection, questions)
    for half, what in enumerate(("own questions refused", "those of the other half recognised")):
        told = refused[topic == half]
        label = f"  half of it by topic: {what}"
        yield row_of(f"foreign.{name}.half{half}", label, mean_interval(told))


def _refused(collection: Collection, questions: Sequence[str]) -> Float64:
    """Return 1 where the collection says that nothing in it answers (q,)."""
    answers = asked_of(collection, questions, {"min_confidence": None, "mode": "hard"})
    return np.array([not answer.answered for answer in answers], dtype=np.float64)


def _made_again(collection: Collection) -> None:
    """Make the test of the documents that there are, whatever was stored."""
    collection.store.record(SETTING, None)
    collection.publish()
