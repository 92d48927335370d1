"""From what a request asks for to a focus: scorer, scale, heads, and what was fitted to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attend.api.search import SearchOptions
from attend.attention import (
    Additive,
    mechanism,
)
from attend.errors import InvalidRequest
from attend.projection import RAW_KEYS, Projection
from attend.search.focus import Attend, Focus
from attend.search.lexicon import OFF, Overlap, own_strength, strength_of
from attend.settings import Settings
from attend.types import Float32, Float64, Int64
from attend.versions import Version
from attend.views import View


def focus_on(
    view: View,
    settings: Settings,
    embeddings: Float32,
    overlaps: Sequence[Overlap] | None,
    options: SearchOptions,
    attend: Attend,
    parts: Float64 | None = None,
    masked: Int64 | None = None,
) -> Focus:
    """Queries (q, d), with their lexical terms, as the options have them meet a view's keys.

    Args:
        parts: (p,) where the embeddings (p, d) are parts of one mixture: how much each counts.
        masked: documents that scans leave out.
    """
    made = view.made
    scorer = options.scorer or made.tuning.scorer or settings.scorer
    stored = made.projection
    if scorer != made.tuning.scorer:  # that one was fitted to keys as they are
        _check_lengths(scorer, settings)
    raw = stored.key_fingerprint == RAW_KEYS and not made.moved
    unit = stored.normalized or (settings.unit_embeddings and not stored.tensors)
    pool = options.pool or made.tuning.pool
    # A null was fitted for queries that attend to their own best, which parts do not.
    fits = parts is None and _fits(made, settings, scorer, overlaps, options, attend)
    gates, scale = _gates(stored, options.heads), _scale(made, settings, scorer, options)
    if parts is not None:
        gates = np.outer(parts, gates).ravel()  # (p, H) -> (p * H,)
        scale = scale * len(parts) if isinstance(scale, tuple) else scale
    # Keys of length one, but for examples, whose lengths say how much they count: an inner
    # product keeps those, where a cosine would divide them away.
    as_they_are = unit and (stored.normalized or not len(made.offsets.keys))
    compare = mechanism(
        scorer_name="dot" if scorer == "cosine" and as_they_are else scorer,
        d_k=stored.d_k,
        normalized=unit,
        scale=scale,
        pool_name=pool,
        temperature=options.temperature * _temperature(made, settings, scorer, pool, options),
        gates=gates,
        null_logit=made.tuning.null if fits else None,
        additive=_additive(stored) if scorer == "additive" else None,
    )
    projection = stored.form_for(scorer) if raw else stored
    ordered = compare.scorer_name == "dot" and pool == "max"
    return Focus(
        view=view,
        mechanism=compare,
        projection=projection,
        embeddings=embeddings,
        parts=parts,
        masked=masked,
        overlaps=overlaps,
        # A document that is second best in every head may lead the mixture, yet be proposed by
        # none.
        native=ordered and compare.heads == 1,
        indexed=ordered and projection.key_fingerprint == view.projection.key_fingerprint,
        reranks=scorer == "additive" and made.tuning.scorer == scorer,
        calibrated=fits and options.temperature == 1,
    )


def _fits(
    made: Version,
    settings: Settings,
    scorer: str,
    overlaps: Sequence[Overlap] | None,
    options: SearchOptions,
    attend: Attend,
) -> bool:
    """Whether the version's null was fitted for what is asked."""
    tuning = made.tuning
    # A query without text has no words, whatever was asked.
    strength = OFF if overlaps is None else strength_of(options.lexical, tuning)
    return (
        tuning.null is not None
        and scorer == (tuning.scorer or settings.scorer)
        and options.pool in (None, tuning.pool)
        and tuning.attend in (None, attend)
        and strength == own_strength(tuning)
        and options.scale is None
        and options.heads is None
    )


def _scale(
    made: Version, settings: Settings, scorer: str, options: SearchOptions
) -> float | tuple[float, ...] | None:
    fitted = made.tuning.scale
    if options.scale is not None:
        return options.scale
    if fitted is not None and scorer == (made.tuning.scorer or settings.scorer):
        return fitted[0] if len(fitted) == 1 else fitted
    return settings.scale if scorer == settings.scorer else None


def _temperature(
    made: Version, settings: Settings, scorer: str, pool: str, options: SearchOptions
) -> float:
    """The fitted one, where what it was fitted for is what is asked."""
    tuning = made.tuning
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


def _additive(projection: Projection) -> Additive:
    w, u, v = projection.additive_w, projection.additive_u, projection.additive_v
    if w is None or u is None or v is None:
        raise InvalidRequest(
            "The scorer 'additive' has parameters of its own, and the projection that answers has "
            "none. Use dot, cosine or laplace, or a projection with additive parameters.",
            field="scorer",
        )
    return Additive(w, u, v, projection.additive_b)


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
