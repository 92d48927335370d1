"""From an embedding to a query or a key, and from blended values to an answer.

W_Q, W_K, W_V and W_O as in Vaswani et al. 2017, "Attention Is All You Need", with H
heads of width d_k. A missing matrix is the identity and costs nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from attend.core.arrays import unit
from attend.core.errors import Damaged, InvalidRequest
from attend.core.types import Float64, Floats
from attend.projection import tensors

RAW_KEYS = "raw"
"""The key fingerprint of every projection that leaves embeddings as they are."""

KEY_TENSORS = ("w_k", "b_k", "center")


class ProjectedQueries(NamedTuple):
    """Queries as heads, and the part of their logits that folding leaves out.

    Attributes:
        heads: (n, H, d), to be multiplied with `Projection.keys`.
        shift: (n, H), what the keys' bias and centre add to each logit of that query and head;
            zero unless folded. It is the same for all keys, so that weights do not need it;
            logits, partitions and a no-answer score do.
    """

    heads: Floats
    shift: Floats


@dataclass(frozen=True, eq=False)
class Projection:
    """Immutable weights of H heads over embeddings of width `d_in`.

    Weights are float32 or float64; work is done in the precision of the embeddings
    given (float64 in, float64 out); saved bytes are float32.

    Shapes: w_q (H, d_k, d_in); w_k (Hk, d_k, d_in) with Hk 1 or H; b_q (H, d_k);
    b_k (Hk, d_k); w_v (H, d_vh, d_v); b_v (H, d_vh); w_o (d_o, H*d_vh); b_o (d_o,);
    center (d_in,), taken from query and key embeddings first; gates (H,), summing to
    one; additive_w and additive_u (a, d_k), additive_v and additive_b (a,), the parameters
    of the scorer of that name. Raises InvalidRequest where they disagree or hold NaN or infinity.
    """

    kind: str
    d_in: int
    gates: Float64
    w_q: Floats | None = None
    w_k: Floats | None = None
    b_q: Floats | None = None
    b_k: Floats | None = None
    w_v: Floats | None = None
    b_v: Floats | None = None
    w_o: Floats | None = None
    b_o: Floats | None = None
    center: Floats | None = None
    additive_w: Floats | None = None
    additive_u: Floats | None = None
    additive_v: Floats | None = None
    additive_b: Floats | None = None
    normalize_queries: bool = False
    normalize_keys: bool = False
    folded: bool = False

    def __post_init__(self) -> None:
        if self.kind not in tensors.KINDS:
            raise InvalidRequest(
                f"{self.kind!r} is no kind of projection; choose of {', '.join(tensors.KINDS)}."
            )
        tensors.check_count("d_in", self.d_in)
        object.__setattr__(self, "gates", tensors.frozen(tensors.check_gates(self.gates)))
        for name, tensor in self.tensors.items():
            object.__setattr__(self, name, tensors.frozen(tensors.floating(tensor)))
        tensors.check_tensors(self.tensors, self.heads, self.d_in)
        if self.folded:
            self._check_folds("dot")

    @property
    def heads(self) -> int:
        """H."""
        return self.gates.size

    @property
    def d_k(self) -> int:
        """Width of a query and a key of one head, before folding."""
        weight = self.w_q if self.w_q is not None else self.w_k
        return self.d_in if weight is None else int(weight.shape[1])

    @property
    def normalized(self) -> bool:
        """True if queries and keys are both scaled to length one."""
        return self.normalize_queries and self.normalize_keys

    @property
    def tensors(self) -> dict[str, Floats]:
        """The weights that are there, by name, without the gates."""
        named = {name: getattr(self, name) for name in tensors.SHAPES}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def project(self, embeddings: ArrayLike) -> ProjectedQueries:
        """Embeddings (n, d_in) as queries, each projected once, with their shift."""
        queries = self._query_heads(tensors.rows(embeddings, self.d_in))  # (n, H, d_k)
        if not self.folded:
            return ProjectedQueries(queries, np.zeros(queries.shape[:2], queries.dtype))
        offset = self._key_offset(queries.dtype)  # (Hk, d_k)
        return ProjectedQueries(tensors.fold(queries, self.w_k), (queries * offset).sum(axis=-1))

    def queries(self, embeddings: ArrayLike) -> Floats:
        """Embeddings (n, d_in) as queries (n, H, d); d is d_in where folded, else d_k."""
        return self.project(embeddings).heads

    def keys(self, embeddings: ArrayLike) -> Floats:
        """Embeddings (m, d_in) as keys (m, Hk, d), each projected once.

        Where folded, the embeddings themselves as a view (m, 1, d_in).
        """
        x = tensors.rows(embeddings, self.d_in)
        if self.folded:
            return x[:, None, :]
        keys = tensors.affine(self._centred(x), self.w_k, self.b_k)  # (m, Hk, d_k)
        return unit(keys) if self.normalize_keys else keys

    def output(self, blends: Floats) -> Floats:
        """Return the answer (d_o,) from each head's blended value (H, d_v).

        Each head is W_V v + b_v; heads are concatenated and go through W_O (Vaswani et al. 2017).
        Without W_V and W_O the heads are mixed by their gates into (d_v,).
        """
        self._check_values(blends.shape[1])
        if self.w_v is None and self.w_o is None:
            return np.asarray(self.gates.astype(blends.dtype) @ blends)  # (H,) @ (H, d_v)
        heads = blends if self.w_v is None else np.einsum("hov,hv->ho", self.w_v, blends)
        if self.b_v is not None:
            heads = heads + self.b_v  # (H, d_vh)
        answer = np.asarray(heads).reshape(-1)  # (H*d_vh,)
        answer = answer if self.w_o is None else self.w_o @ answer  # (d_o,)
        answer = answer if self.b_o is None else answer + self.b_o
        return np.asarray(answer, dtype=blends.dtype)

    def _check_values(self, width: int) -> None:
        expected: float = width
        if self.w_v is not None:
            expected = self.w_v.shape[2]
        elif self.w_o is not None:
            expected = self.w_o.shape[1] / self.heads
        if width != expected:
            raise InvalidRequest(
                f"The value vectors have {width} dimensions, but the projection's value matrices "
                f"take {expected:g}; send vectors of that width."
            )

    def fold(self, scorer: str = "dot") -> Projection:
        """The form whose keys are the raw embeddings; InvalidRequest where none is."""
        self._check_folds(scorer)
        return self if self.folded else self._other_form

    def materialised(self) -> Projection:
        """The form whose keys are projected."""
        return self._other_form if self.folded else self

    def form_for(self, scorer: str) -> Projection:
        """Folded where the scorer and the keys allow it, else materialised."""
        folds = scorer == "dot" and not self.normalize_keys
        return self.fold(scorer) if folds else self.materialised()

    def to_bytes(self) -> bytes:
        """Safetensors; equal projections give equal bytes in every process."""
        settings = {name: getattr(self, name) for name in tensors.SETTINGS}
        return tensors.pack({**self.tensors, "gates": self.gates}, settings)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of `to_bytes`; raises Damaged or InvalidRequest."""
        named, settings = tensors.unpack(data)
        strange = named.keys() - tensors.SHAPES.keys() - {"gates"}
        if strange or "gates" not in named:
            raise Damaged(
                f"The saved projection has the tensors {', '.join(sorted(named))}, but "
                f"'gates' and any of {', '.join(tensors.SHAPES)} were expected; save it again."
            )
        return cls(**{**settings, **named})

    @cached_property
    def _other_form(self) -> Self:
        """Folded or materialised, whichever this is not; made and checked once."""
        return replace(self, folded=not self.folded)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the bytes, in hex."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @cached_property
    def key_fingerprint(self) -> str:
        """Names what `keys` does: while it stays, an index of keys stays valid."""
        of_keys = {name: self.tensors[name] for name in KEY_TENSORS if name in self.tensors}
        if self.folded or not (of_keys or self.normalize_keys):
            return RAW_KEYS
        packed = tensors.pack(of_keys, {"normalize_keys": self.normalize_keys})
        return hashlib.sha256(packed).hexdigest()

    def _centred(self, x: Floats) -> Floats:
        return x if self.center is None else x - self.center.astype(x.dtype, copy=False)

    def _query_heads(self, x: Floats) -> Floats:
        queries = tensors.affine(self._centred(x), self.w_q, self.b_q)  # (n, H or 1, d_k)
        queries = unit(queries) if self.normalize_queries else queries
        if queries.shape[1] == self.heads:
            return queries
        return np.broadcast_to(queries, (len(x), self.heads, queries.shape[2]))

    def _key_offset(self, dtype: np.dtype[Any]) -> Floats:
        """b_K - W_K c (Hk, d_k): what a key has beyond W_K times its embedding."""
        origin = np.zeros((1, self.d_in), dtype)
        offset: Floats = tensors.affine(self._centred(origin), self.w_k, self.b_k)[0]
        return offset

    def _check_folds(self, scorer: str) -> None:
        if scorer != "dot":
            raise InvalidRequest(
                f"The scorer {scorer!r} needs projected keys; only 'dot' can fold W_K into "
                f"the query. Use the materialised form.",
                field="scorer",
            )
        if self.normalize_keys:
            raise InvalidRequest(
                "The keys are normalised after W_K, so that W_K cannot be folded into the "
                "query. Use the materialised form."
            )
