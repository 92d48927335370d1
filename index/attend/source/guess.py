"""Which field is the id, the text, the vector and the value: as told, else guessed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from attend.errors import SourceError
from attend.source.cells import is_scalar_column
from attend.source.rows import (
    ID_NAMES,
    LOOKAHEAD_ROWS,
    Row,
    Source,
    field_names,
    listed,
    look_for,
)
from attend.source.vectors import as_vector
from attend.types import Json

TEXT_NAMES = (
    *("title", "name", "question", "headline", "summary", "description", "abstract"),
    *("body", "content", "text", "passage", "document", "sentence", "utterance", "query"),
    *("caption", "synopsis", "message", "review", "comment", "transcript"),
)
VECTOR_NAMES = ("vector", "embedding")
VALUE_NAMES = ("value", "label", "category", "class", "intent", "answer", "target")

MAJORITY = 0.9
"""The share of a column's cells that decides what it holds; other cells are problems of
their rows."""

_LINK = re.compile(r"(?:[a-z][a-z0-9+.-]*://|data:|www\.)\S*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FieldMap:
    """Which fields of a row become what; every other field is payload.

    `id` None: the number of the row is the id. `value` of one field: its bare cell; of
    several: an object of them. `guessed` says which of these nobody asked for.
    """

    id: str | None
    text: tuple[str, ...]
    vector: str | None
    value: tuple[str, ...]
    guessed: tuple[str, ...] = field(default=(), compare=False)

    def taken(self) -> frozenset[str]:
        """The fields that have a part, and so are no payload."""
        single = [name for name in (self.id, self.vector) if name is not None]
        return frozenset([*single, *self.text, *self.value])


def guess(
    sample: Sequence[Row],
    *,
    id: str | None = None,
    text: Sequence[str] = (),
    vector: str | None = None,
    value: Sequence[str] = (),
    source: Source | None = None,
) -> FieldMap:
    """Keep the fields that are given and guess the rest from the sample.

    `source` adds what its format declares: a primary key, or a layout's text fields. Its
    first 10,000 rows are looked through for a given field that no sampled row has.
    Raises SourceError where none of them has it either, where text and vector are both
    given, and where neither is given nor can be guessed.

    >>> rows = [Row("a.csv:2", {"text": "Where is my card?", "category": "arrival"})]
    >>> describe(guess(rows), rows).splitlines()[0]
    'id: the row number · text: text · value: category'
    """
    if text and vector:
        raise SourceError(
            "A document has either texts or a vector. Give --text or --vector, not both."
        )
    named = [name for name in (*text, vector, id, *value) if name is not None]
    _check_present(named, sample, source)
    natural_id = source.natural_id if source is not None else None
    natural = source.natural_text if source is not None else ()
    found_id = id or natural_id or next(iter(_named(sample, ID_NAMES)), None)
    kept = {found_id, *value}
    found_vector = vector or (None if text or natural else _vector(sample))
    found_text = tuple(dict.fromkeys(text))
    if not found_text and found_vector is None:
        found_text = natural or _text(sample, kept, found_id)
    used = {found_id, found_vector, *found_text}
    found_value = tuple(dict.fromkeys(value)) or (() if natural else _value(sample, used))
    # What the format declares is as good as given: nothing of it was guessed.
    given = {"id": id or natural_id, "text": text or natural, "vector": vector, "value": value}
    found = FieldMap(found_id, found_text, found_vector, found_value)
    guessed = tuple(part for part in given if getattr(found, part) and not given[part])
    return replace(found, guessed=guessed)


def _check_present(wanted: Sequence[str], sample: Sequence[Row], source: Source | None) -> None:
    seen = look_for(wanted, sample)
    if source is not None and not set(wanted) <= set(seen.names):
        # Only now, since it reads on: JSON rows may leave out what is null in them.
        seen = look_for(wanted, islice(source.rows(), LOOKAHEAD_ROWS))
    for name in wanted:
        if name not in seen.names:
            raise SourceError(
                f"No field {name!r} in the first {seen.rows} rows. "
                f"They have {listed(seen.names, limit=40)}."
            )


def _vector(sample: Sequence[Row]) -> str | None:
    named = _named(sample, VECTOR_NAMES)
    return next((name for name in named if _mostly(sample, name, _is_vector)), None)


def _value(sample: Sequence[Row], used: set[str | None]) -> tuple[str, ...]:
    return tuple(name for name in _named(sample, VALUE_NAMES) if name not in used)[:1]


def _text(sample: Sequence[Row], kept: set[str | None], found_id: str | None) -> tuple[str, ...]:
    """All fields with a name that texts go by, else the one with the longest strings."""
    strings = [name for name in field_names(sample) if _is_prose(sample, name)]
    # A field that is returned is searched only where there is no other: English → French.
    free = [name for name in strings if name not in kept]
    free = free or [name for name in strings if name != found_id]
    if not free:
        raise SourceError(
            f"No field looks like text or a vector. Choose with --text F or --vector F among "
            f"{listed(field_names(sample), limit=40)}."
        )
    named = [name for name in _named(sample, TEXT_NAMES) if name in free]
    return tuple(named) or (max(free, key=lambda name: _total_length(sample, name)),)


def _named(sample: Sequence[Row], names: Sequence[str]) -> list[str]:
    """The fields that go by one of the names, in the order of the names, whatever the case."""
    order = {name: position for position, name in enumerate(names)}
    present = [name for name in field_names(sample) if name.lower() in order]
    return sorted(present, key=lambda name: order[name.lower()])


def _is_prose(sample: Sequence[Row], name: str) -> bool:
    return _mostly(sample, name, _is_words) and not is_scalar_column(sample, name)


def _is_words(cell: Json) -> bool:
    return isinstance(cell, str) and not _LINK.match(cell.strip())


def _is_vector(cell: Json) -> bool:
    return as_vector(cell) is not None


def _mostly(sample: Sequence[Row], name: str, test: Callable[[Json], bool]) -> bool:
    """Whether nine in ten of a column's cells that are neither null nor empty pass the test."""
    cells = [cell for row in sample if (cell := row.cells.get(name)) not in (None, "")]
    return bool(cells) and sum(map(test, cells)) >= MAJORITY * len(cells)


def _total_length(sample: Sequence[Row], name: str) -> int:
    """Orders columns as their mean length does, since each has the same number of rows."""
    return sum(len(cell) for row in sample if isinstance(cell := row.cells.get(name), str))


def describe(map: FieldMap, sample: Sequence[Row]) -> str:
    """The choice in one line, and in a second one what was guessed and how to choose."""
    payload = [name for name in field_names(sample) if name not in map.taken()]
    parts = [("id", [map.id or "the row number"]), ("text", map.text)]
    parts += [("vector", [map.vector] if map.vector else []), ("value", map.value)]
    parts += [("payload", payload)]
    line = " · ".join(f"{part}: {listed(names)}" for part, names in parts if names)
    if not map.guessed:
        return line
    options = "/".join(f"--{part}" for part in map.guessed)
    return f"{line}\nguessed: {', '.join(map.guessed)} (say {options} to choose)"
