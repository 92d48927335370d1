"""`attend search`."""

from __future__ import annotations

import json
from typing import Any

import click

from attend.api.answers import Answer, Hit
from attend.api.search import SearchOptions
from attend.cli.options import (
    JsonType,
    Target,
    model_options,
    on_collection,
    present,
    shortened,
)
from attend.collection import Collection
from attend.errors import InvalidRequest
from attend.source.cells import as_vector

SNIPPET = 100


@click.command("search")
@click.argument("query", required=False)
@on_collection
@model_options(SearchOptions, "k", "mode", "value", "attend", "filter", "temperature", "scorer")
@model_options(SearchOptions, "scale", "pool", "recall", "lexical", "min_confidence", "projection")
@click.option(
    "--like", "ids", multiple=True, metavar="ID", help="More like this document; repeatable."
)
@click.option(
    "--vector",
    type=JsonType(list),
    metavar="V",
    help="Query vector: a JSON list of numbers, or a file that holds one.",
)
@model_options(SearchOptions, "offset", "min_score", "group_by", "facets", "highlight", "cursor")
def search_command(
    target: Target,
    query: str | None,
    vector: list[Any] | None,
    ids: tuple[str, ...],
    **options: Any,
) -> None:
    """Search documents.

    QUERY is text, or a JSON list of numbers for a collection of vectors; --vector takes its
    place, also in a collection of texts. With --like it may be left out; with both, the query is
    a blend of them.

    \b
    Example:
      attend search "compress a file" --data library --mode soft --value module
      attend search "[0.1, 0.7]" --data library --collection vectors
      attend search --vector query.json --data library --collection vectors
    """
    if query is not None and vector is not None:
        raise click.UsageError("QUERY and --vector are two queries; give one of them.")
    if vector is not None and as_vector(vector) is None:
        raise click.UsageError(
            f"--vector is {shortened(str(vector))}, but a list of finite numbers is expected."
        )
    if query is None and vector is None and not ids:
        raise click.UsageError("Give a QUERY, a --vector, or --like with the id of a document.")
    collection = target.collection()
    request = vector if query is None else _parsed_query(query, collection)
    if request is None:
        blend: Any = {"ids": list(ids)}
    else:
        blend = {"blend": [request, *({"id": id} for id in ids)]} if ids else request
    answer = collection.search(blend, explain=True, **present(options))
    target.show(answer.json(), _text(answer, str(options["mode"])))


def _parsed_query(query: str, collection: Collection) -> str | list[float]:
    """Return a text, or a vector where the collection has no encoder.

    Raises:
        InvalidRequest: the collection needs a vector, and QUERY is no list.
    """
    # Text may begin with a bracket: a list of numbers is a vector where there is no encoder.
    if collection.settings.encoder:
        return query
    vector = as_vector(query)
    if vector is None:
        width = collection.settings.dimension
        raise InvalidRequest(
            f"The collection {collection.name!r} was made for vectors of {width} dimensions, but "
            f"QUERY is {shortened(query)}; give a JSON list of {width} numbers, or --vector with "
            f"such a list or a file that holds one.",
            field="query",
        )
    return vector


def _text(answer: Answer, mode: str) -> str:
    lines = [_line(rank, hit) for rank, hit in enumerate(answer.hits, start=1)]
    if not answer.attended:
        lines.append("No documents: none passes the filter, or the collection is empty.")
    elif not answer.answered:
        lines.append(f"No answer: nothing here answers that (confidence {answer.confidence:.3f}).")
    if mode == "soft":
        lines.append(f"answer: {json.dumps(answer.answer, ensure_ascii=False)}")
    for name, facet in (answer.facets or {}).items():
        counts = [
            f"{json.dumps(entry.value, ensure_ascii=False)} {entry.documents}"
            for entry in facet.values
        ]
        lines.append(f"{name}: {', '.join(counts)} ({facet.distinct} values)")
    return "\n".join(lines)


def _line(rank: int, hit: Hit) -> str:
    snippet = " ".join(_passage(hit).split())
    if len(snippet) > SNIPPET:
        snippet = f"{snippet[: SNIPPET - 1]}…"
    value = "" if hit.value is None else f"  {json.dumps(hit.value, ensure_ascii=False)}"
    group = "" if hit.group_size is None else f"  ({hit.group_size} in {json.dumps(hit.group)})"
    return f"{rank:>3}  {hit.weight:.3f}  {hit.id}{value}{group}\n            {snippet}".rstrip()


def _passage(hit: Hit) -> str:
    """Return the passage that matched, with highlighted words in brackets."""
    if hit.highlight is None:
        return str((hit.explanation or {}).get("passage") or "")
    passage = hit.highlight.passage or ""
    for start, stop in reversed(hit.highlight.spans):
        passage = f"{passage[:start]}[{passage[start:stop]}]{passage[stop:]}"
    return passage
