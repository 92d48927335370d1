"""Interactions as callers send them, into a collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from attend.api.base import parse
from attend.api.recommend import InteractionItem
from attend.collection import Collection
from attend.errors import Detail, InvalidRequest
from attend.store import Interaction
from attend.types import Json


class Recorded(NamedTuple):
    """What recording did: of those given how many were new, and how many replaced one.

    `interactions` and `users` are how many there are now.
    """

    added: int
    replaced: int
    interactions: int
    users: int


def record(
    collection: Collection,
    items: Iterable[InteractionItem | Interaction | Mapping[str, Any]],
    *,
    forget: bool = False,
) -> Recorded:
    """Store interactions, all or none; of several for one user and document the last counts.

    Args:
        forget: delete the interactions stored before, in the same step.

    Raises:
        UnknownDocument: no document has an item's id.
        InvalidRequest: another thing wrong with an item; the details name all.

    >>> record(collection, [{"user": "ann", "id": "dune", "value": 5}])  # doctest: +SKIP
    Recorded(added=1, replaced=0, interactions=1, users=1)
    """
    given = [_interaction(at, item) for at, item in enumerate(items)]
    last = {(each.user, each.document): each for each in given}
    added, replaced = 0, 0
    if last or forget:
        added, replaced = collection.store.add_interactions(list(last.values()), forget=forget)
    return Recorded(added, replaced, *collection.store.interaction_counts())


def _interaction(at: int, item: InteractionItem | Interaction | Mapping[str, Json]) -> Interaction:
    if isinstance(item, Interaction):
        return item
    if isinstance(item, InteractionItem):
        return item.interaction()
    try:
        return parse(InteractionItem, item).interaction()
    except InvalidRequest as error:
        named = InvalidRequest(f"Item {at}: {error}", field=_placed(at, error.field))
        details: list[Detail] = [
            {**each, "field": _placed(at, each["field"])} for each in error.details
        ]
        named.details = details
        raise named from None


def _placed(at: int, field: str | None) -> str:
    return f"items.{at}.{field}" if field else f"items.{at}"
