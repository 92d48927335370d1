"""The fields of requests as keyword arguments, for editors and type checkers.

A request is declared by its model in this package, and a test compares the two: the names here are
those of the models, which validate them and describe them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar

from attend.api.base import Request

Method = TypeVar("Method", bound=Callable[..., Any])

Conditions = Mapping[str, Any] | None
"""A filter, such as {"year": {"gte": 2000}}."""


class SearchKeywords(TypedDict, total=False):
    """Options of a search (`attend.api.search.SearchRequest`)."""

    vector: Sequence[float] | None
    k: int
    offset: int
    attend: int | Literal["all"]
    filter: Conditions
    mask: Mapping[str, Any] | None
    mode: Literal["hard", "soft"]
    value: str | None
    temperature: float
    scorer: Literal["dot", "cosine", "laplace", "additive"] | None
    scale: float | None
    heads: Sequence[float] | None
    pool: Literal["max", "sum"] | None
    recall: float | None
    lexical: bool | float | None
    memory: float | None
    rerank: int
    min_confidence: float | None
    projection: int | None
    decode: bool
    cursor: str | None
    min_score: float | None
    group_by: str | None
    fields: Sequence[str] | None
    include: Sequence[Literal["text", "passage"]] | None
    facets: Sequence[str] | None
    consistency: Literal["bounded", "strong"] | None
    exclude_self: bool
    title: bool
    highlight: bool
    explain: bool | Literal["tokens"]


class RecommendKeywords(TypedDict, total=False):
    """A user and options of a recommendation (`attend.api.recommend.RecommendRequest`)."""

    history: Sequence[str | Mapping[str, Any]]
    user: str | None
    positive: Sequence[str | Mapping[str, Any]]
    negative: Sequence[str | Mapping[str, Any]]
    facts: Sequence[str | Mapping[str, Any]]
    k: int
    offset: int
    attend: int | Literal["all"]
    filter: Conditions
    exclude_seen: bool
    liked_from: float | None
    on_missing: Literal["error", "skip"]
    half_life: float | None
    diversity: float
    reserve: float
    fields: Sequence[str] | None
    include: Sequence[Literal["text", "passage"]] | None
    recall: float | None
    title: bool
    explain: bool
    projection: int | None


class CollectionKeywords(TypedDict, total=False):
    """Settings of a collection (`attend.api.documents.CollectionSettings`)."""

    encoder: str | None
    dimension: int | None
    normalize: bool | None
    scorer: Literal["dot", "cosine", "laplace"]
    scale: float | None
    passages: bool
    overlap: int | None
    recall: float
    exact_below: int | None
    values: Any


class TrainKeywords(TypedDict, total=False):
    """Options of a training (`attend.api.learning.TrainRequest`)."""

    objective: Literal["ranking", "answers", "interactions", "ratings"]
    value: str | None
    share_seen: float
    dimensions: int | None
    heads: int | None
    parts: Sequence[Literal["matrices", "offsets", "examples", "words"]]
    error_rate: float
    tolerance: float
    seed: int
    promote: bool


def keywords_of(model: type[Request]) -> Callable[[Method], Method]:
    """Let a method show the fields of a model in its signature, with their defaults.

    For `help` and for notebooks, which read the signature as the program runs.
    """

    def decorate(method: Method) -> Method:
        signature = inspect.signature(method)
        before = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        names = {parameter.name for parameter in before}
        keywords = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=[] if field.is_required() or field.default_factory else field.default,
                annotation=field.annotation,
            )
            for name, field in model.model_fields.items()
            if name not in names
        ]
        shown = signature.replace(parameters=[*before, *keywords])
        method.__signature__ = shown  # type: ignore[attr-defined]
        return method

    return decorate
