"""Attention: queries and keys → scores, logits of documents, softmax, weights.

A scorer matches queries and keys, (q, H, d) x (m, Hk, d) -> (q, H, m), in the finer precision of
the two, so that a float64 query has exact scores against float32 keys. Hk is 1 (keys shared by all
heads), H, or a divisor of H: then each run of Hk heads meets the keys' heads in turn, as the parts
of a mixture do. Dot product: Vaswani et al. 2017. Additive: Bahdanau et al. 2014. Laplace: Kim et
al. 2019.

The one softmax. `attend_logits` weighs candidates, `attend_many` all keys; `Softmax.of` and
`log_mix` serve whoever has logits of another kind, and `log_shares` and `log_total` losses. A
running maximum and sum per head give the exact softmax over all keys in one pass over blocks, in
memory that does not grow with their number: Milakov and Gimelshein 2018, "Online normalizer
calculation for softmax". Queries share each block, so that their products with its keys are one
matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from attend.core.arrays import KeyTable, best, kth_largest, unit
from attend.core.errors import InvalidRequest, WrongKeys
from attend.core.types import Float64, Floats, Int64

Scorer: TypeAlias = Callable[[Floats, Floats], Floats]

NORMALIZED_SCALE = 20.0
"""1/sqrt(384) on unit vectors, whose products lie within -1 and 1, is nearly uniform."""

COLDEST = 1e-9
"""Below this temperature every softmax is one-hot already, and quotients come to overflow."""

LARGEST = 1e100
"""Beyond any logit that means something, and far from overflow at any temperature."""

ROUNDED = 1.001
"""Room for the rounding of a product in single precision."""

MANY_KEYS = 4096
"""From here on the keys come first in a product, which is a third faster for a few queries. It
rounds the last of them otherwise, so that equals among a few would not stay in order."""

TILE_PRODUCTS = 1_000_000
"""Multiplications up to which OpenBLAS reads a matrix where it lies, and does not copy it into
panels first (its interface/gemm.c: M N K up to 100 cubed). For 16 queries a copy costs as much as
their product with what is copied."""

LEAST_TILE = 16
"""Keys in a tile; more queries, which would make it smaller, share the panels well."""

PAIR_VALUES = 1 << 18
"""Numbers held at once where each query meets each key one by one: 2 MiB, within cache."""


def default_scale(scorer: str, normalized: bool, d_k: int) -> float:
    """Return the untrained scale: what keeps logits of that scorer neither flat nor one-hot.

    20 for cosines (and dot products of unit vectors), 1/sqrt(d_k) for dot products of
    raw vectors (Vaswani et al. 2017), 1 for laplace and additive.
    """
    if scorer == "cosine" or (scorer == "dot" and normalized):
        return NORMALIZED_SCALE
    return 1 / float(np.sqrt(d_k)) if scorer == "dot" else 1.0


class Additive(NamedTuple):
    """Parameters of v^T tanh(W q + U k + b), one set for all heads."""

    w: Float64  # (a, d)
    u: Float64  # (a, d)
    v: Float64  # (a,)
    b: Float64 | None = None  # (a,); zero if absent


@dataclass(frozen=True, eq=False)
class Mechanism:
    """Settings by which queries of H heads weigh documents; immutable, shared between threads.

    Attributes:
        scorer: a name in `SCORERS`, or "additive".
        scale: (H,) the factors on its result.
        gates: (H,) the weights of the heads, summing to one.
        pool: a name in `POOLS`.
        null_logit: (H,) the no-answer score in each head, before the temperature.
        levels: (2,) how much of the `runners_up` of a query is added to it, with one head; None
            for nothing.
        additive: the parameters of the scorer of that name.
        longest: the length that no key exceeds, as they were written.
    """

    scorer: str
    scale: Float64
    gates: Float64
    pool: str = "max"
    temperature: float = 1.0
    null_logit: Float64 | None = None
    additive: Additive | None = None
    levels: Float64 | None = None
    longest: float = np.inf

    def __post_init__(self) -> None:
        if not COLDEST <= self.temperature < np.inf:
            raise InvalidRequest(
                f"The temperature is {self.temperature}; send a finite number above 0, at least "
                f"{COLDEST} (1 is as fitted).",
                field="temperature",
            )

    @cached_property
    def heads(self) -> int:
        """H."""
        return self.gates.size

    @cached_property
    def null(self) -> Float64 | None:
        """(H,) the no-answer score over the temperature; None without one."""
        return None if self.null_logit is None else self.null_logit / self.temperature

    def cooled(self, z: Floats) -> Floats:
        """Divide logits by the temperature; at 1 return the same array."""
        return z if self.temperature == 1 else z / self.temperature

    @cached_property
    def score(self) -> Scorer:
        """The scorer itself."""
        if self.scorer == "additive":
            return partial(additive, parameters=self.additive)
        return SCORERS[self.scorer]

    def score_keys(self, queries: Floats, keys: Floats) -> Floats:
        """Score queries (q, H, d) against keys (m, Hk, d), scaled by head: (q, H, m)."""
        (q, heads, d), (count, parts) = queries.shape, keys.shape[-3:-1]
        by_key = queries if parts == 1 else queries.reshape(-1, parts, d)
        scores = self.score(by_key, keys).reshape(q, heads, count)
        scaled = np.empty(scores.shape, scores.dtype)  # by query, wherever the product lies
        return np.multiply(scores, self.scale[:, None].astype(scores.dtype), out=scaled)

    def logits(self, queries: Floats, documents: KeyTable, bias: Floats | None = None) -> Floats:
        """Score queries (q, H, d) against documents with keys (m, Hk, d): z (q, H, n).

        In the precision of queries and keys, or of the bias if that is finer. Inner products also
        take keys (q, n, 1, d), where each query has documents of its own, each with one key.

        Args:
            bias: added to the logits, and broadcast to (q, H, n); -inf masks.

        Raises:
            InvalidRequest: logits that are not finite.
            WrongKeys: a logit that no key of at most the longest length can have.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below
            scores = self.score_keys(queries, documents.vectors)
        if scores.size and self.scorer == "dot" and self.longest < np.inf:
            # |q·k| <= |q| |k| for the longest key (Cauchy and Schwarz); NaN fails, too.
            lengths = np.sqrt(np.einsum("qhd,qhd->qh", queries, queries, dtype=np.float64))
            bound = lengths * np.abs(self.scale) * self.longest * ROUNDED
            within = (scores.max(axis=-1) <= bound) & (scores.min(axis=-1) >= -bound)
            if bound.max() <= LARGEST and not within.all():
                raise WrongKeys(
                    f"A key has a score beyond what its length allows: it is longer than "
                    f"{self.longest:.6g}, and not what was written."
                )
        # Written so that NaN fails too; and -inf would pass for a mask.
        if scores.size and not (float(scores.min()) >= -LARGEST and float(scores.max()) <= LARGEST):
            raise InvalidRequest(
                "A query and a key have no finite score; one of them holds NaN, infinity or "
                "numbers too large to multiply."
            )
        if len(documents.rows) < scores.shape[-1]:
            scores = POOLS[self.pool](scores, documents.starts[:-1])
        return scores if bias is None else scores + bias


def log_sum_exp(logits: Floats, starts: Int64) -> Floats:
    """Return log sum exp over each document's keys: as if each key were attended to by itself."""
    counts = np.diff(starts, append=logits.shape[-1])
    peak = best(logits, starts)  # (..., n)
    shares = np.exp(logits - np.repeat(peak, counts, axis=-1))  # (..., m)
    return peak + np.log(np.add.reduceat(shares, starts, axis=-1))


POOLS: Mapping[str, Callable[[Floats, Int64], Floats]] = {"max": best, "sum": log_sum_exp}
"""Reduce logits (..., m) over each document's keys to (..., n)."""


def dot(queries: Floats, keys: Floats) -> Floats:
    """Score by q·k."""
    q, heads, width = queries.shape
    if keys.ndim == 4:  # one product for each query, with keys of its own (q, m, 1, d)
        return np.asarray(queries @ keys[:, :, 0].transpose(0, 2, 1))  # (q, H, d) @ (q, d, m)
    if keys.shape[1] == 1:
        # One product for all heads: (q*H, d) and (m, d) -> (q*H, m)
        flat, shared = queries.reshape(q * heads, width), keys[:, 0, :]
        if len(keys) < MANY_KEYS:
            return (flat @ shared.T).reshape(q, heads, len(keys))
        return _tiled(shared, flat).T.reshape(q, heads, len(keys))
    by_head = queries.transpose(1, 0, 2) @ keys.transpose(1, 2, 0)  # (H, q, d) @ (H, d, m)
    return by_head.transpose(1, 0, 2)  # (q, H, m)


def _tiled(keys: Floats, queries: Floats) -> Floats:
    """Multiply keys (m, d) @ queries (q, d)ᵀ: (m, q), in tiles that few queries read but once."""
    count, width = keys.shape
    tile = TILE_PRODUCTS // max(1, len(queries) * width) // LEAST_TILE * LEAST_TILE
    if len(queries) == 1 or tile == 0:
        return np.asarray(keys @ queries.T)
    columns, tiled = np.ascontiguousarray(queries.T), count - count % tile
    tiles = keys[:tiled].reshape(-1, tile, width)
    product = np.empty((count, len(queries)), np.result_type(keys, queries))
    np.matmul(tiles, columns, out=product[:tiled].reshape(-1, tile, len(queries)))
    np.matmul(keys[tiled:], columns, out=product[tiled:])
    return product


def cosine(queries: Floats, keys: Floats) -> Floats:
    """Score by q·k / (|q| |k|); zero where either vector is zero, for it has no direction."""
    key_length = np.linalg.norm(keys, axis=-1).T  # (Hk, m)
    aligned = dot(unit(queries), keys)
    return np.asarray(aligned / np.where(key_length == 0, 1, key_length))


def laplace(queries: Floats, keys: Floats) -> Floats:
    """Score by -sum |q - k|."""
    return _pairwise(queries, keys, lambda q, k: -np.abs(q - k).sum(axis=-1))


def additive(queries: Floats, keys: Floats, parameters: Additive | None) -> Floats:
    """Score by v^T tanh(W q + U k + b): each query and key is multiplied once, a pair is not."""
    if parameters is None:
        raise InvalidRequest(
            "The scorer 'additive' has parameters of its own, and the projection that answers has "
            "none. Use dot, cosine or laplace, or a projection with additive parameters.",
            field="scorer",
        )
    w, u, v, b = parameters
    from_queries = queries @ w.T  # (q, H, d) @ (d, a) -> (q, H, a)
    from_keys = keys @ u.T  # (m, Hk, d) @ (d, a) -> (m, Hk, a)
    if b is not None:
        from_queries = from_queries + b
    return _pairwise(from_queries, from_keys, lambda q, k: np.tanh(q + k) @ v)


def _pairwise(queries: Floats, keys: Floats, pair: Callable[[Floats, Floats], Floats]) -> Floats:
    """Apply `pair` to all queries and keys: it turns (H, d) and (b, Hk, d) into (b, H)."""
    q, heads, width = queries.shape
    out = np.empty((q, heads, len(keys)), np.result_type(queries, keys))
    step = max(1, PAIR_VALUES // max(1, heads * width))
    for start in range(0, len(keys), step):
        part = slice(start, start + step)
        for i in range(q):
            out[i, :, part] = pair(queries[i], keys[part]).T
    return out


SCORERS: Mapping[str, Scorer] = {
    "dot": dot,
    "cosine": cosine,
    "laplace": laplace,
}


# -- softmax --------------------------------------------------------------------------------


class Partition(NamedTuple):
    """A sum of exponentials, kept as the largest logit and the sum relative to it.

    One number, its log, would do but for large logits, whose rounding it would multiply
    into the weights.
    """

    maximum: Float64
    """(...,) -inf where all was masked."""
    total: Float64
    """(...,) sum of exp(z - maximum); at least 1, or 0 where all was masked."""

    @property
    def log(self) -> Float64:
        """(...,) log sum exp, -inf where all was masked."""
        with np.errstate(divide="ignore"):
            return np.asarray(self.maximum + np.log(self.total))


class Softmax(NamedTuple):
    """Weights over the last axis, which with the null's sum to one."""

    weights: Float64
    """(..., n); zero where masked."""
    null_weight: Float64
    """(...,); zero without a no-answer score."""
    log_partition: Float64
    """(...,) log of the sum of exp(logit); -inf if all was masked."""

    @classmethod
    def of(cls, logits: ArrayLike, null_logit: ArrayLike | None = None) -> Self:
        """Return exp(z) over its sum along the last axis, in float64.

        A logit of -inf is masked and weighs nothing. Where all are masked, weights are zero,
        never uniform, and the no-answer score, if any, has all the weight.

        Raises:
            InvalidRequest: a logit is NaN or +inf.

        >>> Softmax.of([0.9, 0.95, 0.2, 0.6]).weights.round(4).tolist()
        [0.3041, 0.3197, 0.151, 0.2253]
        """
        z = np.asarray(logits, dtype=np.float64)
        null = None if null_logit is None else np.asarray(null_logit, dtype=np.float64)
        sums = partition(z, null)
        null_weight = np.zeros(sums.total.shape) if null is None else weigh_one(null, sums)
        return cls(weigh(z, sums), null_weight, sums.log)


def log_shares(z: Any) -> Any:
    """Return the log of the softmax of a torch tensor (..., n), through which a loss learns."""
    return z.log_softmax(dim=-1)


def log_total(z: Any) -> Any:
    """Return the log of the sum of exponentials of a torch tensor (..., n): (...,)."""
    return z.logsumexp(dim=-1)


def partition(z: Floats, null: Float64 | None = None) -> Partition:
    """Sum exponentials over the last axis and the no-answer score: (..., n) -> (...,)."""
    sums, _ = summed(z)
    return sums if null is None else join(sums, Partition(null, np.ones(null.shape)))


def summed(z: Floats) -> tuple[Partition, Floats]:
    """Sum exponentials without a no-answer score; return also exp(z - maximum) (..., n)."""
    maximum = np.asarray(z.max(axis=-1, initial=-np.inf))
    if not (maximum < np.inf).all():  # NaN fails too
        raise InvalidRequest(
            "A logit is NaN or infinite; the query or a key holds NaN, infinity or numbers "
            "too large to multiply."
        )
    shares = _relative(z, maximum[..., None])
    total = np.asarray(shares.sum(axis=-1))
    return Partition(maximum.astype(np.float64), total.astype(np.float64)), shares


def join(one: Partition, other: Partition) -> Partition:
    """Return the partition of the logits of both together."""
    maximum = np.maximum(one.maximum, other.maximum)
    parts = [part.total * _relative(part.maximum, maximum) for part in (one, other)]
    return Partition(maximum, parts[0] + parts[1])


def weigh(z: Floats, sums: Partition) -> Float64:
    """Turn logits (..., n) into shares of a partition (...,); zero where all were masked."""
    shares = _relative(z, sums.maximum[..., None])
    return np.asarray(shares / np.where(sums.total == 0, 1, sums.total)[..., None])


def weigh_one(z: Float64, sums: Partition) -> Float64:
    """Turn one logit for each partition (...,) into its share."""
    return np.asarray(weigh(z[..., None], sums)[..., 0])


def log_mix(log_weights: Float64, gates: Float64) -> Float64:
    """Return the log of the mixture from log weights (..., H, n): (..., n).

    In logs, so that documents too far off to have a weight still have an order.
    """
    with np.errstate(divide="ignore"):
        shares = log_weights + np.log(gates)[:, None]
        # One exponential for each head, where logaddexp would take two for each.
        return partition(np.moveaxis(shares, -2, -1)).log


def _relative(z: Floats, maximum: Floats) -> Floats:
    """Return exp(z - maximum): 0 for masked logits, also where nothing else is left."""
    with np.errstate(over="ignore"):  # a difference that overflows weighs nothing
        apart = np.asarray(z - np.where(np.isneginf(maximum), np.zeros_like(maximum), maximum))
        return np.exp(apart, out=apart)


# -- the attention of one query over candidates ---------------------------------------------

RUNNERS_UP = ((1, 10), (10, 100))
"""Ranks, counted from 0, whose mean logits tell how high a query scores what does not answer it.
(AUROC of "no answer" on training questions, with the best score alone and beside the first mean:
SciFact .735 and .778, CoNaLa .649 and .674; banking77 .863, and .897 with the second.)"""


class Logits(NamedTuple):
    """Documents with their logits in every head."""

    documents: Int64
    """(n,)"""
    z: Floats
    """(H, n)"""

    def some(self, places: Int64) -> Logits:
        """Return the documents at some places, in that order."""
        return Logits(self.documents[places], self.z[:, places])

    def unmasked(self) -> Logits:
        """Return the documents that no mask took out."""
        masked = np.isneginf(self.z).all(axis=0)
        return self.some(np.flatnonzero(~masked)) if masked.any() else self


class Attended(NamedTuple):
    """The documents that one query attends to, best first."""

    documents: Int64
    """(n,) row ids; of a streamed attention only the `keep` best."""
    scores: Float64
    """(n,) the logit for one head, log weight for several; higher is better."""
    logits: Float64
    """(H, n)"""
    weights: Float64
    """(n,) mixed over heads by their gates."""
    head_weights: Float64
    """(H, n) each head's own softmax."""
    partition: Partition
    """(H,) each head's sum of exp(logit / temperature), null included."""
    null_weight: float
    """The weight of "nothing here answers that"; 0 without a no-answer score."""
    total_documents: int
    """The number of documents that share the weights, listed or not; 0 if all were masked."""
    confidence: float
    """One less the null's weight; 0 where there was nothing to attend to."""
    null: Float64 | None = None
    """(H,) the no-answer score over the temperature; None without one."""

    @property
    def log_partition(self) -> Float64:
        """(H,) log of each head's sum; -inf if all was masked and there is no null."""
        return self.partition.log


def runners_up(z: Floats) -> Float64:
    """Return the mean logits of the documents ranked 2 to 10, and 11 to 100.

    (n,) -> (2,), and of several queries (q, n) -> (q, 2).

    Args:
        z: at least one logit, best first. The last stands for ranks without a document.

    >>> runners_up(np.array([3.0, 2.0, 1.0])).tolist()
    [1.5, 1.0]
    """
    last = z.shape[-1] - 1
    return np.array([z[..., min(first, last) : stop].mean(axis=-1) for first, stop in RUNNERS_UP]).T


def inclusion(scores: Floats) -> Floats:
    """Return the log of a rank, plus that of the best weight over the document's own.

    (n,) -> (n,), and of several queries (q, n) -> (q, n). A list that ends at a number has few
    documents where the best stands out, and many where weights are alike.

    Args:
        scores: best first, as logits or logs of weights.

    >>> inclusion(np.log([0.6, 0.2, 0.2])).round(3).tolist()
    [0.0, 1.792, 2.197]
    """
    return scores[..., :1] - scores + np.log(np.arange(1, scores.shape[-1] + 1))


def attend_logits(candidates: Logits, mechanism: Mechanism, attend: int | None = None) -> Attended:
    """Return the softmax over the `attend` best by the mixture of heads, or over all.

    Documents at -inf are masked.
    """
    best = candidates.unmasked()
    if mechanism.heads == 1:  # its scores are its logits, whatever they sum to
        best = best.some(rank(best.documents, best.z[0])[:attend])
        null = mechanism.null
        if null is not None and mechanism.levels is not None and len(best.documents):
            null = null + mechanism.levels @ runners_up(best.z[0]) / mechanism.temperature
        sums = partition(best.z / mechanism.temperature, null)
        return _attended(best, best.z[0], sums, mechanism, len(best.documents), null)
    sums = partition(best.z / mechanism.temperature, mechanism.null)
    if attend is not None and attend < len(best.documents):
        best = best.some(rank(best.documents, scores(best.z, sums, mechanism))[:attend])
        sums = partition(best.z / mechanism.temperature, mechanism.null)
    return weighed(best, sums, mechanism, len(best.documents))


def weighed(
    listed: Logits, sums: Partition, mechanism: Mechanism, total_documents: int
) -> Attended:
    """Return the weights of listed documents, best first, given each head's partition (H,)."""
    score = scores(listed.z, sums, mechanism)
    order = rank(listed.documents, score)
    best, null = listed.some(order), mechanism.null
    return _attended(best, score[order], sums, mechanism, total_documents, null)


def _attended(
    best: Logits,
    score: Floats,
    sums: Partition,
    mechanism: Mechanism,
    total_documents: int,
    null: Float64 | None,
) -> Attended:
    z = best.z.astype(np.float64, copy=False)
    heads = weigh(z / mechanism.temperature, sums)  # (H, n)
    null_weight = 0.0 if null is None else float(mechanism.gates @ weigh_one(null, sums))
    return Attended(
        documents=best.documents,
        scores=np.asarray(score, dtype=np.float64),
        logits=z,
        weights=mechanism.gates @ heads,
        head_weights=heads,
        partition=sums,
        null_weight=null_weight,
        total_documents=total_documents,
        confidence=1 - null_weight if total_documents else 0.0,
        null=null,
    )


def scores(z: Floats, sums: Partition, mechanism: Mechanism) -> Float64:
    """Turn logits (H, n) into scores (n,): z for one head, the log mixed weight for several."""
    if mechanism.heads == 1:
        return np.asarray(z[0], dtype=np.float64)
    log = np.where(sums.total == 0, 0, sums.log)
    shares = mechanism.cooled(z) - log[:, None]
    return log_mix(np.asarray(shares, dtype=np.float64), mechanism.gates)


def mixed(z: Floats, sums: Partition, mechanism: Mechanism) -> Float64:
    """Turn logits (H, n) into mixed weights (n,); those that underflow are 0."""
    peaks = np.where(np.isneginf(sums.maximum), 0, sums.maximum)
    with np.errstate(over="ignore"):  # what is beyond a partition has not been summed yet
        shares = np.exp(mechanism.cooled(z) - peaks[:, None])
    weights: Float64 = (mechanism.gates / np.where(sums.total == 0, 1, sums.total)) @ shares
    return weights


def rank(documents: Int64, score: Floats) -> Int64:
    """Return positions, best score first; of equal scores the lower row id first."""
    return np.lexsort((documents, -score))


# -- the attention of several queries over all keys ------------------------------------------

Blocks: TypeAlias = Callable[[], Iterable[KeyTable]]
"""Reads all documents with their keys (m, Hk, d) block by block; may be called again."""

Bias: TypeAlias = Callable[[Int64], Floats]
"""Of documents (n,): what is added to their logits, broadcast to (q, H, n); -inf masks."""

LOST = 1e-290
"""Weights below have lost digits, or all of them: there only their logs have an order."""

PARTED = 1e-9
"""Of a score, by which sums in another order may differ, and far more."""


class BlockWeights(NamedTuple):
    """The share of one block in the attention, for blending its values."""

    documents: Int64
    """(n,)"""
    heads: Float64
    """(q, H, n)"""


def attend_many(
    queries: Floats, blocks: Blocks, mechanism: Mechanism, keep: int, bias: Bias | None = None
) -> list[Attended]:
    """Attend to every document with queries (q, H, d): weights are the true softmax.

    Return the `keep` best of each query. With several heads the blocks are read twice,
    for the mixture that ranks documents is known only once the partitions are. Logits are in
    the precision of queries and keys: float64 queries give float64 logits.
    """
    shape, heads = (len(queries), mechanism.heads), mechanism.heads
    sums = Partition(np.full(shape, -np.inf), np.zeros(shape))
    if mechanism.null is not None:
        sums = Partition(np.broadcast_to(mechanism.null, shape), np.ones(shape))
    documents = np.zeros(len(queries), np.int64)  # that are not masked
    best = [Logits(np.zeros(0, np.int64), np.zeros((heads, 0)))] * len(queries)
    only: list[tuple[Int64, Floats]] = []  # the block, if it is the only one: scored once
    weights: Sequence[Float64] | None = None  # each query's mixed weights (n,) in that block
    for number, (rows, z) in enumerate(_scored(queries, blocks, mechanism, bias)):
        here, shares = summed(mechanism.cooled(z))
        sums = join(sums, here)
        # Masks are the same for all heads.
        documents += np.count_nonzero(z[:, 0] > -np.inf, axis=-1)
        only, weights = ([], None) if number else ([(rows, z)], None)
        if heads == 1:
            best = _merged(best, rows, z, sums, mechanism, keep)
        elif only:  # without another exponential
            factors = mechanism.gates * weigh_one(here.maximum, sums)  # (q, H)
            weights = [factor @ share for factor, share in zip(factors, shares, strict=True)]
    if heads > 1:
        for rows, z in only or _scored(queries, blocks, mechanism, bias):
            best = _merged(best, rows, z, sums, mechanism, keep, weights)
    return [
        weighed(listed, part, mechanism, int(count))
        for listed, part, count in zip(best, _by_query(sums), documents, strict=True)
    ]


def weights_by_block(
    queries: Floats,
    blocks: Blocks,
    mechanism: Mechanism,
    attended: Sequence[Attended],
    bias: Bias | None = None,
) -> Iterator[BlockWeights]:
    """Yield every document's weights, block by block, once `attend_many` has the sums.

    A blend of values needs them, listed or not; with the same queries and bias.
    """
    sums = Partition(
        np.stack([top.partition.maximum for top in attended]),
        np.stack([top.partition.total for top in attended]),
    )
    for documents, z in _scored(queries, blocks, mechanism, bias):
        yield BlockWeights(documents, weigh(z / mechanism.temperature, sums))


def _scored(
    queries: Floats, blocks: Blocks, mechanism: Mechanism, bias: Bias | None
) -> Iterator[tuple[Int64, Floats]]:
    """Yield the documents (n,) of each block with their logits (q, H, n)."""
    for documents in blocks():
        added = None if bias is None else bias(documents.rows)
        yield documents.rows, mechanism.logits(queries, documents, added)


def _merged(
    best: list[Logits],
    documents: Int64,
    logits: Floats,
    sums: Partition,
    mechanism: Mechanism,
    keep: int,
    weights: Sequence[Float64] | None = None,
) -> list[Logits]:
    """Merge a block's logits (q, H, n) into each query's `keep` best, by score and then by row id.

    Args:
        weights: each query's mixed weights (n,) in the block, if they are known.
    """
    peaks = logits[:, 0].max(axis=-1, initial=-np.inf)  # (q,)
    merged = []
    for query, (old, z, part) in enumerate(zip(best, logits, _by_query(sums), strict=True)):
        full, weight = 0 < keep <= len(old.documents), None if weights is None else weights[query]
        # Of most blocks nothing reaches the best so far, where one head ranks them.
        if full and mechanism.heads == 1 and peaks[query] < old.z[0, -1]:
            merged.append(old)
            continue
        new = Logits(documents, z)
        if full and weight is None:
            least = scores(old.z[:, -1:], part, mechanism)[0]
            new = new.some(np.flatnonzero(scores(z, part, mechanism) >= least))
        new = _cut(new, part, mechanism, keep, weight).unmasked()
        if len(new.documents):
            rows, z = np.concatenate([old.documents, new.documents]), np.hstack([old.z, new.z])
            best_places = rank(rows, scores(z, part, mechanism))[:keep]
            old = Logits(rows, z).some(best_places)
        merged.append(old)
    return merged


def _cut(
    new: Logits, part: Partition, mechanism: Mechanism, keep: int, weights: Floats | None
) -> Logits:
    """Leave out what cannot be among the `keep` best: sorting the block costs more."""
    if len(new.documents) <= keep or keep == 0:
        return new
    score = weights
    if score is None:
        score = new.z[0] if mechanism.heads == 1 else mixed(new.z, part, mechanism)
    threshold = kth_largest(score, keep)[0]
    if mechanism.heads > 1 and threshold <= LOST:
        score = scores(new.z, part, mechanism)
        threshold = kth_largest(score, keep)[0]
    # With all ties, among which the row id decides, and with what rounding may have parted.
    near = score >= threshold - abs(threshold) * PARTED
    return new.some(np.flatnonzero(near))


def _by_query(sums: Partition) -> list[Partition]:
    """Split a partition (q, H) into q of (H,)."""
    return [Partition(*part) for part in zip(sums.maximum, sums.total, strict=True)]
