"""Attention of queries over the documents of a snapshot: candidates, then exact weights.

A version makes a plan of some options, and the plan scores the queries of one search. `attend`
chooses which documents are scored: see there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from attend.api.search import SearchOptions
from attend.attention import (
    Additive,
    Attended,
    BlockWeights,
    Logits,
    Mechanism,
    attend_logits,
    attend_many,
    default_scale,
    log_mix,
    weighed,
    weights_by_block,
)
from attend.collection.versions import Version, View
from attend.core.arrays import KeyTable, kth_largest, locate
from attend.core.coalesce import timed
from attend.core.deadline import checked
from attend.core.errors import InvalidRequest, LimitExceeded, WrongKeys
from attend.core.settings import Settings, Tuning
from attend.core.types import Float32, Float64, Floats, Int64
from attend.keys.segment import BLOCK_KEYS
from attend.projection import RAW_KEYS, Projection
from attend.search.queries import Queries, WordScores, word_weight

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
        layer: β of the second layer, for queries with text; 0 is off.
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
    as_fitted = as_chosen and tuning.attend in (None, options.attend) and options.heads is None
    raw = stored.key_fingerprint == RAW_KEYS and not version.moved
    projection = stored.form_for(scorer) if raw else stored
    stored_form = projection.key_fingerprint == stored.key_fingerprint
    mechanism = Mechanism(
        name,
        _by_head(scale or default_scale(name, unit, stored.d_k), gates),
        gates,
        pool,
        options.temperature * (1.0 if rescaled else tuning.temperature),
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
    )


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
    masked: Int64 | None = None

    @classmethod
    def of(
        cls, view: View, plan: ScoringPlan, queries: Queries, masked: Int64 | None = None
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

    def bias(self, documents: Int64) -> Float64:
        """Return what is added to the logits of documents (n,): (q, H, n), or (q, H, 1)."""
        bias = self.shift[:, :, None]
        if (words := self.word_bias(documents)) is not None:
            bias = bias + words
        if self.masked is not None:
            bias = bias + np.where(np.isin(documents, self.masked), -np.inf, 0.0)
        return bias

    def word_bias(self, documents: Int64) -> Float64 | None:
        """Return what BM25, or a history, adds to the logits of documents (n,): (q, H, n)."""
        words, items = self.queries.words, self.queries.items
        shares: Floats  # (q or p, n)
        if items is not None:
            shares = items.of(documents)
        elif words is not None:
            shares = np.stack([scores.of(documents) for scores in words])
        else:
            return None
        shape = (len(self.heads), self.mechanism.heads, len(documents))
        by_head = np.repeat(shares, self.plan.projection.heads, axis=0).reshape(shape)
        return np.asarray(by_head * self.mechanism.scale[:, None])

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


SCAN_FLOATS = 64_000_000
"""Up to this many floats, scoring all keys takes tens of milliseconds: exact is cheap."""

OVERSAMPLED = 4
"""Beyond that, a scorer that the index does not know re-scores this many times `attend`."""

WIDER = 2
"""Times `attend`: the candidates by keys, and by words, to begin with; then as many times more."""

LOOKED_UP = 10_000
"""Keys that are looked up at once for several queries: 15 MB at 384 dimensions."""

MAX_RANKED = 10_000_000
"""Documents ranked in one batch of weights over all: some 500 MB."""

SCAN_SHARE = 8
"""Candidates that are more than one document in eight cost as much as all."""

PART_WIDER = 4
"""Times what is kept: candidates of each part of a mixture, as the best of all lead no part."""

PART_SHARE = 4
"""Candidates of all parts that are more than one document in four cost as much as all. (21 % and
43 % of 20,000 documents, for 12 and 30 parts: 80 and 303 ms; all of them 114 and 216.)"""

MANY_PARTS = 16
PART_RECALL = 0.65
"""The share of the nearest that each of many parts finds: what one misses, others propose."""


@dataclass(frozen=True)
class Attention:
    """Attention of a query, or a mixture.

    Attributes:
        attended: the top documents, best first; of all, those that may be listed.
        exact: true if no better document can be missing.
        scoring: of the query, to explain single documents.
        recall: where keys are quantised, the share of the ten nearest that searches find.
        all_weights: reads the weights of all documents, in blocks, where all share them.
        first: `attended` before the best were scored by tokens; None where they were not.
        plain: what both began with, if that was before a second layer.
    """

    attended: Attended
    exact: bool
    scoring: Scoring
    recall: float | None = None
    all_weights: Callable[[], Iterator[BlockWeights]] | None = None
    first: Attended | None = None
    plain: Attended | None = None


def attend(
    view: View,
    settings: Settings,
    queries: Queries,
    options: AttentionOptions,
    rows: Int64 | None = None,
    without: Int64 | None = None,
    *,
    approximate: bool = False,
) -> list[Attention]:
    """Return the attention of each of the queries over the documents of a snapshot.

    The first of these routes that fits is taken:

    1. a mixture over quantised keys: the candidates of each part;
    2. weights over all documents, or a mixture: all keys, in blocks;
    3. words, or a scorer that no index knows, in a small collection: all keys, but for a scorer
       that was fitted to candidates;
    4. words beside a scorer that the index knows: candidates, until they are proved to be enough;
    5. everything else: the candidates of the index.

    Args:
        rows: the documents that filter and mask let pass, ascending; None for all.
        without: a few documents, ascending, that are masked besides.
        approximate: true if a mixture over all may take the first route, too.

    Raises:
        InvalidRequest: options that the version cannot follow.
        LimitExceeded: more weights than memory is for.
        WrongKeys: the snapshot is damaged, and the next one is not.
    """
    words, is_mixture, keys = queries.words or (), queries.parts is not None, view.keys
    masked, number, recall = None, options.attend, options.recall
    if without is not None and len(without):
        if rows is None and (number == "all" or is_mixture):
            masked = without  # of a few, a mask costs less than a choice
        else:
            rows = np.setdiff1d(keys.rows if rows is None else rows, without)
    has_words, longest = queries.words is not None, keys.longest
    plan = plan_of(
        view.version, settings, options, words=has_words, mixture=is_mixture, longest=longest
    )
    try:
        scoring = Scoring.of(view, plan, queries, masked)
        is_worded = any(len(scores.rows) for scores in words)
        may_approximate = is_mixture and not is_worded and (approximate or number != "all")
        if may_approximate and (proposed := _proposed_by_parts(scoring, rows, options)):
            return proposed
        if number == "all":
            return _over_all(scoring, rows, _keep(scoring, options))
        is_small = keys.scans and keys.keys * queries.embeddings.shape[1] <= SCAN_FLOATS
        if is_mixture or (is_small and not plan.reranks and (is_worded or not plan.native)):
            return _attentions(scoring.each(), _scanned(scoring, rows, number))
        if is_worded and plan.native:
            return _proven(scoring, rows, number, words, recall)
        return _proposed(scoring, rows, number, recall)
    except WrongKeys as error:
        view.give_up(str(error))
        raise


def _attentions(
    scorings: Sequence[Scoring], attended: Sequence[Attended], recall: float = 1.0
) -> list[Attention]:
    """Return the attention of each query, of whose nearest documents this share was looked at."""
    is_exact = recall >= 1
    return [
        Attention(top, is_exact, one, None if is_exact else recall)
        for one, top in zip(scorings, attended, strict=True)
    ]


def weigh_documents(attention: Attention, documents: Int64) -> Attended:
    """Weigh documents by a query's attention, best first, also those beyond the top."""
    scoring, attended = attention.scoring, attention.attended
    logits = _with_words(scoring, _logits(scoring, documents))
    return weighed(logits, attended.partition, scoring.mechanism, attended.total_documents)


def _keep(scoring: Scoring, options: AttentionOptions) -> int:
    """Return the number of documents to list of all that share the weights."""
    if options.best is not None:
        return options.best
    documents, queries = scoring.view.keys.documents, len(scoring.queries.embeddings)
    if documents * queries > MAX_RANKED:
        raise LimitExceeded(
            f"To group all {documents} documents, or to go on with them, for {queries} queries at "
            f"once is more than {MAX_RANKED} ranks; ask for fewer at once, or attend to a number "
            f"of documents."
        )
    return max(documents, 1)


def _proposed_by_parts(
    scoring: Scoring, rows: Int64 | None, options: AttentionOptions
) -> list[Attention]:
    """Return the attention of a mixture over the nearest documents of each of its parts.

    What none of them proposes has no share.

    Returns: one, or none where keys are not quantised, or candidates cost as much as all documents.
    """
    keys, heads, recall = scoring.view.keys, scoring.mechanism.heads, options.recall
    keep = _keep(scoring, options) if options.attend == "all" else options.attend
    masked = np.empty(0, np.int64) if scoring.masked is None else scoring.masked
    documents = keys.documents if rows is None else len(rows)
    is_quantised = scoring.plan.indexed and keys.scans and keys.promises(recall) < 1
    if not is_quantised or heads * (keep + len(masked)) * SCAN_SHARE >= documents:
        return []
    if recall is None and heads >= MANY_PARTS:
        recall = PART_RECALL
    queries = scoring.index_queries()
    with timed("search"):
        [near], _ = keys.search(queries, rows, PART_WIDER * keep + len(masked), recall)
    if scoring.queries.items is not None:
        best = scoring.queries.items.best(keep)
        near = np.union1d(near, best if rows is None else best[locate(rows, best).present])
    near = np.setdiff1d(near, masked)
    if len(near) * PART_SHARE > documents:
        return []
    logits = _with_words(scoring, _logits(scoring, near))
    attend = None if options.attend == "all" else options.attend
    return [Attention(attend_logits(logits, scoring.mechanism, attend), False, scoring)]


def _over_all(scoring: Scoring, rows: Int64 | None, keep: int) -> list[Attention]:
    def all_weights(one: Scoring, top: Attended) -> Iterator[BlockWeights]:
        blocks = partial(one.blocks, rows)
        return weights_by_block(one.heads, blocks, one.mechanism, [top], one.bias)

    attended = _scan(scoring, rows, keep)
    return [
        Attention(top, True, one, all_weights=partial(all_weights, one, top))
        for one, top in zip(scoring.each(), attended, strict=True)
    ]


def _scan(scoring: Scoring, rows: Int64 | None, keep: int) -> list[Attended]:
    """Return the `keep` best documents with weights among all, in passes of bounded memory."""
    largest = BLOCK_KEYS + scoring.view.keys.most_keys  # a block ends with a complete document
    step = max(1, MAX_SCORES // (largest * scoring.mechanism.heads))
    passes = range(0, len(scoring.heads), step)
    parts = [scoring.some(slice(first, first + step)) for first in passes]
    parts = parts if len(parts) > 1 else [scoring]
    blocks, mechanism = partial(scoring.blocks, rows), scoring.mechanism
    return [
        attended
        for part in parts
        for attended in attend_many(part.heads, blocks, mechanism, keep, part.bias)
    ]


def _scanned(scoring: Scoring, rows: Int64 | None, attend: int) -> list[Attended]:
    """Return the best documents of a scan over all, with weights among themselves only."""
    parts = 1 if scoring.queries.parts is None else len(scoring.queries.parts)
    if parts > 1 and parts * min(attend, scoring.view.keys.documents) > MAX_RANKED:
        raise LimitExceeded(
            f"{parts} parts that attend to {attend} documents are more than {MAX_RANKED} weights; "
            f"attend to fewer, or mix fewer parts.",
            field="attend",
        )
    best = _scan(scoring, rows, attend)
    if scoring.queries.words is None and scoring.queries.items is None:
        return [attend_logits(Logits(top.documents, top.logits), scoring.mechanism) for top in best]
    # A scan has the precision of the keys, while candidates are scored in float64: whichever
    # way a search with words goes, its weights are the same.
    logits = [
        _with_words(one, _logits(one, top.documents))
        for one, top in zip(scoring.each(), best, strict=True)
    ]
    return [attend_logits(z, scoring.mechanism, attend) for z in logits]


def _proposed(
    scoring: Scoring, rows: Int64 | None, attend: int, recall: float | None
) -> list[Attention]:
    """Return the best of what the index proposes, and of what shares most words."""
    native = scoring.plan.native
    target = attend if native or scoring.plan.reranks else attend * OVERSAMPLED
    queries = scoring.index_queries()
    with timed("search"):
        candidates, least = scoring.view.keys.search(queries, rows, target, recall)
    if scoring.queries.words is not None:
        candidates = [
            np.union1d(near, scores.among(rows).best(target)[0])
            for near, scores in zip(candidates, scoring.queries.words, strict=True)
        ]
    attentions = []
    scorings = [scoring] if len(candidates) == 1 else scoring.each()
    scored = (
        [_logits(scoring, candidates[0])] if len(scorings) == 1 else _scored(scorings, candidates)
    )
    is_exact = native and least >= 1
    recall = least if native and least < 1 else None
    for one, logits in zip(scorings, scored, strict=True):
        z = logits if scoring.queries.words is None else _with_words(one, logits)
        top = attend_logits(z, scoring.mechanism, attend)
        attentions.append(Attention(top, is_exact, one, recall))
    return attentions


def _proven(
    scoring: Scoring,
    rows: Int64 | None,
    attend: int,
    words: Sequence[WordScores],
    recall: float | None,
) -> list[Attention]:
    """Return the top documents by keys and words together, proved to miss none.

    An index of quantised keys misses some itself: there one costly look is enough.
    """
    passing = [scores.among(rows) for scores in words]
    documents = scoring.view.keys.documents if rows is None else len(rows)
    settled: dict[int, Attended] = {}
    pending = list(range(len(passing)))
    scorings, queries = scoring.each(), scoring.index_queries()
    target, least = attend * WIDER, 1.0
    while pending and target * SCAN_SHARE <= documents:
        with timed("search"):
            proposed, share = scoring.view.keys.search(queries[pending], rows, target, recall)
        least = min(least, share)
        for query, near in zip(pending, proposed, strict=True):
            top = _settled(scorings[query], near, passing[query], target, attend, share < 1)
            settled |= {} if top is None else {query: top}
        pending, target = [query for query in pending if query not in settled], target * WIDER
    for query in pending:
        settled[query] = _scanned(scorings[query], rows, attend)[0]
    return _attentions(scorings, [settled[query] for query in range(len(scorings))], least)


def _settled(
    scoring: Scoring, near: Int64, words: WordScores, target: int, attend: int, enough: bool
) -> Attended | None:
    """Return the top documents among candidates, if these are enough, or no other can be one.

    `near` holds the `target` best by keys, and `words` gives as many by words. What is in neither
    has at most the sum of the last of each (the threshold algorithm: Fagin, Lotem and Naor 2003).
    """
    worded, beyond = words.best(target)
    by_keys = _logits(scoring, near)
    others = _logits(scoring, np.setdiff1d(worded, near))
    dense = Logits(*(np.concatenate(pair, axis=-1) for pair in zip(by_keys, others, strict=True)))
    top = attend_logits(_with_words(scoring, dense), scoring.mechanism, attend)
    if enough or len(near) < target:  # or these are all documents
        return top
    last = kth_largest(by_keys.z[0], target)[0]
    bound = last + scoring.mechanism.scale[0] * beyond
    return top if top.logits[0, attend - 1] >= bound else None


def _scored(scorings: Sequence[Scoring], candidates: Sequence[Int64]) -> list[Logits]:
    """Return each query's logits of its own candidates by keys alone.

    The keys of several queries are looked up together where they are few. Each query is scored by
    itself: a product of all would round a query otherwise in other company, and change the order
    of equals between two of its pages.
    """
    keys = scorings[0].view.keys
    most = max(map(len, candidates)) * keys.most_keys
    step = LOOKED_UP // max(most, 1)
    if step < 2:
        return list(map(_logits, scorings, candidates))
    logits: list[Logits] = []
    for start in range(0, len(candidates), step):
        part = candidates[start : start + step]
        every = keys.lookup(np.unique(np.concatenate(part)))
        logits += map(_block_logits, scorings[start : start + step], every.split(part))
    return logits


def _logits(scoring: Scoring, documents: Int64) -> Logits:
    """Return one query's logits by keys alone, in float64: candidates are few, and they decide."""
    keys = scoring.view.keys
    if len(documents) * keys.most_keys <= LOOKED_UP:
        return _block_logits(scoring, keys.lookup(documents))
    # In blocks: a document may have any number of keys.
    parts = map(partial(_block_logits, scoring), keys.blocks(documents))
    nothing = np.empty(0, dtype=np.int64), np.empty((scoring.mechanism.heads, 0))
    rows, z = zip(nothing, *parts, strict=True)
    return Logits(np.concatenate(rows), np.concatenate(z, axis=1))


def _block_logits(scoring: Scoring, documents: KeyTable) -> Logits:
    heads, shift = scoring.heads.astype(np.float64), scoring.shift[:, :, None]
    z = scoring.mechanism.logits(heads, scoring.by_head(documents), shift)
    return Logits(documents.rows, z[0])


def _with_words(scoring: Scoring, by_keys: Logits) -> Logits:
    bias = scoring.word_bias(by_keys.documents)
    return by_keys if bias is None else Logits(by_keys.documents, by_keys.z + bias[0])
