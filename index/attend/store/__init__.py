"""The store: SQLite holds the truth about documents, keys, feedback and projections."""

from attend.store.database import Store
from attend.store.feedback import moved
from attend.store.filters import Predicate, compile_filter
from attend.store.protocol import CollectionStore
from attend.store.records import (
    NO_OFFSETS,
    ROLES,
    Entry,
    ExampleSet,
    Hashes,
    Interaction,
    InteractionSet,
    KeyRow,
    NewExample,
    Offsets,
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
    VersionDetails,
)
from attend.store.words import Lexical

__all__ = [
    "NO_OFFSETS",
    "ROLES",
    "CollectionStore",
    "Entry",
    "ExampleSet",
    "Hashes",
    "Interaction",
    "InteractionSet",
    "KeyRow",
    "Lexical",
    "NewExample",
    "Offsets",
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
    "VersionDetails",
    "compile_filter",
    "moved",
]
