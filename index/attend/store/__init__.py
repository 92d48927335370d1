"""The store: SQLite holds the truth about documents, keys, feedback and projections."""

from attend.store.database import Store
from attend.store.examples import moved
from attend.store.filters import Predicate, compile_filter
from attend.store.protocol import CollectionStore
from attend.store.records import (
    ROLES,
    Entry,
    ExampleSet,
    Hashes,
    Interaction,
    InteractionPage,
    InteractionSet,
    KeyBatch,
    KeyChanges,
    KeyRow,
    NewExample,
    Question,
    Role,
    StaleEntries,
    State,
    StoredDocument,
    StoredExample,
    StoredKey,
    StoredProjection,
    StoredVersion,
    Terms,
    TooFarBehind,
    UserHistory,
)
from attend.store.words import Lexical

__all__ = [
    "ROLES",
    "CollectionStore",
    "Entry",
    "ExampleSet",
    "Hashes",
    "Interaction",
    "InteractionPage",
    "InteractionSet",
    "KeyBatch",
    "KeyChanges",
    "KeyRow",
    "Lexical",
    "NewExample",
    "Predicate",
    "Question",
    "Role",
    "StaleEntries",
    "State",
    "Store",
    "StoredDocument",
    "StoredExample",
    "StoredKey",
    "StoredProjection",
    "StoredVersion",
    "Terms",
    "TooFarBehind",
    "UserHistory",
    "compile_filter",
    "moved",
]
