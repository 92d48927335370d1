"""What one search looks at: a view, the documents of it that filter and mask let pass, and where
their values are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from attend.api.search import Mask, SearchOptions
from attend.search.encode import rows_by_id
from attend.store import CollectionStore, Store, compile_filter
from attend.types import Int64
from attend.view import View
from attend.views import Views


class Selected(NamedTuple):
    """What one search looks at.

    Attributes:
        rows: the documents to choose from, ascending; None for all that the view has.
        store: where what belongs to the documents is read.
    """

    view: View
    rows: Int64 | None
    store: CollectionStore


Selects: TypeAlias = Callable[[SearchOptions, tuple[int, ...]], Selected]
"""From what is asked, and the rows of the documents that the queries are made of and that are
masked, to what a search looks at."""


class Selecting:
    """Selects by rows, looked up in the database."""

    def __init__(self, store: Store, views: Views) -> None:
        self._store = store
        self._views = views

    def __call__(self, options: SearchOptions, made_of: tuple[int, ...]) -> Selected:
        view = self._views.current(options.projection)
        return Selected(view, self._rows(options, made_of), self._store)

    def _rows(self, options: SearchOptions, made_of: tuple[int, ...]) -> Int64 | None:
        """Rows that filter and mask let pass, ascending; None for all."""
        if not (options.filter or options.mask or made_of):
            return None
        mask, rows = options.mask or Mask(), None
        if options.filter:
            rows = self._store.matching(compile_filter(options.filter))
        named = rows_by_id(self._store, [*mask.exclude, *(mask.only or [])], "mask")
        masked = {named[id] for id in mask.exclude}
        if mask.only is None:
            masked |= set(made_of)
        else:
            only = np.unique(np.array([named[id] for id in mask.only], dtype=np.int64))
            rows = only if rows is None else np.intersect1d(rows, only)
        if not masked:
            return rows
        if rows is None:
            rows = self._store.matching(compile_filter({}))
        return np.setdiff1d(rows, np.fromiter(masked, dtype=np.int64))
