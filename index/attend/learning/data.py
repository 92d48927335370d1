"""The arrays that objectives learn from: a memory of keys, questions, histories, ratings; and the
version that answers as a training begins.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from attend.attention import Mechanism, log_mix, partition
from attend.collection.versions import Version
from attend.core.arrays import KeyTable, locate, top, top_mask, unit
from attend.core.errors import InvalidRequest
from attend.core.settings import Settings
from attend.core.types import Bool, Float32, Float64, Floats, Int64
from attend.engines.engine import StoredCollection
from attend.learning.task import Task, objective_of
from attend.measure.statistics import CUT, dcg, ndcg
from attend.search.attend import best_keys, layered
from attend.search.feedback import NEAREST, FeedbackMemory
from attend.search.queries import FeedbackReader, RecencyScores, score_times
from attend.search.scoring import AttentionOptions, plan_of
from attend.search.values import field_names, values_of
from attend.store import StoredProjection
from attend.store.filters import VALUE, is_date

Sparse: TypeAlias = Any
"""A `scipy.sparse.csr_array`: SciPy has no types."""

UNIT_SCALE = 20.0
"""The scale of logits before any was fitted, for embeddings of length one."""

SAMPLED = 10_000
"""Embeddings by which the usual length is measured."""

TINY = 1e-12
"""Embeddings whose squares are smaller on average are all zero, but for rounding."""

TWIN_COSINE = 0.88
"""Questions nearer than this, the mean question subtracted, are one question in other words: they
share a fold. Some encoders place all texts near each other, and only what differs can tell."""

SAME_COSINE = 0.99
"""Nearer than this as they are, texts are one in any encoder, however little else there is."""

PAIRS = 1 << 22
"""Pairs of questions compared in one block."""

BLOCK = 1 << 24
"""Numbers in a block of a large product: 64 MB."""

PRODUCT = Mechanism("dot", scale=np.ones(1), gates=np.ones(1))
"""The scorer as it is, for logits that are scaled later."""


@dataclass(frozen=True, eq=False)
class Memory(KeyTable):
    """Documents with the raw embeddings of their keys, to learn from.

    Attributes:
        unit: whether queries and keys are compared at length one.
        ages: (n,) of the documents, by field: the days by which the newest is newer.
    """

    unit: bool = True
    ages: Mapping[str, Float64] = field(default_factory=dict)

    @cached_property
    def scale(self) -> float:
        """The scale of logits before any was fitted: as if embeddings had length one."""
        if self.unit:
            return UNIT_SCALE
        sample = self.vectors[:: max(1, len(self.vectors) // SAMPLED)].astype(np.float64)
        return UNIT_SCALE / max(float((sample**2).sum(axis=1).mean()), TINY)

    def document_embeddings(self) -> Floats:
        """Return documents as queries by id (n, d): the mean of their keys, at length one if
        these are."""
        means = self.means()
        return unit(means) if self.unit and not self.single else means


@dataclass(frozen=True)
class Questions:
    """Questions, and how well documents answer them.

    Attributes:
        embeddings: (q, d) raw query embeddings.
        relevant: sparse (q, n), grades above zero.
        judged: sparse (q, n), the labels of pairs: how much a document competes that was labelled
            not relevant, 1 or more; 1 for one that was labelled relevant.
        lexical: sparse (q, n), lex(d): BM25 over the question's maximum; empty without texts.
        coverage: (q,) maximum / ideal of each question, from 0 to 1.
        left_out: sparse (q, n), documents that are not ranked for a question; None for none.
        unmoved: (q, d) embeddings before `feedback` moved them; None where it did not.
    """

    embeddings: Float32
    relevant: Sparse
    judged: Sparse
    lexical: Sparse
    coverage: Float32
    left_out: Sparse | None = None
    unmoved: Float32 | None = None
    feedback: FeedbackMemory | None = None

    @property
    def count(self) -> int:
        """q."""
        return len(self.embeddings)

    def without(self, documents: Bool) -> Questions:
        """Return the same questions without the labels of these documents (n,)."""
        left = sparse.diags_array((~documents).astype(np.float32))
        relevant, judged = ((labels @ left).tocsr() for labels in (self.relevant, self.judged))
        relevant.eliminate_zeros()
        judged.eliminate_zeros()
        return replace(self, relevant=relevant, judged=judged)

    def some(self, members: Bool | Int64) -> Questions:
        """Return some of the questions."""
        index = np.flatnonzero(members) if members.dtype == bool else members
        relevant, judged, lexical = (
            matrix[index] for matrix in (self.relevant, self.judged, self.lexical)
        )
        left_out = None if self.left_out is None else self.left_out[index]
        unmoved = None if self.unmoved is None else self.unmoved[index]
        columns = self.embeddings[index], relevant, judged, lexical, self.coverage[index]
        return Questions(*columns, left_out, unmoved, self.feedback)

    def votes(self, table: KeyTable, *, hide: bool = False) -> Float32:
        """Return the votes of feedback for all documents (q, n); 0 where it did not move them.

        Args:
            hide: as if relevant documents had none.
        """
        votes = np.zeros((self.count, len(table)), dtype=np.float32)
        if self.feedback is not None and self.unmoved is not None:
            columns = table.places(self.feedback.answers[0])
            hidden = self.relevant.toarray()[:, columns] > 0 if hide else None
            votes[:, columns] = self.feedback.votes(self.unmoved, hidden)
        return votes


def answerable(questions: Questions) -> Bool:
    """(q,) whether a question has a relevant document."""
    return lengths(questions.relevant) > 0


def twins(embeddings: Float32, cosine: float = TWIN_COSINE) -> Int64:
    """Return groups (q,) of questions that are near-duplicates, directly or by way of others."""
    count = len(embeddings)
    groups = np.arange(count)
    if not count:
        return groups
    direct = unit(embeddings)
    away = unit(direct - direct.mean(axis=0))
    for block in blocks(count, count, PAIRS):
        near = (away[block] @ away.T > cosine) | (direct[block] @ direct.T > SAME_COSINE)
        first, second = np.nonzero(near)
        pairs = groups[first + block.start], groups[second]
        edges = sparse.coo_array((np.ones(len(first), dtype=bool), pairs), shape=(count, count))
        _, labels = sparse.csgraph.connected_components(edges, directed=False)
        groups = np.asarray(labels, dtype=np.int64)[groups]
    return groups


def blocks(count: int, numbers: int, room: int | None = None) -> Iterator[slice]:
    """Divide `count` units of so many numbers each, as many at once as there is room for."""
    step = max(1, (room or BLOCK) // max(1, numbers))
    for start in range(0, count, step):
        yield slice(start, start + step)


def products(queries: Float32, keys: Float32) -> Float32:
    """Score queries (q, d) against keys (m, d) as a search does: (q, m)."""
    scores: Float32 = PRODUCT.score_keys(queries[:, None], keys[:, None])[:, 0]
    return scores


def top_places(scores: NDArray[Any], count: int) -> Int64:
    """Return the columns of the largest scores (q, c), best first, equals by the lower column."""
    if 4 * count >= scores.shape[1]:
        return np.argsort(-scores, axis=1, kind="stable")[:, :count]
    # Marks first, so that only a few are sorted.
    places = np.nonzero(top_mask(scores, count))[1].reshape(-1, count)
    rows = np.arange(len(places))[:, None]
    return places[rows, np.argsort(-scores[rows, places], axis=1, kind="stable")]


def ideal_dcg(grades: NDArray[Any]) -> Float64:
    """Return the best DCG of each question's grades (q, c), in any order: (q,)."""
    return dcg(-np.sort(-grades.astype(np.float64), axis=-1))


def stacked(parts: Sequence[NDArray[Any]], blank: float) -> NDArray[Any]:
    """Join rows (q, c) of several blocks, padded to the width of the widest."""
    width = max(part.shape[1] for part in parts)
    padded = [
        np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=blank) for part in parts
    ]
    return np.concatenate(padded)


def histories_of(users: Int64, documents: Int64, shape: tuple[int, int]) -> Sparse:
    """Return sparse ones (u, n) in canonical form; a repeated interaction is one."""
    ones = np.ones(len(users), dtype=np.float32)
    histories = sparse.csr_array((ones, (users, documents)), shape=shape)
    histories.sum_duplicates()
    histories.data[:] = 1
    return histories


TIMED = 0.9
"""The share of interactions that need a time for a division by time; those without count as the
earliest."""

LATEST = 0.1
"""The share of interactions that are the latest ones."""


def moments_of(times: Float64) -> Float64 | None:
    """Return the times of interactions (t,), those without as the earliest; None where too few
    have one, or all have the same."""
    timed = times[np.isfinite(times)]
    if len(timed) < TIMED * len(times) or not len(timed) or timed.min() == timed.max():
        return None
    return np.where(np.isnan(times), -np.inf, times)


def read_share_seen(histories: Sparse, times: Float64) -> tuple[float, str]:
    """Read how many of the next interactions are with documents that histories (u, n) have, and
    return the share and where it comes from.

    By the times (t,) of their entries: of the latest ones, those with documents that earlier ones
    have, too. Without times: the chance that one is of a document which has no other is what the
    next one has to be of a new document (Good 1953), if they come in no order.
    """
    moments = moments_of(times)
    counts = np.bincount(histories.indices, minlength=histories.shape[1])
    if moments is None:
        return 1 - float((counts == 1).sum() / max(1, histories.nnz)), "counts"
    late = moments > np.quantile(moments, 1 - LATEST, method="lower")
    documents = histories.indices[late]
    earlier = counts - np.bincount(documents, minlength=len(counts))
    return float((earlier[documents] > 0).mean()), "times"


def without(histories: Sparse, left_out: Bool) -> Sparse:
    """Return histories without some of the interactions (those of `histories.data`, in order)."""
    rows = np.repeat(np.arange(histories.shape[0]), lengths(histories))
    left = ~left_out
    return histories_of(rows[left], histories.indices[left].astype(np.int64), histories.shape)


def lengths(matrix: Sparse) -> Int64:
    """(u,) entries of each row, such as the documents in each history."""
    counts: Int64 = np.diff(matrix.indptr).astype(np.int64)
    return counts


@dataclass(frozen=True)
class Ratings:
    """Ratings of items by users.

    Attributes:
        users, items: (r,) from 0 to `user_count` and to `item_count`.
        values: (r,).
    """

    users: Int64
    items: Int64
    values: Float64
    user_count: int
    item_count: int

    def __len__(self) -> int:
        return len(self.values)

    def some(self, members: Bool | Int64) -> Ratings:
        """Return some of them, of as many users and items."""
        return replace(
            self, users=self.users[members], items=self.items[members], values=self.values[members]
        )

    @cached_property
    def by_user(self) -> tuple[Int64, Int64]:
        """Places ordered by user, (r,), and where each user's begin, (user_count + 1,)."""
        order = np.argsort(self.users, kind="stable")
        starts = np.searchsorted(self.users[order], np.arange(self.user_count + 1))
        return order, starts

    @property
    def several(self) -> int:
        """The number of users with two ratings or more, of which one can be predicted."""
        return int((np.diff(self.by_user[1]) > 1).sum())

    def of_user(self, user: int) -> Int64:
        """Return the places of one user's ratings."""
        order, starts = self.by_user
        return order[starts[user] : starts[user + 1]]


# -- what is stored --------------------------------------------------------------------------------


MOST_DOCUMENTS = 100_000
"""What is learned from at once; beyond, a sample with every document that examples label."""

MOST_MATCHES = 50_000_000

FEWEST_MATCHES = 1000
"""Documents that share words with questions, of all together and of one: 400 MB and no less than
ten times as many as can come into an answer."""


def memory_of(collection: StoredCollection, rows: Int64 | None) -> Memory:
    """Read the keys of the documents of some rows, ascending; of all if None."""
    with collection.store.all_keys() as (_, stored):
        tables = [part if rows is None else part.some(part.places(rows)) for part in stored]
    if not tables:
        raise InvalidRequest(
            f"The collection {collection.name!r} has no documents to learn about; add some."
        )
    unit = collection.settings.unit_embeddings or collection.settings.scorer == "cosine"
    table = KeyTable.joined(tables)
    return Memory(table.rows, table.starts, table.vectors, table.ids, unit=unit)


LOOKED_AT = 1000
"""Documents whose fields are looked at for times."""

MOST_FIELDS = 2
LEAST_SHARE, FEWEST_TIMES = 0.5, 20
"""Fields with times are tried, the fullest first: so many, each in at least this share of the
documents, with so many different times among those looked at."""

NUMBERS = 1e8, 5e9
"""Numbers that look like seconds since 1970: those of the years 1973 to 2128."""


class DocumentAges:
    """The ages of documents in days, by each field that looks like times.

    Attributes:
        by_field: (n,) the days by which the newest is newer; where there is no time, the median of
            the others.
    """

    def __init__(self, collection: StoredCollection, rows: Int64) -> None:
        """
        Args:
            rows: (n,) the documents.
        """
        sample, now = collection.store.sample(LOOKED_AT), time.time()
        fields: dict[str, tuple[int, int]] = {}
        names = dict.fromkeys([VALUE, *field_names(sample)])
        for name in [*names][1:]:
            for inner in values_of(sample, name):
                if isinstance(inner, Mapping):
                    names |= dict.fromkeys(f"{name}.{key}" for key in inner)
        for name in names:
            times = [
                str(value)
                for value in values_of(sample, name)
                if is_date(value)
                or (isinstance(value, int | float) and NUMBERS[0] <= value <= NUMBERS[1])
            ]
            counts = len(times), len(set(times))
            if counts[0] >= LEAST_SHARE * len(sample) and counts[1] >= FEWEST_TIMES:
                fields[name] = counts
        self.by_field: dict[str, Float64] = {}
        for name in sorted(fields, key=lambda name: fields[name], reverse=True)[:MOST_FIELDS]:
            with suppress(InvalidRequest):  # no search can name it
                scored = RecencyScores(*collection.store.times(name), 1.0, now)
                ages = scored.newest - scored.scores.of(rows)
                self.by_field[name] = ages / math.log(2)


def start_of(memory: Memory, dimensions: int | None) -> Float32:
    """Return where W_Q and W_K begin: the identity, or the directions of most variance."""
    width = memory.vectors.shape[1]
    if dimensions is None:
        return np.eye(width, dtype=np.float32)
    if dimensions > width:
        raise InvalidRequest(
            f"dimensions is {dimensions}, but embeddings have {width}; send at most that.",
            field="dimensions",
        )
    # Uncentred, as scores are inner products: the best approximation of all of them (Eckart
    # and Young 1936).
    moments = memory.vectors.T.astype(np.float64) @ memory.vectors
    _, directions = np.linalg.eigh(moments)
    return np.ascontiguousarray(directions[:, ::-1][:, :dimensions].T.astype(np.float32))


def word_shares(
    collection: StoredCollection,
    texts: Sequence[str | None],
    memory: Memory,
    gone: Sequence[Int64] | None = None,
) -> tuple[Sparse, Float32]:
    """Return BM25 over each question's maximum (q, n), and its coverage (q,).

    Of each question the best documents by words, as many as there is room for.

    Args:
        gone: the rows of documents by question, without which its words count.
    """
    columns, shares = [np.empty(0, np.int32)], [np.empty(0, np.float32)]
    counts, coverage = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.float32)
    store, room = collection.store, max(FEWEST_MATCHES, MOST_MATCHES // max(1, len(texts)))
    for question, text in enumerate(texts if collection.capabilities.lexical else ()):
        if not text:
            continue
        without = None if gone is None else gone[question]
        (match,) = store.lexical_many([text], room, without=without)
        if match.maximum > 0:
            index, there = locate(memory.rows, match.rows)
            columns.append(index[there].astype(np.int32))
            shares.append((match.scores[there] / match.maximum).astype(np.float32))
            counts[question] = there.sum()
            coverage[question] = min(1.0, match.maximum / match.ideal)
    pointers = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)  # as the columns are
    entries = np.concatenate(shares), np.concatenate(columns), pointers
    return sparse.csr_array(entries, shape=(len(texts), len(memory))), coverage


# -- the active version ----------------------------------------------------------------------------


ATTEND = 100
"""Documents that a search attends to."""


def active_version(task: Task) -> Version:
    """Return the version that answers as a training begins, with keys that do not fold.

    Where feedback does not move its queries, as it does not help, its tuning says so.
    """
    number, store = task.active.version, task.collection.store
    words = task.settings.encoder is not None
    version = Version.of(number, store.version(number), "cosine", words=words)
    strength = FeedbackReader(store, task.collection.encoder).strength(
        version, store.state().change
    )
    return replace(version, tuning=version.tuning.model_copy(update={"memory": strength or None}))


def times_of(collection: StoredCollection, version: Version) -> RecencyScores | None:
    """Return what the times of documents add to their logits now; None where they do not count."""
    return score_times(collection.store, None, version.tuning, time.time())


def scale_now(active: StoredProjection, memory: Memory) -> float:
    """Return the scale until now: that of the version that answers, if a training fitted one."""
    fitted = active.tuning.get("scale") if objective_of(active) in ("ranking", "answers") else None
    return float(fitted[0]) if fitted and len(fitted) == 1 else memory.scale


class ServedVersion:
    """The keys of some documents under a version, and the scores of queries.

    Attributes:
        mechanism: the scorer, scales, gates and no-answer score by which the version answers.
        table: the version's own keys, with example queries as keys where it has them.
    """

    def __init__(
        self,
        version: Version,
        settings: Settings,
        stored: KeyTable,
        times: RecencyScores | None = None,
    ) -> None:
        """
        Args:
            times: as `times_of` returns them.
        """
        self.version = version
        self._times = None if times is None else times.scores.of(stored.rows)
        options = AttentionOptions(attend=version.tuning.attend or ATTEND)
        self.plan = plan_of(version, settings, options, words=True)
        self.mechanism = self.plan.mechanism
        self.table = self._own = version.keys(stored)
        if self.plan.layer and stored.examples is not None:
            self._own = version.keys(stored.own)

    def logits(self, embeddings: Float32, documents: Int64, words: Floats | None = None) -> Floats:
        """Logits (q, H, c) of queries (q, d) over some documents, over the temperature.

        Args:
            words: (q, c) the lexical term, on the scorer's scale.
        """
        table = self.table.some(documents)
        heads, shift = self.plan.projection.project(embeddings)
        keys, scale = table.vectors, self.mechanism.scale
        by_head = (
            keys.reshape(len(keys), -1, heads.shape[2])
            if self.plan.stored_form
            else self.plan.projection.keys(keys)
        )
        bias = (shift * scale)[:, :, None]
        if words is not None:
            bias = bias + words[:, None] * scale[:, None]
        if self._times is not None:
            bias = bias + self.plan.temperature * self._times[documents]
        z = self.mechanism.logits(heads, table.with_vectors(by_head), bias)
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

    def ndcg(self, questions: Questions, among: Bool | None = None) -> Float64:
        """nDCG@10 of questions (q,) over some documents (n,), all if None."""
        return self.judged(questions, among)[0]

    def judged(self, questions: Questions, among: Bool | None = None) -> tuple[Float64, Int64]:
        """Return nDCG@10 of questions (q,) over some documents (n,), all if None, and the best
        document (q,) of each."""
        ranked = np.arange(len(self.table)) if among is None else np.flatnonzero(among)
        values, first = [np.empty(0)], [np.empty(0, dtype=np.int64)]
        for block in blocks(questions.count, 16 * len(self.table.vectors) * self.mechanism.heads):
            part = questions.some(np.arange(questions.count)[block])
            words = self.words(part.lexical.toarray()[:, ranked], part.coverage)
            if share := self.version.tuning.votes:
                votes = np.float32(share) * part.votes(self.table)[:, ranked]
                words = votes if words is None else words + votes
            scores = self.scores(part.embeddings, ranked, words)
            if part.left_out is not None:
                scores[part.left_out.toarray()[:, ranked] > 0] = -np.inf
            if self.plan.layer:
                scores = self._scored_again(part.embeddings, ranked, scores)
            best = top_places(scores, CUT)
            grades = part.relevant.toarray()[:, ranked]
            values.append(ndcg(np.take_along_axis(grades, best, axis=1), ideal_dcg(grades)))
            first.append(ranked[best[:, 0]] if len(ranked) else np.full(len(best), -1))
        return np.concatenate(values), np.concatenate(first)

    def _scored_again(self, embeddings: Float32, ranked: Int64, scores: Floats) -> Floats:
        """Return scores (q, c) of some documents by keys and words, with a second layer."""
        table, z = self._own.some(ranked), scores * self.mechanism.temperature
        if not self.plan.stored_form:
            table = table.with_vectors(self.plan.projection.keys(table.vectors)[:, 0])
        queries = self.plan.projection.queries(embeddings)[:, 0]
        places = np.broadcast_to(np.arange(len(ranked)), scores.shape)
        layer = SecondLayer(table, queries, places)
        return layer.scored(z / self.mechanism.scale[0], self.plan.layer)


class SecondLayer:
    """A second layer over candidates, by their own keys."""

    def __init__(self, table: KeyTable, queries: Floats, documents: Int64) -> None:
        """
        Args:
            table: all documents' own keys, projected as `queries` (q, d_k) are.
            documents: (q, c) places of the candidates in the table, -1 for none.
        """
        self._vectors, self._queries = table.vectors, queries
        # The position of each candidate's best key, -1 for none.
        self._keys = np.empty(documents.shape, dtype=np.int64)
        for part in blocks(len(queries), 4 * len(table.ids)):
            places = documents[part]
            positions = np.take_along_axis(best_keys(table, queries[part]), places, axis=1)
            self._keys[part] = np.where(places < 0, -1, positions)

    def scored(self, scores: Floats, share: float) -> Floats:
        """Return the scores (q, c) of candidates by it, -inf beyond what is attended to.

        Args:
            scores: (q, c) by everything else.
            share: β.
        """
        order = top_places(scores, ATTEND)
        again = np.full(scores.shape, -np.inf)
        for part in blocks(len(scores), order.shape[1] * self._vectors.shape[1]):
            places = order[part]
            first = np.take_along_axis(scores[part], places, axis=1).astype(np.float64)
            listed = np.take_along_axis(self._keys[part], places, axis=1)
            there = (listed >= 0) & np.isfinite(first)
            first[~there] = -np.inf
            keys = self._vectors[listed]
            keys[~there] = 0
            moved = layered(first, self._queries[part], keys, share)
            np.put_along_axis(again[part], places, moved, axis=1)
        return again


def stored_keys(collection: StoredCollection, version: Version, rows: Int64) -> KeyTable:
    """Read the keys of the documents of some rows, with example queries as keys where a version
    has them."""
    with collection.store.all_keys(examples=version.examples) as (_, tables):
        return KeyTable.joined([table.some(table.places(rows)) for table in tables])


# -- queries moved by feedback --------------------------------------------------------------------


def feedback_of(training: Questions, memory: Memory) -> FeedbackMemory | None:
    """Return what moves queries, by the questions that are learned from; None without any."""
    pairs = training.relevant.tocoo()
    labels = pairs.row, pairs.col, pairs.data.astype(np.float64)
    return FeedbackMemory.joined(training.embeddings, [None] * training.count, labels, memory)


def moved_without_answers(
    questions: Questions, training: Questions, memory: Memory, strength: float
) -> Float32:
    """Return the embeddings of questions (q, d), each moved by the feedback that would be left.

    Args:
        training: questions that each have a relevant document.
        strength: α.
    """
    feedback = feedback_of(training, memory)
    if feedback is None:
        return questions.embeddings
    moved = feedback.moved(questions.embeddings, strength)
    answers = (questions.relevant != 0).astype(np.float32)
    shared: Sparse = (answers @ (training.relevant != 0).astype(np.float32).T).tocsr()  # (q, t)
    counts, cosines = (
        lengths(training.relevant),
        products(unit(questions.embeddings), feedback.questions),
    )
    for question in np.flatnonzero(np.diff(shared.indptr)).tolist():
        touched = shared[[question]]
        # Only the nearest count, of those that have an answer left.
        cosines[question, touched.indices[touched.data == counts[touched.indices]]] = -np.inf
        near = top(cosines[question], NEAREST)
        gone = np.zeros(len(memory), dtype=bool)
        gone[questions.relevant[[question]].indices] = True
        visible = training.some(near).without(gone)
        left = feedback_of(visible.some(answerable(visible)), memory)
        as_is = questions.embeddings[[question]]
        moved[question] = (as_is if left is None else left.moved(as_is, strength))[0]
    return moved
