"""The store: SQLite holds the truth about documents, keys, examples and projections."""

from attend.store.database import Store
from attend.store.documents import (
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
from attend.store.examples import Learned, NewExample, Question, moved
from attend.store.facets import Count, Facet
from attend.store.filters import Predicate, compile_filter
from attend.store.interactions import Interaction, InteractionPage, Interactions, Met
from attend.store.lexical import Lexical

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
