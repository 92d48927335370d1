"""A projection as two functions of an embedding, one for each side: W x + b, then length one.

The Dense and Normalize layers of other libraries compute the same; they have neither several heads
nor anything that belongs to single keys. `missing_parts` lists what they cannot hold.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attend.core.errors import InvalidRequest
from attend.core.settings import Tuning
from attend.core.types import Float32, Float64, Floats
from attend.projection import Projection
from attend.store import StoredVersion


class LinearLayer(NamedTuple):
    """x -> W x + b, then divided by its length if `normalize`; no weight is the identity."""

    weight: Float32 | None  # (d_out, d_in)
    bias: Float32 | None  # (d_out,); none without a weight
    normalize: bool


class LayerPair(NamedTuple):
    """The layers after the encoder, for queries and for documents."""

    query: LinearLayer
    document: LinearLayer


class MissingPart(NamedTuple):
    """A part of a version that an export does not have; `in_use`: the version answers with it."""

    what: str
    in_use: bool
    detail: str

    def sentence(self) -> str:
        return f"{self.what}: {self.detail}"


def pair_of(projection: Projection) -> LayerPair:
    """Return the two sides of a projection, its centre folded into their biases.

    Raise InvalidRequest where several heads count: the answer mixes one softmax of each
    (Vaswani et al. 2017), and no single inner product gives the logarithm of a mixture.
    """
    head = _only_head(projection)
    return LayerPair(
        _side(projection, "q", head, projection.normalize_queries),
        _side(projection, "k", head, projection.normalize_keys),
    )


def _only_head(projection: Projection) -> int:
    counting = np.flatnonzero(projection.gates)
    if len(counting) > 1:
        raise InvalidRequest(
            f"This version mixes the softmaxes of {len(counting)} heads, and no inner "
            f"product of two layers ranks as such a mixture does. Choose a version of one head, or "
            f"export its own bytes with --safetensors.",
            field="projection",
        )
    return int(counting[0])


def _side(projection: Projection, side: str, head: int, normalize: bool) -> LinearLayer:
    w, b = projection.tensors.get(f"w_{side}"), projection.tensors.get(f"b_{side}")
    center = projection.center
    if w is None and b is None and center is None:
        return LinearLayer(None, None, normalize)
    weight = np.eye(projection.d_in) if w is None else _of_head(w, head)
    bias = np.zeros(len(weight)) if b is None else _of_head(b, head)
    if center is not None:
        bias = bias - weight @ center  # W (x - c) + b = W x + (b - W c)
    has_bias = b is not None or center is not None
    return _layer(weight, bias if has_bias else None, normalize)


def _of_head(tensors: Floats, head: int) -> Float64:
    """Return one head's matrix or bias; one that all heads share is stored once."""
    return np.asarray(tensors[min(head, len(tensors) - 1)], dtype=np.float64)


def _layer(weight: Float64, bias: Float64 | None, normalize: bool) -> LinearLayer:
    """Round what was computed in float64 to float32, the precision of embeddings."""
    narrow = None if bias is None else bias.astype(np.float32)
    return LinearLayer(weight.astype(np.float32), narrow, normalize)


def missing_parts(stored: StoredVersion, projection: Projection, count: int) -> list[MissingPart]:
    """List all that two layers do not contain, used by this version or not, with figures.

    Args:
        count: examples in the collection.
    """
    tuning = Tuning.of(stored.tuning)
    offsets = len(stored.offsets[0])
    terms = sum(len(rows) for rows, _ in stored.terms.values())
    examples, moves = tuning.examples > 0 and count > 0, bool(tuning.memory) and count > 0
    lexical = f"weight {tuning.lexical:g}, coverage {tuning.coverage:g}"
    others = [n for n in projection.tensors if n[:3] in ("w_v", "b_v", "w_o", "b_o", "add")]
    return [
        MissingPart(
            "key offsets",
            offsets > 0,
            f"{f'{offsets} keys are moved' if offsets else 'none'}; they belong to stored keys, "
            f"and a model sees only a text",
        ),
        MissingPart(
            "terms of documents",
            terms > 0,
            f"{terms or 'none'}; they are learned for each document, not for its text",
        ),
        MissingPart(
            "example keys",
            examples,
            f"{f'{count}, at the factor {tuning.examples:g}' if examples else 'not used'}; they "
            f"are rows of the collection, and no function of a document's text",
        ),
        MissingPart(
            "lexical bias",
            tuning.lexical > 0,
            f"{lexical if tuning.lexical > 0 else 'not used'}; BM25 needs the words of the whole "
            f"collection",
        ),
        MissingPart(
            "feedback",
            moves,
            f"{f'queries move by {tuning.memory:g}' if moves else 'not used'}; where to depends on "
            f"the examples of the collection",
        ),
        MissingPart(
            "scale",
            tuning.scale is not None,
            f"{_fitted(tuning.scale)}; it changes weights and no ranking: multiply the scores by "
            f"it before a softmax",
        ),
        MissingPart(
            "no-answer score",
            tuning.null is not None,
            f"{_no_answer(tuning)}; add it as one more logit to allow the answer 'no document'",
        ),
        MissingPart(
            "value matrices and additive scorer",
            bool(others),
            f"{', '.join(others) or 'none'}; they apply to values or pairs, not to one embedding",
        ),
    ]


def _no_answer(tuning: Tuning) -> str:
    if not tuning.levels:
        return _fitted(tuning.null)
    behind = "times the mean logits of the documents ranked 2 to 10 and 11 to 100"
    return f"{_fitted(tuning.null)}, plus {_fitted(tuning.levels)} {behind}"


def _fitted(numbers: tuple[float, ...] | None) -> str:
    return "not fitted" if numbers is None else ", ".join(f"{number:.6g}" for number in numbers)
