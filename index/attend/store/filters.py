"""Filters: conditions on payload and value, as a tree that the store looks up or scans for.

```
{"year": {"gte": 2000}, "lang": "en", "tags": {"in": ["a", "b"]},
 "$or": [{"stars": 5}, {"stars": {"exists": false}}], "$not": {"author.name": "X"},
 "@text": {"match": "two words"}}
```

Conditions side by side must all hold. A field is looked up in the value, then in the
payload; dots reach into objects; `@id` is the document's id, `@value` its whole value, and
`@text` all of its texts. A list meets what any of its elements meets, and bounds side by side
are met by one and the same element. A missing field is `null`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from attend.api.names import OPERATORS, remedy
from attend.core.errors import InvalidRequest
from attend.core.types import Json
from attend.store.words import TOKENIZER, quoted

ID, VALUE, TEXT = "@id", "@value", "@text"

MAX_DEPTH = 12
MAX_CONDITIONS = 256
MAX_LISTED = 100_000
"""Values in all lists of one filter together: ids, for the most part."""
MAX_WORDS = 64


_DAY_FIRST = re.compile(r"\d{1,2}[./-]\d{1,2}[./-]\d{4}\b", re.ASCII)


class IsNull(NamedTuple):
    """The field is missing or null."""

    field: str


class Among(NamedTuple):
    """An element of the field equals one of the values, of which none is null."""

    field: str
    values: Sequence[Json]


class Within(NamedTuple):
    """One element of the field meets all bounds: pairs of a sign and a value, all of a kind."""

    field: str
    bounds: Sequence[tuple[str, str | int | float]]


class HasWords(NamedTuple):
    """A text field of the document, or with `@text` all of them together, has all the words."""

    field: str
    words: Sequence[str]


class HasSubstring(NamedTuple):
    """An element of the field is a text that holds another, in small or capital letters.

    Attributes:
        text: case-folded, as `str.casefold` does, unless it is exact.
        exact: small and capital letters differ.
    """

    field: str
    text: str
    exact: bool = False


class HasSuffix(NamedTuple):
    """An element of the field is a text with this end."""

    field: str
    text: str


class IsEmptyList(NamedTuple):
    """The field is a list without elements."""

    field: str


class WithinDates(NamedTuple):
    """One element of the field is an ISO date that meets all bounds: pairs of a sign and seconds
    since 1970."""

    field: str
    bounds: Sequence[tuple[str, float]]


class All(NamedTuple):
    """Every part holds; true without any."""

    parts: tuple[Node, ...]


class Some(NamedTuple):
    """At least one part holds."""

    parts: tuple[Node, ...]


class Not(NamedTuple):
    """The part does not hold."""

    part: Node


Leaf = IsNull | Among | Within | HasWords | HasSubstring | HasSuffix | IsEmptyList | WithinDates
Node = Leaf | All | Some | Not


def by_value(filter: Json, name: str | None) -> Any:
    """Return a filter in which the name of the values' column stands for the value, `@value`.

    >>> by_value({"section": "games", "$not": {"section": None}}, "section")
    {'$and': [{'$not': {'@value': None}}, {'@value': 'games'}]}
    """
    if isinstance(filter, list):
        return [by_value(part, name) for part in filter]
    if name is None or not isinstance(filter, Mapping):
        return filter
    nested = {key: by_value(part, name) for key, part in filter.items() if str(key)[0:1] == "$"}
    renamed = {**filter, **nested}
    operand = renamed.get(name)
    # Words are looked up in the texts, which may have a field of this name, too.
    if name not in renamed or (isinstance(operand, Mapping) and "match" in operand):
        return renamed
    del renamed[name]
    return {"$and": [renamed, {VALUE: operand}]} if renamed else {VALUE: operand}


def leaves_of(node: Node) -> list[Leaf]:
    """Return the single conditions of a filter."""
    if isinstance(node, Leaf):
        return [node]
    parts = (node.part,) if isinstance(node, Not) else node.parts
    return [leaf for part in parts for leaf in leaves_of(part)]


@dataclass(frozen=True)
class Predicate:
    """A filter, checked. `key` is the same for the same filter, and another for another."""

    node: Node
    key: str


def compile_filter(filter: Mapping[str, Json]) -> Predicate:
    """Check a filter and compile it for a store.

    Raises:
        InvalidRequest: an unknown operator, an operand of a wrong type, or a filter that is
            too deep or too long; the sentence names the condition.
    """
    try:
        written = json.dumps(filter, sort_keys=True, default=plain)
    except (TypeError, ValueError) as error:
        raise _rejected(f"it is no JSON ({error}); send text, numbers, booleans and null") from None
    except RecursionError:
        raise _rejected(f"it is nested more than {MAX_DEPTH} deep") from None
    filter = json.loads(written)
    node = _all_of(filter, 1)
    leaves = leaves_of(node)
    # SQLite refuses an expression of some 1,000 parts, with words that are not about filters.
    if len(leaves) > MAX_CONDITIONS:
        raise _rejected(
            f"it has {len(leaves)} conditions, but at most {MAX_CONDITIONS} are taken; "
            f"split it, or name the values in one 'in'"
        )
    listed = _listed(filter)
    if listed > MAX_LISTED:
        raise _rejected(
            f"its lists have {listed:,} values, but at most {MAX_LISTED:,} are taken; split it"
        )
    return Predicate(node, hashlib.blake2b(written.encode(), digest_size=16).hexdigest())


def plain(value: Any) -> Json:
    """Return numpy's numbers and arrays, and any mapping, as JSON has them; raise TypeError."""
    if isinstance(value, np.generic | np.ndarray):
        number: Json = value.tolist()
        return number
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it holds {value!r:.80}")


def _listed(node: Json) -> int:
    """Count the values in the lists of a filter."""
    if isinstance(node, Mapping):
        return sum(map(_listed, node.values()))
    if isinstance(node, Sequence) and not isinstance(node, str):
        return sum(_listed(item) if isinstance(item, Mapping) else 1 for item in node)
    return 0


def _all_of(filter: Json, depth: int) -> Node:
    if not isinstance(filter, Mapping):
        raise _rejected(f"an object of conditions was expected, but {_shown(filter)} was given")
    if depth > MAX_DEPTH:
        raise _rejected(f"it is nested more than {MAX_DEPTH} deep")
    return _together([_condition(name, operand, depth) for name, operand in filter.items()])


def _together(parts: Sequence[Node]) -> Node:
    return parts[0] if len(parts) == 1 else All(tuple(parts))


def _condition(name: str, operand: Json, depth: int) -> Node:
    if name in ("$and", "$or"):
        if not isinstance(operand, Sequence) or isinstance(operand, str) or not operand:
            raise _rejected(f"{name} takes a list of at least one filter")
        nodes = tuple(_all_of(part, depth + 1) for part in operand)
        return All(nodes) if name == "$and" else Some(nodes)
    if name == "$not":
        return Not(_all_of(operand, depth + 1))
    parts = operand if isinstance(operand, list) else []
    if name.startswith("$") or any(isinstance(part, Mapping) for part in parts):
        raise _rejected(
            f"{name!r} is not known; {remedy(name, ('$and', '$or', '$not'), OPERATORS)}"
        )
    return _field_condition(name, operand)


def _field_condition(name: str, operand: Json) -> Node:
    check_name(name)
    operators = operand if isinstance(operand, Mapping) else {"eq": operand}
    names = [*_OPERATORS, *_SIGNS]
    unknown = sorted(set(operators) - set(names))
    if unknown:
        raise _rejected(
            f"the condition on {name!r} has the operator {unknown[0]!r}, which is not known; "
            f"{remedy(unknown[0], names, OPERATORS, listed=len(names))}"
        )
    if not operators:
        raise _rejected(f"the condition on {name!r} is empty; known are {', '.join(names)}")
    if name == TEXT and not set(operators) <= {"match", "substring", "exact_substring"}:
        raise _rejected(
            f"{TEXT} stands for all texts of a document; it takes match, substring and "
            f"exact_substring"
        )
    parts = [_OPERATORS[key](name, operators[key]) for key in operators if key in _OPERATORS]
    bounds = [
        (_SIGNS[key], _bound(name, key, value)) for key, value in operators.items() if key in _SIGNS
    ]
    if len({isinstance(value, str) for _, value in bounds}) > 1:
        raise _rejected(
            f"the bounds of {name!r} are a number and a text; nothing lies between the two"
        )
    return _together([*parts, Within(name, bounds)] if bounds else parts)


def check_name(name: str) -> None:
    """Raise InvalidRequest for a name that no field can have."""
    if not isinstance(name, str) or '"' in name or "\x00" in name or not all(name.split(".")):
        raise _rejected(f"{name!r} is no field name: names have no quotation marks or empty parts")


def _among(name: str, operand: Json) -> Node:
    """Return the condition that any element of the field equals any operand."""
    values = _values(name, operand)
    equal = Among(name, [value for value in values if value is not None])
    if None not in values:
        return equal
    return IsNull(name) if len(values) == 1 else Some((equal, IsNull(name)))


def _has_all(name: str, operand: Json) -> Node:
    """Each operand equals an element of the field."""
    values = _values(name, operand)
    if not values:
        raise _rejected(f"'all' on {name!r} takes a list of at least one value")
    return _together([_among(name, [value]) for value in values])


def _values(name: str, operand: Json) -> Sequence[Json]:
    if not isinstance(operand, Sequence) or isinstance(operand, str):
        raise _rejected(
            f"a list of values was expected for {name!r}, but {_shown(operand)} was given"
        )
    for value in operand:
        if isinstance(value, Mapping | list | tuple):
            raise _rejected(f"{name!r} can be compared with text, numbers, booleans and null only")
        _check_comparable(value, name)
    return operand


def _exists(name: str, operand: Json) -> Node:
    if not isinstance(operand, bool):
        raise _rejected(f"'exists' on {name!r} takes true or false, but {operand!r} was given")
    return Not(IsNull(name)) if operand else IsNull(name)


def _empty(name: str, operand: Json) -> Node:
    if not isinstance(operand, bool):
        raise _rejected(f"'empty' on {name!r} takes true or false, but {operand!r} was given")
    is_empty = Some((IsNull(name), IsEmptyList(name)))
    return is_empty if operand else Not(is_empty)


def _text(name: str, operator: str, operand: Json) -> str:
    if not isinstance(operand, str):
        raise _rejected(f"{operator!r} on {name!r} takes text, but {_shown(operand)} was given")
    if operator != "match":  # the words of a text have no NUL
        _check_comparable(operand, name)
    return operand


def _starts(name: str, operand: Json) -> Node:
    operand = _text(name, "prefix", operand)
    stem = operand.rstrip("\U0010ffff")
    # The bound is the first text after all that start with the prefix, if such a text exists.
    following = [("<", stem[:-1] + chr(ord(stem[-1]) + 1))] if stem else []
    return Within(name, [(">=", operand), *following])


def _ends(name: str, operand: Json) -> Node:
    text = _text(name, "suffix", operand)
    return HasSuffix(name, text) if text else Within(name, [(">=", "")])


def _matches(name: str, operand: Json) -> Node:
    words = TOKENIZER.phrases(_text(name, "match", operand))
    if not 1 <= len(words) <= MAX_WORDS:
        raise _rejected(
            f"'match' on {name!r} takes 1 to {MAX_WORDS} words, but {_shown(operand)} has "
            f"{len(words) or 'none'}"
        )
    return HasWords(name, words)


def _between_dates(name: str, operand: Json) -> Node:
    if not isinstance(operand, Mapping) or not operand or not set(operand) <= set(_SIGNS):
        raise _rejected(
            f"'date' on {name!r} takes an object of {', '.join(_SIGNS)}, but {_shown(operand)} was "
            f"given"
        )
    bounds = []
    for key, value in operand.items():
        seconds = moment(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else None
        if seconds is None:
            raise _rejected(
                f"'date' on {name!r} takes ISO dates such as 2024-05-17 or 2024-05-17T12:30:00Z, "
                f"but {_shown(value)} was given"
            )
        bounds.append((_SIGNS[key], seconds))
    return WithinDates(name, bounds)


def moment(text: bytes | None) -> float | None:
    """Return an ISO date as seconds since 1970, in UTC where it names no zone; None for any other
    text.

    >>> moment(b"1970-01-02"), moment(b"1970-01-02T01:00:00+01:00"), moment(b"02.01.1970")
    (86400.0, 86400.0, None)
    """
    try:
        date = datetime.fromisoformat((text or b"").decode())
    except ValueError:
        return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def is_date(value: Json) -> bool:
    """Return whether a value is an ISO date.

    >>> is_date("2024-05-17"), is_date("17.05.2024")
    (True, False)
    """
    return isinstance(value, str) and moment(value.encode("utf-8", "replace")) is not None


def _bound(name: str, key: str, operand: Json) -> str | int | float:
    if isinstance(operand, bool) or not isinstance(operand, str | int | float):
        raise _rejected(f"{name!r} {key} takes a number or text, but {operand!r} was given")
    _check_comparable(operand, name)
    if isinstance(operand, str) and _DAY_FIRST.match(operand):
        raise _rejected(
            f"{name!r} {key} takes dates as 2024-05-17, which sort as texts, but {operand!r} was "
            f"given"
        )
    return operand


def _check_comparable(operand: Json, name: str) -> None:
    if isinstance(operand, float) and not math.isfinite(operand):
        raise _rejected(f"{name!r} is compared with {operand!r}; send a finite number")
    # SQLite's JSON ends a text at NUL: another one would be found.
    if isinstance(operand, str) and "\x00" in operand:
        raise _rejected(f"{name!r} is compared with a text that has the character NUL")


def _shown(operand: Json) -> str:
    return json.dumps(operand)[:80]


def _rejected(reason: str) -> InvalidRequest:
    end = "" if reason.endswith("?") else "."
    return InvalidRequest(f"The filter cannot be used: {reason}{end}", field="filter")


_SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}

_OPERATORS: dict[str, Callable[[str, Json], Node]] = {
    "eq": lambda name, operand: _among(name, [operand]),
    "ne": lambda name, operand: Not(_among(name, [operand])),
    "in": _among,
    "nin": lambda name, operand: Not(_among(name, operand)),
    "contains": lambda name, operand: _among(name, [operand]),
    "any": _among,
    "all": _has_all,
    "exists": _exists,
    "empty": _empty,
    "date": _between_dates,
    "prefix": _starts,
    "suffix": _ends,
    "match": _matches,
    "substring": lambda name, operand: HasSubstring(
        name, _text(name, "substring", operand).casefold()
    ),
    "exact_substring": lambda name, operand: HasSubstring(
        name, _text(name, "exact_substring", operand), exact=True
    ),
}


# -- SQL -------------------------------------------------------------------------------------

NULL, BOOLEAN, NUMBER, WORDS = 0, 1, 2, 3
"""Kinds of values. SQLite orders every text above every number, and takes true for 1:
comparisons are within one kind."""


LeafSql = tuple[str, str, tuple[str, ...]]
"""One condition as SQL: a condition on the table `documents`; SQL that selects rows of documents,
perhaps some twice, from `{source}`, a table of (row, kind, value) that an index serves; and the
parameters of either, in the same order."""


def leaf_sql(leaf: Leaf) -> LeafSql:
    """Return the SQL of one condition."""
    match leaf:
        case IsNull(field):
            scan = f"coalesce(json_type({located(field)}, '$'), 'null') = 'null'"
            return scan, f"SELECT row FROM {{source}} WHERE kind = {NULL}", ()
        case Among(field, values):
            scan = (
                f"({kind_of('element.type')}, element.value) IN "
                f"(SELECT {kind_of('type')}, value FROM json_each(?))"
            )
            lookup = (
                f"SELECT entry.row AS row FROM json_each(?) AS given "
                f"CROSS JOIN {{source}} AS entry "
                f"ON entry.kind = {kind_of('given.type')} AND entry.value = given.value"
            )
            return _any_element(field, scan), lookup, (json.dumps(list(values)),)
        case Within(field, bounds):
            kind = WORDS if isinstance(bounds[0][1], str) else NUMBER
            signs = " AND ".join(f"{{value}} {sign} json_extract(?, '$')" for sign, _ in bounds)
            element = signs.replace("{value}", "element.value")
            scan = f"{kind_of('element.type')} = {kind} AND {element}"
            entry = f"kind = {kind} AND {signs.replace('{value}', 'value')}"
            lookup = f"SELECT row FROM {{source}} WHERE {entry}"
            parameters = tuple(json.dumps(value) for _, value in bounds)
            return _any_element(field, scan), lookup, parameters
        case HasSubstring() | HasSuffix() | WithinDates():
            return _text_sql(leaf)
        case IsEmptyList(field):
            scan = f"{located(field)} IS '[]'"
            return scan, f"SELECT row FROM documents WHERE {scan}", ()
        case HasWords(field, words):
            matches = "SELECT rowid AS row FROM lexical WHERE lexical MATCH ?"
            query = " ".join(map(quoted, words))
            if field == TEXT:
                return f"documents.row IN ({matches})", matches, (query,)
            # The index does not tell one text field from another: where there are others, look
            # closer.
            path = f"$.{json.dumps(field)}".replace("'", "''")
            scan = (
                f"documents.row IN ({matches}) AND json_type(documents.fields, '{path}') = 'text' "
                f"AND ((SELECT count(*) FROM json_each(documents.fields)) = 1 OR "
                f"has_words(documents.fields, ?, ?))"
            )
            lookup = f"SELECT row FROM documents WHERE {scan}"
            return f"ifnull({scan}, 0)", lookup, (query, field, query)


def _text_sql(leaf: HasSubstring | HasSuffix | WithinDates) -> LeafSql:
    """Return the SQL of a condition that an element meets if it is a text of some form."""
    # As bytes, for a text may have half of a surrogate pair.
    operands: list[Json]
    element, operand = "CAST({value} AS BLOB)", "CAST(json_extract(?, '$') AS BLOB)"
    match leaf:
        case HasSubstring(_, text, exact):
            subject = element if exact else f"folded({element})"
            holds, operands = f"instr({subject}, {operand}) > 0", [text]
        case HasSuffix(_, text):
            size = len(text.encode("utf-8", "surrogatepass"))
            holds, operands = f"substr({element}, -{size}) = {operand}", [text]
        case WithinDates(_, bounds):
            signs = [f"moment({element}) {sign} json_extract(?, '$')" for sign, _ in bounds]
            holds, operands = " AND ".join(signs), [seconds for _, seconds in bounds]
    parameters = tuple(map(json.dumps, operands))
    if leaf.field == TEXT:
        inner = holds.replace("{value}", "element.value")
        scan = f"EXISTS (SELECT 1 FROM json_each(documents.fields) element WHERE {inner})"
        return scan, f"SELECT row FROM documents WHERE {scan}", parameters
    scan = f"{kind_of('element.type')} = {WORDS} AND {holds.replace('{value}', 'element.value')}"
    entry = f"kind = {WORDS} AND {holds.replace('{value}', 'value')}"
    return (
        _any_element(leaf.field, scan),
        f"SELECT row FROM {{source}} WHERE {entry}",
        parameters,
    )


def indexed_field(leaf: Leaf) -> str:
    """Return the field whose index serves a condition: that of words serves all text fields."""
    return TEXT if isinstance(leaf, HasWords) else leaf.field


def scan_sql(node: Node) -> tuple[str, tuple[str, ...]]:
    """Return a filter as one SQL condition on `documents`, and its parameters."""
    if isinstance(node, Leaf):
        scan, _, parameters = leaf_sql(node)
        return f"({scan})", parameters
    if isinstance(node, Not):
        condition, parameters = scan_sql(node.part)
        return f"NOT {condition}", parameters
    parts = [scan_sql(part) for part in node.parts]
    word = " AND " if isinstance(node, All) else " OR "
    # Without any part, an AND holds.
    joined = word.join(part for part, _ in parts) or "1"
    return f"({joined})", tuple(value for _, values in parts for value in values)


def kind_of(type: str) -> str:
    """Return SQL for an element's kind from SQL for its JSON type; NULL for lists and objects."""
    return (
        f"CASE {type} WHEN 'text' THEN {WORDS} WHEN 'integer' THEN {NUMBER} "
        f"WHEN 'real' THEN {NUMBER} WHEN 'true' THEN {BOOLEAN} WHEN 'false' THEN {BOOLEAN} "
        f"WHEN 'null' THEN {NULL} END"
    )


def located(name: str) -> str:
    """Return SQL for the JSON of a field in a row of `documents`; NULL for a missing field."""
    if name == ID:
        return "json_quote(documents.id)"
    if name == VALUE:
        return "documents.value"
    ways = [path.replace("'", "''") for path in dict.fromkeys(paths(name))]
    places = [f"documents.{side} -> '{way}'" for side in ("value", "payload") for way in ways]
    return f"coalesce({', '.join(places)})"


def paths(name: str) -> tuple[str, str]:
    """Return SQLite's paths of a name: as one key, and as the way that its dots lead.

    Escaped as stored JSON is, for SQLite before 3.45 compares names as they are written.
    """
    key, parts = json.dumps(name), [json.dumps(part) for part in name.split(".")]
    return f"$.{key}", "$" + "".join(f".{part}" for part in parts)


def _any_element(name: str, condition: str) -> str:
    """Return SQL that an element meets a condition: a scalar itself, or an element of a list."""
    return (
        f"EXISTS (SELECT 1 FROM json_each({located(name)}) AS element "
        f"WHERE typeof(element.key) <> 'text' AND {condition})"
    )
