"""Filters: conditions on payload and value, compiled to SQL with bound parameters.

```
{"year": {"gte": 2000}, "lang": "en", "tags": {"in": ["a", "b"]},
 "$or": [{"stars": 5}, {"stars": {"exists": false}}], "$not": {"author.name": "X"}}
```

Conditions side by side must all hold. A field is looked up in the value, then in the
payload; dots reach into objects; `@id` is the document's id and `@value` its whole value.
`eq`, `ne` and `in` meet any element of a list. A missing field is `null`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from index.errors import InvalidRequest
from index.types import Json

MAX_DEPTH = 12
MAX_CONDITIONS = 256


class Predicate(NamedTuple):
    """An SQL condition on the table `documents`, its parameters, and how many it is made of."""

    sql: str
    parameters: tuple[str, ...]
    conditions: int = 1


class _Field(NamedTuple):
    """Where a field's JSON lies: a column expression, and a path into it."""

    column: str
    path: str


def compile_filter(given: Mapping[str, Json]) -> Predicate:
    """Compile a filter.

    Raises:
        InvalidRequest: an unknown operator, an operand of a wrong type, or a filter that is
            too deep or too long; the sentence names the condition.
    """
    predicate = _all_of(given, 1)
    # SQLite refuses an expression of some 1,000 parts, with words that are not about filters.
    if predicate.conditions > MAX_CONDITIONS:
        raise _refused(
            f"it has {predicate.conditions} conditions, but at most {MAX_CONDITIONS} are taken; "
            f"split it, or name the values in one 'in'"
        )
    return predicate


def _all_of(given: Json, depth: int) -> Predicate:
    if not isinstance(given, Mapping):
        raise _refused(
            f"an object of conditions was expected, but {json.dumps(given)[:80]} was given"
        )
    if depth > MAX_DEPTH:
        raise _refused(f"it is nested more than {MAX_DEPTH} deep")
    parts = [_condition(name, operand, depth) for name, operand in given.items()]
    return _joined(parts, " AND ", empty="1")


def _condition(name: str, operand: Json, depth: int) -> Predicate:
    if name in ("$and", "$or"):
        if not isinstance(operand, Sequence) or isinstance(operand, str) or not operand:
            raise _refused(f"{name} takes a list of at least one filter")
        parts = [_all_of(each, depth + 1) for each in operand]
        return _joined(parts, " AND " if name == "$and" else " OR ", empty="1")
    if name == "$not":
        inner = _all_of(operand, depth + 1)
        return inner._replace(sql=f"NOT {inner.sql}")
    if name.startswith("$"):
        raise _refused(f"{name!r} is not known; use $and, $or or $not")
    return _field_condition(name, operand)


def _field_condition(name: str, operand: Json) -> Predicate:
    if not isinstance(operand, Mapping):
        return _OPERATORS["eq"](_located(name), operand, name)
    unknown = sorted(set(operand) - set(_OPERATORS))
    if unknown or not operand:
        raise _refused(
            f"the condition on {name!r} has the operator {', '.join(unknown) or '(none)'}; "
            f"known are {', '.join(_OPERATORS)}"
        )
    parts = [_OPERATORS[key](_located(name), value, name) for key, value in operand.items()]
    return _joined(parts, " AND ", empty="1")


def _joined(parts: Sequence[Predicate], word: str, *, empty: str) -> Predicate:
    if not parts:
        return Predicate(f"({empty})", ())
    sql = word.join(part.sql for part in parts)
    parameters = tuple(value for part in parts for value in part.parameters)
    return Predicate(f"({sql})", parameters, sum(part.conditions for part in parts))


def _located(name: str) -> _Field:
    if name == "@id":
        return _Field("json_quote(documents.id)", "$")
    if name == "@value":
        return _Field("documents.value", "$")
    if '"' in name or "\x00" in name or not all(name.split(".")):
        raise _refused(f"{name!r} is no field name: names have no quotation marks or empty parts")
    places = [
        f"documents.{column} -> '{path}'"
        for column in ("value", "payload")
        for path in _paths(name)
    ]
    return _Field(f"coalesce({', '.join(places)})", "$")


def _paths(name: str) -> list[str]:
    """The name as one key, and as the way into objects that its dots lead.

    Names are escaped as `to_json` does it, for SQLite before 3.45 compares them as they are
    written; and they are written into the SQL, so that an index on the expression can serve it.
    """
    ways = dict.fromkeys([(name,), tuple(name.split("."))])
    paths = ["$" + "".join(f".{json.dumps(part)}" for part in way) for way in ways]
    return [path.replace("'", "''") for path in paths]


def _equals(field: _Field, operand: Json, name: str) -> Predicate:
    if operand is None:
        return _exists(field, False, name)
    return _among(field, [operand], name)


def _differs(field: _Field, operand: Json, name: str) -> Predicate:
    same = _equals(field, operand, name)
    return same._replace(sql=f"NOT {same.sql}")


def _among(field: _Field, operand: Json, name: str) -> Predicate:
    """Any element of the field (a scalar is its own only element) equals any operand."""
    if not isinstance(operand, Sequence) or isinstance(operand, str):
        raise _refused(f"'in' on {name!r} takes a list, but {json.dumps(operand)[:80]} was given")
    if any(isinstance(each, Mapping | list) for each in operand):
        raise _refused(f"{name!r} can be compared with text, numbers, booleans and null only")
    for each in operand:
        _check_finite(each, name)
    # `type` tells true from 1 and "1" from 1; both kinds of number are one kind. Members of an
    # object, which have names for keys, are no elements.
    sql = (
        f"EXISTS (SELECT 1 FROM json_each({field.column}, '{field.path}') AS field, "
        f"json_each(?) AS given WHERE field.value IS given.value AND "
        f"typeof(field.key) <> 'text' AND "
        f"replace(field.type, 'real', 'integer') = replace(given.type, 'real', 'integer'))"
    )
    found = Predicate(sql, (json.dumps([each for each in operand if each is not None]),))
    if None in operand:
        return _joined([found, _exists(field, False, name)], " OR ", empty="0")
    return found


def _not_among(field: _Field, operand: Json, name: str) -> Predicate:
    found = _among(field, operand, name)
    return found._replace(sql=f"NOT {found.sql}")


def _exists(field: _Field, operand: Json, name: str) -> Predicate:
    if not isinstance(operand, bool):
        raise _refused(f"'exists' on {name!r} takes true or false, but {operand!r} was given")
    known = f"coalesce(json_type({field.column}, '{field.path}'), 'null') <> 'null'"
    return Predicate(f"({known})" if operand else f"NOT ({known})", ())


def _compares(sign: str) -> Callable[[_Field, Json, str], Predicate]:
    def compare(field: _Field, operand: Json, name: str) -> Predicate:
        if isinstance(operand, bool) or not isinstance(operand, str | int | float):
            raise _refused(f"{name!r} {sign} takes a number or text, but {operand!r} was given")
        _check_finite(operand, name)
        # SQLite orders every text above every number: compare within one kind only.
        kinds = "('text')" if isinstance(operand, str) else "('integer', 'real')"
        sql = (
            f"(json_type({field.column}, '{field.path}') IN {kinds} AND "
            f"json_extract({field.column}, '{field.path}') {sign} json_extract(?, '$')) IS TRUE"
        )
        # As JSON, so that SQLite reads both sides alike: whole numbers beyond 64 bits, rounding.
        return Predicate(f"({sql})", (json.dumps(operand),))

    return compare


def _check_finite(operand: Json, name: str) -> None:
    if isinstance(operand, float) and not math.isfinite(operand):
        raise _refused(f"{name!r} is compared with {operand!r}; send a finite number")


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(f"The filter cannot be used: {reason}.", field="filter")


_OPERATORS: dict[str, Callable[[_Field, Json, str], Predicate]] = {
    "eq": _equals,
    "ne": _differs,
    "in": _among,
    "nin": _not_among,
    "exists": _exists,
    "gt": _compares(">"),
    "gte": _compares(">="),
    "lt": _compares("<"),
    "lte": _compares("<="),
}
