"""What `attend.store.Store` does and this engine does not: each is refused with a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from attend.api.answers import Facet
from attend.engines.milvus.capabilities import CAPABILITIES
from attend.store import (
    Interaction,
    InteractionPage,
    InteractionSet,
    Lexical,
    Predicate,
    UserHistory,
)
from attend.types import Int64


class Refused:
    """Raises Unsupported, whatever is asked."""

    def lexical(self, text: str, limit: int | None = None) -> Lexical:
        _refuse("lexical")

    def lexical_many(self, texts: Sequence[str]) -> list[Lexical]:
        _refuse("lexical")

    def facets(
        self, fields: Sequence[str], predicate: Predicate | None = None, limit: int = 10
    ) -> dict[str, Facet]:
        _refuse("facets")

    def matching(self, predicate: Predicate) -> Int64:
        _refuse("train")

    def add_interactions(
        self, given: Sequence[Interaction], *, forget: bool = False
    ) -> tuple[int, int]:
        _refuse("recommend")

    def delete_interactions(
        self, user: str | None = None, documents: Sequence[str] | None = None
    ) -> int:
        _refuse("recommend")

    def interactions(self) -> InteractionSet:
        _refuse("recommend")

    def interactions_of(self, user: str) -> UserHistory:
        _refuse("recommend")

    def interaction_page(
        self, after: tuple[int, int], limit: int, user: str | None = None
    ) -> InteractionPage:
        _refuse("recommend")

    def popularity(self) -> tuple[Int64, Int64]:
        _refuse("recommend")


def _refuse(capability: str) -> NoReturn:
    CAPABILITIES.check(capability)
    raise AssertionError(f"{capability} is declared, and is not there")
