"""`attend search`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from attend.api.answers import Answer, Hit
from attend.cli.common import on_collection, open_collection, show
from attend.collection import Collection
from attend.errors import InvalidRequest
from attend.source.cells import as_vector

SNIPPET = 100


class VectorType(click.ParamType[list[float]]):
    """A list of numbers, or a file that holds one."""

    name = "vector"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[float]:
        listed = value.lstrip().startswith("[")
        try:
            written = value if listed else Path(value).read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            self.fail(
                f"{_short(value)} is no JSON list, and no file to read ({error}).", param, ctx
            )
        vector = as_vector(written.strip())
        if vector is None:
            holds = "is no" if listed else "holds no"
            self.fail(f"{_short(value)} {holds} JSON list of finite numbers.", param, ctx)
        return vector


@click.command("search")
@click.argument("query", required=False)
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
@click.option("--scorer", metavar="NAME", help="dot, cosine, laplace or additive.")
@click.option("--scale", type=float, help="The factor on the scorer's result.")
@click.option(
    "--lexical",
    metavar="L",
    help="How much shared words count: on, off or a factor; else the projection's own.",
)
@click.option("--min-confidence", type=float, help="Below it there is no answer.")
@click.option("--projection", type=int, help="A version other than the active one.")
@click.option(
    "--like", "ids", multiple=True, metavar="ID", help="More like this document; repeatable."
)
@click.option(
    "--vector",
    type=VectorType(),
    metavar="V",
    help="Ask with a vector: a JSON list of numbers, or a file that holds one.",
)
@click.option("--min-score", type=float, help="List nothing of a lower score.")
@click.option("--group-by", metavar="F", help="List the best of each value of a field.")
@click.option(
    "--facet", "facets", multiple=True, metavar="F", help="Count a field's values; repeatable."
)
@click.option("--highlight", is_flag=True, help="Mark the query's words in the passages.")
@click.option("--cursor", metavar="C", help="Go on after the page that told it, with --json.")
def search_command(
    query: str | None,
    vector: list[float] | None,
    ids: tuple[str, ...],
    facets: tuple[str, ...],
    folder: Path,
    collection: str,
    precision: str,
    as_json: bool,
    attend: str,
    filter_json: str | None,
    **options: Any,
) -> None:
    """Attend to the documents that QUERY speaks to.

    QUERY is text, or a JSON list of numbers for a collection of vectors; --vector takes its
    place, in a collection of texts too. With --like it may be left out; with both, they are
    asked for together.

    \b
    Example:
      attend search "compress a file" --data library --mode soft --value module
      attend search "[0.1, 0.7]" --data library --collection vectors
      attend search --vector query.json --data library --collection vectors
    """
    if query is not None and vector is not None:
        raise click.UsageError("QUERY and --vector are two queries; give one of them.")
    if query is None and vector is None and not ids:
        raise click.UsageError("Give a QUERY, a --vector, or --like with the id of a document.")
    opened = open_collection(folder, collection, precision)
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    given["attend"] = int(attend) if attend.isdecimal() else attend
    if filter_json is not None:
        given["filter"] = _parsed("--filter", filter_json)
    if facets:
        given["facets"] = facets
    said = vector if query is None else _query(query, opened)
    answer = opened.search(_asked(said, ids), explain=True, **given)
    show(as_json, answer.json(), _text(answer, str(given["mode"])))


def _asked(query: str | list[float] | None, ids: tuple[str, ...]) -> Any:
    """What was said and --like as one query."""
    if query is None:
        return {"ids": list(ids)}
    return {"blend": [query, *({"id": id} for id in ids)]} if ids else query


def _query(given: str, opened: Collection) -> str | list[float]:
    """QUERY as it is meant.

    Raises:
        InvalidRequest: it is no list where the collection knows vectors alone.
    """
    # Text may begin with a bracket: a list of numbers is a vector where there is no encoder.
    if opened.settings.encoder:
        return given
    found = _list(given)
    if found is None:
        width = opened.settings.dimension
        raise InvalidRequest(
            f"The collection {opened.name!r} was made for vectors of {width} dimensions, but QUERY "
            f"is {_short(given)}; give a JSON list of {width} numbers, or --vector with such a "
            f"list or a file that holds one.",
            field="query",
        )
    return found


def _list(given: str) -> list[float] | None:
    try:
        found = json.loads(given)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def _short(given: str) -> str:
    return repr(given if len(given) <= 40 else f"{given[:39]}…")


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
    for name, facet in (answer.facets or {}).items():
        counts = [
            f"{json.dumps(entry.value, ensure_ascii=False)} {entry.documents}"
            for entry in facet.values
        ]
        lines.append(f"{name}: {', '.join(counts)} ({facet.distinct} values)")
    return "\n".join(lines)


def _line(rank: int, hit: Hit) -> str:
    snippet = " ".join(_passage(hit).split())
    value = "" if hit.value is None else f"  {json.dumps(hit.value, ensure_ascii=False)}"
    shown = snippet if len(snippet) <= SNIPPET else f"{snippet[: SNIPPET - 1]}…"
    group = "" if hit.group_size is None else f"  ({hit.group_size} in {json.dumps(hit.group)})"
    return f"{rank:>3}  {hit.weight:.3f}  {hit.id}{value}{group}\n            {shown}".rstrip()


def _passage(hit: Hit) -> str:
    """What matched; with the words of the query in brackets where they were asked for."""
    if hit.highlight is None:
        return str((hit.explanation or {}).get("passage") or "")
    passage = hit.highlight.passage or ""
    for start, stop in reversed(hit.highlight.spans):
        passage = f"{passage[:start]}[{passage[start:stop]}]{passage[stop:]}"
    return passage
