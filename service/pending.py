"""What stands in for `index.training` until it is there; then this file goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from index import Collection
from index.errors import Conflict
from index.requests import Request


class TrainRequest(Request):
    """How to train; every field has a default."""

    seed: int = 0


def train(
    collection: Collection,
    *,
    progress: Callable[[str, float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    **fields: Any,
) -> Mapping[str, Any]:
    raise Conflict(f"The collection {collection.name!r} cannot be trained by this version.")
