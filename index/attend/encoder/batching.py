"""How texts are grouped for the model: each once, like with like, so many tokens at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from attend.types import Int64

TOKENS_PER_BATCH = 2048
"""On one core: eight texts of 256 tokens fill the matrix product; more only take memory."""

CHARACTERS_PER_TOKEN = 4
"""English in WordPiece. Only the size of a batch depends on it, never the result."""

SPECIAL_TOKENS = 2


class Distinct(NamedTuple):
    """`texts[places[i]]` is the i-th text given."""

    texts: list[str]
    places: Int64


def distinct(texts: Sequence[str]) -> Distinct:
    """Each different text once, in order of first appearance.

    >>> distinct(["a", "b", "a"])
    Distinct(texts=['a', 'b'], places=array([0, 1, 0]))
    """
    place: dict[str, int] = {}
    places = [place.setdefault(text, len(place)) for text in texts]
    return Distinct(list(place), np.array(places, dtype=np.int64))


def batches(texts: Sequence[str], window: int, cores: int = 1) -> Iterator[list[int]]:
    """Positions in `texts`, grouped by length; every position comes exactly once.

    Longest first, so that a model too large for the memory fails at once and not after an hour.
    A batch holds about `TOKENS_PER_BATCH` tokens, fewer where some of the `cores` would have none,
    and never less than one text.
    """
    costs = [cost(text, window) for text in texts]
    budget = min(TOKENS_PER_BATCH, -(-sum(costs) // cores))
    batch: list[int] = []
    spent = 0
    for place in sorted(range(len(texts)), key=lambda at: len(texts[at]), reverse=True):
        if batch and spent + costs[place] > budget:
            yield batch
            batch, spent = [], 0
        batch.append(place)
        spent += costs[place]
    if batch:
        yield batch


def cost(text: str, window: int) -> int:
    """A guess from the characters: counting would cost as much as the tokenizer itself."""
    return min(window, len(text) // CHARACTERS_PER_TOKEN + SPECIAL_TOKENS)
