"""A BERT forward pass without padding and without unpacked weights, for the processor.

Three things cost the plain pass time on a CPU, measured on all-MiniLM-L6-v2 in bfloat16:
every linear layer reorders its weights for oneDNN on each call; tokens of padding are
multiplied like any others; and torch's fused attention kernel, built for memory and not for
short sequences, takes half as long again as two batched products and a softmax that stay in
the cache. Undoing the three embeds a fifth more documents a second (55 against 46).

The model keeps its tokenizer, prompts and pooling: only its transformer's `forward` is replaced,
and only once a trial shows that the two agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from attend.types import Float32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sentence_transformers import SentenceTransformer

ARCHITECTURES = frozenset({"bert", "camembert", "roberta", "xlm-roberta"})
"""Encoders made of this block and no other: full attention, exact GELU, norm after the sum."""

CELLS_AT_ONCE = 2**20
"""Attention scores of one step, 2 MiB in bfloat16: beyond that they leave the cache."""

PACKED_FOR_TOKENS = 4096
"""The number of rows oneDNN lays the weights out for; others work, from the same layout."""

TRIAL = ["A short text.", "One that is longer, so that a batch of the two needs padding."]

AGREEMENT = 0.999
"""The least cosine between a trial text's two embeddings; bfloat16 alone costs 0.0001."""


MOST_WASTE = 2**16
"""Scores of padding that one step may hold. So many cost what the operators of a step of its own
would, each of which also has to win the interpreter back from whoever took it meanwhile."""


FLOAT_LENGTH = 64
"""Up to this many tokens the softmax is float32: over rows that fill no whole register torch takes
three times as long in bfloat16, more than the conversion there and back."""

FLOAT_CELLS = 2**16
"""Up to so many scores all of attention is float32: oneDNN prepares a product in bfloat16 anew for
each new shape. Attention takes 1.0 ms of a lone query's 8 by this, and took 2.0 of 9."""

ROWS_TOGETHER = 8
"""The number of rows of a small call is filled up to a multiple of these, so that the operators of
one serve the next: preparing four of them takes 1.6 ms, and a lone query's products 3 to 5."""

SMALL = 128
"""Rows up to which a call is small: beyond, filling up costs what it saves."""


class Padding(NamedTuple):
    """Sequences of unequal lengths side by side, the longest of `length` tokens.

    Attributes:
        gather: (many * length,) each place's row, from the step's first on; 0 for padding.
        kept: (rows,) the places that are no padding, in the order of the rows.
        bias: (many, 1, 1, length) what is added to scores: -inf where a place is padding.
    """

    gather: Tensor
    kept: Tensor
    bias: Tensor


class Step(NamedTuple):
    """Neighbouring sequences that attention takes together.

    Attributes:
        start: the first one's first row.
        rows: of all of them.
        length: of the longest, in tokens.
        padding: None where all are as long.
    """

    start: int
    rows: int
    many: int
    length: int
    padding: Padding | None = None


class Linear:
    """x W^T + b with W laid out once in oneDNN's own blocks."""

    def __init__(self, *parts: nn.Linear) -> None:
        """Several layers over one input become one product, their outputs side by side."""
        weight = torch.cat([part.weight.detach() for part in parts])
        self.bias = torch.cat([part.bias.detach() for part in parts])
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_TOKENS)

    def __call__(self, rows: Tensor) -> Tensor:
        # (t, in) -> (t, out)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self.weight, self.bias, "none", [], ""
        )
        return product


class Layer:
    """One transformer block over packed rows: attention, then the feed-forward network."""

    def __init__(self, block: Any) -> None:
        attention, reader = block.attention, block.attention.self
        self.heads: int = reader.num_attention_heads
        self.project = Linear(reader.query, reader.key, reader.value)
        self.gather = Linear(attention.output.dense)
        self.widen = Linear(block.intermediate.dense)
        self.narrow = Linear(block.output.dense)
        self.after_attention: nn.LayerNorm = attention.output.LayerNorm
        self.after_network: nn.LayerNorm = block.output.LayerNorm

    def __call__(self, rows: Tensor, steps: Sequence[Step]) -> Tensor:
        seen = self.gather(attend(self.project(rows), self.heads, steps))  # (t, 3d) -> (t, d)
        rows = self.after_attention(seen.add_(rows))
        hidden = torch.ops.aten.gelu_(self.widen(rows))  # (t, d) -> (t, 4d)
        return self.after_network(self.narrow(hidden).add_(rows))  # type: ignore[no-any-return]


def attend(projected: Tensor, heads: int, steps: Sequence[Step]) -> Tensor:
    """Dot-product attention within each sequence (Vaswani et al. 2017): (t, 3d) -> (t, d).

    Rows after those of the last step are zeros.
    """
    width = projected.shape[1] // 3
    per_head = width // heads
    out = projected.new_empty(projected.shape[0], width)
    out[steps[-1].start + steps[-1].rows :] = 0
    for start, count, many, length, padding in steps:
        block = projected[start : start + count]
        if padding is not None:
            block = torch.index_select(block, 0, padding.gather)
        split = block.view(many, length, 3, heads, per_head).permute(2, 0, 3, 1, 4)
        if many * heads * length**2 <= FLOAT_CELLS and split.dtype == torch.bfloat16:
            split = split.float()
        query, key, value = split.reshape(3, many * heads, length, per_head)
        unused = query.new_empty(()).expand(many * heads, length, length)  # beta=0 never reads it
        scores = torch.baddbmm(
            unused, query, key.transpose(1, 2), beta=0, alpha=per_head**-0.5
        )  # (many*heads, length, length)
        if length <= FLOAT_LENGTH and scores.dtype == torch.bfloat16:
            scores = scores.float()
        if padding is not None:
            scores.view(many, heads, length, length).add_(padding.bias)
        mixed = torch.bmm(torch.softmax(scores, dim=-1).to(value.dtype), value)
        by_sequence = mixed.view(many, heads, length, per_head).transpose(1, 2)
        own = out[start : start + count]
        if padding is None:
            own.view(many, length, heads, per_head).copy_(by_sequence)
        else:
            own.copy_(torch.index_select(by_sequence.reshape(-1, width), 0, padding.kept))
    return out


def steps_of(lengths: Sequence[int], heads: int) -> list[Step]:
    """Neighbours together, while that wastes little and holds at most `CELLS_AT_ONCE` scores.

    Args:
        lengths: ascending.

    >>> steps_of([3, 3, 500], heads=2)[0]
    Step(start=0, rows=6, many=2, length=3, padding=None)
    """
    steps: list[Step] = []
    start = first = used = 0
    for at, length in enumerate(lengths):
        cells = heads * (at + 1 - first) * length**2
        used += heads * length**2
        if at > first and (cells > CELLS_AT_ONCE or cells - used > MOST_WASTE):
            steps.append(_step(start, lengths[first:at]))
            start, first, used = start + steps[-1].rows, at, heads * length**2
    return [*steps, _step(start, lengths[first:])]


def _step(start: int, lengths: Sequence[int]) -> Step:
    is_even = lengths[0] == lengths[-1]
    padding = None if is_even else _padding(lengths)
    return Step(start, sum(lengths), len(lengths), lengths[-1], padding)


def _padding(lengths: Sequence[int]) -> Padding:
    counts = torch.tensor(lengths)[:, None]
    places = torch.arange(lengths[-1])
    is_kept = places < counts  # (many, length)
    index = torch.where(is_kept, counts.cumsum(dim=0) - counts + places, 0)
    bias = torch.zeros(is_kept.shape).masked_fill_(~is_kept, -torch.inf)
    return Padding(index.flatten(), is_kept.flatten().nonzero()[:, 0], bias[:, None, None])


class PackedForward:
    """The transformer's `forward`, from token ids to the last layer's vectors.

    Takes ids, mask and token types of shape (n, s); the vectors have shape (n, s, d) and are
    float32, so that pooling adds no rounding of its own, with zeros at padding.
    """

    def __init__(self, transformer: Any) -> None:
        self.embeddings: nn.Module = transformer.embeddings
        self.layers = [Layer(block) for block in transformer.encoder.layer]
        self.heads: int = self.layers[0].heads
        self.width: int = transformer.config.hidden_size
        self.padding: int = transformer.config.pad_token_id or 0

    def __call__(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        **_: Any,
    ) -> dict[str, Tensor]:
        padded = self.embeddings(input_ids=input_ids, token_type_ids=token_type_ids)  # (n, s, d)
        # Sequences of like length stand side by side, so that attention takes them together.
        order = attention_mask.sum(dim=1).argsort(stable=True)
        kept = attention_mask.bool()[order]
        steps = steps_of(kept.sum(dim=1).tolist(), self.heads)
        rows = self.packed(padded[order][kept], steps)
        return {"last_hidden_state": _unpack(rows, kept, order)}

    def packed(self, rows: Tensor, steps: Sequence[Step]) -> Tensor:
        """The embedded tokens that are not padding, (t, d), as the last layer's vectors."""
        count = len(rows)
        if count <= SMALL:
            rows = nn.functional.pad(rows, (0, 0, 0, -count % ROWS_TOGETHER))
        for layer in self.layers:
            rows = layer(rows, steps)
        return rows[:count]


def _unpack(rows: Tensor, kept: Tensor, order: Tensor) -> Tensor:
    """(t, d) -> (n, s, d), in the order the sequences came in."""
    ordered = rows.new_zeros(*kept.shape, rows.shape[1], dtype=torch.float32)
    ordered[kept] = rows.float()
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return ordered[back]


def install(model: SentenceTransformer) -> bool:
    """Replace the transformer's `forward` where that is known to be right; says whether it was.

    A model of another architecture, an operator that this torch lacks, or a trial that disagrees
    leaves the model as it is.
    """
    transformer = getattr(model, "transformers_model", None)
    if transformer is None or not _suits(transformer.config):
        return False
    plain = model.encode(TRIAL, show_progress_bar=False)
    try:
        transformer.forward = PackedForward(transformer)
        packed = model.encode(TRIAL, show_progress_bar=False)
    except (AttributeError, KeyError, NotImplementedError, RuntimeError, TypeError):
        packed = None
    if packed is None or cosines(plain, packed).min() < AGREEMENT:
        vars(transformer).pop("forward", None)  # the class's own shows again
        return False
    # The packed copy is the model now; a second one would only hold memory.
    transformer.encoder.layer = nn.ModuleList()
    return True


def _suits(config: Any) -> bool:
    return (
        getattr(config, "model_type", None) in ARCHITECTURES
        and getattr(config, "hidden_act", None) == "gelu"
        and not getattr(config, "is_decoder", False)
        and not getattr(config, "output_hidden_states", False)
    )


def cosines(left: Float32, right: Float32) -> Float32:
    """Row by row: (n, d), (n, d) -> (n,)."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray((left * right).sum(axis=1) / lengths, dtype=np.float32)
