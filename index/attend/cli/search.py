"""`attend search` and `attend recommend`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import click
from pydantic import Field

from attend.api.answers import Answer, Hit, Predicted, Recommendation, Recommended, shortened
from attend.api.recommend import RecommendRequest
from attend.api.search import SearchOptions
from attend.cli.options import (
    CommandOptions,
    JsonType,
    Target,
    collection_command,
    model_options,
    present,
)
from attend.cli.output import quoted, rounded
from attend.collection.collection import Collection
from attend.core.errors import InvalidRequest
from attend.core.types import Json
from attend.search.foreign import FEW
from attend.source.rows import as_vector
from attend.store import StoredDocument

SNIPPET = 100
"""Characters of a text that are printed."""

MOST_ID = 24
"""Characters up to which the column of ids is as wide as its longest."""

REMINDERS = 3
"""Questions that are printed of those that moved the query."""

LEAST_SHARE = 0.05
"""Questions with less of a share are not printed."""

_INDENT = " " * 14


class OtherQueries(CommandOptions):
    """What a search may have beside or instead of QUERY."""

    likes: Annotated[list[str], "ID"] = Field([])
    """More like this document; repeatable."""
    vector: Annotated[Any, JsonType(list), "V"] = None
    """Query vector: a JSON list of numbers, or a file that holds one."""


class UserOptions(CommandOptions):
    """What the command line tells of a user, in place of the lists of a request."""

    likes: Annotated[list[str], "ID"] = Field([])
    """More like it; repeatable."""
    unlikes: Annotated[list[str], "ID"] = Field([])
    """Less like it; repeatable."""
    facts: Annotated[list[str], "TEXT|F=V"] = Field([])
    """A part of the user's profile: a text, or a field with its value; repeatable."""
    targets: Annotated[list[str], "ID"] = Field([])
    """Predict the user's value of it from the values of the history; repeatable."""
    with_seen: bool = False
    """Also list documents of the user's history."""
    request: Annotated[dict[str, Any] | None, JsonType(dict)] = None
    """The whole request as HTTP takes it (weights, values, times, vectors), or a file of it."""

    def fields(self, ids: Sequence[str]) -> dict[str, Any]:
        """Return the fields of a request: those of --request, then the others."""
        lists = {"positive": self.likes, "negative": self.unlikes, "target": self.targets}
        request = self.request or {}
        fields = request | {name: items for name, items in lists.items() if items}
        if self.facts:
            fields["facts"] = [_fact(fact) for fact in self.facts]
        if self.with_seen:
            fields["exclude_seen"] = False
        if ids:
            fields["history"] = [*request.get("history", []), *ids]
        return fields


@collection_command("search")
@click.argument("query", required=False)
@model_options(SearchOptions, "k", "mode", "value", "attend", "filter", "temperature", "scorer")
@model_options(SearchOptions, "scale", "pool", "recall", "lexical", "min_confidence", "projection")
@model_options(SearchOptions, "memory", "rerank")
@model_options(OtherQueries)
@model_options(SearchOptions, "include", "fields", "offset", "min_score", "group_by", "facets")
@model_options(SearchOptions, "highlight", "cursor")
def search_command(target: Target, query: str | None, **options: Any) -> None:
    """Search documents.

    QUERY is text, or a JSON list of numbers for a collection of vectors. --vector takes its
    place, also in a collection of texts; beside it, QUERY counts by its words (--lexical) and the
    vector is compared with the keys. With --like it may be left out; with both, the query is
    a blend of them.

    \b
    Example:
      attend search "compress a file" --data library --mode soft --value module
      attend search "[0.1, 0.7]" --data library --collection vectors
      attend search --vector query.json --data library --collection vectors
    """
    others = OtherQueries.take(options)
    vector = others.vector
    if vector is not None and as_vector(vector) is None:
        raise click.UsageError(
            f"--vector is {quoted(str(vector))}, but a list of finite numbers is expected."
        )
    if query is None and vector is None and not others.likes:
        raise click.UsageError("Give a QUERY, a --vector, or --like with the id of a document.")
    collection = target.collection()
    request: Any = vector
    if query is not None:
        both = {"text": query, "vector": vector}
        request = _parsed_query(query, collection) if vector is None else both
    if request is None:
        blend: Any = {"ids": others.likes}
    elif others.likes:
        blend = {"blend": [request, *({"id": id} for id in others.likes)]}
    else:
        blend = request
    if isinstance(request, str):
        collection.encoder()  # loaded now: took_ms is the time of the search
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
            f"QUERY is {quoted(query)}; give a JSON list of {width} numbers, or --vector with "
            f"such a list or a file that holds one.",
            field="query",
        )
    return vector


def _text(answer: Answer, mode: str) -> str:
    lines = _listing(answer.hits, [_passage(hit) for hit in answer.hits], digits=3)
    if not answer.attended:
        lines.append("No documents: none passes the filter, or the collection is empty.")
    elif not answer.answered:
        confidence = "" if answer.confidence is None else f" (confidence {answer.confidence:.3f})"
        lines.append(f"No answer: nothing here answers that{confidence}.")
    # That a small collection has no test is no news at every search; `info` says it.
    lines += [hint for hint in answer.hints or () if hint != FEW]
    if mode == "soft":
        parts = {name: part for name, part in answer.answer.items() if part is not None}
        lines.append(f"answer: {json.dumps(rounded(parts), ensure_ascii=False)}")
    reminders = [share for share in answer.memory or () if share.share >= LEAST_SHARE]
    for share in reminders[:REMINDERS]:
        query = "a vector" if share.query is None else json.dumps(share.query, ensure_ascii=False)
        lines.append(f"moved by feedback: {share.share:.3f} {query} ({', '.join(share.documents)})")
    for name, facet in (answer.facets or {}).items():
        counts = [
            f"{json.dumps(entry.value, ensure_ascii=False)} {entry.documents}"
            for entry in facet.values
        ]
        lines.append(f"{name}: {', '.join(counts)} ({facet.distinct} values)")
    return "\n".join(lines)


def _listing(hits: Sequence[Hit | Recommendation], texts: Sequence[str], digits: int) -> list[str]:
    """Return a header, and a line for each hit with the beginning of its text below.

    Args:
        texts: the passage that matched, or the document's text.
        digits: of the weights, after the point.
    """
    if not hits:
        return []
    width = min(max(len("id"), *(len(hit.id) for hit in hits)), MOST_ID)
    has_values = any(hit.value is not None for hit in hits)
    lines = [f"rank  weight  {'id':<{width}}{'  value' if has_values else ''}".rstrip()]
    for rank, (hit, text) in enumerate(zip(hits, texts, strict=True), start=1):
        value = "" if hit.value is None else f"  {json.dumps(hit.value, ensure_ascii=False)}"
        line = f"{rank:>4}  {hit.weight:6.{digits}f}  {hit.id:<{width}}{value}"
        full = hit.text or hit.passage  # the caller wants all of it
        below = [full.replace("\n", f"\n{_INDENT}") if full else shortened(text, SNIPPET)]
        if isinstance(hit, Recommendation):
            below += [] if hit.because is None else [f"because of {_shares(hit.because)}"]
        elif hit.group_size is not None:
            line += f"  ({hit.group_size} in {json.dumps(hit.group)})"
        lines += [line.rstrip(), *(f"{_INDENT}{part}" for part in below if part)]
    return lines


def _passage(hit: Hit) -> str:
    """Return the passage that matched, with highlighted words in brackets."""
    if hit.highlight is None:
        return str((hit.explanation or {}).get("passage") or "")
    passage = hit.highlight.passage or ""
    for start, stop in reversed(hit.highlight.spans):
        passage = f"{passage[:start]}[{passage[start:stop]}]{passage[stop:]}"
    return passage


@collection_command("recommend")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@model_options(RecommendRequest, "user")
@model_options(UserOptions, "likes", "unlikes", "facts", "targets")
@model_options(RecommendRequest, "k", "filter")
@model_options(UserOptions, "with_seen")
@model_options(RecommendRequest, "on_missing", "half_life", "diversity", "reserve", "explain")
@model_options(RecommendRequest, "projection", "include", "fields")
@model_options(UserOptions, "request")
def recommend_command(target: Target, ids: tuple[str, ...], **options: Any) -> None:
    """Recommend what may come next after the documents IDs.

    \b
    Example:
      attend recommend dune emma --data library -k 5 --explain
      attend recommend --user ann --data library --diversity 0.3
      attend recommend --user ann --target dune --data library
    """
    fields = UserOptions.take(options).fields(ids)
    collection = target.collection()
    answer = collection.recommend(**fields | present(options))
    if isinstance(answer, Predicted):
        text = _predictions(answer, options["explain"])
    else:
        text = _recommended(answer, collection.store.find([hit.id for hit in answer.hits]))
    target.show(answer.json(), text)


def _fact(text: str) -> dict[str, Json]:
    """Parse `field=value`, or a text. A value that reads as a number or boolean is one."""
    field, equals, value = text.partition("=")
    if not equals or not field.strip() or " " in field.strip():
        return {"text": text}
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = value
    plain = isinstance(parsed, str | int | float | bool)
    return {"field": field.strip(), "value": parsed if plain else value}


def _recommended(answer: Recommended, documents: Mapping[str, StoredDocument]) -> str:
    stored = [documents.get(hit.id) for hit in answer.hits]
    # A document of vectors has no text.
    texts = [next(iter(document.fields.values()), "") if document else "" for document in stored]
    lines = _listing(answer.hits, texts, digits=4)
    if not lines:
        lines = ["Nothing is left to recommend: every document is seen or filtered out."]
    return "\n".join([*lines, *_omissions(answer)])


def _shares(because: Any) -> str:
    return ", ".join(f"{_name(part)} {part['weight']:.2f}" for part in because[:3])


def _predictions(answer: Predicted, explain: bool) -> str:
    lines = []
    for prediction in answer.predictions:
        value = prediction.get("mean", prediction.get("value"))
        text = f"{value:.3f}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
        std = prediction.get("std")
        spread = f" ± {std:.3f}" if isinstance(std, float) else ""
        confidence = f"(confidence {prediction['confidence']:.3f})"
        lines.append(f"{_name(prediction)}  {text}{spread}  {confidence}")
        if explain:
            nothing = f"nothing in the history {prediction['null']:.2f}"  # the no-answer weight
            lines.append(f"   because of {_shares(prediction['because'])}, {nothing}")
    return "\n".join([*lines, *_omissions(answer)])


def _omissions(answer: Recommended | Predicted) -> list[str]:
    lines = []
    if answer.history["used"] < answer.history["given"]:
        lines.append(f"{answer.history['used']} of {answer.history['given']} parts were used.")
    if answer.missing:
        lines.append(f"Missing: {', '.join(_name(part) for part in answer.missing)}.")
    return lines


def _name(part: Any) -> str:
    kind = next(name for name in ("id", "text", "fact", "user", "vector") if name in part)
    if kind == "fact" and "value" in part:
        return f"{part['fact']}={part['value']}"
    return "a vector" if kind == "vector" else str(part[kind])
