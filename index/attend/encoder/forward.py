"""The encoder's own way through a BERT model on the processor: tokens, forward pass, pooling.

Three things cost the plain pass time on a CPU, measured on all-MiniLM-L6-v2 in bfloat16:
every linear layer reorders its weights for oneDNN on each call; tokens of padding are
multiplied like any others; and torch's fused attention kernel, built for memory and not for
short sequences, takes half as long again as two batched products and a softmax that stay in
the cache. Undoing the three embeds a fifth more documents a second (55 against 46).

The library also prepares each call in Python: for a short query that takes as long again as the
model, and holds the interpreter meanwhile. `DirectEncoder` goes from the tokenizer to the forward
pass with nothing between.

The default model is read from its package by torch and its tokenizer alone: importing
sentence-transformers takes most of the time from a start to the first answer (5 of 9 seconds, on
two cores). Its weights are known by their checksum, and what they answer is known as well, so that
a processor on which this way goes wrong is noticed, and the library is used instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from attend.core.arrays import unit
from attend.core.coalesce import timed
from attend.core.types import Float32, Int64

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

ARCHITECTURES = frozenset({"bert", "camembert", "roberta", "xlm-roberta"})
"""Encoders made of this block and no other: full attention, exact GELU, norm after the sum."""

POOLINGS = ("mean", "cls")

TRIAL = ["", "A short text.", "One that is longer, so that a batch of them needs order. " * 40]

AGREEMENT = 0.999
"""The least cosine between a trial text's two embeddings; bfloat16 alone costs 0.0001."""

CELLS_AT_ONCE = 2**20
"""Attention scores of one step, 2 MiB in bfloat16: beyond that they leave the cache."""

PACKED_FOR_TOKENS = 4096
"""The number of rows oneDNN lays the weights out for; others work, from the same layout."""

MOST_WASTE = 2**16
"""Scores of padding that one step may hold. They cost what the operators of a step of its own
would, each of which also has to win the interpreter back from whoever took it meanwhile."""

FLOAT_LENGTH = 64
"""Up to this many tokens the softmax is float32: over rows that fill no whole register torch takes
three times as long in bfloat16, more than the conversion there and back."""

FLOAT_CELLS = 2**16
"""Up to this number of scores all of attention is float32: oneDNN prepares a product in bfloat16
for each new shape. Attention takes 1.0 ms of a lone query's 8 by this, and took 2.0 of 9."""

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


class Parts(NamedTuple):
    """What a direct encoder is made of.

    Attributes:
        prompts: by task, what is put before a text.
        padding: the id of the token that fills up.
        blocks: the transformer's, as the library has them.
        pooling: one of `POOLINGS`.
        rest: the modules after pooling, but for one that makes rows of length one.
    """

    tokenizer: Tokenizer
    prompts: Mapping[str, str | None]
    embeddings: Callable[..., Tensor]
    padding: int
    blocks: Sequence[Any]
    pooling: str
    rest: Sequence[Any] = ()


class DirectEncoder:
    """Encodes texts of a task as rows (n, d), not yet of length one."""

    def __init__(self, parts: Parts, window: int) -> None:
        """
        Args:
            window: the most tokens of a text that count.
        """
        # A copy: each call of the library sets the model's own again.
        self.tokenizer = type(parts.tokenizer).from_str(parts.tokenizer.to_str())
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(window)
        self.prompts = parts.prompts
        self._embeddings = parts.embeddings
        self._padding = parts.padding
        self._layers = [Layer(block) for block in parts.blocks]
        self.pooling = parts.pooling
        self.rest = parts.rest

    def __call__(self, texts: Sequence[str], task: str) -> Float32:
        with timed("tokenise"):
            prompt = self.prompts.get(task) or ""
            encodings = self.tokenizer.encode_batch_fast([prompt + text for text in texts])
            tokens = [encoding.ids for encoding in encodings]
        with timed("encode"), torch.inference_mode():
            # Sequences of like length stand side by side, so that attention takes them together.
            lengths = np.array([len(ids) for ids in tokens])
            order = np.argsort(lengths, kind="stable")
            pooled = self._pooled([tokens[place] for place in order.tolist()], lengths[order])
            rows = np.empty_like(pooled)
            rows[order] = pooled
        return rows

    def _pooled(self, tokens: Sequence[Sequence[int]], lengths: Int64) -> Float32:
        """Return rows (n, d) of token ids, the shortest text first."""
        embedded = self.embedded(tokens, lengths)
        rows = self.hidden(embedded, lengths.tolist()).float().numpy()  # (t, d)
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        if self.pooling == "cls":
            pooled = rows[starts]
        else:
            pooled = np.add.reduceat(rows, starts, axis=0) / lengths[:, None]  # (n, d)
        features = {"sentence_embedding": torch.from_numpy(pooled).to(embedded.dtype)}
        for step in self.rest:
            features = step(features)
        if self.rest:
            pooled = features["sentence_embedding"].float().numpy()
        return np.ascontiguousarray(pooled, dtype=np.float32)

    def hidden(self, rows: Tensor, lengths: Sequence[int]) -> Tensor:
        """Run the layers over embedded tokens, one text after the other: (t, d) -> (t, d)."""
        count, steps = len(rows), steps_of(lengths, self._layers[0].heads)
        if count <= SMALL:
            rows = nn.functional.pad(rows, (0, 0, 0, -count % ROWS_TOGETHER))
        for layer in self._layers:
            rows = layer(rows, steps)
        return rows[:count]

    def embedded(self, tokens: Sequence[Sequence[int]], lengths: Int64) -> Tensor:
        """Return the first layer's rows (t, d) of token ids, one text after the other."""
        is_token = np.arange(lengths[-1]) < lengths[:, None]  # (n, s)
        padded = np.full(is_token.shape, self._padding, dtype=np.int64)
        padded[is_token] = np.concatenate([np.asarray(ids) for ids in tokens])
        embedded = self._embeddings(
            input_ids=torch.from_numpy(padded), token_type_ids=None
        )  # (n, s, d)
        rows: Tensor = embedded[torch.from_numpy(is_token)]
        return rows


def suits(model: SentenceTransformer) -> bool:
    """Return whether a model has only steps that `DirectEncoder` takes, in their order."""
    modules: list[Any] = list(model)
    config = getattr(getattr(model, "transformers_model", None), "config", None)
    return (
        getattr(config, "model_type", None) in ARCHITECTURES
        and getattr(config, "hidden_act", None) == "gelu"
        and not getattr(config, "is_decoder", False)
        and not getattr(config, "output_hidden_states", False)
        and isinstance(getattr(model.tokenizer, "backend_tokenizer", None), Tokenizer)
        and [type(module).__name__ for module in modules[:2]] == ["Transformer", "Pooling"]
        and modules[1].pooling_mode in POOLINGS
        and getattr(modules[1], "include_prompt", True)
    )


def parts_of(model: SentenceTransformer) -> Parts:
    """Return the parts of a model that `suits`."""
    modules: list[Any] = list(model)
    transformer: Any = model.transformers_model
    return Parts(
        tokenizer=model.tokenizer.backend_tokenizer,
        prompts=model.prompts,
        embeddings=transformer.embeddings,
        padding=transformer.config.pad_token_id or 0,
        blocks=transformer.encoder.layer,
        pooling=modules[1].pooling_mode,
        rest=[step for step in modules[2:] if type(step).__name__ != "Normalize"],
    )


def direct(model: SentenceTransformer, window: int) -> DirectEncoder | None:
    """Return the direct way through a model, which takes over its layers.

    None for a model of other steps, an operator that this torch lacks, or a trial that disagrees:
    these leave the model as it is.
    """
    if not suits(model):
        return None
    try:
        encoder = DirectEncoder(parts_of(model), window)
        for task, encode in (("query", model.encode_query), ("document", model.encode_document)):
            plain = np.asarray(encode(TRIAL, show_progress_bar=False), dtype=np.float32)
            if not (unit(plain) * unit(encoder(TRIAL, task))).sum(axis=1).min() >= AGREEMENT:
                return None
    except (LookupError, AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return None
    # A second copy of the layers would only hold memory.
    model.transformers_model.encoder.layer = nn.ModuleList()  # type: ignore[union-attr]
    return encoder


COSINES = (0.2191, 0.0839, 0.2141)
"""The cosines of the trial texts' embeddings, as sentence-transformers computes them: of the first
and the second, of the first and the third, and of the second and the third."""

TOLERANCE = 0.01
"""How far off a cosine may be; bfloat16 alone costs 0.002."""


class DefaultModel:
    """The attributes of a sentence-transformers model that a `SentenceEncoder` uses.

    Attributes:
        max_seq_length: the most tokens of a text that count.
    """

    def __init__(self, folder: Path) -> None:
        self._config = _settings(folder / "config.json")
        self._weights = load_file(folder / "model.safetensors")
        self.max_seq_length: int = _settings(folder / "sentence_bert_config.json")["max_seq_length"]
        self.device = torch.device("cpu")
        self.prompts: Mapping[str, str | None] = {}
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer = SimpleNamespace(backend_tokenizer=tokenizer)

    def direct(self, dtype: torch.dtype) -> DirectEncoder | None:
        """Return the encoder in a precision; None where it goes wrong on this processor.

        The encoder takes over the weights: a second call has none.
        """
        weights, self._weights = self._weights, {}
        layers = range(self._config["num_hidden_layers"])
        try:
            parts = Parts(
                tokenizer=self.tokenizer.backend_tokenizer,
                prompts=self.prompts,
                embeddings=Embeddings(self._layers(weights, "embeddings.", dtype)),
                padding=self._config["pad_token_id"],
                blocks=[self._block(weights, f"encoder.layer.{layer}.", dtype) for layer in layers],
                pooling="mean",
            )
            encoder = DirectEncoder(parts, self.max_seq_length)
            rows = unit(encoder(TRIAL, "document"))
        except (LookupError, AttributeError, NotImplementedError, RuntimeError):
            return None
        return encoder if is_known(rows) else None

    def _block(self, weights: Mapping[str, Tensor], prefix: str, dtype: torch.dtype) -> Any:
        block = self._layers(weights, prefix, dtype)
        block.attention.self.num_attention_heads = self._config["num_attention_heads"]
        return block

    def _layers(self, weights: Mapping[str, Tensor], prefix: str, dtype: torch.dtype) -> Any:
        """Return the layers below a prefix as the attributes that their names spell."""
        root = SimpleNamespace()
        names = [name for name in weights if name.startswith(prefix) and name.endswith(".weight")]
        for name in names:
            stem = name.removesuffix(".weight")
            *parents, layer = stem.removeprefix(prefix).split(".")
            place = root
            for parent in parents:
                place = place.__dict__.setdefault(parent, SimpleNamespace())
            weight, bias = weights[name].to(dtype), weights.get(f"{stem}.bias")
            bias = bias.to(dtype) if bias is not None else None
            if layer == "LayerNorm":
                setattr(place, layer, Norm(weight, bias, self._config["layer_norm_eps"]))
            else:
                setattr(place, layer, SimpleNamespace(weight=weight, bias=bias))
        return root


class Norm(NamedTuple):
    """A layer that gives each row the mean 0 and the variance 1 before it scales and moves it."""

    weight: Tensor
    bias: Tensor | None
    eps: float

    def __call__(self, rows: Tensor) -> Tensor:
        return nn.functional.layer_norm(rows, self.weight.shape, self.weight, self.bias, self.eps)


class Embeddings:
    """The first layer of BERT: what a token is, where it stands, and that it is of one text."""

    def __init__(self, layers: Any) -> None:
        self._words: Tensor = layers.word_embeddings.weight
        self._type: Tensor = layers.token_type_embeddings.weight[0]
        self._positions: Tensor = layers.position_embeddings.weight
        self._norm: Norm = layers.LayerNorm

    def __call__(self, input_ids: Tensor, token_type_ids: None = None) -> Tensor:
        """Return rows (n, s, d) of token ids (n, s)."""
        words = nn.functional.embedding(input_ids, self._words) + self._type
        return self._norm(words + self._positions[: input_ids.shape[1]])


def is_known(rows: Float32) -> bool:
    """Return whether the trial texts' rows (3, d), of length one, have the known cosines."""
    cosines = (rows @ rows.T)[np.triu_indices(len(rows), 1)]
    return bool((np.abs(cosines - COSINES) <= TOLERANCE).all())


def _settings(file: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return settings
