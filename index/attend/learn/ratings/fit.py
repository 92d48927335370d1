"""Fitting the model of ratings: every rating is a query to its user's others.

Queries and keys come from the centred text through learned maps, beside factors that begin with a
singular value decomposition of what the baseline leaves. A part of each history is left out at each
step, so that short histories are as usual as long ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attend.errors import Conflict
from attend.learn.fit import Watch
from attend.learn.ratings.batches import Batches
from attend.learn.ratings.data import Ratings
from attend.learn.ratings.net import MAPS, Drops, FittedRatings, Net, Shape
from attend.types import Float32


@dataclass(frozen=True)
class Recipe:
    """How to fit; the numbers were chosen on held-out parts of simulated ratings.

    Attributes:
        forget: up to which share of a history is left out.
        epochs: over all users; `steps` bounds the steps.
        users: in a step; cap: ratings of one user in a step.
        rate: of W; others are of an item's factors, of its votes and key biases, of its bias, and
            of what a head has (scale, levels, null, gate).
    """

    name: str
    shape: Shape = Shape(heads=8, width=16, factors=8, directions=96, scale=2.0)  # noqa: RUF009
    drops: Drops = Drops(inputs=0.3, unknown=0.05)  # noqa: RUF009
    forget: float = 0.5
    epochs: int = 10
    steps: tuple[int, int] = (150, 1500)
    users: int = 16
    cap: int = 128
    rate: float = 5e-3
    factor_rate: float = 1e-2
    term_rate: float = 5e-3
    bias_rate: float = 1e-3
    head_rate: float = 5e-3
    decay: float = 1e-2
    factor_decay: float = 0.1


def fit_ratings(
    ratings: Ratings,
    embeddings: Float32,
    recipe: Recipe,
    *,
    seed: int = 0,
    watch: Watch | None = None,
) -> FittedRatings:
    """Learn from ratings of items with these embeddings (n, d).

    Raises:
        Conflict: the loss is no longer a number.
    """
    # In units of their deviation: rates of learning are then right for stars and for percents.
    size = float(ratings.values.std()) or 1.0
    ends = float(ratings.values.min()), float(ratings.values.max())
    ratings = replace(ratings, values=ratings.values / size)
    random = np.random.default_rng(seed)
    batches = Batches(ratings, recipe.users, recipe.cap, recipe.forget, random)
    net = Net(ratings, embeddings, recipe.shape, seed)
    fewest, most = recipe.steps
    steps = min(max(recipe.epochs * batches.in_epoch, fewest), most)
    optimiser = _optimiser(net, recipe)
    schedule = net.torch.optim.lr_scheduler.LambdaLR(optimiser, lambda at: 1 - at / steps)
    for at, batch in enumerate(batches.drawn(steps)):
        if watch is not None:
            watch(at / steps)
        optimiser.zero_grad()
        errors = net.predicted(batch, recipe.drops) - net.torch.from_numpy(batch.truth)
        loss = (errors[net.torch.from_numpy(batch.asked)] ** 2).mean()
        if not bool(net.torch.isfinite(loss)):
            raise Conflict(
                "Training came to numbers that are not finite; look for documents with vectors or "
                "ratings of extreme size."
            )
        loss.backward()
        optimiser.step()
        schedule.step()
    fitted = net.fitted().times(size)
    low, high = ends
    return fitted._replace(model=replace(fitted.model, low=low, high=high))


def _optimiser(net: Net, recipe: Recipe) -> Any:
    groups = (
        (MAPS, recipe.rate, recipe.decay),
        (("factors",), recipe.factor_rate, recipe.factor_decay),
        (("votes", "key_bias"), recipe.term_rate, recipe.decay),
        (("bias",), recipe.bias_rate, recipe.decay),
        (("levels", "null", "gates", "log_scale"), recipe.head_rate, 0.0),
    )
    return net.torch.optim.AdamW(
        [
            {"params": [net.parameters[name] for name in names], "lr": rate, "weight_decay": decay}
            for names, rate, decay in groups
        ],
        betas=(0.9, 0.99),
    )
