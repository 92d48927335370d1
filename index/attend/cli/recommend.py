"""`attend recommend`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from attend.api.answers import Predicted, Recommendation, Recommended
from attend.cli.common import on_collection, open_collection, show
from attend.store import StoredDocument
from attend.types import Json

WIDEST = 100
"""Characters that are shown of a text."""

_BELOW = " " * 13


class RequestType(click.ParamType[dict[str, Any]]):
    """A JSON object, or a file that holds one."""

    name = "request"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        try:
            written = value if value.lstrip().startswith("{") else Path(value).read_text("utf-8")
            found = json.loads(written)
        except (OSError, ValueError) as error:
            self.fail(f"{value[:40]!r} is no JSON object and no file ({error}).", param, ctx)
        if not isinstance(found, dict):
            self.fail(f"{value[:40]!r} holds no JSON object.", param, ctx)
        return found


@click.command("recommend")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@on_collection
@click.option("--user", metavar="ID", help="A user whose stored interactions join the history.")
@click.option("--like", "positive", multiple=True, metavar="ID", help="More like it; repeatable.")
@click.option("--unlike", "negative", multiple=True, metavar="ID", help="Less like it; repeatable.")
@click.option(
    "--fact",
    "facts",
    multiple=True,
    metavar="TEXT|F=V",
    help="Known of the user: a text, or a field with its value; repeatable.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="ID",
    help="What the user would think of it, by the values of the history; repeatable.",
)
@click.option("-k", type=int, help="How many documents to list.  [default: 10]")
@click.option("--filter", "filter", metavar="JSON", help="Conditions on payload and value.")
@click.option("--with-seen", is_flag=True, help="List what the user met, too.")
@click.option("--on-missing", type=click.Choice(["error", "skip"]), help="Ids that nothing has.")
@click.option("--half-life", type=float, metavar="DAYS", help="Older history counts less.")
@click.option("--diversity", type=float, help="0 by score alone, to 1 by difference alone.")
@click.option("--reserve", type=float, help="The share of the list for what nobody met.")
@click.option("--explain", is_flag=True, help="Say because of what each is there, or predicted.")
@click.option("--projection", type=int, help="A version other than the active one.")
@click.option(
    "--request",
    type=RequestType(),
    default={},
    metavar="JSON",
    help="The whole request as HTTP takes it (weights, values, times, vectors), or a file of it.",
)
def recommend_command(
    ids: tuple[str, ...],
    folder: Path,
    collection: str,
    precision: str,
    as_json: bool,
    request: dict[str, Any],
    **options: Any,
) -> None:
    """Recommend what may come next after the documents IDs.

    \b
    Example:
      attend recommend dune emma --data library -k 5 --explain
      attend recommend --user ann --data library --diversity 0.3
      attend recommend --user ann --target dune --data library
    """
    opened = open_collection(folder, collection, precision)
    found = opened.recommend(**_asked(ids, options, request))
    if isinstance(found, Predicted):
        text = _predictions(found, options["explain"])
    else:
        text = _list(found, opened.store.find([hit.id for hit in found.hits]))
    show(as_json, found.json(), text)


def _asked(
    ids: tuple[str, ...], options: dict[str, Any], request: dict[str, Any]
) -> dict[str, Any]:
    """What was given, over what the request says."""
    # By identity: 0 equals False, and is a number that was given.
    given = {
        name: value
        for name, value in options.items()
        if value is not None and value is not False and value != ()
    }
    if given.pop("with_seen", False):
        given["exclude_seen"] = False
    if "filter" in given:
        given["filter"] = _parsed(given["filter"])
    if "targets" in given:
        given["target"] = list(given.pop("targets"))
    for name in ("positive", "negative"):
        if name in given:
            given[name] = list(given[name])
    if "facts" in given:
        given["facts"] = [_fact(each) for each in given["facts"]]
    if ids:
        given["history"] = [*request.get("history", []), *ids]
    return {**request, **given}


def _fact(given: str) -> dict[str, Json]:
    """`field=value`, or a text. A value that is a number or truth value is one."""
    field, equals, value = given.partition("=")
    if not equals or not field.strip() or " " in field.strip():
        return {"text": given}
    try:
        read = json.loads(value)
    except ValueError:
        read = value
    plain = isinstance(read, str | int | float | bool)
    return {"field": field.strip(), "value": read if plain else value}


def _parsed(given: str) -> Any:
    try:
        return json.loads(given)
    except ValueError as error:
        raise click.BadParameter(f"--filter takes JSON, but {given!r} is none ({error}).") from None


def _list(found: Recommended, documents: Mapping[str, StoredDocument]) -> str:
    lines = [
        line
        for rank, hit in enumerate(found.hits, start=1)
        for line in _lines(rank, hit, documents.get(hit.id))
    ]
    if not lines:
        lines = ["Nothing is left to recommend: all is seen, or filtered out."]
    return "\n".join([*lines, *_left_out(found)])


def _lines(rank: int, hit: Recommendation, document: StoredDocument | None) -> Iterator[str]:
    """A hit with its value, the text by which people know it, and why it is there."""
    value = "" if hit.value is None else f"  {json.dumps(hit.value, ensure_ascii=False)}"
    yield f"{rank:>3}  {hit.weight:.4f}  {hit.id}{value}"
    if document is not None and document.fields:  # one of vectors has no text
        text = " ".join(next(iter(document.fields.values())).split())
        yield f"{_BELOW}{text[:WIDEST]}"
    if hit.because is not None:
        yield f"{_BELOW}because of {_shares(hit.because)}"


def _shares(because: Any) -> str:
    return ", ".join(f"{_name(each)} {each['weight']:.2f}" for each in because[:3])


def _predictions(found: Predicted, explain: bool) -> str:
    lines = []
    for each in found.predictions:
        said = each.get("mean", each.get("value"))
        shown = f"{said:.3f}" if isinstance(said, float) else json.dumps(said, ensure_ascii=False)
        spread = f" ± {each['std']:.3f}" if isinstance(each.get("std"), float) else ""
        lines.append(f"{_name(each)}  {shown}{spread}  (confidence {each['confidence']:.3f})")
        if explain:
            nothing = f"nothing in the history {each['null']:.2f}"  # the null key's weight
            lines.append(f"   because of {_shares(each['because'])}, {nothing}")
    return "\n".join([*lines, *_left_out(found)])


def _left_out(found: Recommended | Predicted) -> list[str]:
    lines = []
    if found.history["used"] < found.history["given"]:
        lines.append(f"{found.history['used']} of {found.history['given']} parts were used.")
    if found.missing:
        lines.append(f"Missing: {', '.join(_name(each) for each in found.missing)}.")
    return lines


def _name(each: Any) -> str:
    named = next(name for name in ("id", "text", "fact", "user", "vector") if name in each)
    return (
        f"{each['fact']}={each['value']}"
        if "value" in each and named == "fact"
        else ("a vector" if named == "vector" else str(each[named]))
    )
