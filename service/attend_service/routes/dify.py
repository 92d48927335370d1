"""Dify's external knowledge: `POST /retrieval`, which Dify asks of a base URL.

https://docs.dify.ai/en/use-dify/knowledge/external-knowledge-api, as of June 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, FiniteFloat

from attend.api import base
from attend.api.base import Reply, WrongField
from attend.api.search import SearchRequest
from attend_service.context import collection_of
from attend_service.operations import ForeignRequest, Operations, need_memory, working_size
from attend_service.security import resolved

operations = Operations("Dify")

NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?")

Comparison = Literal[
    "contains", "not contains", "start with", "end with", "is", "is not", "in", "not in", "empty",
    "not empty", "=", "≠", ">", "<", "≥", "≤", "before", "after",
]  # fmt: skip

DENIED = {
    "not contains": "contains",
    "is not": "is",
    "≠": "=",
    "not in": "in",
    "not empty": "empty",
}
"""Comparisons that hold where another does not."""


def _read(value: Any) -> Any:
    """Return the number that a text is written like; anything else as it is."""
    is_number = isinstance(value, str) and NUMBER.fullmatch(value)
    return json.loads(value) if is_number else value


def _either(values: Sequence[Any]) -> list[Any]:
    """Return the condition that a field equals a value as it is, or as the number it is like."""
    return [{"in": [*values, *map(_read, values)]}]


def _listed(value: Any) -> list[Any]:
    """Return several values; in a text, which a variable of Dify's may be, commas part them."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _date(sign: str, value: Any) -> list[Any]:
    number = _read(value)
    return [{"date": {sign: value}} if isinstance(number, str) else {sign: number}]


CONDITIONS: Mapping[str, Callable[[Any], list[Any]]] = {
    "contains": lambda value: [{"substring": str(value)}],
    "start with": lambda value: [{"prefix": str(value)}],
    "end with": lambda value: [{"suffix": str(value)}],
    "is": lambda value: _either([value]),
    "in": lambda value: _either(_listed(value)),
    "empty": lambda _: [{"empty": True}, ""],
    "=": lambda value: _either([value]),
    ">": lambda value: [{"gt": _read(value)}],
    "<": lambda value: [{"lt": _read(value)}],
    "≥": lambda value: [{"gte": _read(value)}],
    "≤": lambda value: [{"lte": _read(value)}],
    "before": lambda value: _date("lt", value),
    "after": lambda value: _date("gt", value),
}
"""By comparison, the conditions of our filters of which a field meets one."""


class MetadataComparison(ForeignRequest):
    """A comparison of one field of value or payload, or of several, of which one is enough."""

    name: base.Path | list[base.Path] = Field(examples=["year"])
    comparison_operator: Comparison
    value: str | int | FiniteFloat | list[str | int | FiniteFloat] | None = None
    """A text that is written like a number is compared as a number, too."""

    def check(self) -> None:
        kind = DENIED.get(self.comparison_operator, self.comparison_operator)
        if self.value is None and kind != "empty":
            raise WrongField("value", "the comparison is with a value, but none was sent")
        if kind == "in" and not isinstance(self.value, str | list):
            raise WrongField("value", "a list of values was expected, but a number was sent")
        if isinstance(self.value, list) and kind not in ("in", "empty"):
            raise WrongField("value", "one value was expected; a list goes with 'in' and 'not in'")

    def filter(self) -> dict[str, Any]:
        """Return the comparison as a filter of ours."""
        kind = DENIED.get(self.comparison_operator, self.comparison_operator)
        names = self.name if isinstance(self.name, list) else [self.name]
        either = [{name: part} for name in names for part in CONDITIONS[kind](self.value)]
        return {"$or": either} if kind == self.comparison_operator else {"$not": {"$or": either}}


class MetadataCondition(ForeignRequest):
    """Comparisons that all hold, or of which one does."""

    logical_operator: Literal["and", "or"] | None = "and"
    conditions: list[MetadataComparison] | None = Field(None, max_length=base.MAX_FIELDS)


class RetrievalSetting(ForeignRequest):
    """The documents to return."""

    top_k: int = Field(4, ge=1, le=base.MAX_K)
    score_threshold: FiniteFloat | None = Field(0.0, ge=0, le=1)
    """The least score of a record."""


class KnowledgeRequest(ForeignRequest):
    """A question to a collection; nothing at all is what Dify sends to try an address."""

    knowledge_id: str | None = Field(None, pattern=base.NAME_PATTERN, examples=["books"])
    """The collection, or an alias of it."""
    query: base.Text | None = None
    retrieval_setting: RetrievalSetting | None = None
    metadata_condition: MetadataCondition | None = None

    def check(self) -> None:
        for name in ("knowledge_id", "query"):
            if getattr(self, name) is None and self.model_fields_set:
                raise WrongField(name, "it is required, but was not sent")


class KnowledgeRecord(Reply):
    """A document."""

    content: str
    """Its text; without one its title."""
    score: float
    """Confidence × weight, from 0 to 1: the share of the attention that the document has."""
    title: str
    metadata: Mapping[str, Any]
    """Its payload, with its id as `_id` and its value as `value`."""


class KnowledgeRecords(Reply):
    """The documents that answer, best first; none where nothing answers."""

    records: Sequence[KnowledgeRecord]


@operations.add(
    "POST",
    "/retrieval",
    example={"knowledge_id": "books", "query": "life on a ship", "retrieval_setting": {"top_k": 3}},
    optional=True,
    also=(404, 409, 503),
    scope="read",
    checks_collections=True,
)
def retrieve_knowledge(body: KnowledgeRequest) -> KnowledgeRecords:
    """Answer a question as an external knowledge base of Dify.

    An empty body, by which Dify tries an address, is answered with no records, and so is a question
    that nothing here answers. Records with a score below `score_threshold` are left out.
    """
    if body.query is None or body.knowledge_id is None:
        return KnowledgeRecords([])
    collection = collection_of(resolved(body.knowledge_id))
    setting = body.retrieval_setting or RetrievalSetting.model_construct()
    condition = body.metadata_condition
    parts = [part.filter() for part in condition.conditions or ()] if condition else []
    word = "$or" if condition and condition.logical_operator == "or" else "$and"
    sent = {"query": body.query, "k": setting.top_k, "attend": max(setting.top_k, 100)}
    shown = {"include": ["text"], "title": True, "filter": {word: parts} if parts else None}
    search = base.parse(SearchRequest, {**sent, **shown})
    need_memory(working_size(search))
    answer = collection.search_many([search])[0]
    records = []
    for hit, score in zip(answer.hits, answer.shares(), strict=True):
        if answer.answered and score >= (setting.score_threshold or 0.0):
            title, metadata = (
                hit.title or hit.id,
                {**hit.payload, "_id": hit.id, "value": hit.value},
            )
            records.append(KnowledgeRecord(hit.text or title, score, title, metadata))
    return KnowledgeRecords(records)
