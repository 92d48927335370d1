"""From an embedding to a query or a key, and from blended values to an answer: matrices with heads.

W_Q, W_K, W_V and W_O as in Vaswani et al. 2017, "Attention Is All You Need", with H
heads of width d_k. A missing matrix is the identity and costs nothing.

Untrained ones are the identity, given matrices, and the directions of PCA and of latent semantic
indexing by a truncated singular value decomposition (Deerwester et al. 1990): a row x is folded in
as V^T x, or as S^-1 V^T x where every direction is to count the same.

Bytes are safetensors, so that reading a file can run nothing. The header is read here by hand
because the library returns tensors without metadata; the layout (eight bytes of little-endian
length, then JSON) is the format's own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from safetensors import SafetensorError
from safetensors.numpy import load, save

from attend.core.arrays import unit
from attend.core.errors import Damaged, DimensionMismatch, InvalidRequest
from attend.core.types import Float64, Floats

RAW_KEYS = "raw"
"""The key fingerprint of every projection that leaves embeddings as they are."""

KEY_TENSORS = ("w_k", "b_k", "center")


@dataclass(frozen=True, eq=False)
class Projection:
    """Immutable weights of H heads over embeddings of width `d_in`.

    Weights are float32 or float64; work is done in the precision of the embeddings
    given (float64 in, float64 out); saved bytes are float32.

    Shapes: w_q (H, d_k, d_in); w_k (Hk, d_k, d_in) with Hk 1 or H; b_q (H, d_k);
    b_k (Hk, d_k); w_v (H, d_vh, d_v); b_v (H, d_vh); w_o (d_o, H*d_vh); b_o (d_o,);
    center (d_in,), taken from query and key embeddings first; gates (H,), summing to
    one; additive_w and additive_u (a, d_k), additive_v and additive_b (a,), the parameters
    of the scorer of that name; deep (p,), a learned change of the encoder for the texts of queries,
    which moves them before they come here. Raises InvalidRequest where they disagree or hold NaN or
    infinity.
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
    deep: Floats | None = None
    normalize_queries: bool = False
    normalize_keys: bool = False
    folded: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidRequest(
                f"{self.kind!r} is no kind of projection; choose of {', '.join(KINDS)}."
            )
        check_count("d_in", self.d_in)
        object.__setattr__(self, "gates", frozen(check_gates(self.gates)))
        for name, tensor in self.tensors.items():
            object.__setattr__(self, name, frozen(floating(tensor)))
        check_tensors(self.tensors, self.heads, self.d_in)
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
        named = {name: getattr(self, name) for name in SHAPES}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def project(self, embeddings: ArrayLike) -> tuple[Floats, Floats]:
        """Embeddings (n, d_in) as queries, each projected once, with their shift.

        Returns: (n, H, d) heads, to be multiplied with `keys`, and (n, H) what the keys' bias and
            centre add to each logit of that query and head; zero unless folded. It is the same for
            all keys, so that weights do not need it; logits, partitions and a no-answer score do.
        """
        x = self._centred(rows(embeddings, self.d_in))
        queries = affine(x, self.w_q, self.b_q)  # (n, H or 1, d_k)
        queries = unit(queries) if self.normalize_queries else queries
        if queries.shape[1] != self.heads:
            queries = np.broadcast_to(queries, (len(x), self.heads, queries.shape[2]))
        if not self.folded:
            return queries, np.zeros(queries.shape[:2], queries.dtype)
        # b_K - W_K c (Hk, d_k): what a key has beyond W_K times its embedding.
        origin = np.zeros((1, self.d_in), queries.dtype)
        offset = affine(self._centred(origin), self.w_k, self.b_k)[0]
        return fold(queries, self.w_k), (queries * offset).sum(axis=-1)

    def queries(self, embeddings: ArrayLike) -> Floats:
        """Embeddings (n, d_in) as queries (n, H, d); d is d_in where folded, else d_k."""
        return self.project(embeddings)[0]

    def keys(self, embeddings: ArrayLike) -> Floats:
        """Embeddings (m, d_in) as keys (m, Hk, d), each projected once.

        Where folded, the embeddings themselves as a view (m, 1, d_in).
        """
        x = rows(embeddings, self.d_in)
        if self.folded:
            return x[:, None, :]
        keys = affine(self._centred(x), self.w_k, self.b_k)  # (m, Hk, d_k)
        return unit(keys) if self.normalize_keys else keys

    def output(self, blends: Floats) -> Floats:
        """Return the answer (d_o,) from each head's blended value (H, d_v).

        Each head is W_V v + b_v; heads are concatenated and go through W_O (Vaswani et al. 2017).
        Without W_V and W_O the heads are mixed by their gates into (d_v,).
        """
        width, expected = blends.shape[1], float(blends.shape[1])
        if self.w_v is not None:
            expected = self.w_v.shape[2]
        elif self.w_o is not None:
            expected = self.w_o.shape[1] / self.heads
        if width != expected:
            raise InvalidRequest(
                f"The value vectors have {width} dimensions, but the projection's value matrices "
                f"take {expected:g}; send vectors of that width."
            )
        if self.w_v is None and self.w_o is None:
            return np.asarray(self.gates.astype(blends.dtype) @ blends)  # (H,) @ (H, d_v)
        heads = blends if self.w_v is None else np.einsum("hov,hv->ho", self.w_v, blends)
        if self.b_v is not None:
            heads = heads + self.b_v  # (H, d_vh)
        answer = np.asarray(heads).reshape(-1)  # (H*d_vh,)
        answer = answer if self.w_o is None else self.w_o @ answer  # (d_o,)
        answer = answer if self.b_o is None else answer + self.b_o
        return np.asarray(answer, dtype=blends.dtype)

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
        settings = {name: getattr(self, name) for name in SETTINGS}
        return pack({**self.tensors, "gates": self.gates}, settings)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of `to_bytes`; raises Damaged or InvalidRequest."""
        named, settings = unpack(data)
        strange = named.keys() - SHAPES.keys() - {"gates"}
        if strange or "gates" not in named:
            raise Damaged(
                f"The saved projection has the tensors {', '.join(sorted(named))}, but "
                f"'gates' and any of {', '.join(SHAPES)} were expected; save it again."
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
        packed = pack(of_keys, {"normalize_keys": self.normalize_keys})
        return hashlib.sha256(packed).hexdigest()

    def _centred(self, x: Floats) -> Floats:
        return x if self.center is None else x - self.center.astype(x.dtype, copy=False)

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


# -- tensors --------------------------------------------------------------------------------


def floating(values: ArrayLike) -> Floats:
    """The array in the precision it is worked in: float32 and float64 stay as they are.

    Whole numbers become float64, so that ratings and counts are exact; half precision
    becomes float32, as numpy has no fast product for it.
    """
    array = np.asarray(values)
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.kind not in "biuf":
        raise InvalidRequest(f"An array of {array.dtype} was given; send numbers.")
    return array.astype(np.float32 if array.dtype == np.float16 else np.float64)


def rows(embeddings: ArrayLike, width: int) -> Floats:
    """Embeddings as (n, width), without a copy where they are floats already."""
    array = floating(embeddings)
    if array.ndim != 2:
        raise InvalidRequest(
            f"Embeddings of shape {array.shape} were given; send a matrix, one row each.",
            field="vector",
        )
    if array.shape[1] != width:
        raise DimensionMismatch(expected=width, got=array.shape[1])
    return array


def affine(x: Floats, weight: Floats | None, bias: Floats | None) -> Floats:
    """W x + b for every row and head: (n, d_in) -> (n, H, d). No weight is the identity."""
    y = x[:, None, :]  # (n, 1, d_in): a view, so that the identity costs nothing
    if weight is not None:
        heads, width, d_in = weight.shape
        # One product for all heads: (n, d_in) @ (d_in, H*d) -> (n, H*d)
        flat = x @ weight.astype(x.dtype, copy=False).reshape(heads * width, d_in).T
        y = flat.reshape(len(x), heads, width)
    return y if bias is None else y + bias.astype(x.dtype, copy=False)


def fold(queries: Floats, weight: Floats | None) -> Floats:
    """W_K^T q for every head: (n, H, d_k) -> (n, H, d_in), since q·(W k) = (W^T q)·k."""
    if weight is None:
        return queries
    by_head = queries.transpose(1, 0, 2)  # (H, n, d_k)
    folded = by_head @ weight.astype(queries.dtype, copy=False)  # @ (Hk, d_k, d_in)
    return folded.transpose(1, 0, 2)  # (n, H, d_in)


def frozen(array: Floats) -> Floats:
    """A read-only array that nobody else can write to: snapshots share projections."""
    if not array.flags.writeable and array.base is None:
        return array
    copy = np.array(array, order="C")
    copy.setflags(write=False)
    return copy


KINDS = ("identity", "pca", "lsi", "lsi-scaled", "given", "learned")

SHAPES: Mapping[str, tuple[str, ...]] = {
    "w_q": ("H", "d_k", "d_in"),
    "w_k": ("Hk", "d_k", "d_in"),
    "b_q": ("H", "d_k"),
    "b_k": ("Hk", "d_k"),
    "center": ("d_in",),
    "w_v": ("H", "d_vh", "d_v"),
    "b_v": ("H", "d_vh"),
    "w_o": ("d_o", "H*d_vh"),
    "b_o": ("d_o",),
    "additive_w": ("a", "d_k"),
    "additive_u": ("a", "d_k"),
    "additive_v": ("a",),
    "additive_b": ("a",),
    "deep": ("p",),
}
"""Each tensor's axes by name; an axis has one length throughout a projection.

Hk is 1 where all heads share one key (Shazeer 2019), else H.
"""

_TOGETHER = (
    ("b_v", "w_v"),
    ("b_o", "w_o"),
    ("additive_w", "additive_u"),
    ("additive_u", "additive_v"),
    ("additive_v", "additive_w"),
    ("additive_b", "additive_w"),
)
"""What makes no sense without the other."""


def check_count(name: str, count: int) -> None:
    """Raise InvalidRequest unless `count` is a whole number of at least one."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise InvalidRequest(f"{name} is {count!r}; give a whole number of at least 1.")


def check_heads_divide(width: int, heads: int, what: str) -> None:
    """Raise InvalidRequest unless `heads` heads of equal width fill `width`."""
    check_count("heads", heads)
    if width % heads:
        raise InvalidRequest(
            f"{heads} heads do not divide {what} of {width} dimensions; "
            f"choose a number of heads that does.",
            field="heads",
        )


def check_gates(gates: ArrayLike) -> Float64:
    """Head weights (H,), finite, none negative, summing to one to within 1e-5."""
    array = np.asarray(gates, dtype=np.float64)
    sound = array.ndim == 1 and array.size > 0 and np.isfinite(array).all()
    if not sound or (array < 0).any() or abs(array.sum() - 1) > 1e-5:
        raise InvalidRequest(
            f"The gates {array.tolist()} were given; send one number of at least 0 for each "
            f"head, summing to 1.",
            field="heads",
        )
    total = float(array.sum())
    # float32 gates sum to one only to 1e-7; those that do are kept to the bit, for they
    # are part of the fingerprint.
    return array if abs(total - 1) < 1e-12 else np.divide(array, total)


def check_tensors(tensors: Mapping[str, Floats], heads: int, d_in: int) -> None:
    """Raise InvalidRequest unless all tensors are finite and their axes agree."""
    lengths = {"H": heads, "d_in": d_in}
    if not {"w_q", "w_k"} <= tensors.keys():
        lengths["d_k"] = d_in  # a side without a matrix keeps the embedding's width
    for name, tensor in tensors.items():
        axes = SHAPES[name]
        if tensor.ndim == len(axes):
            for axis, length in zip(axes, tensor.shape, strict=True):
                lengths.setdefault(axis, length)
                if axis == "d_vh":
                    lengths["H*d_vh"] = lengths["H"] * lengths["d_vh"]
        expected = tuple(lengths.get(axis, axis) for axis in axes)
        if tensor.shape != expected or 0 in tensor.shape:
            raise InvalidRequest(
                f"{name} has shape {tensor.shape}, but the rest of the projection asks for "
                f"({', '.join(axes)}) = ({', '.join(map(str, expected))})."
            )
        if not np.isfinite(tensor).all():
            raise InvalidRequest(f"{name} holds NaN or infinity; every weight must be finite.")
    if lengths.get("Hk", 1) not in (1, heads):
        raise InvalidRequest(
            f"The keys have {lengths['Hk']} heads and the queries {heads}; give both "
            f"{heads}, or the keys one.",
            field="heads",
        )
    for name, needed in _TOGETHER:
        if name in tensors and needed not in tensors:
            raise InvalidRequest(f"{name} was given without {needed}; give both or neither.")


FORMAT = 1
METADATA_KEY = "attend.projection"

SETTINGS: Mapping[str, type] = {
    "kind": str,
    "d_in": int,
    "normalize_queries": bool,
    "normalize_keys": bool,
    "folded": bool,
}
"""What a projection is beside its tensors."""


def pack(tensors: Mapping[str, Floats], settings: Mapping[str, Any]) -> bytes:
    """Tensors and settings as safetensors; equal input gives equal bytes.

    Weights are stored as float32: the embeddings they meet are no finer. Gates stay
    float64, for they must sum to one.
    """
    stored = {
        name: np.ascontiguousarray(tensor, np.float64 if name == "gates" else np.float32)
        for name, tensor in sorted(tensors.items())
    }
    # One entry only: the format keeps its metadata in no particular order, and the
    # fingerprint must not change from one process to the next.
    header = json.dumps({"format": FORMAT, **settings}, sort_keys=True)
    return save(stored, metadata={METADATA_KEY: header})


def unpack(data: bytes) -> tuple[dict[str, Floats], dict[str, Any]]:
    """Return the tensors and the settings; raises Damaged for bytes that are no projection."""
    try:
        tensors = load(data)
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
        settings = json.loads(metadata[METADATA_KEY])
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(
            f"These {len(data)} bytes are not a saved projection ({error}); restore them "
            f"from a copy, or train again."
        ) from error
    if not isinstance(settings, dict) or settings.pop("format", None) != FORMAT:
        raise Damaged(
            f"The saved projection is not of format {FORMAT}, the one that is read here; "
            f"save it again with this version, or train again."
        )
    if {name: type(value) for name, value in settings.items()} != SETTINGS:
        raise Damaged(
            f"The saved projection says {settings}, but {', '.join(SETTINGS)} were expected; "
            f"save it again."
        )
    return tensors, settings


# -- untrained projections ------------------------------------------------------------------


def mean_gates(heads: int) -> Float64:
    """(H,): every head counts the same."""
    return np.full(heads, 1 / heads)


def identity(d_in: int, *, normalize: bool = False) -> Projection:
    """Queries and keys are the embeddings: one head, no matrix, no cost."""
    return Projection(
        "identity", d_in, mean_gates(1), normalize_queries=normalize, normalize_keys=normalize
    )


def given(
    w_q: ArrayLike | None,
    w_k: ArrayLike | None,
    *,
    heads: int | None = None,
    gates: ArrayLike | None = None,
    additive: tuple[ArrayLike, ...] | None = None,
    kind: str = "given",
    **others: Any,
) -> Projection:
    """Make a projection of its matrices: (H, d, d_in) each, or one head's (d, d_in).

    With `heads` a matrix (H*d, d_in) is cut into H blocks of rows, as one square W_Q of
    512 is eight heads of 64; biases likewise. One of w_q and w_k may be None, and is the
    identity then. `additive` holds W, U, v and, if there is one, the bias of Bahdanau's
    scorer, which compares the projected queries and keys. Raises InvalidRequest for shapes that
    disagree and heads that do not divide.

    Args:
        others: further tensors and flags of `Projection`, by name.
    """
    stacked = [floating(w) for w in (w_q, w_k) if w is not None]
    if not stacked:
        raise InvalidRequest("Neither w_q nor w_k was given; for no matrix at all use identity.")
    if heads is None:
        heads = max((len(w) for w in stacked if w.ndim == 3), default=1)
    check_count("heads", heads)
    weights = mean_gates(heads) if gates is None else np.asarray(gates, dtype=np.float64)
    if weights.shape != (heads,):
        raise InvalidRequest(
            f"Gates of shape {weights.shape} were given for {heads} heads; send one for each.",
            field="heads",
        )
    scorer = [floating(parameter) for parameter in additive or ()]
    if len(scorer) not in (0, 3, 4):
        raise InvalidRequest(
            f"The additive scorer was given {len(scorer)} parameters; send W, U and v, and the "
            f"bias if there is one."
        )
    names = ("additive_w", "additive_u", "additive_v", "additive_b")
    parts: dict[str, Any] = {
        name: _blocks(name, part, heads) if name in BY_HEAD else part
        for name, part in {"w_q": w_q, "w_k": w_k, **others}.items()
    }
    parts |= zip(names, scorer, strict=False)
    width = int(stacked[0].shape[-1]) if stacked[0].ndim else 0
    return Projection(kind, width, weights, **parts)


BY_HEAD = {"w_q": 3, "w_k": 3, "b_q": 2, "b_k": 2, "w_v": 3, "b_v": 2}
"""The number of axes of each tensor with a block for each head."""


def _blocks(name: str, tensor: ArrayLike | None, heads: int) -> Floats | None:
    """Return the tensor with a head axis in front: rows are cut where it has none."""
    if tensor is None:
        return None
    array = floating(tensor)
    if array.ndim != BY_HEAD[name] - 1:
        return array  # the projection itself names a shape that is wrong altogether
    check_heads_divide(array.shape[0], heads, name)
    return array.reshape(heads, array.shape[0] // heads, *array.shape[1:])


Embeddings: TypeAlias = "Floats | Iterable[Floats]"
"""A matrix (m, d_in), or its rows in blocks (b, d_in)."""

BLOCK_ROWS = 8192
SVD_VALUES = 1 << 20
"""Up to this many numbers the whole matrix is decomposed: about a second, and 8 MiB."""


class Spectrum(NamedTuple):
    """Directions of a matrix of m rows, strongest first, none beyond its rank."""

    values: Float64
    """(r,) singular values."""
    directions: Float64
    """(r, d_in) orthonormal rows: V^T."""
    mean: Float64
    """(d_in,) of the rows; zero unless they were centred."""


def pca(embeddings: Embeddings, d_k: int, *, normalize: bool = False) -> Projection:
    """The d_k principal components: centred, queries and keys alike.

    `normalize` gives projected vectors length one. Raises InvalidRequest for a d_k above
    the rank of the centred embeddings.
    """
    components = spectrum(embeddings, centered=True)
    return _subspace("pca", components, _cut(components, d_k), components.mean, normalize)


def lsi(
    embeddings: Embeddings, k: int, *, scaled: bool = False, normalize: bool = False
) -> Projection:
    """The k strongest directions of the embeddings as they are, neither centred nor scaled.

    With `scaled` each is divided by its singular value. Raises InvalidRequest for a k
    above the rank of the embeddings.
    """
    components = spectrum(embeddings, centered=False)
    weight = _cut(components, k)
    if scaled:
        weight = weight / components.values[:k, None]
    return _subspace("lsi-scaled" if scaled else "lsi", components, weight, None, normalize)


def spectrum(embeddings: Embeddings, *, centered: bool) -> Spectrum:
    """Singular values and directions in float64, from blocks where there are many rows.

    Small matrices go through a full SVD, exact to rounding. Large ones go through their
    Gram matrix (d_in, d_in), summed over blocks: it squares the singular values, so that
    one below about 1e-8 of the largest is lost in rounding, and counts as none.
    """
    blocks = _row_blocks(embeddings)
    parts: list[Float64] = []
    for block in blocks:
        parts.append(block)
        if sum(part.size for part in parts) > SVD_VALUES:
            return _by_gram(chain(parts, blocks), centered)
    if not parts:
        raise InvalidRequest("There are no embeddings to find directions in; add documents first.")
    x = np.concatenate(parts)
    mean = x.mean(axis=0) if centered else np.zeros(x.shape[1])
    _, values, directions = np.linalg.svd(x - mean, full_matrices=False)
    floor = max(x.shape) * np.finfo(np.float64).eps * values[0]
    return _signed(values, directions, mean, floor)


def _row_blocks(embeddings: Embeddings) -> Iterator[Float64]:
    """The rows in float64 blocks of one width."""
    parts = [embeddings] if isinstance(embeddings, np.ndarray) else embeddings
    width = None
    for part in parts:
        part = floating(part)
        width = part.shape[-1] if width is None and part.ndim == 2 else width
        checked = rows(part, width or 0)
        for start in range(0, len(checked), BLOCK_ROWS):
            block = checked[start : start + BLOCK_ROWS].astype(np.float64)
            if not np.isfinite(block).all():
                raise InvalidRequest("An embedding holds NaN or infinity; embed it again.")
            yield block


def _by_gram(blocks: Iterator[Float64], centered: bool) -> Spectrum:
    first = next(blocks)
    # Summed about the first block's mean: about zero, the mean's square would swamp a
    # small variance when it is taken off again.
    origin = first.mean(axis=0) if centered else np.zeros(first.shape[1])
    gram, total, count = np.zeros((first.shape[1],) * 2), np.zeros(first.shape[1]), 0
    for block in chain([first], blocks):
        moved = block - origin
        gram += moved.T @ moved  # (d, b) @ (b, d) -> (d, d)
        total += moved.sum(axis=0)
        count += len(block)
    drift = total / count if centered else np.zeros_like(total)
    squares, vectors = np.linalg.eigh(gram - count * np.outer(drift, drift))
    values = np.sqrt(np.clip(squares[::-1], 0, None))
    floor = np.sqrt(len(values) * np.finfo(np.float64).eps) * values[0]
    return _signed(values, vectors.T[::-1], origin + drift, floor)


def _signed(values: Float64, directions: Float64, mean: Float64, floor: float) -> Spectrum:
    """Cut at the rank; a direction's sign is arbitrary, so its largest part is made positive."""
    rank = int((values > floor).sum())
    strongest = directions[:rank]
    largest = np.take_along_axis(strongest, np.abs(strongest).argmax(axis=1)[:, None], axis=1)
    return Spectrum(values[:rank], strongest * np.sign(largest), mean)


def _cut(components: Spectrum, k: int) -> Float64:
    check_count("The number of dimensions", k)
    if k > len(components.values):
        raise InvalidRequest(
            f"{k} dimensions were asked for, but the embeddings vary in {len(components.values)}; "
            f"ask for at most that many."
        )
    return components.directions[:k]


def _subspace(
    kind: str, components: Spectrum, weight: Float64, center: Float64 | None, normalize: bool
) -> Projection:
    return Projection(
        kind=kind,
        d_in=len(components.mean),
        gates=mean_gates(1),
        w_q=weight[None],  # (1, k, d_in)
        w_k=weight[None],
        center=center,
        normalize_queries=normalize,
        normalize_keys=normalize,
    )
