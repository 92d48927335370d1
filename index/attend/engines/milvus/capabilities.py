"""The features of the engine, and the limits of Milvus 2.3.

The limits are those of https://milvus.io/docs/limitations.md (read for 2.3): 65,535 bytes of a
text field, 65,536 of a JSON field, 16,384 results, 64 MB of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from attend.api.answers import Facet
from attend.engines.engine import UNSUPPORTED, Capabilities
from attend.store import (
    Interaction,
    InteractionPage,
    InteractionSet,
    Lexical,
    Predicate,
    UserHistory,
)
from attend.types import Int64

MAX_TEXT_BYTES = 65_535
MAX_RESULTS = 16_384
MESSAGE_BYTES = 48 << 20
"""Of the 64 MB of a message, what is filled with rows as they are counted here."""

MAX_ATTENDED = 10_000
"""More documents are found than are attended, as some are found by several keys."""

CAPABILITIES = Capabilities(
    "milvus",
    atomic_batches=False,
    lexical=False,
    match=False,
    attend_all=False,
    attend_most=MAX_ATTENDED,
    any_scorer=False,
    facets=False,
    insertion_order=False,
    recommend=False,
    train=("matrices",),
    jobs=False,
    snapshots=False,
    text_bytes=MAX_TEXT_BYTES,
    content_bytes=MAX_TEXT_BYTES,
    consistency=True,
    window=1000,  # a write waits some 200 ms to learn what is stored
)


class NotSupported:
    """The methods of a `CollectionStore` that the engine does not support."""

    def lexical(self, text: str, limit: int | None = None) -> Lexical:
        _raise_unsupported("lexical")

    def lexical_many(self, texts: Sequence[str]) -> list[Lexical]:
        _raise_unsupported("lexical")

    def facets(
        self, fields: Sequence[str], predicate: Predicate | None = None, limit: int = 10
    ) -> dict[str, Facet]:
        _raise_unsupported("facets")

    def matching(self, predicate: Predicate) -> Int64:
        _raise_unsupported("train")

    def add_interactions(
        self, interactions: Sequence[Interaction], *, forget: bool = False
    ) -> tuple[int, int]:
        _raise_unsupported("recommend")

    def delete_interactions(
        self, user: str | None = None, documents: Sequence[str] | None = None
    ) -> int:
        _raise_unsupported("recommend")

    def interactions(self) -> InteractionSet:
        _raise_unsupported("recommend")

    def interactions_of(self, user: str) -> UserHistory:
        _raise_unsupported("recommend")

    def interaction_page(
        self, after: tuple[int, int], limit: int, user: str | None = None
    ) -> InteractionPage:
        _raise_unsupported("recommend")

    def interaction_counts(self) -> tuple[int, int]:
        return 0, 0

    def popularity(self) -> tuple[Int64, Int64]:
        _raise_unsupported("recommend")


def _raise_unsupported(capability: str) -> NoReturn:
    raise CAPABILITIES.unsupported(*UNSUPPORTED[capability])
