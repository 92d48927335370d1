"""The store: SQLite holds the truth about documents, keys, settings and projections."""

from index.store.database import Store
from index.store.documents import (
    Changes,
    Entry,
    Hashes,
    KeyBatch,
    KeyRow,
    StaleEntries,
    State,
    StoredDocument,
    StoredProjection,
)
from index.store.filters import Predicate, compile_filter

__all__ = [
    "Changes",
    "Entry",
    "Hashes",
    "KeyBatch",
    "KeyRow",
    "Predicate",
    "StaleEntries",
    "State",
    "Store",
    "StoredDocument",
    "StoredProjection",
    "compile_filter",
]
