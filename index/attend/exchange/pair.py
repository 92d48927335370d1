"""A projection as two functions of an embedding, one for each side: W x + b, then length one.

That is what a Dense layer and a Normalize layer of other libraries do; more heads than one, or
anything that belongs to single keys, they cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attend.errors import InvalidRequest
from attend.projection import Projection, mean_gates
from attend.types import Float32, Float64, Floats


class Layer(NamedTuple):
    """x -> W x + b, at length one where `normalize` says so; no weight is the identity."""

    weight: Float32 | None  # (d_out, d_in)
    bias: Float32 | None  # (d_out,); none without a weight
    normalize: bool

    @property
    def linear(self) -> bool:
        return self.weight is not None


class Pair(NamedTuple):
    """What queries and documents go through after the encoder."""

    query: Layer
    document: Layer


NOTHING = Layer(None, None, False)
UNIT = Layer(None, None, True)


def pair_of(projection: Projection) -> Pair:
    """The two sides of a projection, its centre folded into their biases.

    Raises InvalidRequest where several heads count: the answer mixes one softmax of each
    (Vaswani et al. 2017), and no single inner product gives the logarithm of a mixture.
    """
    head = _only_head(projection)
    return Pair(
        _side(projection, "q", head, projection.normalize_queries),
        _side(projection, "k", head, projection.normalize_keys),
    )


def _only_head(projection: Projection) -> int:
    counting = np.flatnonzero(projection.gates)
    if len(counting) > 1:
        raise InvalidRequest(
            f"This version mixes the softmaxes of {len(counting)} heads, and no pair of layers has "
            f"an inner product that ranks as such a mixture does. Choose a version of one head, or "
            f"keep its own bytes with --safetensors.",
            field="projection",
        )
    return int(counting[0])


def _side(projection: Projection, side: str, head: int, normalize: bool) -> Layer:
    w, b = projection.tensors.get(f"w_{side}"), projection.tensors.get(f"b_{side}")
    center = projection.center
    if w is None and b is None and center is None:
        return Layer(None, None, normalize)
    weight = np.eye(projection.d_in) if w is None else _of_head(w, head)
    bias = np.zeros(len(weight)) if b is None else _of_head(b, head)
    if center is not None:
        bias = bias - weight @ center  # W (x - c) + b = W x + (b - W c)
    has_bias = b is not None or center is not None
    return _layer(weight, bias if has_bias else None, normalize)


def _of_head(tensors: Floats, head: int) -> Float64:
    """One head's matrix or bias; what all heads share is there once."""
    return np.asarray(tensors[min(head, len(tensors) - 1)], dtype=np.float64)


def _layer(weight: Float64, bias: Float64 | None, normalize: bool) -> Layer:
    """Worked out in float64, kept as finely as embeddings are."""
    narrow = None if bias is None else bias.astype(np.float32)
    return Layer(weight.astype(np.float32), narrow, normalize)


def projection_of(pair: Pair, width: int) -> Projection:
    """A projection of one head over embeddings of `width` dimensions.

    Raises InvalidRequest where a side takes another width, or the two sides give different ones.
    """
    for name, layer in zip(("query", "document"), pair, strict=True):
        takes = width if layer.weight is None else layer.weight.shape[1]
        if takes != width:
            raise InvalidRequest(
                f"The {name} layer takes {takes} numbers, but this collection's embeddings have "
                f"{width}; import a layer that was made for its encoder."
            )
    query, document = (width if w is None else len(w) for w in (pair.query[0], pair.document[0]))
    if query != document:
        raise InvalidRequest(
            f"The query side gives {query} numbers and the document side {document}, which cannot "
            f"be compared; import layers of one width for both sides."
        )
    (w_q, b_q, unit_q), (w_k, b_k, unit_k) = pair
    return Projection(
        "given",
        width,
        mean_gates(1),
        w_q=None if w_q is None else w_q[None],
        w_k=None if w_k is None else w_k[None],
        b_q=None if b_q is None else b_q[None],
        b_k=None if b_k is None else b_k[None],
        normalize_queries=unit_q,
        normalize_keys=unit_k,
    )


def chained(layers: Sequence[Layer], unit: bool) -> Layer:
    """Several layers as one; `unit`: what comes in has length one already.

    Raises InvalidRequest where lengths are divided out between two Dense layers.
    """
    whole = UNIT if unit else NOTHING
    for layer in layers:
        whole = _then(whole, layer, unit)
    # Length one in and no matrix: nothing is left to normalise, and raw keys need no index anew.
    return NOTHING if unit and not whole.linear else whole


def _then(first: Layer, second: Layer, unit: bool) -> Layer:
    if second.weight is None:
        return first._replace(normalize=first.normalize or second.normalize)
    if first.normalize and (first.linear or not unit):
        raise InvalidRequest(
            "The layers normalise before a Dense layer, which a projection cannot; import a model "
            "that normalises at its end only."
        )
    if first.weight is None:
        return second
    outer = second.weight.astype(np.float64)
    bias = np.zeros(len(outer)) if second.bias is None else second.bias.astype(np.float64)
    if first.bias is not None:
        bias = bias + outer @ first.bias  # W2 (W1 x + b1) + b2
    has_bias = first.bias is not None or second.bias is not None
    return _layer(outer @ first.weight, bias if has_bias else None, second.normalize)
