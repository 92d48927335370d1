"""The map: documents in two dimensions, and a query among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attend.api.base import Reply

Place = tuple[float, float]


@dataclass(slots=True)
class MapPoint(Reply):
    """A document on a map, at the mean of its keys."""

    id: str
    title: str
    """A display title."""
    place: Place
    was: Place | None
    """Its place under the version named by `before`."""
    weight: float | None
    """Its share of the query's attention; null if it was not attended."""
    payload: Mapping[str, Any]


@dataclass(slots=True)
class MapQuery(Reply):
    """The place of the query among the keys, now and under the version before."""

    place: Place
    was: Place | None


@dataclass(slots=True)
class KeyMap(Reply):
    """The keys in two dimensions: a sample of the documents, and all that the query attends to."""

    points: Sequence[MapPoint]
    query: MapQuery | None
    method: str
    explained: Sequence[float] | None
    """The share of the variance that each axis shows; null with UMAP."""
    projection: int
    before: int | None
    documents: int
    """The number of documents in the collection."""
