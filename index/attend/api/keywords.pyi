"""The fields of requests as keyword arguments, made by `python -m tests.keywords`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

class SearchKeywords(TypedDict, total=False):
    k: int
    offset: int
    attend: int | Literal["all"]
    filter: Mapping[str, Any] | None
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
    recency: Mapping[str, Any] | str | Literal[False] | None
    now: float | str | None
    memory: float | None
    rerank: int
    min_confidence: float | None
    coverage: float | None
    projection: int | None
    decode: bool
    cursor: str | None
    min_score: float | None
    group_by: str | None
    diversity: float
    fields: Sequence[str] | None
    include: Sequence[Literal["text", "passage"]] | None
    facets: Sequence[str] | None
    consistency: Literal["bounded", "strong"] | None
    exclude_self: bool
    title: bool
    highlight: bool
    explain: bool | Literal["tokens"]
    vector: Sequence[float] | None

class RecommendKeywords(TypedDict, total=False):
    history: Sequence[Mapping[str, Any] | str | int]
    user: str | int | None
    positive: Sequence[Mapping[str, Any] | str | int]
    negative: Sequence[Mapping[str, Any] | str | int]
    facts: Sequence[Mapping[str, Any] | str]
    k: int
    offset: int
    attend: int | Literal["all"]
    filter: Mapping[str, Any] | None
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
    about: Mapping[str, Any] | None
    log: bool
    log_days: float
    log_bytes: int
    log_swaps: float

class TrainKeywords(TypedDict, total=False):
    objective: Literal["ranking", "answers", "interactions", "ratings"]
    value: str | None
    share_seen: float
    dimensions: int | None
    heads: int | None
    parts: Sequence[Literal["matrices", "offsets", "examples", "words", "recency"]]
    deep: bool
    error_rate: float
    tolerance: float
    seed: int
    promote: bool
    used: bool
