"""`python -m index search`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from index.answers import Answer, Hit
from index.cli.common import on_collection, open_collection, show

SNIPPET = 100


@click.command("search")
@click.argument("query")
@on_collection
@click.option("-k", type=int, help="How many documents to list.  [default: 10]")
@click.option(
    "--mode",
    type=click.Choice(["hard", "soft"]),
    default="hard",
    show_default=True,
    help="The best document's value, or the blend of all attended.",
)
@click.option("--value", metavar="F", help="Which value to return: a field, @id or @key.")
@click.option("--attend", default="100", show_default=True, help="A number of documents, or all.")
@click.option("--filter", "filter_json", metavar="JSON", help="Conditions on payload and value.")
@click.option("--temperature", type=float, default=1.0, show_default=True)
@click.option("--scorer", metavar="NAME", help="dot, cosine or laplace.")
@click.option("--scale", type=float, help="The factor on the scorer's result.")
@click.option(
    "--lexical",
    metavar="L",
    help="How much shared words count: on, off or a factor; else the projection's own.",
)
@click.option("--min-confidence", type=float, help="Below it there is no answer.")
@click.option("--projection", type=int, help="A version other than the active one.")
def search_command(
    query: str,
    folder: Path,
    collection: str,
    precision: str,
    as_json: bool,
    attend: str,
    filter_json: str | None,
    **options: Any,
) -> None:
    """Attend to the documents that QUERY speaks to.

    QUERY is text, or a JSON list of numbers for a collection of vectors.

    \b
    Example:
      python -m index search "compress a file" --data library --mode soft --value module
    """
    opened = open_collection(folder, collection, precision)
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    given["attend"] = int(attend) if attend.isdecimal() else attend
    if filter_json is not None:
        given["filter"] = _parsed("--filter", filter_json)
    # Text may begin with a bracket: a list of numbers is a vector where there is no encoder.
    asked = query if opened.settings.encoder else _query(query)
    answer = opened.search(asked, explain=True, **given)
    show(as_json, answer.json(), _text(answer, str(given["mode"])))


def _query(given: str) -> str | list[float]:
    if not given.lstrip().startswith("["):
        return given
    try:
        found: list[float] = json.loads(given)
    except ValueError:
        return given  # text may begin with a bracket
    return found


def _parsed(option: str, given: str) -> Any:
    try:
        return json.loads(given)
    except ValueError as error:
        raise click.BadParameter(f"{option} takes JSON, but {given!r} is none ({error}).") from None


def _text(answer: Answer, mode: str) -> str:
    lines = [_line(rank, hit) for rank, hit in enumerate(answer.hits, start=1)]
    if not answer.attended:
        lines.append("Nothing attended: no document passes the filter, or there are none.")
    elif not answer.answered:
        said = f"nothing here answers that (confidence {answer.confidence:.3f})"
        lines.append(f"No answer: {said}.")
    if mode == "soft":
        lines.append(f"answer: {json.dumps(answer.answer, ensure_ascii=False)}")
    return "\n".join(lines)


def _line(rank: int, hit: Hit) -> str:
    passage = (hit.explanation or {}).get("passage")
    snippet = " ".join(str(passage or "").split())
    value = "" if hit.value is None else f"  {json.dumps(hit.value, ensure_ascii=False)}"
    shown = snippet if len(snippet) <= SNIPPET else f"{snippet[: SNIPPET - 1]}…"
    return f"{rank:>3}  {hit.weight:.3f}  {hit.id}{value}\n            {shown}".rstrip()
