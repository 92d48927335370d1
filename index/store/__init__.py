"""The store: SQLite holds the truth about documents, keys, examples and projections."""

from index.store.database import Store
from index.store.documents import (
    ROLES,
    Changes,
    Entry,
    Forgotten,
    Hashes,
    KeyBatch,
    KeyRow,
    Role,
    StaleEntries,
    State,
    StoredDocument,
    StoredKey,
    StoredProjection,
    StoredVersion,
    Terms,
)
from index.store.examples import Learned, NewExample, Question, moved
from index.store.facets import Count, Facet
from index.store.filters import Predicate, compile_filter
from index.store.interactions import Interaction, InteractionPage, Interactions, Met
from index.store.lexical import Lexical

__all__ = [
    "ROLES",
    "Changes",
    "Count",
    "Entry",
    "Facet",
    "Forgotten",
    "Hashes",
    "Interaction",
    "InteractionPage",
    "Interactions",
    "KeyBatch",
    "KeyRow",
    "Learned",
    "Lexical",
    "Met",
    "NewExample",
    "Predicate",
    "Question",
    "Role",
    "StaleEntries",
    "State",
    "Store",
    "StoredDocument",
    "StoredKey",
    "StoredProjection",
    "StoredVersion",
    "Terms",
    "compile_filter",
    "moved",
]
