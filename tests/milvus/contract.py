"""What the contract's tests share: documents drawn from a seed, and the formula as plain loops.

Both engines are compared with the same oracle and not with each other: sums over the same keys in
another order differ in their last bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attend.api.answers import Answer
from attend.core.types import Document
from tests.index.helpers import brute_logits, ranked, several_keys, soft_weights

WIDTH = 6
SCALE = 1 / np.sqrt(WIDTH)
"""The default one, for embeddings that are not of length one."""


class Drawn(NamedTuple):
    """A document of several keys, and beside it what the oracle reads."""

    document: Document
    keys: np.ndarray
    colour: str
    value: float


def drawn(ids: Iterable[str], seed: int) -> dict[str, Drawn]:
    """Documents of one to three keys, with a number as value and a colour to filter by."""
    rng = np.random.default_rng(seed)
    found = {}
    for id in ids:
        keys = rng.normal(size=(rng.integers(1, 4), WIDTH)).astype(np.float32)
        colour, value = str(rng.choice(["red", "blue", "green"])), float(rng.integers(100))
        payload = {"colour": colour, "rank": int(rng.integers(10))}
        document = several_keys(id, keys.tolist(), value=value, payload=payload)
        found[id] = Drawn(document, keys, colour, value)
    return found


def query(seed: int, width: int = WIDTH) -> list[float]:
    return np.random.default_rng(seed).normal(size=width).astype(np.float32).tolist()


def check(
    answer: Answer,
    keys: Mapping[str, Any],
    asked: Sequence[float],
    *,
    attend: int = 100,
    scale: float = SCALE,
    temperature: float = 1.0,
    **formula: Any,
) -> None:
    """All attended are listed, in the oracle's order and with SciPy's weights."""
    logits = brute_logits(asked, keys, scale=scale, **formula)
    best, found = ranked(logits, attend), [hit.id for hit in answer.hits]
    assert answer.attended == len(best) == len(found)
    close = {"rtol": 1e-5, "atol": 1e-5}
    # Where two logits are within rounding of each other, either order is right.
    np.testing.assert_allclose([logits[id] for id in found], [logits[id] for id in best], **close)
    np.testing.assert_allclose([hit.score for hit in answer.hits],
                               [logits[id] for id in found], **close)  # fmt: skip
    np.testing.assert_allclose(
        [hit.weight for hit in answer.hits], soft_weights(logits, found, temperature), atol=1e-6
    )
