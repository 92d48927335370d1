"""How often a test that draws its cases tries them: as often as it says at night, less by day."""

from __future__ import annotations

import os

MANY = "nightly"
"""The value of HYPOTHESIS_PROFILE with which every case is tried; otherwise a third of them."""


def some(count: int, fewest: int = 1) -> int:
    """Return the cases of `count` to try: all of them at night, and otherwise a third."""
    if os.environ.get("HYPOTHESIS_PROFILE") == MANY:
        return count
    return min(count, max(fewest, count // 3))
