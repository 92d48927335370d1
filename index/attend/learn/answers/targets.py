"""What the answer objective learns from: documents, and what each of them answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attend.learn.data import Memory, Sparse
from attend.types import Float32, Float64, Int64

NEAR = 0.5
"""Of the standard deviation: a number this close to a query's own can answer it."""


@dataclass(frozen=True)
class Targets:
    """What n documents answer; one of the two is None.

    Attributes:
        shares: sparse (n, c), the share of each label in a document's value; rows sum to one.
        numbers: (n, v), about their mean and in units of their standard deviation.
        center, spread: that mean (v,), and that standard deviation.
    """

    shares: Sparse | None = None
    numbers: Float32 | None = None
    center: Float64 | None = None
    spread: float = 1.0

    def agreement(self, asked: Int64, documents: Int64) -> Float32:
        """(b, k): the share of a document's value that answers a query as its own value would."""
        if self.shares is not None:
            right = (self.shares[asked] > 0).astype(np.float32)
            found: Float32 = (right @ self.shares[documents].T).toarray()
            return found
        numbers = self.given
        squares = (numbers[asked] ** 2).sum(axis=1)[:, None] + (numbers[documents] ** 2).sum(axis=1)
        distance = (squares - 2 * numbers[asked] @ numbers[documents].T) / numbers.shape[1]
        near: Float32 = (distance <= NEAR**2).astype(np.float32)
        return near

    @property
    def given(self) -> Float32:
        """The numbers; of labels their shares (n, c)."""
        if self.numbers is not None:
            return self.numbers
        assert self.shares is not None  # one of the two is there
        dense: Float32 = self.shares.toarray()
        return dense


@dataclass(frozen=True)
class Answers:
    """Documents with their values.

    Attributes:
        queries: (n, d), each document as a query.
        groups: (n,), near-duplicates have one number.
    """

    memory: Memory
    queries: Float32
    groups: Int64
    targets: Targets
