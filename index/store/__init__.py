"""The store: SQLite holds the truth about documents, keys, examples and projections."""

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
    StoredKey,
    StoredProjection,
    StoredVersion,
)
from index.store.examples import Learned, NewExample, Question, moved
from index.store.facets import Count, Facet
from index.store.filters import Predicate, compile_filter
from index.store.lexical import Lexical

__all__ = [
    "Changes",
    "Count",
    "Entry",
    "Facet",
    "Hashes",
    "KeyBatch",
    "KeyRow",
    "Learned",
    "Lexical",
    "NewExample",
    "Predicate",
    "Question",
    "StaleEntries",
    "State",
    "Store",
    "StoredDocument",
    "StoredKey",
    "StoredProjection",
    "StoredVersion",
    "compile_filter",
    "moved",
]
