"""A version scored through attention, as a search scores it, on the documents of a training."""

from __future__ import annotations

import numpy as np

from attend.attention import Mechanism, log_mix, partition
from attend.collection import Collection
from attend.key_table import KeyTable
from attend.learn.calibration import ATTEND
from attend.learn.candidates import ideal_dcg, top_places
from attend.learn.data import BLOCK, Memory, Questions
from attend.measure.statistics import CUT, ndcg
from attend.search.scoring import AttentionOptions, plan_of
from attend.settings import Settings
from attend.training.request import Task
from attend.types import Float32, Float64, Floats, Int64
from attend.versions import Version


def active_version(task: Task) -> Version:
    """Return the version that answers as a training begins, with keys that do not fold."""
    number = task.active.version
    return Version.of(number, task.collection.store.version(number), "cosine")


class ServedVersion:
    """The keys of some documents under a version, and the scores of queries.

    Attributes:
        table: the version's own keys, with example queries as keys where it has them.
    """

    def __init__(self, version: Version, settings: Settings, stored: KeyTable) -> None:
        self.version = version
        options = AttentionOptions(attend=version.tuning.attend or ATTEND)
        self.plan = plan_of(version, settings, options, words=True)
        self.table = version.keys(stored)

    @property
    def mechanism(self) -> Mechanism:
        """The scorer, scales, gates and no-answer score by which the version answers."""
        return self.plan.mechanism

    def logits(self, embeddings: Float32, documents: Int64, words: Floats | None = None) -> Floats:
        """Logits (q, H, c) of queries (q, d) over some documents, over the temperature.

        Args:
            words: (q, c) the lexical term, on the scorer's scale.
        """
        table, projected = self.table.some(documents), self.plan.projection.asked(embeddings)
        keys, scale = table.vectors, self.mechanism.scale
        by_head = (
            keys.reshape(len(keys), -1, projected.heads.shape[2])
            if self.plan.stored_form
            else self.plan.projection.keys(keys)
        )
        bias = (projected.shift * scale)[:, :, None]
        if words is not None:
            bias = bias + words[:, None] * scale[:, None]
        z = self.mechanism.logits(projected.heads, table.with_vectors(by_head), bias)
        return z / self.mechanism.temperature

    def scores(self, embeddings: Float32, documents: Int64, words: Floats | None = None) -> Floats:
        """Scores (q, c): logits of one head; of several the log of their mixed weights."""
        z = self.logits(embeddings, documents, words)
        null, gates = self.mechanism.null, self.mechanism.gates
        if len(gates) == 1:
            return z[:, 0]
        if null is not None:
            null = np.broadcast_to(null, z.shape[:2])
        return log_mix(np.asarray(z - partition(z, null).log[..., None]), gates)

    def words(self, lexical: Floats, coverage: Floats) -> Floats | None:
        """Return the lexical term of shares (q, c); None where the version has none."""
        tuning = self.version.tuning
        if not tuning.lexical:
            return None
        strength = np.float32(tuning.lexical) * coverage ** np.float32(tuning.coverage)
        return np.asarray(lexical * strength[:, None], dtype=np.float32)

    def ndcg(self, questions: Questions) -> Float64:
        """nDCG@10 of questions (q,) over all documents."""
        everything = np.arange(len(self.table))
        step = max(1, BLOCK // (len(self.table.vectors) * self.mechanism.heads))
        values = [np.empty(0)]
        for index in range(0, questions.count, step):
            part = questions.some(np.arange(index, min(index + step, questions.count)))
            words = self.words(part.lexical.toarray(), part.coverage)
            best = top_places(self.scores(part.embeddings, everything, words), CUT)
            grades = part.relevant.toarray()
            values.append(ndcg(np.take_along_axis(grades, best, axis=1), ideal_dcg(grades)))
        return np.concatenate(values)


def with_examples(memory: Memory, training: Questions) -> KeyTable:
    """Return a memory with questions as keys of the documents relevant to them."""
    question, document = training.relevant.nonzero()
    documents = np.concatenate([memory.documents, memory.rows[document]])
    order = np.argsort(documents, kind="stable")
    return KeyTable.of_keys(
        np.concatenate([memory.vectors, training.embeddings[question]])[order],
        np.concatenate([memory.ids, np.full(len(question), -1, dtype=np.int64)])[order],
        documents[order],
        (np.arange(len(documents)) >= len(memory.ids))[order],
    )


def stored_keys(collection: Collection, version: Version, rows: Int64) -> KeyTable:
    """Read the keys of the documents of some rows, with example queries as keys where a version
    has them."""
    with collection.store.all_keys(examples=version.examples) as (_, tables):
        return KeyTable.joined([table.some(table.places(rows)) for table in tables])
