"""Scoring: what a version makes of some options, and of the queries of one search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from attend.api.search import SearchOptions
from attend.attention import Additive, Attended, Mechanism, default_scale, log_mix
from attend.collection.versions import Version, View
from attend.core.arrays import KeyTable
from attend.core.deadline import checked
from attend.core.errors import InvalidRequest
from attend.core.settings import Settings
from attend.core.types import Float32, Float64, Floats, Int64
from attend.projection import RAW_KEYS, Projection
from attend.recommend.weights import PartScores
from attend.search.memory import FeedbackReader, MovedQueries, Queries
from attend.search.queries import EncodedQuery, WordScores, fitted_word_weight, word_weight

MAX_PLANS = 64
"""Plans that a version keeps."""

FEW_KEYS = 1024
"""Up to this many keys queries are float64: float32 moves a weight by a millionth or two."""

MAX_SCORES = 1 << 20
"""Scores of a block of keys, for all queries and heads of one pass: 8 MB, some eight times over."""

ALL = slice(None)


class AttentionOptions(NamedTuple):
    """Options of one attention; None leaves the choice to the version that answers.

    Attributes:
        attend: the number of documents that share the weights.
        scorer: dot, cosine, laplace or additive.
        scale: the factor on its result.
        heads: one weight for each head.
        pool: the way in which the keys of a document make its logit.
        temperature: relative to the fitted one.
        lexical: the BM25 weight; True for the default one.
        best: with attend "all", the number of best documents to return; None for every one.
        recall: the share of the nearest keys that an approximate index finds.
    """

    attend: int | Literal["all"] = 100
    scorer: str | None = None
    scale: float | None = None
    heads: tuple[float, ...] | None = None
    pool: Literal["max", "sum"] | None = None
    temperature: float = 1.0
    lexical: bool | float | None = None
    best: int | None = None
    recall: float | None = None

    @classmethod
    def of(cls, options: SearchOptions) -> AttentionOptions:
        """Return the options of a search."""
        ends = options.group_by is None and options.cursor is None
        return cls(
            options.attend,
            options.scorer,
            options.scale,
            None if options.heads is None else tuple(options.heads),
            options.pool,
            options.temperature,
            options.lexical,
            # One more than are listed, to know whether more follow.
            options.k + options.offset + 1 if ends else None,
            options.recall,
        )


@dataclass(frozen=True, eq=False)
class ScoringPlan:
    """Constants of one version and one set of options.

    Attributes:
        mechanism: scorer, scale, pool, temperature, gates and no-answer score.
        projection: in the form that the scorer needs.
        stored_form: true if the keys of the snapshot are in that form.
        untouched: true if queries are the embeddings as they are.
        native: true if the index orders documents as the mechanism does, but for words.
        indexed: true if it orders them as each single head does.
        reranks: true if the scorer was fitted to candidates, and looks at no others.
        calibrated: true if scale and no-answer score were fitted for these options.
    """

    mechanism: Mechanism
    projection: Projection
    stored_form: bool
    untouched: bool
    native: bool
    indexed: bool
    reranks: bool
    calibrated: bool


def plan_of(
    version: Version,
    settings: Settings,
    options: AttentionOptions,
    *,
    words: bool,
    mixture: bool = False,
    longest: float = np.inf,
) -> ScoringPlan:
    """Return the plan of a version for some options; it is made once and kept by the version.

    Args:
        words: true if the queries have texts whose words count.
        mixture: true if the queries are parts of one mixture.
        longest: the length that no key exceeds.
    """
    # Neither what is listed nor the index matters; the settings may be changed.
    key = (*options[:-2], words, mixture, longest, settings.normalize, settings.scale)
    plan = version.plans.get(key)
    if plan is None:
        if len(version.plans) >= MAX_PLANS:
            version.plans.clear()
        plan = _plan(version, settings, options, words, mixture)
        if plan.stored_form:
            plan = replace(plan, mechanism=replace(plan.mechanism, longest=longest))
        version.plans[key] = plan
    return plan


def _plan(
    version: Version, settings: Settings, options: AttentionOptions, words: bool, mixture: bool
) -> ScoringPlan:
    stored, tuning = version.projection, version.tuning
    scorer, pool = options.scorer or tuning.scorer or settings.scorer, options.pool or tuning.pool
    gates = _gates(stored, options.heads)
    if scorer != tuning.scorer:  # that one was fitted to keys as they are
        _check_lengths(scorer, settings)
    unit = stored.normalized or (settings.unit_embeddings and not stored.tensors)
    # Keys of length one, but for examples, whose lengths say how much they count: an inner
    # product keeps those, where a cosine would divide them away.
    lengths_count = unit and (stored.normalized or not len(version.offsets.keys))
    name = "dot" if scorer == "cosine" and lengths_count else scorer
    fitted = scorer == (tuning.scorer or settings.scorer)
    default = settings.scale if scorer == settings.scorer else None
    scale = options.scale or (tuning.scale if fitted else None) or default
    rescaled = not fitted or pool != tuning.pool or options.scale is not None
    # A query without text has no words, whatever the options say; the parts of a mixture do not
    # attend to their own best, for which a no-answer score is fitted.
    by_words = word_weight(options.lexical if words else False, tuning)
    as_fitted = (
        not (rescaled or mixture)
        and tuning.attend in (None, options.attend)
        and by_words == fitted_word_weight(tuning)
        and options.heads is None
    )
    mechanism = Mechanism(
        name,
        _by_head(scale or default_scale(name, unit, stored.d_k), gates),
        gates,
        pool,
        options.temperature * (1.0 if rescaled else tuning.temperature),
        None if tuning.null is None or not as_fitted else _by_head(tuning.null, gates),
        _additive(stored),
        np.array(tuning.levels) if tuning.levels and len(gates) == 1 else None,
    )
    raw = stored.key_fingerprint == RAW_KEYS and not version.moved
    projection = stored.form_for(scorer) if raw else stored
    ordered = name == "dot" and pool == "max"
    stored_form = projection.key_fingerprint == stored.key_fingerprint
    plain = not projection.tensors and not projection.normalize_queries
    return ScoringPlan(
        mechanism=mechanism,
        projection=projection,
        stored_form=stored_form,
        untouched=plain and projection.heads == 1,
        # The second best document of every head may lead the mixture, yet be proposed by none.
        native=ordered and mechanism.heads == 1,
        indexed=ordered and stored_form,
        reranks=scorer == "additive" and tuning.scorer == scorer,
        calibrated=mechanism.null_logit is not None and options.temperature == 1,
    )


def _by_head(numbers: float | Sequence[float], gates: Float64) -> Float64:
    """Return one number for each head (H,)."""
    return np.broadcast_to(np.asarray(numbers, dtype=np.float64), gates.shape)


def _check_lengths(scorer: str, settings: Settings) -> None:
    if settings.scorer == "cosine" and scorer != "cosine" and not settings.unit_embeddings:
        raise InvalidRequest(
            f"This collection was made for the scorer cosine and keeps its keys at length one; "
            f"{scorer} would not see their lengths. Ask for cosine, or make a collection with the "
            f"scorer {scorer}.",
            field="scorer",
        )


def _additive(projection: Projection) -> Additive | None:
    w, u, v = projection.additive_w, projection.additive_u, projection.additive_v
    if w is None or u is None or v is None:
        return None
    offset = None if projection.additive_b is None else projection.additive_b.astype(np.float64)
    return Additive(w.astype(np.float64), u.astype(np.float64), v.astype(np.float64), offset)


def _gates(projection: Projection, heads: tuple[float, ...] | None) -> Float64:
    if heads is None:
        return projection.gates
    if len(heads) != projection.heads:
        raise InvalidRequest(
            f"{len(heads)} head weights were given, but the projection has {projection.heads} "
            f"heads; send one weight for each.",
            field="heads",
        )
    return np.asarray(heads, dtype=np.float64) / sum(heads)


def queries_of(
    query: EncodedQuery,
    view: View,
    words: Sequence[WordScores] | None,
    feedback: FeedbackReader,
    strength: float | None,
) -> Queries:
    """Return queries as a version asks them: documents by its terms, others moved by feedback, by
    the version's own strength if it is None."""
    version, embeddings, moved = view.version, query.embeddings, None
    if version.terms:
        embeddings = version.asking(embeddings, np.array(query.rows, dtype=np.int64))
    strength = version.memory if strength is None else strength
    if strength and feedback.idle != view.change:
        moved = feedback.moved(query, embeddings, view.change, strength)
    return Queries(embeddings if moved is None else moved.after, words, query.weights, moved)


@dataclass(frozen=True, eq=False)
class Scoring:
    """Queries over a snapshot, as a plan scores them.

    Attributes:
        embeddings: (q, d), or the parts of one mixture (p, d).
        heads: (q, H, d) the projected queries; of a mixture (1, p * H, d), part by part.
        shift: (q, H) what folding adds to each logit.
        words, parts: as in `Queries`.
        masked: documents that a scan leaves out besides those that filters do.
        moved: the embeddings before and after feedback moved them; None where none did.
    """

    view: View
    plan: ScoringPlan
    mechanism: Mechanism
    embeddings: Float32
    heads: Floats
    shift: Float64
    parts: Float64 | None = None
    words: Sequence[WordScores] | Any = None
    masked: Int64 | None = None
    moved: MovedQueries | None = None

    @classmethod
    def of(
        cls, view: View, plan: ScoringPlan, queries: Queries, masked: Int64 | None = None
    ) -> Scoring:
        """Project queries by a plan."""
        embeddings, words, parts, moved = queries
        exact = embeddings.astype(np.float64) if view.keys.keys <= FEW_KEYS else embeddings
        heads: Floats = exact[:, None, :]
        shift: Floats = np.zeros((len(exact), 1))
        if not plan.untouched:
            heads, shift = plan.projection.project(exact)
        mechanism = plan.mechanism
        if parts is not None:  # its heads once for each part, as the parts count
            gates = np.outer(parts, mechanism.gates).ravel()  # (p, H) -> (p * H,)
            scale = np.tile(mechanism.scale, len(parts))
            mechanism = replace(mechanism, gates=gates / gates.sum(), scale=scale)
            heads = heads.reshape(1, mechanism.heads, heads.shape[2])
            shift = shift.reshape(1, mechanism.heads)
        scaled = np.asarray(shift * mechanism.scale, dtype=np.float64)
        return cls(view, plan, mechanism, embeddings, heads, scaled, parts, words, masked, moved)

    @property
    def unmoved(self) -> Float32:
        """The embeddings before feedback moved them."""
        return self.embeddings if self.moved is None else self.moved.before

    def by_head(self, candidates: KeyTable) -> KeyTable:
        """Return documents with their keys by head, (m, Hk, d)."""
        if not self.plan.stored_form:
            return replace(candidates, vectors=self.plan.projection.keys(candidates.vectors))
        (count, width), d = candidates.vectors.shape, self.heads.shape[2]
        return replace(candidates, vectors=candidates.vectors.reshape(count, width // d, d))

    def blocks(self, rows: Int64 | None) -> Iterator[KeyTable]:
        """Return all documents of `rows` with their keys by head, block by block."""
        most = max(1, MAX_SCORES // self.mechanism.heads)
        for candidates in checked(self.view.keys.blocks(rows)):
            parts = [candidates] if len(candidates.ids) <= most else candidates.blocks(most)
            yield from map(self.by_head, parts)

    def bias(self, documents: Int64, queries: slice = ALL) -> Float64:
        """Return what is added to the logits of documents (n,): (q, H, n), or (q, H, 1)."""
        bias = self.shift[queries][:, :, None]
        if (words := self.word_bias(documents, queries)) is not None:
            bias = bias + words
        if self.masked is not None:
            bias = bias + np.where(np.isin(documents, self.masked), -np.inf, 0.0)
        return bias

    def word_bias(self, documents: Int64, queries: slice = ALL) -> Float64 | None:
        """Return what BM25, or a history, adds to the logits of documents (n,): (q, H, n)."""
        if self.words is None:
            return None
        if isinstance(self.words, PartScores):
            shares = self.words.of(documents)  # (p, n)
        else:
            words = self.words[queries] if self.parts is None else self.words
            shares = np.stack([scores.of(documents) for scores in words])  # (q or p, n)
        shape = (len(self.heads[queries]), self.mechanism.heads, len(documents))
        by_head = np.repeat(shares, self.plan.projection.heads, axis=0).reshape(shape)
        return np.asarray(by_head * self.mechanism.scale[:, None])

    def over_parts(self, weights: Float64) -> Float64:
        """Mix weights (p * H, n) over the parts: those of the projection's heads (H, n)."""
        if self.parts is None:
            return weights
        by_part = weights.reshape(len(self.parts), self.plan.projection.heads, -1)
        return np.asarray(np.tensordot(self.parts, by_part, axes=1))  # (p,) @ (p, H, n) -> (H, n)

    def log_weights(self, attended: Attended) -> Float64:
        """Return the log weights of attended documents (n,), also of those far too far off."""
        return log_mix(self.log_shares(attended, ALL), self.mechanism.gates)

    def log_shares(self, attended: Attended, places: Int64 | slice) -> Float64:
        """Return the log weights of some attended documents in each head, (H, k)."""
        logits = attended.logits[:, places] / self.mechanism.temperature
        return logits - attended.log_partition[:, None]

    def index_queries(self) -> Float32:
        """Return the queries in the space of the index: (q, H, Hk * d).

        An index of several heads holds their keys side by side; a head's query is zero
        over the others, so that one inner product is that head's.
        """
        if not self.plan.stored_form:
            return self.embeddings[:, None, :]
        q, heads, d = self.heads.shape
        if self.view.version.width == d:
            return np.ascontiguousarray(self.heads, dtype=np.float32)
        spread = np.zeros((q, heads, heads, d), dtype=np.float32)
        spread[:, np.arange(heads), np.arange(heads)] = self.heads
        return spread.reshape(q, heads, heads * d)
