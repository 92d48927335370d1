"""Booleans, categories and labels: the share of the weight that falls on each label."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import ClassVar

from attend.types import Json
from attend.values.blend import Blend, Block
from attend.values.conform import is_strings
from attend.values.kinds import Kind

_TIE_DIGITS = 12  # sums differ in their last bits with the order of blocks; a tie must not


class SharesBlend(Blend):
    """A distribution over labels, which sums to one, and the likeliest of them.

    A document with several labels spreads its weight evenly over them.
    """

    keys: ClassVar[tuple[str, ...]] = ("value", "distribution")

    def __init__(self, kind: Kind, labels: Callable[[Json], Sequence[str]]) -> None:
        """`labels` gives the labels of one value, each once; none where it is missing."""
        super().__init__(kind)
        self._labels = labels
        self._weight = 0.0
        self._shares: defaultdict[str, float] = defaultdict(float)

    def _take(self, block: Block) -> None:
        for value, weight in zip(block.values, block.weights.tolist(), strict=True):
            labels = self._labels(value)
            for label in labels:
                self._shares[label] += weight / len(labels)
            if labels:
                self._weight += weight

    def _covered(self) -> float:
        return self._weight

    def _distribution(self) -> dict[str, float]:
        shares = {label: share / self._weight for label, share in self._shares.items()}
        ranked = sorted(shares.items(), key=lambda item: (-round(item[1], _TIE_DIGITS), item[0]))
        return dict(ranked)

    def _found(self) -> dict[str, Json]:
        distribution = self._distribution()
        return {"value": next(iter(distribution)), "distribution": distribution}


class BooleanBlend(SharesBlend):
    """The probability of true; an even split answers false, the first of the tie by label."""

    keys = ("value", "probability", "distribution")

    def __init__(self) -> None:
        super().__init__("boolean", _truth)
        self._shares.update(true=0.0, false=0.0)

    def _found(self) -> dict[str, Json]:
        distribution = self._distribution()
        return {
            "value": next(iter(distribution)) == "true",
            "probability": distribution["true"],
            "distribution": distribution,
        }


def category_blend() -> SharesBlend:
    """One label to a document."""
    return SharesBlend("category", lambda value: (value,) if isinstance(value, str) else ())


def labels_blend() -> SharesBlend:
    """A list of labels to a document; one that is listed twice counts once."""
    return SharesBlend(
        "labels", lambda value: tuple(dict.fromkeys(value)) if is_strings(value) else ()
    )


def _truth(value: Json) -> Sequence[str]:
    if not isinstance(value, bool):
        return ()
    return ("true",) if value else ("false",)
