"""Top-k attention: the softmax over the best candidates, exactly re-scored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from attend.attention.logits import Allowed, block_logits
from attend.attention.settings import Mechanism
from attend.attention.softmax import Partition, cooled, log_mix, mix, partition, weigh, weigh_one
from attend.attention.types import Attended, Block
from attend.errors import InvalidRequest
from attend.types import Float64, Floats, Int64


class Logits(NamedTuple):
    """Documents with their logits in every head."""

    documents: Int64
    """(n,)"""
    z: Floats
    """(H, n)"""


def attend_top(
    query: Floats,
    blocks: Iterable[Block],
    mechanism: Mechanism,
    attend: int,
    *,
    allowed: Allowed | None = None,
    shift: Floats | None = None,
) -> Attended:
    """Attention of one query (H, d) over the `attend` best documents of the candidates.

    Candidates are scored in float64 whatever their precision: there are few, and they
    decide the answer. `shift` is (H,). Raises InvalidRequest for an `attend` below one,
    and for a document in two blocks.
    """
    check_attend(attend)
    one, moved = query[None].astype(np.float64), None if shift is None else shift[None]
    parts = [
        Logits(
            block.documents, block_logits(one, block, mechanism, allowed=allowed, shift=moved)[0]
        )
        for block in blocks
    ]
    return attend_logits(_joined(parts, mechanism.heads), mechanism, attend)


def attend_logits(candidates: Logits, mechanism: Mechanism, attend: int | None = None) -> Attended:
    """The softmax over the `attend` best by the mixture of heads, or over all.

    For a caller that has logits already; documents at -inf are masked.
    """
    kept = unmasked(candidates)
    if attend is not None and attend < len(kept.documents):
        # One head's scores are its logits, whatever they sum to.
        by = kept.z[0] if mechanism.heads == 1 else _mixed(kept.z, mechanism)
        order = rank(kept.documents, by)[:attend]
        kept = Logits(kept.documents[order], kept.z[:, order])
    return weighed(kept, _whole(kept.z, mechanism), mechanism, len(kept.documents))


def weighed(
    listed: Logits, whole: Partition, mechanism: Mechanism, total_documents: int
) -> Attended:
    """The weights of listed documents, best first, given each head's partition (H,)."""
    score = scores(listed.z, whole, mechanism)
    order = rank(listed.documents, score)
    z = listed.z[:, order].astype(np.float64, copy=False)
    heads = weigh(z / mechanism.temperature, whole)  # (H, n)
    return Attended(
        documents=listed.documents[order],
        scores=score[order],
        logits=z,
        weights=mix(heads, mechanism.gates),
        head_weights=heads,
        partition=whole,
        null_weight=_null_weight(whole, mechanism),
        total_documents=total_documents,
    )


def scores(z: Floats, whole: Partition, mechanism: Mechanism) -> Float64:
    """Logits (H, n) as scores (n,): z for one head, log of the mixed weight for several."""
    if mechanism.heads == 1:
        return np.asarray(z[0], dtype=np.float64)
    log = np.where(whole.total == 0, 0, whole.log)
    shares = cooled(z, mechanism.temperature) - log[:, None]
    return log_mix(np.asarray(shares, dtype=np.float64), mechanism.gates)


def mixed(z: Floats, whole: Partition, mechanism: Mechanism) -> Float64:
    """Logits (H, n) as mixed weights (n,), each too small to be told as 0."""
    with np.errstate(over="ignore"):  # what is beyond a partition has not been summed yet
        shares = np.exp(cooled(z, mechanism.temperature) - _peaks(whole)[:, None])
    found: Float64 = (mechanism.gates / np.where(whole.total == 0, 1, whole.total)) @ shares
    return found


def _peaks(whole: Partition) -> Float64:
    return np.where(np.isneginf(whole.maximum), 0, whole.maximum)


def _mixed(z: Floats, mechanism: Mechanism) -> Float64:
    return scores(z, _whole(z, mechanism), mechanism)


def rank(documents: Int64, score: Float64) -> Int64:
    """Positions, best score first; equal scores by the lower row id, so that order is stable."""
    return np.lexsort((documents, -score))


def unmasked(candidates: Logits) -> Logits:
    """The candidates that no mask took out."""
    kept = ~np.isneginf(candidates.z).all(axis=0)
    return Logits(candidates.documents[kept], candidates.z[:, kept])


def check_attend(attend: int) -> None:
    """Raise InvalidRequest unless `attend` is a whole number of at least one."""
    if isinstance(attend, bool) or not isinstance(attend, int | np.integer) or attend < 1:
        raise InvalidRequest(
            f"attend is {attend!r}; send a whole number of at least 1, or 'all'.", field="attend"
        )


def _joined(parts: list[Logits], heads: int) -> Logits:
    documents = np.concatenate([part.documents for part in parts] or [np.zeros(0, np.int64)])
    if len(np.unique(documents)) != len(documents):
        raise InvalidRequest(
            "A document stands among the candidates twice, and would weigh twice; give all "
            "keys of a document together."
        )
    return Logits(
        documents, np.concatenate([part.z for part in parts] or [np.zeros((heads, 0))], 1)
    )


def _whole(z: Floats, mechanism: Mechanism) -> Partition:
    """The partition (H,) of logits (H, n) with the null."""
    null, tau = mechanism.null_logit, mechanism.temperature
    return partition(z / tau, None if null is None else null / tau)


def _null_weight(whole: Partition, mechanism: Mechanism) -> float:
    if mechanism.null_logit is None:
        return 0.0
    return float(mechanism.gates @ weigh_one(mechanism.null_logit / mechanism.temperature, whole))
