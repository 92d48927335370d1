"""`attend recommend`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click

from attend.api.answers import Predicted, Recommendation, Recommended
from attend.api.recommend import RecommendRequest
from attend.cli.options import JsonType, Target, model_options, on_collection, present
from attend.store import StoredDocument
from attend.types import Json

SNIPPET = 100
"""Characters of a text that are printed."""

_INDENT = " " * 13


@click.command("recommend")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@on_collection
@model_options(RecommendRequest, "user")
@click.option("--like", "positive", multiple=True, metavar="ID", help="More like it; repeatable.")
@click.option("--unlike", "negative", multiple=True, metavar="ID", help="Less like it; repeatable.")
@click.option(
    "--fact",
    "facts",
    multiple=True,
    metavar="TEXT|F=V",
    help="A part of the user's profile: a text, or a field with its value; repeatable.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="ID",
    help="Predict the user's value of it from the values of the history; repeatable.",
)
@model_options(RecommendRequest, "k", "filter")
@click.option("--with-seen", is_flag=True, help="Also list documents of the user's history.")
@model_options(RecommendRequest, "on_missing", "half_life", "diversity", "reserve", "explain")
@model_options(RecommendRequest, "projection")
@click.option(
    "--request",
    type=JsonType(dict),
    default={},
    metavar="JSON",
    help="The whole request as HTTP takes it (weights, values, times, vectors), or a file of it.",
)
def recommend_command(
    target: Target, ids: tuple[str, ...], request: dict[str, Any], **options: Any
) -> None:
    """Recommend what may come next after the documents IDs.

    \b
    Example:
      attend recommend dune emma --data library -k 5 --explain
      attend recommend --user ann --data library --diversity 0.3
      attend recommend --user ann --target dune --data library
    """
    collection = target.collection()
    answer = collection.recommend(**request | _fields(ids, options, request))
    if isinstance(answer, Predicted):
        text = _predictions(answer, options["explain"])
    else:
        text = _list(answer, collection.store.find([hit.id for hit in answer.hits]))
    target.show(answer.json(), text)


def _fields(
    ids: tuple[str, ...], options: dict[str, Any], request: dict[str, Any]
) -> dict[str, Any]:
    """Return the fields that the command line has, which go before those of --request."""
    fields = present(options)
    if fields.pop("with_seen", False):
        fields["exclude_seen"] = False
    if "targets" in fields:
        fields["target"] = fields.pop("targets")
    if "facts" in fields:
        fields["facts"] = [_fact(fact) for fact in fields["facts"]]
    if ids:
        fields["history"] = [*request.get("history", []), *ids]
    return fields


def _fact(text: str) -> dict[str, Json]:
    """Parse `field=value`, or a text. A value that reads as a number or boolean is one."""
    field, equals, value = text.partition("=")
    if not equals or not field.strip() or " " in field.strip():
        return {"text": text}
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = value
    plain = isinstance(parsed, str | int | float | bool)
    return {"field": field.strip(), "value": parsed if plain else value}


def _list(answer: Recommended, documents: Mapping[str, StoredDocument]) -> str:
    lines = [
        line
        for rank, hit in enumerate(answer.hits, start=1)
        for line in _lines(rank, hit, documents.get(hit.id))
    ]
    if not lines:
        lines = ["Nothing is left to recommend: every document is seen or filtered out."]
    return "\n".join([*lines, *_omissions(answer)])


def _lines(rank: int, hit: Recommendation, document: StoredDocument | None) -> Iterator[str]:
    """Yield a hit with its value, the beginning of its text, and its explanation."""
    value = "" if hit.value is None else f"  {json.dumps(hit.value, ensure_ascii=False)}"
    yield f"{rank:>3}  {hit.weight:.4f}  {hit.id}{value}"
    if document is not None and document.fields:  # one of vectors has no text
        text = " ".join(next(iter(document.fields.values())).split())
        yield f"{_INDENT}{text[:SNIPPET]}"
    if hit.because is not None:
        yield f"{_INDENT}because of {_shares(hit.because)}"


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
