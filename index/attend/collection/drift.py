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
from attend.store.searches import SearchLog
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

SENTENCES = {
    "queries": "Recent queries are unlike earlier ones. Check that the collection has documents "
    "which answer them, and train again with feedback about them.",
    "documents": "Documents written since the last training are unlike those before it. Publish "
    "the collection, and train again with feedback about them.",
    "refusals": "The share of searches without an answer has changed: it is {:.0%} of the latest. "
    "Look at their queries, add documents that answer them, or train again.",
}

AT_ONCE = 64
"""New ones looked at in one look."""

BEHIND = 2000
"""New ones that may wait for a look; of more the oldest are passed over."""

LATEST = 50
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

    def _begin(self, since: str | None, last_key: int = 0) -> None:
        """Forget what was compared: a training has learned from it."""
        self._since, self._last_search, self._last_key = since, 0, last_key
        self._near: dict[str, Nearness] = {}
        self._refused: list[bool] = []
        self._refusals = ExchangeabilityTest()

    def look(self) -> list[str]:
        """Compare what is new with what was before, and return the sentences of new alarms.

        What was noticed is stored: `info().hints` and `/metrics` have it.
        """
        here, searches, store = self.collection, self.collection.log, self.collection.store
        if searches is None or here.settings.encoder is None or MAPPED in store.settings():
            return []
        versions = [version for version in store.projections() if "promoted" in version.report]
        since = max((version.created for version in versions), default="")
        before = noticed(here)
        after = dict(before)
        if before.get("since") != since or not searches.last():
            encoder = {kind: before[kind] for kind in ("encoder",) if kind in before}
            after = {"since": since, "last_key": store.state().last_key, **encoder}
            self._begin(None)
        if self._since is None:
            self._begin(since, after["last_key"])
        self._look_at_queries(searches)
        if since:
            self._look_at_documents()
        tests = {kind: near.test for kind, near in self._near.items()}
        for kind, test in tests.items() | ({("refusals", self._refusals)} if self._refused else ()):
            earlier = after.get(kind) or {"p": 1.0, "alarm": False, "sentence": None}
            p = min(earlier["p"], float(f"{test.p:.2g}"))
            sentence = earlier["sentence"]
            if p <= ALARM and sentence is None:
                sentence = SENTENCES[kind].format(np.mean(self._refused[-LATEST:] or 0.0))
            after[kind] = {"p": p, "alarm": p <= ALARM, "sentence": sentence}
        _store(here, before, after)
        return [sentence for sentence in alarms(after) if sentence not in alarms(before)]

    def _look_at_queries(self, searches: SearchLog) -> None:
        """Compare new queries with those before the training, or with the first ones there are."""
        if "queries" not in self._near:
            moment = datetime.fromisoformat(self._since).timestamp() if self._since else 0.0
            reference = searches.texts(REFERENCE, before=moment, newest=True)
            if len(reference) < LEAST:
                reference = searches.texts(REFERENCE)
            if len(reference) < LEAST:
                return
            embeddings = self._embeddings_of(reference, refusals=not self._since)
            self._near["queries"] = Nearness(embeddings)
        waiting = searches.texts(BEHIND, after=self._last_search, newest=True)[:AT_ONCE]
        if waiting:
            self._near["queries"].add(self._embeddings_of(waiting))

    def _embeddings_of(
        self, entries: Sequence[tuple[int, str, int | None]], *, refusals: bool = True
    ) -> Float32:
        """Return the embeddings of the texts of searches, and compare their refusals.

        Args:
            refusals: False where another version has answered.
        """
        self._last_search = entries[-1][0]
        for _, _, refused in entries if refusals else ():
            if refused is not None:
                self._refused.append(bool(refused))
                self._refusals.add(refused)
        encode, starts = self.collection.encoder().encode_queries, range(0, len(entries), BLOCK)
        texts = [text for _, text, _ in entries]  # few at once: others wait meanwhile
        return np.concatenate([encode(texts[start : start + BLOCK]) for start in starts])

    def _look_at_documents(self) -> None:
        """Compare documents written since the training with those before, by a key of each."""
        store = self.collection.store
        last = store.state().last_key
        if last == self._last_key:
            return
        if "documents" not in self._near:
            rows = np.array([document.row for document in store.sample(REFERENCE)], dtype=np.int64)
            table = store.own_keys(rows)
            first = table.starts[:-1][table.ids[table.starts[:-1]] <= self._last_key]
            if len(first) < LEAST:
                return
            self._near["documents"] = Nearness(table.vectors[first])
        after = max(self._last_key, last - BEHIND)
        self._last_key = min(after + AT_ONCE, last)
        keys = store.keys_of(np.arange(after + 1, self._last_key + 1))
        firsts = {  # the first of each document comes last
            key.document: id
            for id, key in sorted(keys.items(), reverse=True)
            if key.field != EXAMPLE and not key.start
        }
        if embeddings := store.embeddings(sorted(firsts.values())):
            self._near["documents"].add(np.stack(embeddings))


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
    return collection.store.settings().get(DRIFT) or {}


def _probes(collection: StoredCollection) -> tuple[list[str], Float32]:
    """Return texts of some documents, and the embeddings (n, d) that are stored of them."""
    store, texts = collection.store, dict[int, tuple[str, Float32]]()
    with store.reading():
        fields = {document.row: document.fields for document in store.sample(PROBES)}
        table = store.own_keys(np.array(sorted(fields), dtype=np.int64))
        keys = store.keys_of(table.ids)
    for id, vector in zip(table.ids.tolist(), table.vectors, strict=True):
        row, field, start, stop = keys[id][1:5]
        if stop:  # no own vector
            texts.setdefault(row, (fields[row][field][start:stop], vector))
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
