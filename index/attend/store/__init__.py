"""The store: SQLite holds the truth about documents, keys, feedback and projections."""

from attend.store.database import Store as Store
from attend.store.filters import (
    Predicate as Predicate,
)
from attend.store.filters import (
    compile_filter as compile_filter,
)
from attend.store.protocol import (
    NO_OFFSETS as NO_OFFSETS,
)
from attend.store.protocol import (
    ROLES as ROLES,
)
from attend.store.protocol import (
    CollectionStore as CollectionStore,
)
from attend.store.protocol import (
    Entry as Entry,
)
from attend.store.protocol import (
    ExampleSet as ExampleSet,
)
from attend.store.protocol import (
    Hashes as Hashes,
)
from attend.store.protocol import (
    Interaction as Interaction,
)
from attend.store.protocol import (
    InteractionSet as InteractionSet,
)
from attend.store.protocol import (
    KeyRow as KeyRow,
)
from attend.store.protocol import (
    NewExample as NewExample,
)
from attend.store.protocol import (
    Offsets as Offsets,
)
from attend.store.protocol import (
    Question as Question,
)
from attend.store.protocol import (
    Role as Role,
)
from attend.store.protocol import (
    StaleEntries as StaleEntries,
)
from attend.store.protocol import (
    State as State,
)
from attend.store.protocol import (
    StoredDocument as StoredDocument,
)
from attend.store.protocol import (
    StoredExample as StoredExample,
)
from attend.store.protocol import (
    StoredKey as StoredKey,
)
from attend.store.protocol import (
    StoredProjection as StoredProjection,
)
from attend.store.protocol import (
    StoredVersion as StoredVersion,
)
from attend.store.protocol import (
    Terms as Terms,
)
from attend.store.protocol import (
    TooFarBehind as TooFarBehind,
)
from attend.store.protocol import (
    UserHistory as UserHistory,
)
from attend.store.protocol import (
    VersionDetails as VersionDetails,
)
from attend.store.sql import moved as moved
from attend.store.words import Lexical as Lexical
