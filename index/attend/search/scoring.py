"""Scores of queries over a snapshot: a version makes a plan of options, and the plan scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from attend.api.base import MAX_DIVERSE
from attend.api.search import SearchOptions
from attend.attention import (
    Additive,
    Attended,
    Mechanism,
    default_scale,
    log_mix,
)
from attend.collection.versions import Version, View
from attend.core.arrays import KeyTable, locate
from attend.core.deadline import checked
from attend.core.errors import InvalidRequest
from attend.core.settings import Settings, Tuning
from attend.core.types import Float32, Float64, Floats, Int64
from attend.projection import RAW_KEYS, Projection
from attend.search.queries import Queries, word_weight

NOTHING: Int64 = np.array((), dtype=np.int64)
MAX_PLANS = 64
"""Plans that a version keeps."""

FEW_KEYS = 1024
"""Up to this many keys queries are float64: float32 moves a weight by a millionth or two."""

MAX_SCORES = 1 << 20
"""Scores of a block of keys, for all queries and heads of one pass: 8 MB, some eight times over."""


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
        recency: the field and the half-life by which times count; False for not at all.
    """

    attend: int | Literal["all"] = 100
    scorer: str | None = None
    scale: float | None = None
    heads: tuple[float, ...] | None = None
    pool: Literal["max", "sum"] | None = None
    temperature: float = 1.0
    lexical: bool | float | None = None
    recency: tuple[str, float] | Literal[False] | None = None
    best: int | None = None
    recall: float | None = None

    @classmethod
    def of(cls, options: SearchOptions) -> AttentionOptions:
        """Return the options of a search."""
        ends, time = options.group_by is None and options.cursor is None, options.recency
        listed = MAX_DIVERSE if options.diversity else options.k + options.offset
        return cls(
            options.attend,
            options.scorer,
            options.scale,
            None if options.heads is None else tuple(options.heads),
            options.pool,
            options.temperature,
            options.lexical,
            (time.field, time.half_life) if time else (None if time is None else False),
            # One more than are listed, to know whether more follow.
            listed + 1 if ends else None,
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
        layer: β of the second layer, for queries with text; 0 is off.
        temperature: the fitted one.
        untrained: how an untrained version would score; None where this version is one.
    """

    mechanism: Mechanism
    projection: Projection
    stored_form: bool
    untouched: bool
    native: bool
    indexed: bool
    reranks: bool
    calibrated: bool
    layer: float
    temperature: float
    untrained: Mechanism | None


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
        plan = version.plans[key] = _plan(version, settings, options, words, mixture, longest)
    return plan


def _plan(
    version: Version,
    settings: Settings,
    options: AttentionOptions,
    words: bool,
    mixture: bool,
    longest: float,
) -> ScoringPlan:
    stored, tuning = version.projection, version.tuning
    scorer, pool = options.scorer or tuning.scorer or settings.scorer, options.pool or tuning.pool
    gates = _gates(stored, options.heads)
    _check_lengths(scorer, tuning, settings)
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
    as_chosen = not (rescaled or mixture) and by_words == word_weight(None, tuning)
    as_timed = options.recency in (None, tuning.recency or False)
    as_fitted = as_chosen and as_timed and tuning.attend in (None, options.attend)
    as_fitted = as_fitted and options.heads is None
    temperature = 1.0 if rescaled else tuning.temperature
    raw = stored.key_fingerprint == RAW_KEYS and not version.moved
    projection = stored.form_for(scorer) if raw else stored
    stored_form = projection.key_fingerprint == stored.key_fingerprint
    mechanism = Mechanism(
        name,
        _by_head(scale or default_scale(name, unit, stored.d_k), gates),
        gates,
        pool,
        options.temperature * temperature,
        None if tuning.null is None or not as_fitted else _by_head(tuning.null, gates),
        _additive(stored),
        np.array(tuning.levels) if tuning.levels and len(gates) == 1 else None,
        longest if stored_form else np.inf,
    )
    ordered = name == "dot" and pool == "max"
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
        layer=tuning.layer if as_chosen and unit and ordered and len(gates) == 1 else 0.0,
        temperature=temperature,
        untrained=_untrained(version, settings, options),
    )


def _untrained(version: Version, settings: Settings, options: AttentionOptions) -> Mechanism | None:
    """Return how an untrained version scores by these options; None where a version is one."""
    is_learned = version.projection.tensors or version.moved or version.terms
    if version.unfitted and not is_learned:
        return None
    unit = settings.unit_embeddings
    scorer = settings.scorer if options.scorer in (None, "additive") else options.scorer
    name = "dot" if scorer == "cosine" and unit else scorer
    default = settings.scale if scorer == settings.scorer else None
    scale = options.scale or default or default_scale(name, unit, version.projection.d_in)
    one = np.ones(1)
    return Mechanism(name, _by_head(scale, one), one, options.pool or "max")


def _check_lengths(scorer: str, tuning: Tuning, settings: Settings) -> None:
    """Refuse a scorer that would see the lengths of keys where these were made one."""
    only_cosine = settings.scorer == "cosine" and not settings.unit_embeddings
    # The scorer of the version was fitted to keys as they are.
    if scorer not in (tuning.scorer, "cosine") and only_cosine:
        raise InvalidRequest(
            f"This collection was made for the scorer cosine and keeps its keys at length one; "
            f"{scorer} would not see their lengths. Ask for cosine, or make a collection with the "
            f"scorer {scorer}.",
            field="scorer",
        )


def _by_head(numbers: float | Sequence[float], gates: Float64) -> Float64:
    """Return one number for each head (H,)."""
    return np.broadcast_to(np.asarray(numbers, dtype=np.float64), gates.shape)


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


@dataclass(frozen=True, eq=False)
class Scoring:
    """Queries over a snapshot, as a plan scores them.

    Attributes:
        heads: (q, H, d) the projected queries; of a mixture (1, p * H, d), part by part.
        shift: (q, H) what folding adds to each logit.
        masked: documents that a scan leaves out besides those that filters do.
    """

    view: View
    plan: ScoringPlan
    mechanism: Mechanism
    queries: Queries
    heads: Floats
    shift: Float64
    masked: Int64 = field(default_factory=lambda: NOTHING)

    @classmethod
    def of(
        cls, view: View, plan: ScoringPlan, queries: Queries, masked: Int64 = NOTHING
    ) -> Scoring:
        """Project queries by a plan."""
        embeddings, parts = queries.embeddings, queries.parts
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
        times, null, levels = queries.recency, mechanism.null_logit, mechanism.levels
        if times is not None and null is not None:
            # That all documents grow older makes no answer less likely; levels follow anyway.
            share = 1.0 if levels is None else 1.0 - float(levels.sum())
            aged = null + share * plan.temperature * times.newest
            mechanism = replace(mechanism, null_logit=aged)
        scaled = np.asarray(shift * mechanism.scale, dtype=np.float64)
        return cls(view, plan, mechanism, queries, heads, scaled, masked)

    def some(self, part: slice) -> Scoring:
        """Return the scoring of some of several queries."""
        queries = self.queries.some(part)
        return replace(self, queries=queries, heads=self.heads[part], shift=self.shift[part])

    def each(self) -> list[Scoring]:
        """Return the scoring of each query by itself."""
        if len(self.heads) == 1:
            return [self]
        return [self.some(slice(query, query + 1)) for query in range(len(self.heads))]

    @property
    def unmoved(self) -> Float32:
        """The embeddings before feedback moved them."""
        return self.queries.embeddings if self.queries.before is None else self.queries.before

    def by_head(self, candidates: KeyTable) -> KeyTable:
        """Return documents with their keys (m, Hk * d) by head, (m, Hk, d)."""
        if not self.plan.stored_form:
            return replace(candidates, vectors=self.plan.projection.keys(candidates.vectors))
        (*many, width), d = candidates.vectors.shape, self.heads.shape[2]
        return replace(candidates, vectors=candidates.vectors.reshape(*many, width // d, d))

    def blocks(self, rows: Int64 | None) -> Iterator[KeyTable]:
        """Return all documents of `rows` with their keys by head, block by block."""
        most = max(1, MAX_SCORES // self.mechanism.heads)
        for candidates in checked(self.view.keys.blocks(rows)):
            parts = [candidates] if len(candidates.ids) <= most else candidates.blocks(most)
            yield from map(self.by_head, parts)

    def bias(self, documents: Int64) -> Float64:
        """Return what is added to the logits of documents (n,): (q, H, n), or (q, H, 1)."""
        bias = self.shift[:, :, None]
        if (added := self.added(documents)) is not None:
            bias = bias + added
        if len(self.masked):
            bias = bias + np.where(locate(self.masked, documents).present, -np.inf, 0.0)
        return bias

    def added(self, documents: Int64) -> Float64 | None:
        """Return what BM25 or a history, and times, add to the logits of documents (n,): (q, H, n);
        None for nothing."""
        words, items, times = self.queries.words, self.queries.items, self.queries.recency
        shares: Floats  # (q or p, n)
        if items is not None:
            shares = items.of(documents)
        elif words is not None:
            shares = np.stack([scores.of(documents) for scores in words])
        elif times is not None:
            shares = np.zeros((len(self.queries.embeddings), len(documents)))
        else:
            return None
        shape = (len(self.heads), self.mechanism.heads, len(documents))
        by_head = np.repeat(shares, self.plan.projection.heads, axis=0).reshape(shape)
        bias = np.asarray(by_head * self.mechanism.scale[:, None])
        return bias if times is None else bias + self.plan.temperature * times.scores.of(documents)

    def log_weights(self, attended: Attended) -> Float64:
        """Return the log weights of attended documents (n,), also of those far too far off."""
        return log_mix(self.log_shares(attended), self.mechanism.gates)

    def log_shares(self, attended: Attended) -> Float64:
        """Return the log weights of attended documents in each head, (H, n)."""
        return attended.logits / self.mechanism.temperature - attended.log_partition[:, None]

    def index_queries(self) -> Float32:
        """Return the queries in the space of the index: (q, H, Hk * d).

        It holds the keys of several heads side by side; a head's query is zero over the others.
        """
        if not self.plan.stored_form:
            return self.queries.embeddings[:, None, :]
        q, heads, d = self.heads.shape
        if self.view.version.width == d:
            return np.ascontiguousarray(self.heads, dtype=np.float32)
        spread = np.zeros((q, heads, heads, d), dtype=np.float32)
        spread[:, np.arange(heads), np.arange(heads)] = self.heads
        return spread.reshape(q, heads, heads * d)
