"""The default model, read from its package by torch and its tokenizer alone.

Importing sentence-transformers takes most of the time from a start to the first answer (5 of 9
seconds, on two cores). The default model needs nothing of it: `forward` has the whole way from a
text to a row. Its weights are known by their checksum, and what they answer is known as well, so
that a processor on which this way goes wrong is noticed, and the library is used instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from attend.core.arrays import unit
from attend.core.types import Float32
from attend.encoder.forward import TRIAL, DirectEncoder, Parts

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
