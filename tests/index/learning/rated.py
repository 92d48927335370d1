"""Planted ratings: few groups of taste, which the texts tell in part."""

from __future__ import annotations

import numpy as np

from attend.learning.data import Ratings


def planted(
    seed: int = 0, users: int = 60, items: int = 50, each: int = 20, taste: float = 1.2
) -> tuple[Ratings, np.ndarray]:
    """Ratings by two opposite tastes for what lies on one direction; and the embeddings (n, 16).

    Half of that direction is in the texts.
    """
    rng = np.random.default_rng(seed)
    side = rng.choice([-1.0, 1.0], items)
    embeddings = rng.normal(size=(items, 16))
    embeddings[: items // 2, 0] += 4 * side[: items // 2]
    likes = rng.choice([-1.0, 1.0], users)
    quality, bias = rng.normal(0, 0.3, items), rng.normal(0, 0.3, users)
    by_user = np.repeat(np.arange(users), each)
    by_item = np.concatenate([rng.choice(items, each, replace=False) for _ in range(users)])
    values = 3 + quality[by_item] + bias[by_user] + taste * side[by_item] * likes[by_user]
    values = np.clip(np.rint(values + rng.normal(0, 0.4, len(values))), 1, 5)
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    return Ratings(by_user, by_item, values, users, items), unit.astype(np.float32)
