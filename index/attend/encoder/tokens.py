"""Tokens: the states of an encoder's last layer, whose mean is the embedding of a text.

Where an encoder pools by the mean, the product of two embeddings is the sum of the products of
their tokens. Explanations show these, and late interaction compares the tokens one by one. A cache
keeps the embeddings of queries, or of tokens, up to a number of bytes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
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

    def filled(
        self, keys: Sequence[Key], make: Callable[[list[Key]], Iterable[Float32 | Float16]]
    ) -> list[Any]:
        """Return the embedding of each key; those that are not kept are made, each once."""
        rows, fresh = self.get(keys), {}
        missing = dict.fromkeys(key for key, row in zip(keys, rows, strict=True) if row is None)
        for key, row in zip(missing, make(list(missing)) if missing else (), strict=True):
            fresh[key] = row
            self.put(key, row)
        return [fresh[key] if row is None else row for key, row in zip(keys, rows, strict=True)]

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
        pools = direct.pooling == "mean" and not direct.rest
        return partial(_direct_tokens, direct) if pools else None
    modules: list[Any] = list(model)
    names = [type(module).__name__ for module in modules if type(module).__name__ != "Normalize"]
    if names == ["StaticEmbedding"]:
        table = modules[0].embedding.weight.detach().float().cpu().numpy()
        return partial(_static_tokens, model, table)
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if names == ["Transformer", "Pooling"] and backend is not None:
        pooling = modules[1]
        if pooling.pooling_mode == "mean" and getattr(pooling, "include_prompt", True):
            # A copy: each call of the library sets the model's own again.
            tokenizer = type(backend).from_str(backend.to_str())
            tokenizer.no_padding()
            tokenizer.enable_truncation(window)
            return partial(_library_tokens, model, tokenizer)
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

        def make(missing: Sequence[Key]) -> Iterator[Float16]:
            for start in range(0, len(missing), TOGETHER):
                part = [key.text for key in missing[start : start + TOGETHER]]
                for tokens in checked(self._read(part, task)):
                    yield unit(tokens.vectors[~tokens.special]).astype(np.float16)

        keys = [Key(self._encoder, f"{task} tokens", text) for text in texts]
        return self.cache.filled(keys, make)


def _direct_tokens(direct: DirectEncoder, texts: Sequence[str], task: str) -> list[TokenStates]:
    """Return the tokens of a direct encoder, from its own forward pass."""
    import torch

    with timed("tokenise"):
        prompt = direct.prompts.get(task) or ""
        # The slower of the two methods, which knows where a token stands.
        encodings = direct.tokenizer.encode_batch([prompt + text for text in texts])
    with timed("encode"), torch.inference_mode():
        order, lengths, rows = direct.states([encoding.ids for encoding in encodings])
        parts = np.split(rows.float().numpy(), np.cumsum(lengths)[:-1])
    places = np.argsort(order).tolist()
    return [
        TokenStates.of(encoding, parts[place], prompt)
        for encoding, place in zip(encodings, places, strict=True)
    ]


def _static_tokens(
    model: Any, table: Float32, texts: Sequence[str], task: str
) -> list[TokenStates]:
    """Return the tokens of a model that is a table of vectors."""
    prompt = model.prompts.get(task) or ""
    encodings = model[0].tokenizer.encode_batch(
        [prompt + text for text in texts], add_special_tokens=False
    )
    return [TokenStates.of(one, table[one.ids], prompt) for one in encodings]


def _library_tokens(
    model: SentenceTransformer, tokenizer: Tokenizer, texts: Sequence[str], task: str
) -> list[TokenStates]:
    """Return the tokens of a model as the library reads them."""
    prompt = model.prompts.get(task) or ""
    encodings = tokenizer.encode_batch([prompt + text for text in texts])
    encode = model.encode_query if task == "query" else model.encode_document
    tensors: Any = encode(
        list(texts),
        output_value="token_embeddings",
        batch_size=len(texts),
        show_progress_bar=False,
    )
    return [
        TokenStates.of(encoding, tensor.float().cpu().numpy(), prompt)
        for encoding, tensor in zip(encodings, tensors, strict=True)
    ]
