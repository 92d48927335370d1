"""Scoring plans: which scorer, scale, heads and no-answer score some options get from a version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from attend.attention import Additive, Mechanism, default_scale
from attend.errors import InvalidRequest
from attend.projection import RAW_KEYS, Projection
from attend.search.words import OFF, fitted_word_weight, word_weight
from attend.settings import Settings
from attend.types import Float64
from attend.versions import Version

MAX_PLANS = 64
"""Plans that a version keeps."""


@dataclass(frozen=True)
class AttentionOptions:
    """Options of one attention; None leaves the choice to the version that answers.

    Attributes:
        attend: the number of documents that share the weights.
        best: with attend "all", the number of best documents to return; None for every one.
        scorer: dot, cosine, laplace or additive.
        scale: the factor on its result.
        heads: one weight for each head.
        pool: how the keys of a document make its logit.
        temperature: relative to the fitted one.
        lexical: how much BM25 counts; True for the default weight.
        recall: the share of the nearest keys that an approximate index finds.
    """

    attend: int | Literal["all"] = 100
    best: int | None = None
    scorer: str | None = None
    scale: float | None = None
    heads: tuple[float, ...] | None = None
    pool: Literal["max", "sum"] | None = None
    temperature: float = 1.0
    lexical: bool | float | None = None
    recall: float | None = None


@dataclass(frozen=True, eq=False)
class ScoringPlan:
    """Constants of one version and one set of options.

    Attributes:
        mechanism: scorer, scale, pool, temperature, gates and no-answer score.
        projection: in the form that the scorer needs.
        stored_form: whether the keys of the snapshot are in that form.
        untouched: whether queries are the embeddings as they are.
        native: whether the index orders documents as the mechanism does, but for words.
        indexed: whether it orders them as each single head does.
        reranks: whether the scorer was fitted to candidates, and looks at no others.
        calibrated: whether scale and no-answer score were fitted for these options.
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
) -> ScoringPlan:
    """Return the plan of a version for some options; it is made once and kept by the version.

    Args:
        words: whether the queries have texts whose words count.
        mixture: whether the queries are parts of one mixture.
    """
    key = (
        options.attend,
        options.scorer,
        options.scale,
        options.heads,
        options.pool,
        options.temperature,
        options.lexical,
        words,
        mixture,
    )
    plan = version.plans.get(key)
    if plan is None:
        if len(version.plans) >= MAX_PLANS:
            version.plans.clear()
        plan = version.plans[key] = _plan(version, settings, options, words, mixture)
    return plan


def _plan(
    version: Version, settings: Settings, options: AttentionOptions, words: bool, mixture: bool
) -> ScoringPlan:
    stored, tuning = version.projection, version.tuning
    scorer = options.scorer or tuning.scorer or settings.scorer
    if scorer != tuning.scorer:  # that one was fitted to keys as they are
        _check_lengths(scorer, settings)
    unit = stored.normalized or (settings.unit_embeddings and not stored.tensors)
    pool = options.pool or tuning.pool
    # A no-answer score is fitted for queries that attend to their own best, which parts do not.
    fits = not mixture and _fits(version, settings, scorer, options, words)
    # Keys of length one, but for examples, whose lengths say how much they count: an inner
    # product keeps those, where a cosine would divide them away.
    lengths_count = unit and (stored.normalized or not len(version.offsets.keys))
    name = "dot" if scorer == "cosine" and lengths_count else scorer
    scale = _scale(version, settings, scorer, options) or default_scale(name, unit, stored.d_k)
    gates = _gates(stored, options.heads)
    compare = Mechanism(
        name,
        np.broadcast_to(np.asarray(scale, dtype=np.float64), gates.shape),
        gates,
        pool,
        options.temperature * _temperature(version, settings, scorer, pool, options),
        np.broadcast_to(np.asarray(tuning.null, dtype=np.float64), gates.shape)
        if fits and tuning.null is not None
        else None,
        _additive(stored),
    )
    raw = stored.key_fingerprint == RAW_KEYS and not version.moved
    projection = stored.form_for(scorer) if raw else stored
    ordered = compare.scorer == "dot" and pool == "max"
    stored_form = projection.key_fingerprint == stored.key_fingerprint
    return ScoringPlan(
        mechanism=compare,
        projection=projection,
        stored_form=stored_form,
        untouched=not projection.tensors
        and not projection.normalize_queries
        and projection.heads == 1,
        # A document that is second best in every head may lead the mixture, yet be proposed by
        # none.
        native=ordered and compare.heads == 1,
        indexed=ordered and stored_form,
        reranks=scorer == "additive" and tuning.scorer == scorer,
        calibrated=fits and options.temperature == 1,
    )


def _fits(
    version: Version, settings: Settings, scorer: str, options: AttentionOptions, words: bool
) -> bool:
    """Return whether the version's no-answer score was fitted for these options."""
    tuning = version.tuning
    # A query without text has no words, whatever the options say.
    weight = word_weight(options.lexical, tuning) if words else OFF
    return (
        tuning.null is not None
        and scorer == (tuning.scorer or settings.scorer)
        and options.pool in (None, tuning.pool)
        and tuning.attend in (None, options.attend)
        and weight == fitted_word_weight(tuning)
        and options.scale is None
        and options.heads is None
    )


def _scale(
    version: Version, settings: Settings, scorer: str, options: AttentionOptions
) -> float | tuple[float, ...] | None:
    fitted = version.tuning.scale
    if options.scale is not None:
        return options.scale
    if fitted is not None and scorer == (version.tuning.scorer or settings.scorer):
        return fitted[0] if len(fitted) == 1 else fitted
    return settings.scale if scorer == settings.scorer else None


def _temperature(
    version: Version, settings: Settings, scorer: str, pool: str, options: AttentionOptions
) -> float:
    """Return the fitted temperature where the options are those it was fitted for, else 1."""
    tuning = version.tuning
    same = scorer == (tuning.scorer or settings.scorer) and pool == tuning.pool
    return tuning.temperature if same and options.scale is None else 1.0


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
    b = projection.additive_b
    return Additive(
        w.astype(np.float64),
        u.astype(np.float64),
        v.astype(np.float64),
        None if b is None else b.astype(np.float64),
    )


def _gates(projection: Projection, heads: tuple[float, ...] | None) -> Float64:
    if heads is None:
        return projection.gates
    if len(heads) != projection.heads:
        raise InvalidRequest(
            f"{len(heads)} head weights were given, but projection has {projection.heads} heads; "
            f"send one weight for each.",
            field="heads",
        )
    return np.asarray(heads, dtype=np.float64) / sum(heads)
