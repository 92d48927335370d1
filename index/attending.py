"""From query embeddings to attended documents: projection, candidates, exact weights.

Two ways lead to the same numbers. FAISS proposes candidates where its inner product
orders keys as the scorer does, and they are scored again exactly; or every key is
scored, in blocks, where the caller asks for all or the scorer is one that an index of
inner products does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from index.attention import (
    Additive,
    Attended,
    Block,
    Blocks,
    Logits,
    Mechanism,
    Weights,
    attend_logits,
    attend_many,
    attend_top,
    mechanism,
    weights_by_block,
)
from index.errors import InvalidRequest
from index.keys import Candidates
from index.projection import Projection
from index.requests import SearchOptions
from index.settings import Settings
from index.types import Float32, Float64, Int64
from index.views import View

SCAN_FLOATS = 64_000_000
"""Up to this many floats, scoring all keys takes tens of milliseconds: exact is cheap."""

OVERSAMPLED = 4
"""Beyond that, a scorer that the index does not know re-scores this many times `attend`."""


@dataclass(frozen=True)
class Attention:
    """What a batch of queries attends to.

    Attributes:
        attended: for each query, its documents, best first (with `attend: "all"`, those
            that may be listed).
        exact: whether no better document can have been missed.
        all_weights: a reading of every document's weights, where all are attended to.
        focus: how queries meet keys, to explain single documents.
    """

    attended: list[Attended]
    exact: bool
    focus: Focus
    all_weights: Callable[[], Iterator[Weights]] | None = None


@dataclass(frozen=True)
class Focus:
    """Queries as a view's projection sees them, and the mechanism that compares them."""

    view: View
    scorer: str
    mechanism: Mechanism
    projection: Projection
    embeddings: Float32  # (q, d)
    native: bool
    heads: Float32 = field(init=False)  # (q, H, d)
    shift: Float64 = field(init=False)  # (q, H), scaled as logits are

    def __post_init__(self) -> None:
        asked = self.projection.asked(self.embeddings)
        object.__setattr__(self, "heads", asked.heads)
        object.__setattr__(self, "shift", asked.shift * self.mechanism.scale)

    def block(self, candidates: Candidates) -> Block:
        """Candidates with their keys by head: (m, Hk, d)."""
        if self._as_stored:
            count, width = candidates.keys.shape
            d = self.heads.shape[2]
            keys = candidates.keys.reshape(count, width // d, d)
        else:
            keys = self.projection.keys(candidates.keys)
        return Block(candidates.documents, candidates.starts, keys)

    def blocks(self, rows: Int64 | None) -> Blocks:
        return Blocks(lambda: (self.block(found) for found in self.view.keys.blocks(rows)))

    def index_queries(self) -> Float32:
        """The queries in the space of the index: (q, H, Hk * d).

        An index of several heads holds their keys side by side; a head's query is zero
        over the others, so that one inner product is that head's.
        """
        if not self._as_stored:
            return self.embeddings[:, None, :]
        q, heads, d = self.heads.shape
        width = self.view.keys.width
        if width == d:
            return np.ascontiguousarray(self.heads, dtype=np.float32)
        spread = np.zeros((q, heads, heads, d), dtype=np.float32)
        spread[:, np.arange(heads), np.arange(heads)] = self.heads
        return spread.reshape(q, heads, heads * d)

    def best_keys(self, query: int, rows: Int64) -> dict[int, int]:
        """For each document row the id of the key that matched the query best."""
        found = self.view.keys.lookup(rows)
        if not len(found.documents):
            return {}
        block = self.block(found)
        scores = self.mechanism.score(self.heads[query : query + 1], block.keys)[0]  # (H, m)
        score = self.mechanism.gates @ (scores * self.mechanism.scale[:, None])  # (m,)
        parts = np.split(np.arange(len(score)), found.starts[1:])
        best = [int(part[np.argmax(score[part])]) for part in parts]
        return dict(zip(found.documents.tolist(), found.key_ids[best].tolist(), strict=True))

    @cached_property
    def _as_stored(self) -> bool:
        """Whether the view's keys are in the form that this scorer needs."""
        return self.projection.key_fingerprint == self.view.projection.key_fingerprint


def attend(
    view: View, settings: Settings, embeddings: Float32, rows: Int64 | None, options: SearchOptions
) -> Attention:
    """Attention of queries (q, d) over the documents of a view.

    Args:
        rows: the documents that filter and mask let pass, ascending; None for all.
    """
    focus = _focus(view, settings, embeddings, options)
    if options.attend == "all":
        return _over_all(focus, rows, options.k + options.offset)
    cheap = view.keys.keys * embeddings.shape[1] <= SCAN_FLOATS
    if not focus.native and cheap:
        return _scanned(focus, rows, options.attend)
    attend = options.attend if focus.native else options.attend * OVERSAMPLED
    candidates = view.keys.search(focus.index_queries(), rows, attend)
    attended = [
        attend_top(query, [focus.block(found)], focus.mechanism, options.attend, shift=shift)
        for query, shift, found in zip(focus.heads, focus.shift, candidates, strict=True)
    ]
    return Attention(attended, focus.native, focus)


def attend_matrix(
    view: View, settings: Settings, embeddings: Float32, rows: Int64 | None, options: SearchOptions
) -> Attention:
    """Attention of queries (q, d) over every document that may be attended to, all listed."""
    focus = _focus(view, settings, embeddings, options)
    return _over_all(focus, rows, view.keys.documents)


def _over_all(focus: Focus, rows: Int64 | None, keep: int) -> Attention:
    blocks = focus.blocks(rows)
    attended = attend_many(focus.heads, blocks, focus.mechanism, keep, shift=focus.shift)

    def all_weights() -> Iterator[Weights]:
        return weights_by_block(focus.heads, blocks, focus.mechanism, attended, shift=focus.shift)

    return Attention(attended, True, focus, all_weights)


def _scanned(focus: Focus, rows: Int64 | None, attend: int) -> Attention:
    """The best documents of a scan over all, with weights among themselves only."""
    blocks = focus.blocks(rows)
    found = attend_many(focus.heads, blocks, focus.mechanism, attend, shift=focus.shift)
    attended = [
        attend_logits(Logits(each.documents, each.logits), focus.mechanism) for each in found
    ]
    return Attention(attended, True, focus)


def _focus(view: View, settings: Settings, embeddings: Float32, options: SearchOptions) -> Focus:
    scorer = options.scorer or settings.scorer
    stored = view.projection
    _check_lengths(scorer, settings)
    unit = stored.normalized or (settings.unit_embeddings and not stored.tensors)
    projection = stored.form_for(scorer) if stored.key_fingerprint == "raw" else stored
    compare = mechanism(
        scorer_name=scorer,
        d_k=stored.d_k,
        normalized=unit,
        scale=options.scale or (settings.scale if scorer == settings.scorer else None),
        pool_name=options.pool,
        temperature=options.temperature,
        gates=_gates(stored, options.heads),
        additive=_additive(stored) if scorer == "additive" else None,
    )
    inner = scorer == "dot" or (scorer == "cosine" and unit)
    # A document that is second best in every head may lead the mixture, yet be proposed by none.
    native = inner and options.pool == "max" and compare.heads == 1
    return Focus(view, scorer, compare, projection, embeddings, native)


def _check_lengths(scorer: str, settings: Settings) -> None:
    if settings.scorer == "cosine" and scorer != "cosine" and not settings.unit_embeddings:
        raise InvalidRequest(
            f"This collection was made for the scorer cosine and keeps its keys at length one; "
            f"{scorer} would not see their lengths. Ask for cosine, or make a collection with the "
            f"scorer {scorer}.",
            field="scorer",
        )


def _additive(projection: Projection) -> Additive:
    w, u, v = projection.additive_w, projection.additive_u, projection.additive_v
    if w is None or u is None or v is None:
        raise InvalidRequest(
            "The scorer 'additive' has parameters of its own, and the projection that answers has "
            "none. Use dot, cosine or laplace, or a projection with additive parameters.",
            field="scorer",
        )
    return Additive(w, u, v)


def _gates(projection: Projection, heads: list[float] | None) -> Float64:
    if heads is None:
        return projection.gates
    if len(heads) != projection.heads:
        raise InvalidRequest(
            f"{len(heads)} head weights were given, but projection has {projection.heads} heads; "
            f"send one weight for each.",
            field="heads",
        )
    return np.asarray(heads, dtype=np.float64) / sum(heads)
