"""Suggestions for unknown names: those that other systems use, and misspelt ones."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence

CLOSE = 0.72
"""The least likeness (`difflib`) of a misspelt name to the one that was meant."""

MAX_LISTED = 12
"""Names that an error lists at most."""

OTHER_NAMES: Mapping[str, Sequence[str]] = {
    target: tuple(names.split())
    for target, names in {
        "k": "top_k topk top n n_results num_results limit size count max_results page_size",
        "limit": "k top_k n size count page_size per_page",
        "offset": "from skip start first",
        "cursor": "page scroll_id next_page after search_after continuation",
        "filter": "where filters query_filter where_document conditions must post_filter",
        "query": "q text vector queries query_text query_texts query_vector query_embedding "
        "query_embeddings embedding question search input knn near_text",
        "fields": "with_payload include_metadata output_fields select _source return_fields "
        "attributes",
        "include": "with_text with_documents include_text include_values include_documents return",
        "min_score": "score_threshold threshold min_similarity similarity_threshold radius",
        "min_confidence": "confidence confidence_threshold",
        "lexical": "hybrid bm25 alpha keyword keywords sparse sparse_vector",
        "recency": "decay time_decay boost recency_bias freshness",
        "now": "origin",
        "rerank": "reranker rerank_k rescore num_candidates",
        "diversity": "mmr lambda_mult mmr_lambda",
        "group_by": "group collapse group_field",
        "facets": "aggs aggregations facet",
        "highlight": "highlighting highlights",
        "explain": "explanation debug profile",
        "scorer": "metric distance metric_type similarity distance_function",
        "payload": "metadata metadatas meta properties attributes attrs extra",
        "text": "document content body page_content passage chunk documents",
        "vector": "embedding embeddings values vectors dense emb",
        "id": "_id ids doc_id document_id docid point_id item item_id document key uuid",
        "ids": "id documents",
        "value": "values label target answer rating stars score",
        "label": "rating score relevance relevant weight grade value",
        "documents": "points records docs items vectors objects rows data document ids",
        "items": "documents points records rows data interactions examples feedback",
        "user": "user_id userid customer customer_id uid",
        "time": "timestamp date created created_at ts",
        "history": "items seen item_ids interactions clicked",
        "positive": "positives like likes liked more_like_this recommend",
        "negative": "negatives dislike dislikes disliked unlike less_like_this",
        "collections": "collection names indexes indices",
        "collection": "collection_name index index_name namespace name",
        "dimension": "dim dimensions size vector_size vector_dim embedding_dimension dims",
        "encoder": "model embedding_function embedder embedding_model model_name",
        "dimensions": "dimension dim dims",
        "searches": "queries requests",
    }.items()
}
"""Our name → the names that callers of Chroma, Qdrant, Pinecone, Elasticsearch and others use."""

OPERATORS: Mapping[str, Sequence[str]] = {
    "eq": ("=", "==", "equals", "equal", "is", "term", "value"),
    "ne": ("!=", "<>", "not", "neq", "not_equal"),
    "gt": (">", "greater", "greater_than", "after"),
    "gte": (">=", "ge", "min", "from", "greater_or_equal"),
    "lt": ("<", "less", "less_than", "before"),
    "lte": ("<=", "le", "max", "to", "less_or_equal"),
    "in": ("one_of", "terms", "anyof", "any_of"),
    "nin": ("not_in", "notin", "none_of", "except"),
    "prefix": ("starts_with", "startswith", "begins_with"),
    "match": ("text", "match_text", "search", "full_text", "match_phrase"),
    "substring": ("like", "ilike", "icontains", "text_match", "regex", "wildcard"),
    "suffix": ("ends_with", "endswith"),
    "date": ("datetime", "datetime_range", "time", "timestamp"),
    "empty": ("is_empty",),
    "contains": ("has", "includes", "array_contains"),
    "exists": ("is_null", "null", "missing", "present"),
    "$and": ("and", "must", "all_of"),
    "$or": ("or", "should", "some"),
    "$not": ("not", "must_not", "nor"),
}
"""The operators of filters → what other systems call them; a leading $ is no difference."""


def suggestion(
    name: str, names: Collection[str], other: Mapping[str, Sequence[str]] = OTHER_NAMES
) -> str | None:
    """Return the one of some names that an unknown name seems to mean, or None.

    >>> suggestion("top_k", ["k", "offset"])
    'k'
    >>> suggestion("$gte", ["gt", "gte"], OPERATORS)
    'gte'
    >>> suggestion("atend", ["k", "attend"])
    'attend'
    """
    plain = name.lower().replace("-", "_")
    for spelling in (plain, plain.lstrip("$_")):
        if spelling in names:
            return spelling
        for target, others in other.items():
            if target in names and spelling in others:
                return target
    close = difflib.get_close_matches(plain, names, 1, CLOSE)
    return close[0] if close else None


def remedy(
    name: str,
    names: Collection[str],
    other: Mapping[str, Sequence[str]] = OTHER_NAMES,
    listed: int = MAX_LISTED,
) -> str:
    """Return what to do about an unknown name, as the end of a sentence.

    >>> remedy("top_k", ["k", "offset"])
    "did you mean 'k'?"
    >>> remedy("colour", ["k", "offset"])
    'known are k and offset'
    """
    meant = suggestion(name, names, other)
    if meant is not None:
        return f"did you mean {meant!r}?"
    if not 0 < len(names) <= listed:
        return "remove it or correct its name"
    *first, last = names
    return f"known are {', '.join(first)} and {last}" if first else f"known is {last}"
