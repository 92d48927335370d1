"""Value types, read off a sample of values or declared; which objects are which JSON value."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeGuard, get_args

import numpy as np

from attend.core.errors import InvalidRequest, LimitExceeded
from attend.core.types import Float64, Json


def as_number(value: Json) -> float:
    """Return the value as a float64, or NaN where it is no finite number.

    >>> as_number(3), as_number(True), as_number("3"), as_number(10**400)
    (3.0, nan, nan, nan)
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def as_numbers(values: Sequence[Json]) -> Float64:
    """Return the values as numbers (n,), NaN as in `as_number`.

    >>> as_numbers([3, 0.5, None]).tolist()
    [3.0, 0.5, nan]
    """
    # At once where all are plain numbers: several times faster than one by one.
    if {value.__class__ for value in values} <= {int, float}:
        with suppress(OverflowError):
            numbers = np.array(values, dtype=np.float64)
            return np.where(np.isfinite(numbers), numbers, np.nan)
    return np.fromiter(map(as_number, values), np.float64, len(values))


def is_list(value: Json) -> TypeGuard[Sequence[Json]]:
    """Return whether a value is a JSON array; a string is a sequence to Python, and none here."""
    return isinstance(value, (list, tuple))


def is_numbers(value: Json) -> TypeGuard[Sequence[float]]:
    """Return whether a value is a non-empty list of numbers, some of which may not be finite."""
    # By the few types that occur: several times faster than asking every element.
    return (
        is_list(value)
        and len(value) > 0
        and all(issubclass(t, (int, float)) and t is not bool for t in set(map(type, value)))
    )


def as_matrix(rows: Sequence[Sequence[float]]) -> Float64:
    """Turn lists of numbers of one length into rows, (n, d); what no float64 holds becomes NaN."""
    try:
        return np.array(rows, dtype=np.float64)
    except OverflowError:
        return np.array([[as_number(item) for item in row] for row in rows], dtype=np.float64)


def is_strings(value: Json) -> TypeGuard[Sequence[str]]:
    """Return whether a value is a non-empty list of strings."""
    return is_list(value) and len(value) > 0 and all(isinstance(item, str) for item in value)


def is_missing(value: Json) -> bool:
    """Return whether there is no value: null, an empty list, or numbers that are not finite."""
    if value is None:
        return True
    if is_list(value):
        return len(value) == 0 or (is_numbers(value) and not np.isfinite(as_matrix([value])).all())
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isnan(as_number(value))


def is_sendable(value: Json) -> bool:
    """Return whether JSON can carry the value: no float in it is infinite or NaN."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(is_sendable, value.values()))
    return all(map(is_sendable, value)) if is_list(value) else True


Kind: TypeAlias = Literal[
    "boolean", "number", "vector", "category", "labels", "object", "text", "image", "mixed"
]

LONGEST_CATEGORY = 64  # characters; longer strings are prose, not names
IMAGE_SHARE = 0.9  # some links to images carry no extension
DEEPEST = 8  # objects within objects; below, a value is returned whole
MOST_FIELDS = 256  # an object with more keys is a map from ids, not a record

_FORMATS = ("png", "jpg", "jpeg", "gif", "webp", "svg", "bmp", "tif", "tiff", "avif", "heic", "ico")
_IMAGE_ENDINGS = tuple(f".{name}" for name in _FORMATS)


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of a collection's values, which decides how they blend.

    `fields` maps each key of an object to its type, and is None for every other kind.
    """

    kind: Kind
    fields: Mapping[str, ValueType] | None = None

    def to_json(self) -> Json:
        """Return the type as `parse_type` reads it: a kind, or for an object its fields' types."""
        if self.fields is None:
            return self.kind
        return {name: field.to_json() for name, field in self.fields.items()}


def infer(values: Sequence[Json]) -> ValueType:
    """Infer the type of a collection from a sample of its values.

    Take the sample from the whole collection and not from one query's documents, so
    that every query is answered in one type. Missing values (null, NaN, an empty list)
    say nothing; a sample without any other is `text`, and one of several kinds `mixed`.

    >>> infer(["red", "blue", "red", None, "blue"]).kind
    'category'
    >>> infer([{"price": 3, "ok": True}, {"price": 4.5}]).to_json()
    {'price': 'number', 'ok': 'boolean'}
    """
    return _infer(values, depth=0)


def parse_type(spec: Json, *, field: str = "value_type") -> ValueType:
    """Return a declared type: a kind by name, or an object of its fields' types.

    Raises InvalidRequest for anything else and LimitExceeded for an object that is
    deeper or wider than can be blended; `field` is where the request said it.

    >>> parse_type({"module": "category", "score": "number"}).kind
    'object'
    """
    return _parse(spec, field, depth=0)


def _infer(values: Sequence[Json], depth: int) -> ValueType:
    present = [value for value in values if not is_missing(value)]
    shapes = {_shape(value) for value in present}
    if len(shapes) > 1:
        return ValueType("mixed")
    match shapes.pop() if shapes else "text":
        case "strings":
            return ValueType(_kind_of_strings(present))
        case "object":
            objects: Sequence[Any] = present
            names = list(dict.fromkeys(name for item in objects for name in item))
            if depth == DEEPEST or len(names) > MOST_FIELDS:
                return ValueType("mixed")
            by_name = {name: [item.get(name) for item in objects] for name in names}
            return ValueType(
                "object", {name: _infer(part, depth + 1) for name, part in by_name.items()}
            )
        case "vector" if len({len(vector) for vector in present}) > 1:  # type: ignore[arg-type]
            return ValueType("mixed")
        case kind:
            return ValueType(kind)


def _shape(value: Json) -> Any:
    """Return the kind that one value shows by itself; `strings` where only the sample can tell."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "strings"
    if isinstance(value, dict):
        return "object"
    if is_numbers(value):
        return "vector"
    return "labels" if is_strings(value) else "mixed"


def _kind_of_strings(strings: Sequence[Any]) -> Kind:
    if sum(map(_is_image, strings)) >= IMAGE_SHARE * len(strings):
        return "image"
    repeats = len(set(strings)) <= len(strings) / 2
    names = all(len(s) <= LONGEST_CATEGORY and not {"\n", "\r"} & set(s) for s in strings)
    return "category" if repeats and names else "text"


def _is_image(text: str) -> bool:
    if text.startswith("data:image/"):
        return True
    path = text.lower()
    if path.startswith(("http://", "https://")):
        path = re.split(r"[?#]", path, maxsplit=1)[0]
    return path.endswith(_IMAGE_ENDINGS) and "\n" not in path


def _parse(spec: Json, field: str, depth: int) -> ValueType:
    if isinstance(spec, dict):
        if depth == DEEPEST:
            raise LimitExceeded(
                f"The value type nests objects more than {DEEPEST} deep. "
                'Declare the inner ones "mixed".',
                field=field,
            )
        if len(spec) > MOST_FIELDS:
            raise LimitExceeded(
                f"The value type has {len(spec)} fields, and at most {MOST_FIELDS} are blended. "
                'Declare fewer, or "mixed" for the whole.',
                field=field,
            )
        return ValueType(
            "object",
            {name: _parse(part, f"{field}.{name}", depth + 1) for name, part in spec.items()},
        )
    kinds = [kind for kind in get_args(Kind) if kind != "object"]
    if isinstance(spec, str) and spec in kinds:
        return ValueType(kinds[kinds.index(spec)])
    raise InvalidRequest(
        f"{spec!r} is not a value type. Give one of {', '.join(kinds)}, or for an object "
        'the types of its fields, as in {"module": "category"}.',
        field=field,
    )
