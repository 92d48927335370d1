"""Tokens: the states of an encoder's last layer, whose mean is the embedding of a text.

Where an encoder pools by the mean, the product of two embeddings is the sum of the products of
their tokens. Explanations show these, and late interaction compares the tokens one by one. A cache
keeps the embeddings of queries, or of tokens, up to a number of bytes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attend.core.arrays import unit
from attend.core.coalesce import timed
from attend.core.deadline import checked
from attend.core.types import Bool, Float16, Float32, Int64

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from tokenizers import Encoding, Tokenizer

    from attend.encoder.forward import DirectEncoder

ENTRY_BYTES = 400
"""What Python keeps for an entry besides the numbers and the characters, as measured."""


class Key(NamedTuple):
    """The encoder's name, what the text is to it (its prompt), and the text."""

    encoder: str
    task: str
    text: str


class Usage(NamedTuple):
    """Of a cache since it was made; `entries` and `size` (bytes) as they are now."""

    hits: int
    misses: int
    entries: int
    size: int


class EmbeddingCache:
    """The embeddings used last, for any number of encoders and threads.

    Args:
        limit: bytes that all entries may take together; 0 keeps nothing.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._rows: OrderedDict[Key, Float32 | Float16] = OrderedDict()
        self._size = self._hits = self._misses = 0
        self._lock = threading.Lock()

    def get(self, keys: Sequence[Key]) -> list[Any]:
        """The embedding (d,) of each key, None where it is not kept."""
        with self._lock:
            rows = [self._rows.get(key) for key in keys]
            for key, row in zip(keys, rows, strict=True):
                if row is not None:
                    self._rows.move_to_end(key)
            missed = sum(row is None for row in rows)
            self._misses += missed
            self._hits += len(keys) - missed
        return rows

    def put(self, key: Key, row: Float32 | Float16) -> None:
        """Keep an embedding, and let go of those that were not asked for longest."""
        copy = row.copy()  # a view would keep the whole batch in memory
        copy.flags.writeable = False
        if _size(key, copy) > self.limit:
            return
        with self._lock:
            if key in self._rows:
                return
            self._rows[key] = copy
            self._size += _size(key, copy)
            while self._size > self.limit:
                self._size -= _size(*self._rows.popitem(last=False))

    def usage(self) -> Usage:
        with self._lock:
            return Usage(self._hits, self._misses, len(self._rows), self._size)


def _size(key: Key, row: Float32 | Float16) -> int:
    # A text of wide characters takes up to four bytes for each.
    return row.nbytes + len(key.text) * (1 if key.text.isascii() else 4) + ENTRY_BYTES


CACHE_BYTES = 64 * 1024 * 1024
"""Bytes of the tokens that an encoder caches: some 400 passages of 200 tokens in 384 dimensions."""

TOGETHER = 32
"""Passages whose tokens are in memory at once: some 12 MB of 256 tokens in 384 dimensions."""


class TokenStates(NamedTuple):
    """The tokens of a text, whose mean is its embedding before that has length one.

    Attributes:
        vectors: (t, d) the states of the last layer.
        spans: (t, 2) the place of each token in the text, in characters.
        special: (t,) true for the tokens that the model adds, and those of its prompt.
    """

    vectors: Float32
    spans: Int64
    special: Bool

    @classmethod
    def of(cls, encoding: Encoding, vectors: Float32, prompt: str) -> TokenStates:
        """Return the states (t, d) of an encoded text that follows a prompt."""
        spans = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2) - len(prompt)
        special = np.array(encoding.special_tokens_mask, dtype=np.bool_) | (spans[:, 0] < 0)
        return cls(vectors, np.where(special[:, None], 0, spans), special)


TokenRun = Callable[[Sequence[str], str], list[TokenStates]]
"""Texts (n,) and the task they are for, as the tokens of each."""


def token_run(model: Any, window: int, direct: Any) -> TokenRun | None:
    """Return the function that reads a model's tokens; None where it does not pool by the mean.

    Args:
        model: of sentence-transformers, or the default one.
        window: the most tokens of a text that count.
        direct: the direct encoder that has taken over its layers; None where it has not.
    """
    if direct is not None:
        return _DirectTokens(direct) if direct.pooling == "mean" and not direct.rest else None
    modules: list[Any] = list(model)
    names = [type(module).__name__ for module in modules if type(module).__name__ != "Normalize"]
    if names == ["StaticEmbedding"]:
        return _StaticTokens(model)
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if names == ["Transformer", "Pooling"] and backend is not None:
        pooling = modules[1]
        if pooling.pooling_mode == "mean" and getattr(pooling, "include_prompt", True):
            return _LibraryTokens(model, backend, window)
    return None


class UnitTokens:
    """The tokens of texts at length one, without special ones; those read last are cached.

    Args:
        read: see `TokenRun`.
        encoder: its name.
        limit: bytes that the cache may take.
    """

    def __init__(self, read: TokenRun, encoder: str, limit: int = CACHE_BYTES) -> None:
        self._read = read
        self._encoder = encoder
        self.cache = EmbeddingCache(limit)

    def __call__(self, texts: Sequence[str], task: str) -> list[Float16]:
        """Return rows (t, d) of each text."""
        keys = [Key(self._encoder, f"{task} tokens", text) for text in texts]
        rows = self.cache.get(keys)
        missing = list(
            dict.fromkeys(key for key, row in zip(keys, rows, strict=True) if row is None)
        )
        fresh: dict[Key, Float16] = {}
        for start in range(0, len(missing), TOGETHER):
            part = missing[start : start + TOGETHER]
            states = self._read([key.text for key in part], task)
            for key, tokens in zip(checked(part), states, strict=True):
                fresh[key] = unit(tokens.vectors[~tokens.special]).astype(np.float16)
                self.cache.put(key, fresh[key])
        return [fresh[key] if row is None else row for key, row in zip(keys, rows, strict=True)]


class _DirectTokens:
    """The tokens of a direct encoder, from its own forward pass."""

    def __init__(self, direct: DirectEncoder) -> None:
        self._direct = direct

    def __call__(self, texts: Sequence[str], task: str) -> list[TokenStates]:
        import torch

        direct = self._direct
        with timed("tokenise"):
            prompt = direct.prompts.get(task) or ""
            # The slower of the two methods, which knows where a token stands.
            encodings = direct.tokenizer.encode_batch([prompt + text for text in texts])
        with timed("encode"), torch.inference_mode():
            lengths = np.array([len(one.ids) for one in encodings])
            order = np.argsort(lengths, kind="stable")  # as the encoder takes them
            tokens, ascending = [encodings[place].ids for place in order], lengths[order]
            rows = direct.hidden(direct.embedded(tokens, ascending), ascending.tolist())
            parts = np.split(rows.float().numpy(), np.cumsum(ascending)[:-1])
        places = np.argsort(order).tolist()
        return [
            TokenStates.of(encoding, parts[place], prompt)
            for encoding, place in zip(encodings, places, strict=True)
        ]


class _StaticTokens:
    """The tokens of a model that is a table of vectors."""

    def __init__(self, model: SentenceTransformer) -> None:
        module: Any = next(iter(model))
        self._table: Float32 = module.embedding.weight.detach().float().cpu().numpy()
        self._tokenizer = module.tokenizer
        self._prompts = model.prompts

    def __call__(self, texts: Sequence[str], task: str) -> list[TokenStates]:
        prompt = self._prompts.get(task) or ""
        encodings = self._tokenizer.encode_batch(
            [prompt + text for text in texts], add_special_tokens=False
        )
        return [TokenStates.of(one, self._table[one.ids], prompt) for one in encodings]


class _LibraryTokens:
    """The tokens of a model as the library reads them."""

    def __init__(self, model: SentenceTransformer, tokenizer: Tokenizer, window: int) -> None:
        self._model = model
        # A copy: each call of the library sets the model's own again.
        self._tokenizer = type(tokenizer).from_str(tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(window)

    def __call__(self, texts: Sequence[str], task: str) -> list[TokenStates]:
        prompt = self._model.prompts.get(task) or ""
        encodings = self._tokenizer.encode_batch([prompt + text for text in texts])
        encode = self._model.encode_query if task == "query" else self._model.encode_document
        tensors: Any = encode(
            list(texts),
            output_value="token_embeddings",
            batch_size=len(texts),
            show_progress_bar=False,
        )
        rows = [tensor.float().cpu().numpy() for tensor in tensors]
        return [
            TokenStates.of(encoding, vectors, prompt)
            for encoding, vectors in zip(encodings, rows, strict=True)
        ]
