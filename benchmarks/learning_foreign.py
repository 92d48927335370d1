"""Rows of foreign queries: each set asked the questions of the others, without any labels.

A collection refuses 5 % of queries that belong to it, as it states. Its own questions should be
refused no more often, and those of other sets nearly always. Halves of one set by topic (half of
the intents, or two means of the embeddings) are closer to each other, and are reported.
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
from attend.core.types import Float64, Int64
from attend.encoder import DEFAULT
from attend.measure.statistics import mean_interval
from attend.search.foreign import ERROR_RATE, SETTING

RANKINGS = ("scifact", "conala")

OWN_REFUSED, RECOGNISED = 0.07, 0.95


class Asked(NamedTuple):
    """A collection to be opened, and the questions that belong to it, with their intents."""

    title: str
    collection: AbstractContextManager[Collection]
    questions: Sequence[str]
    intents: Sequence[str] = ()


def foreign(bench: Bench) -> Iterator[Row]:
    """Ask each collection its own questions and those of the others."""
    sets = {name: _set(bench, name) for name in (*RANKINGS, "banking77")}
    for name, asked in sets.items():
        title, questions = asked.title, asked.questions
        with asked.collection as collection:
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
            yield from _halves(name, collection, asked)


def _set(bench: Bench, name: str) -> Asked:
    if name in RANKINGS:
        judged = ranking_set(bench.options.sets, name, rehearse=bench.options.rehearse)
        return Asked(TITLES[name], bench.workshop.beir(judged), list(judged.test.queries.values()))
    memory, asked = banking(bench)
    return Asked("banking77", remembered(bench, memory), asked.texts, asked.labels)


def _halves(name: str, collection: Collection, asked: Asked) -> Iterator[Row]:
    """Keep the documents of one topic, and ask the questions of both."""
    leaving, topic = (_by_intent if asked.intents else _by_meaning)(collection, asked)
    collection.delete(leaving)
    _made_again(collection)
    refused = _refused(collection, asked.questions)
    for half, what in enumerate(("own questions refused", "those of the other half recognised")):
        told = refused[topic == half]
        label = f"  half of it by topic: {what}"
        yield row_of(f"foreign.{name}.half{half}", label, mean_interval(told))


def _by_intent(collection: Collection, asked: Asked) -> tuple[list[str], Int64]:
    """The ids of the documents with one half of the intents, and the half of each question."""
    intents = np.random.default_rng(SEED).permutation(sorted(set(asked.intents)))
    second = set(intents[len(intents) // 2 :].tolist())
    rows = collection.views.current().keys.rows
    documents = collection.store.documents(rows, texts=False).values()
    leaving = [document.id for document in documents if document.value in second]
    return leaving, np.array([intent in second for intent in asked.intents], dtype=np.int64)


def _by_meaning(collection: Collection, asked: Asked) -> tuple[list[str], Int64]:
    """The ids of the documents of one of two clusters, and the cluster of each question."""
    from sklearn.cluster import KMeans

    table = collection.store.own_keys(collection.views.current().keys.rows)
    topics = KMeans(2, n_init=4, random_state=SEED).fit(table.vectors)
    leaving = np.unique(table.documents[topics.labels_ == 1])
    documents = collection.store.documents(leaving, texts=False).values()
    topic = topics.predict(encoder(DEFAULT).encode_queries(list(asked.questions)))
    return [document.id for document in documents], np.asarray(topic, dtype=np.int64)


def _refused(collection: Collection, questions: Sequence[str]) -> Float64:
    """Return 1 where the collection says that nothing in it answers (q,)."""
    answers = asked_of(collection, questions, {"min_confidence": None, "mode": "hard"})
    return np.array([not answer.answered for answer in answers], dtype=np.float64)


def _made_again(collection: Collection) -> None:
    """Make the test of the documents that there are, whatever was stored."""
    collection.store.record(SETTING, None)
    collection.publish()
