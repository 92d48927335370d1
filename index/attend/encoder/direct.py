"""From texts to embeddings with nothing between the tokenizer and the packed forward pass.

The library's own way of encoding prepares each call in Python: for one short query that takes as
long again as the model, and while it holds the interpreter nobody else is answered. This does
the same for the models whose every step is known: tokens, a packed transformer, and the mean of
a text's tokens or its first one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import Tokenizer

from attend.encoder.fused import AGREEMENT, PackedForward, cosines, steps_of
from attend.encoder.model import TASKS
from attend.timings import timed
from attend.types import Float32, Int64

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

TRIAL = ["", "A short text.", "One that is longer, so that a batch of them needs order. " * 40]

POOLINGS = ("mean", "cls")


class DirectEncoder:
    """Texts of a task as rows (n, d), not yet of length one."""

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
            found = self._tokenizer.encode_batch_fast([prompt + text for text in texts])
            tokens = [each.ids for each in found]
        with timed("encode"), torch.inference_mode():
            # Sequences of like length stand side by side, so that attention takes them together.
            lengths = np.array([len(each) for each in tokens])
            order = np.argsort(lengths, kind="stable")
            rows = np.empty((len(texts), self._forward.width), dtype=np.float32)
            rows[order] = self._pooled([tokens[at] for at in order.tolist()], lengths[order])
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

    def _embedded(self, tokens: Sequence[Sequence[int]], lengths: Int64) -> torch.Tensor:
        """Token ids as the first layer's rows, (t, d), one text after the other."""
        kept = np.arange(lengths[-1]) < lengths[:, None]  # (n, s)
        padded = np.full(kept.shape, self._forward.padding, dtype=np.int64)
        padded[kept] = np.concatenate([np.asarray(each) for each in tokens])
        embedded = self._forward.embeddings(
            input_ids=torch.from_numpy(padded), token_type_ids=None
        )  # (n, s, d)
        rows: torch.Tensor = embedded[torch.from_numpy(kept)]
        return rows


def direct(model: SentenceTransformer, window: int) -> DirectEncoder | None:
    """The direct way through a model; None where a step is unknown, or a trial disagrees."""
    made = _made(model, window)
    if made is None:
        return None
    for task in TASKS:
        encode = model.encode_query if task == "query" else model.encode_document
        plain = np.asarray(encode(TRIAL, show_progress_bar=False), dtype=np.float32)
        try:
            ours = made(TRIAL, task)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            return None
        if not cosines(plain, ours).min() >= AGREEMENT:
            return None
    return made


def _made(model: SentenceTransformer, window: int) -> DirectEncoder | None:
    modules: list[Any] = list(model)
    forward = getattr(getattr(model, "transformers_model", None), "forward", None)
    tokenizer = getattr(model.tokenizer, "backend_tokenizer", None)
    names = [type(module).__name__ for module in modules]
    if (
        not isinstance(forward, PackedForward)
        or not isinstance(tokenizer, Tokenizer)
        or names[:2] != ["Transformer", "Pooling"]
        or names[2:] not in ([], ["Normalize"])
        or modules[1].pooling_mode not in POOLINGS
        or not getattr(modules[1], "include_prompt", True)
    ):
        return None
    return DirectEncoder(tokenizer, forward, model.prompts, window, modules[1].pooling_mode)
