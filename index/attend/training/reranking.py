"""The trial of late interaction: held-out questions with their best documents scored by tokens.

Tokens are compared as a search compares them (`attend.search.rerank`), under W_Q and W_K that were
learned without the question. Each passage is encoded once for all splits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from attend.arrays import locate
from attend.encoder.tokens import TOGETHER
from attend.learn.data import Memory, top_places
from attend.learn.fit import Fitted, Watch
from attend.learn.held_out import Split, sampled
from attend.learn.ranking import Candidates
from attend.learn.selection import C, Judged, Outcome, outcomes_of
from attend.measure.statistics import CUT, ndcg
from attend.search.rerank import RERANK, SHARE, filled, max_sims
from attend.search.tokens import TokenReader
from attend.stored import StoredCollection
from attend.training.material import RankingMaterial
from attend.training.task import Task
from attend.types import Float32, Float64, Int64
from attend.versions import Version

RERANKED = 20
"""Documents of a question that are scored once more."""

TOKENS = f"; the {RERANKED} best documents are scored once more by tokens"

MOST_QUESTIONS = 100
"""Questions of a fold that judge: the passages of their documents are encoded."""

SEED = 0

NO_KEY = -1
"""In the place of a key that is no text of its document."""


class Ranked(NamedTuple):
    """Held-out questions of one split as a fit and a choice rank them.

    Attributes:
        members: (h,) their positions among all questions.
        embeddings: (h, d), as they are searched.
        by_keys, scores: (h, c) of the candidates, without and with words.
    """

    fitted: Fitted
    members: Int64
    embeddings: Float32
    candidates: Candidates
    by_keys: Float32
    scores: Float32

    @classmethod
    def of(
        cls,
        fitted: Fitted,
        members: Int64,
        embeddings: Float32,
        candidates: Candidates,
        tuning: tuple[float, float, float],
    ) -> Ranked:
        """Rank candidates by the factor on example keys, λ and γ."""
        factor, *words = tuning
        by_keys = candidates.by_keys(factor)
        scores = candidates.with_words(by_keys, *words)
        return cls(fitted, members, embeddings, candidates, by_keys, scores)

    def best(self) -> Int64:
        """Return the columns of the best documents (h, r)."""
        return top_places(self.scores, RERANKED)

    def keys(self, memory: Memory) -> Int64:
        """Return the positions of the keys that match best, of the best documents (h, r)."""
        best = self.best()
        documents = np.take_along_axis(self.candidates.documents, best, axis=1)
        by_text = np.take_along_axis(self.by_keys == self.candidates.dense, best, axis=1)
        by_text &= documents >= 0
        queries, stored = self.fitted.queries(memory, self.embeddings), self.fitted.keys(memory)
        keys = np.full(best.shape, NO_KEY)
        for row, column in zip(*np.nonzero(by_text), strict=True):
            positions = memory.positions(documents[row, column : column + 1])
            keys[row, column] = positions[(stored[positions] @ queries[row]).argmax()]
        return keys

    def ndcg(self, sims: Float64) -> Float64:
        """Return nDCG@10 (h,) by MaxSim of the best documents (h, r), NaN where one has none."""
        best = self.best()
        by_keys, after = (
            np.take_along_axis(columns, best, axis=1).astype(np.float64)
            for columns in (self.by_keys, self.scores)
        )
        after += SHARE * np.concatenate([filled(row[None]) for row in sims - by_keys])
        # All others stay below.
        after += self.scores.max(axis=1, keepdims=True) + 1 - after.min(axis=1, keepdims=True)
        scores = self.scores.astype(np.float64)
        np.put_along_axis(scores, best, after, axis=1)
        gains = np.take_along_axis(self.candidates.grades, top_places(scores, CUT), axis=1)
        return ndcg(gains, self.candidates.ideal)


class RerankOutcomes(NamedTuple):
    """The values of a sample of held-out questions, by split.

    Attributes:
        added: of what was chosen, without late interaction and with it.
        reranked: of what answers now, and of what was chosen with late interaction.
        plain: of both without it; None where what answers now has none either, as all held-out
            questions tell more.
    """

    added: dict[Split, Outcome]
    reranked: dict[Split, Outcome]
    plain: dict[Split, Outcome] | None

    @classmethod
    def of(
        cls,
        sampled: Sequence[Judged[C]],
        choices: Sequence[C],
        after: Sequence[Float64],
        now: Sequence[Float64],
    ) -> RerankOutcomes:
        """Return the outcomes of folds under one choice each.

        Args:
            after: values with late interaction.
            now: those of what answers now, if that has late interaction; else none.
        """
        plain = [fold.after[choice] for fold, choice in zip(sampled, choices, strict=True)]
        before = now or [fold.before for fold in sampled]

        def outcomes(first: Sequence[Float64], second: Sequence[Float64]) -> dict[Split, Outcome]:
            folds = [fold._replace(before=row) for fold, row in zip(sampled, first, strict=True)]
            return outcomes_of(folds, second)

        return cls(
            outcomes(plain, after),
            outcomes(before, after),
            outcomes(before, plain) if now else None,
        )


class RerankTrial:
    """The trial of a training: reads the tokens of questions and passages, and compares them.

    Raises:
        InvalidRequest: the collection has no encoder, or it does not pool by the mean.
    """

    def __init__(self, collection: StoredCollection, material: RankingMaterial) -> None:
        tokens = TokenReader(collection.settings, collection.encoder)
        self.store, self.encoder = collection.store, tokens.encoder(RERANK)
        self.encoder.unit_tokens(["tokens"], "query")
        self.material, self.memory = material, material.memory

    @classmethod
    def of(cls, task: Task, material: RankingMaterial, active: Version) -> RerankTrial | None:
        """Return the trial of a training; None where neither its request nor what answers now has
        late interaction."""
        tried = task.request.rerank
        if tried is None:
            tried = active.tuning.rerank > 0
        return cls(task.collection, material) if tried else None

    def outcomes(
        self,
        judged: Sequence[Judged[C]],
        choices: Sequence[C],
        rank: Callable[[int, Int64, C | None], Ranked],
        *,
        now: bool,
        watch: Watch,
    ) -> RerankOutcomes | None:
        """Try folds, each under its choice; None if questions have no texts.

        Args:
            rank: ranks a sample of the questions of a fold, by its place; by what answers now
                without a choice.
            now: whether that has late interaction.
        """
        samples = [self._sample(fold.units) for fold in judged]
        if not all(map(len, samples)):
            return None
        sides: list[Sequence[C | None]] = [choices, [None] * len(judged)]
        rankings = [
            rank(place, sample, choice)
            for side in sides[: 1 + now]
            for place, (sample, choice) in enumerate(zip(samples, side, strict=True))
        ]
        values = self.values(rankings, watch)
        sampled = [fold.some(sample) for fold, sample in zip(judged, samples, strict=True)]
        return RerankOutcomes.of(sampled, choices, values[: len(judged)], values[len(judged) :])

    def _sample(self, held_out: Int64) -> Int64:
        """Return a sample of the places of held-out questions (h,) that have a text."""
        with_text = [bool(self.material.texts[place]) for place in held_out.tolist()]
        return sampled(np.flatnonzero(with_text), MOST_QUESTIONS, np.random.default_rng(SEED))

    def values(self, rankings: Sequence[Ranked], watch: Watch) -> list[Float64]:
        """Return nDCG@10 of each ranking's questions, the best documents scored once more."""
        sims = self._sims(rankings, watch)
        return [ranked.ndcg(part) for ranked, part in zip(rankings, sims, strict=True)]

    def _sims(self, rankings: Sequence[Ranked], watch: Watch) -> list[Float64]:
        """Return MaxSim of each ranking's questions and their best documents (h, r)."""
        keys = [ranked.keys(self.memory) for ranked in rankings]
        sims = [np.full(part.shape, np.nan) for part in keys]
        pairs = [
            (int(part[row, column]), ranking, row, column)
            for ranking, part in enumerate(keys)
            for row, column in zip(*np.nonzero(part != NO_KEY), strict=True)
        ]
        words = [self._words(ranked) for ranked in rankings]
        by_key = {key: list(group) for key, group in groupby(sorted(pairs), itemgetter(0))}
        positions = np.array(list(by_key), dtype=np.int64)
        for start in range(0, len(positions), TOGETHER):
            watch(start / len(positions))
            part = positions[start : start + TOGETHER]
            passages = self.encoder.unit_tokens(self._passages(part), "document")
            for key, passage in zip(part.tolist(), passages, strict=True):
                for _, ranking, row, column in by_key[key]:
                    sim = max_sims(words[ranking][row][None], [passage])
                    sims[ranking][row, column] = sim[0, 0]
        return [
            part / self._key_lengths(ranked.fitted)[columns]
            for ranked, part, columns in zip(rankings, sims, keys, strict=True)
        ]

    def _words(self, ranked: Ranked) -> list[Float32]:
        """Return the words of questions (t, d) each, W_Q and W_K folded into them."""
        w_q, w_k = ranked.fitted.w_q, ranked.fitted.w_k
        fold = w_q.T @ w_k  # (d, d_k) @ (d_k, d) -> (d, d)
        texts = [self.material.texts[place] or "" for place in ranked.members.tolist()]
        words = self.encoder.unit_tokens(texts, "query")
        lengths = self._lengths(self.material.questions.embeddings[ranked.members], w_q)
        return [
            part.astype(np.float32) @ fold / length
            for part, length in zip(words, lengths, strict=True)
        ]

    def _key_lengths(self, fitted: Fitted) -> Float32:
        """Return the lengths (m,) that keys are divided by."""
        return self._lengths(self.memory.vectors + fitted.key_moves(self.memory), fitted.w_k)

    def _lengths(self, embeddings: Float32, weights: Float32) -> Float32:
        """Return the lengths (n,) that projected embeddings (n, d) are divided by."""
        if not self.memory.unit:
            return np.ones(len(embeddings), dtype=np.float32)
        return np.asarray(np.linalg.norm(embeddings @ weights.T, axis=1))

    def _passages(self, positions: Int64) -> list[str]:
        """Return the texts of keys; "" where one has none."""
        ids = self.memory.ids[positions]
        keys = self.store.keys_of(ids)
        documents = self.store.documents(np.unique([key.document for key in keys.values()]))
        texts = []
        for id in ids.tolist():
            document = documents.get(keys[id].document) if id in keys else None
            fields = {} if document is None else document.fields
            key = keys[id].within(fields) if document else None
            texts.append("" if key is None else fields.get(key.field, "")[key.start : key.stop])
        return texts


def fitted_of(version: Version, memory: Memory) -> Fitted:
    """Return the W_Q, W_K and offsets of a version of one head on a memory's keys."""
    eye = np.eye(memory.vectors.shape[1], dtype=np.float32)
    w_q, w_k = (
        eye if weights is None else np.asarray(weights[0], dtype=np.float32)
        for weights in (version.projection.w_q, version.projection.w_k)
    )
    places, present = locate(version.offsets.keys, memory.ids)
    deltas = version.offsets.deltas[places[present]]
    return Fitted(w_q, w_k, memory.scale, np.flatnonzero(present), deltas)
