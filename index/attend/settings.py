"""Settings of one collection, stored beside it: fixed at its creation, read everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from attend.errors import Damaged
from attend.types import Json

LATER = {"recall", "exact_below"}
"""Settings that collections of earlier versions do not have."""


@dataclass(frozen=True)
class Settings:
    """The settings of a collection.

    Attributes:
        encoder: name or folder of the model; None where documents bring their vectors.
        dimension: width of every embedding.
        normalize: vectors that callers bring are scaled to length one.
        scorer, scale: the default comparison and the factor on it (None: by the scorer).
        passages, overlap: whether long texts are split, and tokens that neighbours share.
        values: declared value types, or None to infer them.
        recall, exact_below: what published indexes must do (`attend.keys.Wanted`).
    """

    encoder: str | None
    dimension: int
    normalize: bool = False
    scorer: Literal["dot", "cosine", "laplace"] = "dot"
    scale: float | None = None
    passages: bool = True
    overlap: int | None = None
    values: Json = None
    recall: float = 0.95
    exact_below: int | None = None

    @property
    def unit_embeddings(self) -> bool:
        """True where stored embeddings have length one."""
        return self.encoder is not None or self.normalize

    def stored(self) -> dict[str, Json]:
        return asdict(self)

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Settings:
        """Read the settings from the store, which holds other values beside them."""
        missing = cls.__dataclass_fields__.keys() - stored.keys() - LATER
        if missing:
            raise Damaged(
                f"The database has no settings {', '.join(sorted(missing))}: it is not a "
                f"collection that this program wrote. Restore it from a copy, or remove its folder."
            )
        return cls(**{name: stored[name] for name in cls.__dataclass_fields__ if name in stored})
