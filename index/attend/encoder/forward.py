"""The encoder's own way through a BERT model on the processor: tokens, forward pass, pooling.

Three things cost the plain pass time on a CPU, measured on all-MiniLM-L6-v2 in bfloat16:
every linear layer reorders its weights for oneDNN on each call; tokens of padding are
multiplied like any others; and torch's fused attention kernel, built for memory and not for
short sequences, takes half as long again as two batched products and a softmax that stay in
the cache. Undoing the three embeds a fifth more documents a second (55 against 46).

`PackedForward` takes the place of the transformer's `forward`. The library prepares each call in
Python, though: for a short query that takes as long again as the model, and holds the interpreter
meanwhile. `DirectEncoder` goes from the tokenizer to the forward pass with nothing between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from attend.timings import timed
from attend.types import Float32, Int64

CELLS_AT_ONCE = 2**20
"""Attention scores of one step, 2 MiB in bfloat16: beyond that they leave the cache."""

PACKED_FOR_TOKENS = 4096
"""The number of rows oneDNN lays the weights out for; others work, from the same layout."""

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
        filled: (rows,) the places that are no padding, in the order of the rows.
        bias: (many, 1, 1, length) what is added to scores: -inf where a place is padding.
    """

    gather: Tensor
    filled: Tensor
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
        target = out[start : start + count]
        if padding is None:
            target.view(many, length, heads, per_head).copy_(by_sequence)
        else:
            target.copy_(torch.index_select(by_sequence.reshape(-1, width), 0, padding.filled))
    return out


def steps_of(lengths: Sequence[int], heads: int) -> list[Step]:
    """Put neighbours together, while that wastes little and holds at most `CELLS_AT_ONCE` scores.

    Args:
        lengths: ascending.

    >>> steps_of([3, 3, 500], heads=2)[0]
    Step(start=0, rows=6, many=2, length=3, padding=None)
    """
    steps: list[Step] = []
    start = first = used = 0
    for place, length in enumerate(lengths):
        cells = heads * (place + 1 - first) * length**2
        used += heads * length**2
        if place > first and (cells > CELLS_AT_ONCE or cells - used > MOST_WASTE):
            steps.append(_step(start, lengths[first:place]))
            start, first, used = start + steps[-1].rows, place, heads * length**2
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
    """Takes the place of a transformer's `forward`: token ids to the last layer's vectors.

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
        mask = attention_mask.bool()[order]
        steps = steps_of(mask.sum(dim=1).tolist(), self.heads)
        rows = self.packed(padded[order][mask], steps)
        return {"last_hidden_state": _unpack(rows, mask, order)}

    def packed(self, rows: Tensor, steps: Sequence[Step]) -> Tensor:
        """Run the layers over the embedded tokens that are not padding: (t, d) -> (t, d)."""
        count = len(rows)
        if count <= SMALL:
            rows = nn.functional.pad(rows, (0, 0, 0, -count % ROWS_TOGETHER))
        for layer in self.layers:
            rows = layer(rows, steps)
        return rows[:count]


def _unpack(rows: Tensor, mask: Tensor, order: Tensor) -> Tensor:
    """Put rows (t, d) back in their places (n, s, d), in the order the sequences came in."""
    ordered = rows.new_zeros(*mask.shape, rows.shape[1], dtype=torch.float32)
    ordered[mask] = rows.float()
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return ordered[back]


class DirectEncoder:
    """Encodes texts of a task as rows (n, d), not yet of length one."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        forward: PackedForward,
        prompts: Mapping[str, str | None],
        window: int,
        pooling: str,
    ) -> None:
        # A copy: the model's own is set anew by each call of the library.
        self._tokenizer = type(tokenizer).from_str(tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(window)
        self._forward = forward
        self._prompts = prompts
        self._pooling = pooling

    def __call__(self, texts: Sequence[str], task: str) -> Float32:
        with timed("tokenise"):
            prompt = self._prompts.get(task) or ""
            encodings = self._tokenizer.encode_batch_fast([prompt + text for text in texts])
            tokens = [encoding.ids for encoding in encodings]
        with timed("encode"), torch.inference_mode():
            # Sequences of like length stand side by side, so that attention takes them together.
            lengths = np.array([len(ids) for ids in tokens])
            order = np.argsort(lengths, kind="stable")
            rows = np.empty((len(texts), self._forward.width), dtype=np.float32)
            rows[order] = self._pooled([tokens[place] for place in order.tolist()], lengths[order])
        return rows

    def _pooled(self, tokens: Sequence[Sequence[int]], lengths: Int64) -> Float32:
        steps = steps_of(lengths.tolist(), self._forward.heads)
        hidden = self._forward.packed(self._embedded(tokens, lengths), steps)  # (t, d)
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        rows: Float32 = hidden.float().numpy()
        if self._pooling == "cls":
            return np.ascontiguousarray(rows[starts])
        means = np.add.reduceat(rows, starts, axis=0) / lengths[:, None]  # (n, d)
        return np.asarray(means, dtype=np.float32)

    def _embedded(self, tokens: Sequence[Sequence[int]], lengths: Int64) -> Tensor:
        """Return the first layer's rows (t, d) of token ids, one text after the other."""
        is_token = np.arange(lengths[-1]) < lengths[:, None]  # (n, s)
        padded = np.full(is_token.shape, self._forward.padding, dtype=np.int64)
        padded[is_token] = np.concatenate([np.asarray(ids) for ids in tokens])
        embedded = self._forward.embeddings(
            input_ids=torch.from_numpy(padded), token_type_ids=None
        )  # (n, s, d)
        rows: Tensor = embedded[torch.from_numpy(is_token)]
        return rows
