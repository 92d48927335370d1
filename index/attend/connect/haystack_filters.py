"""Filters of Haystack as those of a collection."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from haystack.errors import FilterError

from attend.connect.framework import Filter, joined
from attend.core.errors import InvalidRequest
from attend.store import compile_filter


def field_name(field: str) -> str:
    """Return the name of a field of the meta without what Haystack may write before it.

    >>> field_name("meta.year")
    'year'
    """
    return field.removeprefix("meta.")


def filter_of(filters: dict[str, Any] | None) -> Filter:
    """Return a filter of Haystack as one of a collection; none lets everything pass.

    Raises:
        FilterError: a part that is missing, unknown, or of a type that its operator does not take.

    >>> filter_of({"field": "meta.year", "operator": ">=", "value": 1851})
    {'year': {'gte': 1851}}
    """
    filter = _translated(filters) if filters else {}
    try:
        compile_filter(filter)
    except InvalidRequest as error:
        raise FilterError(str(error)) from None
    return filter


def _translated(filters: dict[str, Any]) -> Filter:
    parts = ("field", "operator", "value") if "field" in filters else ("operator", "conditions")
    missing = [part for part in parts if part not in filters]
    if missing:
        raise FilterError(f"The filter {filters} has no {missing[0]!r}; add it.")
    operators = COMPARISONS if "field" in filters else ("AND", "OR", "NOT")
    operator = filters["operator"]
    if operator not in operators:
        raise FilterError(f"The operator {operator!r} is not known; send one of {[*operators]}.")
    if "field" in filters:
        return _comparison(filters["field"], operator, filters["value"])
    conditions = [_translated(part) for part in filters["conditions"]]
    if operator == "NOT":  # not all of them
        return {"$not": joined("$and", conditions)}
    return joined("$or" if operator == "OR" else "$and", conditions)


def _comparison(field: str, operator: str, value: Any) -> Filter:
    if isinstance(value, datetime):
        value = value.isoformat()
    if operator in ("in", "not in") and not isinstance(value, list):
        raise FilterError(f"{operator!r} on {field!r} takes a list, but {value!r} was given.")
    if operator in (">", ">=", "<", "<="):
        if value is None:  # nothing lies above or below it
            return joined("$or", [])
        if isinstance(value, list) or (isinstance(value, str) and not DATE.match(value)):
            raise FilterError(
                f"{operator!r} on {field!r} takes a number or a date such as 2024-05-17, but "
                f"{value!r} was given."
            )
    if field in ("content", "blob", "embedding", "sparse_embedding", "score"):
        raise FilterError(f"{field!r} cannot be filtered by; fields are 'id' and those of meta.")
    return {"@id" if field == "id" else field_name(field): {COMPARISONS[operator]: value}}


DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ].*)?$", re.ASCII | re.IGNORECASE)
COMPARISONS = {
    **{"==": "eq", "!=": "ne", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte"},
    **{"in": "in", "not in": "nin"},
}
"""The operators of Haystack → those of a collection's filters."""
