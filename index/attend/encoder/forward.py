"""The encoder's own way through a BERT model on the processor: tokens, forward pass, pooling.

Two things cost the plain pass time on a CPU: every linear layer reorders its weights for oneDNN on
each call, and tokens of padding are multiplied like any others.

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
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
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

PACKED_FOR_TOKENS = 4096
"""The number of rows oneDNN lays the weights out for; others work, from the same layout."""

ROWS_TOGETHER = 8
"""The number of rows of a call is filled up to a multiple of these, and of a 32nd to a 64th of it,
so that the operators of one serve the next: preparing four of them takes 1 ms for 24 rows and 18
for 1,903, whose products take 60."""

LEVELS = 127
"""The largest int8 that has its negative."""

SMALLEST = 1e-6
"""What takes the place of a scale of zero."""

ROWS_IN_CACHE = 512
"""Rows of a quantised product that go through its operators together: 3 MiB as int32."""


class Step(NamedTuple):
    """Neighbouring sequences of one length in tokens, from the row `start` on."""

    start: int
    many: int
    length: int


class Linear:
    """x W^T + b with W laid out once in oneDNN's own blocks."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.bias = bias
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_TOKENS)

    @classmethod
    def of(cls, weights: Mapping[str, Tensor], *names: str) -> Linear:
        """Several layers over one input become one product, their outputs side by side."""
        weight, bias = (
            torch.cat([weights[f"{name}.{part}"] for name in names]) for part in ("weight", "bias")
        )
        return cls(weight, bias)

    def __call__(self, rows: Tensor) -> Tensor:
        # (t, in) -> (t, out)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self.weight, self.bias, "none", [], ""
        )
        return product


def norm(weights: Mapping[str, Tensor], name: str, config: Any) -> Callable[[Tensor], Tensor]:
    """Return the layer that gives rows mean 0 and variance 1 before it scales and moves them."""
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return lambda rows: nn.functional.layer_norm(
        rows, weight.shape, weight, bias, config.layer_norm_eps
    )


class LowRank:
    """A linear layer beside a change of low rank, to be learned: x (W + B A)^T + b.

    LoRA (Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models").

    Args:
        a, b: (r, in) and (out, r), in float32.
    """

    def __init__(self, base: Linear, a: Tensor, b: Tensor) -> None:
        self.weight, self.bias = base.weight.to_dense(), base.bias
        self.a, self.b = a, b

    def __call__(self, rows: Tensor) -> Tensor:
        linear, a, b = nn.functional.linear, self.a.to(rows.dtype), self.b.to(rows.dtype)
        return linear(rows, self.weight, self.bias) + linear(linear(rows, a), b)

    def merged(self) -> Linear:
        """Return the layer with the change in its weights."""
        weight = self.weight.float() + self.b @ self.a
        return Linear(weight.to(self.weight.dtype), self.bias)


class Quantised:
    """x W^T + b by products of whole numbers: weights by channel, rows by token, in int8.

    A few channels of a layer's input are many times as large as the others, whose digits they would
    take. Where the input is the narrow side, half of their scale goes into the weights (Xiao et al.
    2023, "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language
    Models"), which costs a pass over it.

    Args:
        base: the layer in float32, which stays, to be tuned.
        inputs: (t, in) what it was given for sample texts.
    """

    def __init__(self, base: Linear, inputs: Tensor) -> None:
        self.weight, self.bias = base.weight, base.bias
        dense = base.weight.to_dense()  # (out, in)
        self._smooth: Tensor | None = None
        if dense.shape[1] < dense.shape[0]:
            ratios = inputs.abs().amax(dim=0).clamp_min(SMALLEST) / dense.abs().amax(dim=0)
            self._smooth = ratios.rsqrt().clamp(SMALLEST, 1 / SMALLEST)
            dense = dense / self._smooth
        scales = dense.abs().amax(dim=1).clamp_min(SMALLEST) / LEVELS
        integers = (dense / scales[:, None]).round_().to(torch.int8)
        self._integers, self._scales = integers.t().contiguous(), scales / LEVELS

    def __call__(self, rows: Tensor) -> Tensor:
        # (t, in) -> (t, out)
        result = rows.new_empty(len(rows), len(self._scales))
        for start in range(0, len(rows), ROWS_IN_CACHE):
            end = start + ROWS_IN_CACHE
            part, product = rows[start:end], result[start:end]
            if self._smooth is not None:
                part = part * self._smooth
            largest = torch.maximum(part.amax(dim=1), part.amin(dim=1).neg_())[:, None]
            largest = largest.clamp_min_(SMALLEST)
            integers = torch.mul(part, LEVELS / largest).round_().to(torch.int8)
            product.copy_(torch._int_mm(integers, self._integers)).mul_(largest)
            torch.addcmul(self.bias, product, self._scales, out=product)
        return result


Product = Linear | LowRank | Quantised


class Layer:
    """One transformer block over packed rows: attention, then the feed-forward network.

    Args:
        weights: those of a BERT model by the names that they have in its files.
        config: that of the model.
    """

    def __init__(self, weights: Mapping[str, Tensor], number: int, config: Any) -> None:
        block = f"encoder.layer.{number}"
        reader, output = f"{block}.attention.self", f"{block}.attention.output"
        self.heads: int = config.num_attention_heads
        self.project: Product = Linear.of(
            weights, f"{reader}.query", f"{reader}.key", f"{reader}.value"
        )
        self.gather: Product = Linear.of(weights, f"{output}.dense")
        self.widen: Product = Linear.of(weights, f"{block}.intermediate.dense")
        self.narrow: Product = Linear.of(weights, f"{block}.output.dense")
        self.after_attention = norm(weights, f"{output}.LayerNorm", config)
        self.after_network = norm(weights, f"{block}.output.LayerNorm", config)

    def products(self) -> dict[str, Product]:
        """Return the linear layers by name, in the order in which they come."""
        return {name: layer for name, layer in vars(self).items() if isinstance(layer, Product)}

    def with_products(self, products: Mapping[str, Product]) -> Layer:
        """Return the block with other linear layers."""
        other = copy(self)
        vars(other).update(products)
        return other

    def __call__(self, rows: Tensor, steps: Sequence[Step]) -> Tensor:
        seen = self.gather(attend(self.project(rows), self.heads, steps))  # (t, 3d) -> (t, d)
        rows = self.after_attention(seen.add_(rows))
        hidden = torch.ops.aten.gelu_(self.widen(rows))  # (t, d) -> (t, 4d)
        return self.after_network(self.narrow(hidden).add_(rows))


def attend(projected: Tensor, heads: int, steps: Sequence[Step]) -> Tensor:
    """Dot-product attention within each sequence (Vaswani et al. 2017): (t, 3d) -> (t, d).

    Rows after those of the last step are zeros.
    """
    width = projected.shape[1] // 3
    per_head = width // heads
    out = projected.new_empty(projected.shape[0], width)
    end = 0
    for start, many, length in steps:
        end = start + many * length
        split = projected[start:end].view(many, length, 3, heads, per_head)
        # Over three times (many, heads, length, per_head).
        mixed = nn.functional.scaled_dot_product_attention(*split.permute(2, 0, 3, 1, 4))
        out[start:end].view(many, length, heads, per_head).copy_(mixed.transpose(1, 2))
    out[end:] = 0
    return out


def steps_of(lengths: Int64) -> list[Step]:
    """Put neighbours of one length together; `lengths` (n,) ascend.

    >>> steps_of(np.array([3, 3, 500]))
    [Step(start=0, many=2, length=3), Step(start=6, many=1, length=500)]
    """
    distinct, counts = np.unique(lengths, return_counts=True)
    starts = np.cumsum(distinct * counts) - distinct * counts
    return [Step(*step) for step in np.stack([starts, counts, distinct], axis=1).tolist()]


@dataclass
class DirectEncoder:
    """Encodes texts of a task as rows (n, d), not yet of length one.

    Attributes:
        max_seq_length: the most tokens of a text that count.
        prompts: by task, what is put before a text.
        padding: the id of the token that fills up.
        pooling: one of `POOLINGS`.
        rest: the modules after pooling, but for one that makes rows of length one.
    """

    tokenizer: Tokenizer
    max_seq_length: int
    prompts: Mapping[str, str | None]
    embeddings: Callable[..., Tensor]
    padding: int
    layers: Sequence[Layer]
    pooling: str = "mean"
    rest: Sequence[Any] = ()

    device = torch.device("cpu")

    def __post_init__(self) -> None:
        # A copy: each call of the library sets the model's own again.
        self.tokenizer = type(self.tokenizer).from_str(self.tokenizer.to_str())
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.max_seq_length)

    def __call__(self, texts: Sequence[str], task: str) -> Float32:
        with timed("tokenise"):
            tokens = self.tokens(texts, task)
        with timed("encode"), torch.inference_mode():
            order, lengths, states = self.states(tokens)
            rows, starts = states.float().numpy(), np.cumsum(lengths) - lengths
            if self.pooling == "cls":
                pooled = rows[starts]
            else:
                pooled = np.add.reduceat(rows, starts, axis=0) / lengths[:, None]  # (n, d)
            pooled = self.finished(torch.from_numpy(pooled), states.dtype).numpy()
            result = np.empty(pooled.shape, dtype=np.float32)
            result[order] = pooled
        return result

    def tokens(self, texts: Sequence[str], task: str) -> list[Sequence[int]]:
        """Return the ids of the tokens of texts, under the prompt of a task."""
        prompt = self.prompts.get(task) or ""
        encodings = self.tokenizer.encode_batch_fast([prompt + text for text in texts])
        return [encoding.ids for encoding in encodings]

    def finished(self, pooled: Tensor, dtype: torch.dtype) -> Tensor:
        """Return pooled rows (n, d) after the modules that follow, in float32."""
        if self.rest:
            features = {"sentence_embedding": pooled.to(dtype)}
            for step in self.rest:
                features = step(features)
            pooled = features["sentence_embedding"]
        return pooled.float()

    def states(self, tokens: Sequence[Sequence[int]]) -> tuple[Int64, Int64, Tensor]:
        """Run the layers over the tokens of texts, by their ids.

        Sequences of like length stand side by side, so that attention takes them together.

        Returns: the order (n,) in which the texts stand, the shortest first; their lengths (n,) in
            it; the states (t, d) of their tokens, one text after the other.
        """
        lengths = np.array([len(ids) for ids in tokens])
        order = np.argsort(lengths, kind="stable")
        lengths = lengths[order]
        is_token = np.arange(lengths[-1]) < lengths[:, None]  # (n, s)
        padded = np.full(is_token.shape, self.padding, dtype=np.int64)
        padded[is_token] = np.concatenate([np.asarray(tokens[place]) for place in order.tolist()])
        embedded = self.embeddings(
            input_ids=torch.from_numpy(padded), token_type_ids=None
        )  # (n, s, d)
        rows: Tensor = embedded[torch.from_numpy(is_token)]
        count, steps = len(rows), steps_of(lengths)
        together = max(ROWS_TOGETHER, 1 << count.bit_length() >> 6)
        rows = nn.functional.pad(rows, (0, 0, 0, -count % together))
        for layer in self.layers:
            rows = layer(rows, steps)
        return order, lengths, rows[:count]


RANK = 16
"""Of the change of each linear layer."""


class QueryTuning:
    """Changes of low rank of all layers of an encoder, to be learned for its queries.

    Args:
        texts: (q,) of the queries; None of one that is a vector.

    Attributes:
        numbers: (p,) of each linear layer A and B, one layer after another; in float32, with a
            gradient. At first they change nothing.
    """

    def __init__(self, encoder: DirectEncoder, texts: Sequence[str | None], seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        numbers = []
        for outputs, inputs in _shapes(encoder):
            numbers.append(torch.randn(RANK * inputs, generator=draw) / math.sqrt(inputs))
            numbers.append(torch.zeros(outputs * RANK))
        self.numbers = torch.cat(numbers).requires_grad_()
        self._base = encoder
        self._is_text = np.array([bool(text) for text in texts], dtype=bool)
        self._tokens = encoder.tokens([text or "" for text in texts], "query")

    def __call__(self, places: Int64, embeddings: Tensor) -> Tensor:
        """Return the embeddings of some of the queries, with a gradient.

        Args:
            places: (n,) which.
            embeddings: (n, d) as they were: those of vectors stay so.
        """
        is_text = self._is_text[places]
        if is_text.any():
            embeddings = embeddings.clone()
            tokens = [self._tokens[place] for place in places[is_text].tolist()]
            embeddings[torch.from_numpy(is_text)] = self._embedded(tokens)
        return embeddings

    def _embedded(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        """Return the embeddings (n, d) of the tokens of texts, at length one."""
        encoder = tuned(self._base, self.numbers, merge=False)
        order, lengths, rows = encoder.states(tokens)
        place = torch.from_numpy(order)
        if encoder.pooling == "cls":
            pooled = rows[torch.from_numpy(np.cumsum(lengths) - lengths)].float()
        else:
            owner = torch.from_numpy(np.repeat(np.arange(len(order)), lengths))
            sums = torch.zeros(len(order), rows.shape[1]).index_add(0, owner, rows.float())
            pooled = sums / torch.from_numpy(lengths)[:, None]
        pooled = torch.zeros_like(pooled).index_copy(0, place, pooled)
        return nn.functional.normalize(encoder.finished(pooled, rows.dtype), dim=1)

    def learned(self) -> Float32:
        """Return the numbers (p,) in numpy."""
        return np.asarray(self.numbers.detach().numpy(), dtype=np.float32)


def tuned(encoder: DirectEncoder, numbers: Tensor, *, merge: bool = True) -> DirectEncoder:
    """Return an encoder with changes of low rank.

    Args:
        numbers: (p,) as `QueryTuning` has them, of any rank.
        merge: put them into the weights, which then have no gradient.

    Raises:
        ValueError: they are of an encoder of another shape.
    """
    shapes = _shapes(encoder)
    rank, beyond = divmod(len(numbers), sum(map(sum, shapes)))
    if beyond or not rank:
        raise ValueError(f"{len(numbers)} numbers are no change of layers of the shapes {shapes}")
    parts = iter(
        torch.split(numbers, [rank * size for shape in shapes for size in reversed(shape)])
    )
    layers = []
    for layer in encoder.layers:
        products: dict[str, Product] = {}
        for name, base in layer.products().items():
            a, b = next(parts).view(rank, -1), next(parts).view(-1, rank)
            changed = LowRank(base, a, b)  # type: ignore[arg-type]  # nothing is tuned twice
            products[name] = changed.merged() if merge else changed
        layers.append(layer.with_products(products))
    other = copy(encoder)
    other.layers = layers
    return other


def _shapes(encoder: DirectEncoder) -> list[tuple[int, int]]:
    """Return the outputs and inputs of all linear layers of an encoder."""
    every = [base for layer in encoder.layers for base in layer.products().values()]
    return [(base.weight.shape[0], base.weight.shape[1]) for base in every]


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


def direct(model: SentenceTransformer, window: int) -> DirectEncoder | None:
    """Return the direct way through a model, which takes over its layers.

    None for a model of other steps, an operator that this torch lacks, or a trial that disagrees:
    these leave the model as it is.
    """
    if not suits(model):
        return None
    modules: list[Any] = list(model.requires_grad_(False))
    transformer: Any = model.transformers_model
    config, weights = transformer.config, transformer.state_dict()
    try:
        encoder = DirectEncoder(
            tokenizer=model.tokenizer.backend_tokenizer,
            max_seq_length=window,
            prompts=model.prompts,
            embeddings=transformer.embeddings,
            padding=config.pad_token_id or 0,
            layers=[Layer(weights, number, config) for number in range(config.num_hidden_layers)],
            pooling=modules[1].pooling_mode,
            rest=[step for step in modules[2:] if type(step).__name__ != "Normalize"],
        )
        for task, encode in (("query", model.encode_query), ("document", model.encode_document)):
            plain = np.asarray(encode(TRIAL, show_progress_bar=False), dtype=np.float32)
            if not (unit(plain) * unit(encoder(TRIAL, task))).sum(axis=1).min() >= AGREEMENT:
                return None
    except (LookupError, AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return None
    # A second copy of the layers would only hold memory.
    transformer.encoder.layer = nn.ModuleList()
    return encoder


SAMPLES = [
    "the sea is wide and a ship sails on until night " * 14,
    "how wide is sea 3",
    "import numpy as np\nx = np.arange(10)[::2]",
    "In 1998 the committee (Smith et al.) reported 35% fewer cases of type-2 diabetes in men.",
    "My card was charged twice! Who can refund the 12.50 EUR?",
    "1",
    TRIAL[1],
    "The Treaty of Westphalia ended the Thirty Years' War, and with it Habsburg's claims. " * 4,
]
"""Texts of many kinds: by every other one int8 is fitted, by those between it is judged."""

QUANTISED_AGREEMENT = 0.995
"""The least cosine between a sample's embeddings in int8 and in float32."""


class Watched:
    """A linear layer that takes note of its inputs."""

    def __init__(self, layer: Product) -> None:
        self.layer = layer
        self.inputs: list[Tensor] = []

    def __call__(self, rows: Tensor) -> Tensor:
        self.inputs.append(rows)
        return self.layer(rows)


def quantised(encoder: DirectEncoder) -> DirectEncoder | None:
    """Return an encoder, in float32, with products in int8; None where its embeddings disagree."""
    fitting, result = copy(encoder), copy(encoder)
    watched: list[dict[str, Any]] = [
        {name: Watched(product) for name, product in layer.products().items()}
        for layer in encoder.layers
    ]
    pairs = list(zip(encoder.layers, watched, strict=True))
    fitting.layers = [layer.with_products(products) for layer, products in pairs]
    fitting(SAMPLES[::2], "document")
    result.layers = [
        layer.with_products(
            {
                name: Quantised(product.layer, torch.cat(product.inputs))
                for name, product in products.items()
            }
        )
        for layer, products in pairs
    ]
    try:
        exact, rough = (unit(way(SAMPLES[1::2], "document")) for way in (encoder, result))
    except (AttributeError, NotImplementedError, RuntimeError):  # torch lacks the operator here
        return None
    return result if (exact * rough).sum(axis=1).min() >= QUANTISED_AGREEMENT else None


COSINES = (0.2191, 0.0839, 0.2141)
"""The cosines of the trial texts' embeddings, as sentence-transformers computes them: of the first
and the second, of the first and the third, and of the second and the third."""

TOLERANCE = 0.01
"""How far off a cosine may be; bfloat16 alone costs 0.002."""


def read_default(folder: Path, dtype: torch.dtype) -> DirectEncoder | None:
    """Return the default model in a precision; None where it goes wrong on this processor."""
    config = SimpleNamespace(**json.loads((folder / "config.json").read_bytes()))
    limits = json.loads((folder / "sentence_bert_config.json").read_bytes())
    stored = load_file(folder / "model.safetensors")
    weights = {name: weight.to(dtype) for name, weight in stored.items()}
    try:
        encoder = DirectEncoder(
            tokenizer=Tokenizer.from_file(str(folder / "tokenizer.json")),
            max_seq_length=limits["max_seq_length"],
            prompts={},
            embeddings=embeddings(weights, config),
            padding=config.pad_token_id,
            layers=[Layer(weights, number, config) for number in range(config.num_hidden_layers)],
        )
        rows = unit(encoder(TRIAL, "document"))
    except (LookupError, AttributeError, NotImplementedError, RuntimeError):
        return None
    cosines = (rows @ rows.T)[np.triu_indices(len(rows), 1)]
    return encoder if (np.abs(cosines - COSINES) <= TOLERANCE).all() else None


def embeddings(weights: Mapping[str, Tensor], config: Any) -> Callable[..., Tensor]:
    """Return the first layer of BERT: what a token is, where it stands, and that it is of one text.

    It takes token ids (n, s) and returns rows (n, s, d).
    """
    names = ("word_embeddings", "token_type_embeddings", "position_embeddings")
    words, types, positions = (weights[f"embeddings.{name}.weight"] for name in names)
    normalised = norm(weights, "embeddings.LayerNorm", config)

    def embed(input_ids: Tensor, token_type_ids: None = None) -> Tensor:
        rows = nn.functional.embedding(input_ids, words) + types[0]
        return normalised(rows + positions[: input_ids.shape[1]])

    return embed
