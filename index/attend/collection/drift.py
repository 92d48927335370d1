"""Drift: queries, documents, refusals or an encoder that are not what they were at the training.

New queries and new documents are compared with those before the last training, by how near the
nearest of some of them is; refusals with earlier ones. Each comparison is a test of exchangeability
that is valid whenever one looks. The encoder is checked by texts whose embeddings are stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import numpy as np

from attend.collection.feedback import TakesFeedback
from attend.core.errors import EncoderError
from attend.core.types import Float32
from attend.encoder.loading import in_formats
from attend.engines.engine import StoredCollection
from attend.measure.statistics import ExchangeabilityTest
from attend.search.foreign import BLOCK
from attend.store import EXAMPLE
from attend.store.mapped import SETTING as MAPPED
from attend.store.searches import LoggedText, SearchLog
from attend.write.feedback import PROBES

DRIFT = "drift"
"""The setting with what was noticed: since which training, and for each kind `p`, `alarm` and a
`sentence`."""

KINDS = ("encoder", "queries", "documents", "refusals")

ALARM = 0.001
"""The level of an alarm: the chance of a false one between two trainings, for each kind."""

REFERENCE, LEAST = 500, 200
"""Queries or documents that new ones are compared with, and the least of them: see
`Nearness`."""

RUN = 25

AT_ONCE = 64
"""New ones looked at in one look."""

BEHIND = 2000
"""New ones that may wait for a look; of more the oldest are passed over."""

LATEST = 100
"""Searches of which an alarm says the share of refusals."""

ROUNDING = 0.006
"""The median distance within which embeddings (of length one) are the same in one number format:
bfloat16 moves MiniLM's by .0034 as texts are encoded alone or together, at most .0057; float32 and
int8 not at all."""


class Nearness:
    """How strange embeddings are to some: the negated cosine to the nearest of them.

    These are every other run of RUN, and the rest is what new ones are compared with: what comes in
    one session, or from one source, is on one side, and a topic that is new meanwhile on both.
    """

    def __init__(self, embeddings: Float32) -> None:
        is_near = np.arange(len(embeddings)) // RUN % 2 == 0
        self._near = embeddings[is_near]
        self.test = ExchangeabilityTest(self.of(embeddings[~is_near]))

    def of(self, embeddings: Float32) -> list[float]:
        strangeness: list[float] = (-(embeddings @ self._near.T).max(axis=1)).tolist()
        return strangeness

    def add(self, embeddings: Float32) -> None:
        for number in self.of(embeddings) if len(embeddings) else ():
            self.test.add(number)


class Drift:
    """Watches a collection that logs its searches; one process at a time does."""

    def __init__(self, collection: TakesFeedback) -> None:
        self.collection = collection
        self._begin(None)

    def _begin(self, since: str | None) -> None:
        """Forget what was compared: a training has learned from it."""
        self._since = since
        self._queries: Nearness | None = None
        self._documents: Nearness | None = None
        self._refusals = ExchangeabilityTest()
        self._refused: list[bool] = []
        self._last_search = self._last_key = 0

    def look(self) -> list[str]:
        """Compare what is new with what was before, and return the sentences of new alarms.

        What was noticed is stored: `info().hints` and `/metrics` have it.
        """
        here, searches = self.collection, self.collection.log
        if searches is None or here.settings.encoder is None:
            return []
        if MAPPED in here.store.settings():  # the encoder is being changed
            return []
        versions = [version for version in here.store.projections() if "promoted" in version.report]
        since = max((version.created for version in versions), default="")
        before = noticed(here)
        after = dict(before)
        if before.get("since") != since or not searches.last():
            after = {"since": since, "last_key": here.store.state().last_key}
            after |= {"encoder": before["encoder"]} if "encoder" in before else {}
            self._begin(None)
        if self._since is None:
            self._begin(since)
            self._last_key = after["last_key"]
        self._look_at_queries(searches)
        if since:
            self._look_at_documents()
        tests = {
            "queries": self._queries and self._queries.test,
            "documents": self._documents and self._documents.test,
            "refusals": self._refusals if self._refused else None,
        }
        for kind, test in tests.items():
            if test is None:
                continue
            earlier = after.get(kind) or {"p": 1.0, "alarm": False, "sentence": None}
            p = min(earlier["p"], float(f"{test.p:.2g}"))
            sentence = earlier["sentence"] or (self._sentence(kind) if p <= ALARM else None)
            after[kind] = {"p": p, "alarm": p <= ALARM, "sentence": sentence}
        _store(here, before, after)
        return [sentence for sentence in alarms(after) if sentence not in alarms(before)]

    def _look_at_queries(self, searches: SearchLog) -> None:
        """Compare new queries with those before the training, or with the first ones there are."""
        if self._queries is None:
            moment = datetime.fromisoformat(self._since).timestamp() if self._since else 0.0
            reference = searches.texts(REFERENCE, before=moment, newest=True)
            if len(reference) < LEAST:
                reference = searches.texts(REFERENCE)
            if len(reference) < LEAST:
                return
            self._queries = Nearness(self._encoded(reference))
            self._last_search = reference[-1].id
            if not self._since:  # else another version has refused them
                self._add_refusals(reference)
        waiting = searches.texts(BEHIND, after=self._last_search, newest=True)[:AT_ONCE]
        if not waiting:
            return
        self._last_search = waiting[-1].id
        self._queries.add(self._encoded(waiting))
        self._add_refusals(waiting)

    def _add_refusals(self, entries: Sequence[LoggedText]) -> None:
        for entry in entries:
            if entry.refused is not None:
                self._refused.append(entry.refused)
                self._refusals.add(float(entry.refused))

    def _encoded(self, entries: Sequence[LoggedText]) -> Float32:
        """Encode the texts of searches; searches that are answered meanwhile wait for few."""
        texts, encode = [entry.query for entry in entries], self.collection.encoder().encode_queries
        starts = range(0, len(texts), BLOCK)
        return np.concatenate([encode(texts[start : start + BLOCK]) for start in starts])

    def _look_at_documents(self) -> None:
        """Compare documents written since the training with those before, by a key of each."""
        store = self.collection.store
        last = store.state().last_key
        if last == self._last_key:
            return
        if self._documents is None:
            rows = np.array([document.row for document in store.sample(REFERENCE)], dtype=np.int64)
            table = store.own_keys(rows)
            first = table.starts[:-1]
            first = first[table.ids[first] <= self._last_key]
            if len(first) < LEAST:
                return
            self._documents = Nearness(table.vectors[first])
        first_key = max(self._last_key, last - BEHIND) + 1
        ids = np.arange(first_key, min(first_key + AT_ONCE, last + 1))
        self._last_key = int(ids[-1])
        firsts: dict[int, int] = {}  # by document
        for id, key in sorted(store.keys_of(ids).items()):
            if key.field != EXAMPLE and not key.start:
                firsts.setdefault(key.document, id)
        embeddings = store.embeddings(list(firsts.values()))
        if embeddings:
            self._documents.add(np.stack(embeddings))

    def _sentence(self, kind: str) -> str:
        if kind == "queries":
            return (
                "Recent queries are unlike earlier ones. Check that the collection has documents "
                "which answer them, and train again with feedback about them."
            )
        if kind == "documents":
            return (
                "Documents written since the last training are unlike those before it. Publish the "
                "collection, and train again with feedback about them."
            )
        latest, earlier = self._refused[-LATEST:], self._refused[:-LATEST] or [False]
        return (
            f"The share of searches without an answer has changed: {np.mean(latest):.0%} of the "
            f"latest {len(latest)}, {np.mean(earlier):.0%} of those before. Look at their queries, "
            f"add documents that answer them, or train again."
        )


def check_encoder(collection: TakesFeedback) -> str | None:
    """Encode stored texts again, and return the sentence of an alarm if embeddings are others.

    A number format explains a difference if the model has the stored embeddings in one format, and
    those of the loaded encoder in another.

    Raises:
        EncoderError: the encoder cannot be loaded.
    """
    name = collection.settings.encoder
    texts, stored = _probes(collection)
    if name is None or not texts or MAPPED in collection.store.settings():
        return None
    loaded = collection.encoder().encode_documents(texts)
    difference = _distance(loaded, stored)
    if difference > ROUNDING:
        with suppress(EncoderError):  # one that was loaded in another way
            rows = [encoder.encode_documents(texts) for encoder in in_formats(name)]
            nearest = [min(_distance(row, side) for row in rows) for side in (stored, loaded)]
            difference = min(difference, max(nearest))
    before, sentence = noticed(collection), None
    if difference > ROUNDING:
        sentence = (
            f"The encoder gives other numbers than it did: embeddings of {len(texts)} stored texts "
            f"differ by {difference:.1%}, more than number formats explain. Put the old model "
            f"back, or encode all documents again with `attend reindex`."
        )
    figures = {"p": None, "alarm": sentence is not None, "sentence": sentence}
    _store(collection, before, {**before, "encoder": figures})
    return sentence


def noticed(collection: StoredCollection) -> dict[str, Any]:
    """Return what was noticed about a collection: for each kind `p`, `alarm` and `sentence`."""
    stored = collection.store.settings().get(DRIFT)
    return dict(stored) if isinstance(stored, Mapping) else {}


def _probes(collection: StoredCollection) -> tuple[list[str], Float32]:
    """Return texts of some documents, and the embeddings (n, d) that are stored of them."""
    documents = {document.row: document for document in collection.store.sample(PROBES)}
    table = collection.store.own_keys(np.array(sorted(documents), dtype=np.int64))
    keys = collection.store.keys_of(table.ids)
    texts: dict[int, tuple[str, Float32]] = {}
    for id, vector in zip(table.ids.tolist(), table.vectors, strict=True):
        key = keys.get(id)
        if key is not None and key.stop and key.document not in texts:  # no own vector
            text = documents[key.document].fields[key.field][key.start : key.stop]
            texts[key.document] = text, vector
    return [text for text, _ in texts.values()], np.array([vector for _, vector in texts.values()])


def _distance(rows: Float32, others: Float32) -> float:
    """Return the median distance of embeddings (n, d) of the same texts; 2 for other widths."""
    if rows.shape != others.shape:
        return 2.0
    return float(np.median(np.linalg.norm(rows - others, axis=1)))


def _store(collection: TakesFeedback, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Store what was noticed, if it is other than before."""
    if before != after and not collection.read_only:
        collection.store.put_settings({DRIFT: dict(after)}, soon=False)


def alarms(figures: Mapping[str, Any]) -> list[str]:
    """Return the sentences of the alarms among what was noticed.

    >>> alarms({"encoder": {"p": None, "alarm": True, "sentence": "It gives other numbers."}})
    ['It gives other numbers.']
    """
    return [figures[kind]["sentence"] for kind in KINDS if figures.get(kind, {}).get("alarm")]
