"""How the use of a logged search is read: which ranks people look at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attend.core.types import Float64
from attend.store.searches import SearchEntry


def examination(entries: Sequence[SearchEntry], ranks: int) -> Float64:
    """Return the chance (ranks,) that somebody looks at each rank, 1 at the first."""
    return np.asarray(1 / np.arange(1.0, ranks + 1))
