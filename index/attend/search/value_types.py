"""What a value path names: which value of a document, and of what type these values are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attend.api.search import SearchOptions
from attend.errors import UnknownField
from attend.settings import Settings
from attend.store import CollectionStore, StoredDocument
from attend.types import Json
from attend.values import ValueType, infer, parse_type, select

KEY = "@key"
"""The value that is the key itself, so that K = V."""

TYPE_SAMPLE = 1000
"""Documents whose values tell their type."""


class ValueTypes:
    """The types of one collection's values, by path: declared, or inferred from a sample.

    Inferred anew after every change: a type that is out of date answers with nothing.
    """

    def __init__(self, store: CollectionStore, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._found: dict[str | None, tuple[int, ValueType | None]] = {}

    def of(
        self,
        options: SearchOptions,
        change: int,
        attended: Callable[[int | None], Sequence[StoredDocument]],
    ) -> ValueType:
        """The type of the values that a search asks for, in one state of the collection.

        Args:
            attended: reads so many of each query's best documents, all if None; for values that
                no sample has.
        """
        path = options.value
        if path == KEY:
            return ValueType("vector")
        said = declared(self._settings, path)
        if said is not None:
            return said
        known, found = self._found.get(path, (-1, None))
        if known != change:
            found = self._inferred(path)
            self._found[path] = change, found
        if found is not None:
            return found
        # A hard answer without a path is the best document's value, whatever the others' are.
        best_alone = path is None and options.mode == "hard"
        documents = attended(1 if best_alone else None)
        check_path(path, documents)
        return infer([value_of(document, path) for document in documents])

    def _inferred(self, path: str | None) -> ValueType | None:
        """From all over the collection; None where the sample has no such value."""
        sample = self._store.sample(TYPE_SAMPLE)
        values = [value_of(document, path) for document in sample]
        return infer(values) if any(value is not None for value in values) else None


def declared(settings: Settings, path: str | None) -> ValueType | None:
    """The type that a collection declares for the values of a path; None where it does not."""
    given = settings.values
    if path is not None:
        given = given.get(path) if isinstance(given, Mapping) else None
    return None if given is None else parse_type(given, field="values")


def value_of(document: StoredDocument, path: str | None) -> Json:
    return select(path, document.id, document.value, document.payload, document.fields)


def check_path(path: str | None, sample: Sequence[StoredDocument]) -> None:
    """Refuse a value path that nothing in the sample has.

    Raises:
        UnknownField: it names the fields that there are.
    """
    if path in (None, KEY) or not sample:
        return
    if any(value_of(document, path) is not None for document in sample):
        return
    known: dict[str, None] = {}
    for document in sample:
        tree: Mapping[str, Json] = document.value if isinstance(document.value, Mapping) else {}
        known |= dict.fromkeys([*tree, *document.payload, *document.fields])
    raise UnknownField(
        f"No document looked at has a value {path!r}; there are {', '.join(known) or 'none'}, "
        f"@id and {KEY}.",
        field="value",
    )
