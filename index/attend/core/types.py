"""Types that all stations share: arrays, JSON, documents.

Stations (source, encoder, store, projection, keys, attention, values) import this
module and `attend.core.errors`, never each other.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

if TYPE_CHECKING:  # a client of a server imports this module, and has no need of numpy
    import numpy as np
    from numpy.typing import NDArray

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

Float16: TypeAlias = "NDArray[np.float16]"
Float32: TypeAlias = "NDArray[np.float32]"
Float64: TypeAlias = "NDArray[np.float64]"
Floats: TypeAlias = "NDArray[np.floating[Any]]"
Int64: TypeAlias = "NDArray[np.int64]"
Bool: TypeAlias = "NDArray[np.bool_]"

ScorerName: TypeAlias = Literal["dot", "cosine", "laplace"]
"""The scorers without parameters of their own; `attend.attention.SCORERS` has their functions."""

OnStage: TypeAlias = Callable[[str, float], object]
"""Progress callback: the stage, and its fraction from 0 to 1."""

MISSING_VALUE: None = None
"""A document without a value: left out of a blend, and reported as coverage."""


Vectors: TypeAlias = "Sequence[float] | Sequence[Sequence[float]] | Float32"
"""One vector (d,), or several (n, d)."""

WHOLE = "vector"
"""The name of vectors that stand for a document as a whole, and not for one of its texts."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document as a caller stores it.

    `fields` maps a field's name to its text. `vectors` maps a name to one vector of the
    collection's width, or to several; each is a key. The vectors of a field are its keys, and its
    text is not encoded; those of `WHOLE` are the keys of the whole document, and none of its texts
    is encoded. A document without texts and vectors has no key: filters find it, searches do not.

    >>> dune = Document("dune", vectors={"vector": [0.2, 0.9]}, payload={"year": 1965})
    >>> books.upsert([dune]).added
    1
    """

    id: str
    fields: Mapping[str, str] = field(default_factory=dict)
    vectors: Mapping[str, Vectors] = field(default_factory=dict)
    value: Json = MISSING_VALUE
    payload: Mapping[str, Json] = field(default_factory=dict)


MAX_ID = 512


def id_fault(id: str) -> str | None:
    """Return what is wrong with the id of a document or a user, or None.

    Control characters (Unicode category Cc) are wrong since SQLite's json_each cuts a text at NUL:
    two ids would become one.

    >>> id_fault("moby-dick"), id_fault("a\\0b")
    (None, 'holds the control character U+0000, but only printable text can be an id. Take it out')
    """
    if not id:
        return "is empty"
    if len(id) > MAX_ID:
        return f"has {len(id)} characters; at most {MAX_ID} are allowed"
    if id.isprintable():  # nearly every id is, and the check by character is slow
        return None
    for character in id:
        category = unicodedata.category(character)
        if category == "Cc":
            return (
                f"holds the control character U+{ord(character):04X}, but only printable text can "
                f"be an id. Take it out"
            )
        if category == "Cs":
            return "holds half of a surrogate pair, which is not valid UTF-8. Take it out"
    return None


QueryInput: TypeAlias = "str | Sequence[float] | Float32"
"""A query as a caller gives it: a text, or a vector (d,)."""

MAX_WEIGHT = 1e6
"""The largest absolute label: far beyond any grade, and sums of it stay exact."""


class Example(NamedTuple):
    """One document's label for one query.

    `weight` above 0: relevant, graded; 0: judged and not relevant; below 0: explicitly not
    relevant. `position` is the rank (from 1) at which the document was shown, if its effect is
    not yet removed from the weight. `source` is the file that it was read from.
    """

    query: QueryInput
    document: str
    weight: float = 1.0
    position: int | None = None
    source: str | None = None


class StoredDocument(NamedTuple):
    """A document as stored. `row` is its id inside, `id` the caller's."""

    row: int
    id: str
    fields: Mapping[str, str]
    value: Json
    payload: Mapping[str, Json]


class Interaction(NamedTuple):
    """An interaction of a user with a document, by the callers' ids.

    Attributes:
        value: a rating, a label, …; None if there is no value.
        time: seconds since 1970; None if unknown.
    """

    user: str
    document: str
    value: Json = None
    time: float | None = None


Role: TypeAlias = Literal["search", "recommend", "predict"]
"""The task of a version: searches, recommendations, or predicted ratings.

One version is active in each role; before one is trained it is number 0, the untrained one.
"""

ROLES: tuple[Role, ...] = get_args(Role)
