"""`attend build`."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from attend.build import Built, Mapped, Shard, build, check_ids
from attend.cli.common import Bar, Problems, interrupted, on_collection, open_data, show
from attend.collection import Collection
from attend.errors import InvalidRequest, SourceError
from attend.source import (
    LOOKAHEAD_ROWS,
    Row,
    describe,
    guess,
    open_source,
    sample,
)
from attend.source.cells import as_vector


@click.command("build")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@on_collection
@click.option("--id", "id_field", metavar="F", help="The field that holds the id.")
@click.option("--text", "text_fields", multiple=True, metavar="F", help="A key field; repeatable.")
@click.option("--vector", "vector_field", metavar="F", help="The field that holds an embedding.")
@click.option(
    "--value",
    "value_fields",
    multiple=True,
    metavar="F",
    help="What is returned; several make an object.",
)
@click.option("--encoder", metavar="NAME", help="Model name or folder; the packaged MiniLM if new.")
@click.option(
    "--passages/--no-passages",
    default=None,
    help="Split texts longer than the encoder's window (default), or let it cut them off.",
)
@click.option("--overlap", type=click.IntRange(0), help="Tokens that neighbouring passages share.")
@click.option("--normalize", is_flag=True, default=None, help="Scale brought vectors to length 1.")
@click.option(
    "--scorer",
    type=click.Choice(["dot", "cosine", "laplace"]),
    default=None,
    help="How queries and keys are compared by default.",
)
@click.option("--scale", type=float, default=None, help="The default factor on the scorer.")
@click.option(
    "--recall",
    type=click.FloatRange(0, 1, min_open=True),
    help="The share of the ten nearest to find where keys are too many for exact search (0.95).",
)
@click.option(
    "--exact-below",
    type=click.IntRange(0),
    help="Search exactly below so many keys; as many as take 10 ms if absent.",
)
@click.option(
    "--sync",
    is_flag=True,
    help="Delete documents that no source has; nothing is deleted if a row could not be read.",
)
@click.option(
    "--shard",
    metavar="I/N",
    callback=lambda _context, _option, given: _shard(given),
    help="Take only the I-th of N parts of the documents: for N processes at once.",
)
@click.option("--strict", is_flag=True, help="Stop at the first row that cannot be used.")
def build_command(
    sources: tuple[str, ...],
    folder: Path,
    collection: str,
    precision: str,
    as_json: bool,
    id_field: str | None,
    text_fields: tuple[str, ...],
    vector_field: str | None,
    value_fields: tuple[str, ...],
    sync: bool,
    shard: Shard | None,
    strict: bool,
    recall: float | None,
    exact_below: int | None,
    **settings: Any,
) -> None:
    """Read documents from SOURCEs and index what is new or changed.

    A SOURCE is a .jsonl, .csv, .tsv, .parquet or .json file, a folder of Markdown or
    text, a folder in BEIR's layout, a SQLite table (file.db:table), or - for JSON lines on
    stdin. The rest of each row becomes payload. A build may be interrupted: the same
    command goes on where it stopped.

    \b
    Example:
      attend build books.csv --data library --text title --text blurb --value price
    """
    mapped = [
        _mapped(name, id=id_field, text=text_fields, vector=vector_field, value=value_fields)
        for name in sources
    ]
    check_ids(mapped)
    wanted = {name: given for name, given in settings.items() if given is not None}
    wanted |= _width(mapped)
    target = open_data(folder, precision).ensure(collection, **wanted)
    tuned, problems = target.tune(recall, exact_below), Problems()
    built = _built(target, mapped, problems, sync=sync, strict=strict, publish=tuned, shard=shard)
    problems.summary()
    if sync and built.refused:
        click.echo("Nothing was deleted: not every row could be read.", err=True)
    show(as_json, asdict(built) | {"collection": collection}, _sentence(built, collection))


def _built(target: Collection, mapped: list[Mapped], problems: Problems, **options: Any) -> Built:
    """Build with bars, and say what is stored by then if it is interrupted."""
    sizes = [each.source.size_hint() for each in mapped]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    with closing(_Bars(target.name, total)) as bars:
        try:
            return build(
                target,
                mapped,
                on_problem=problems,
                on_progress=bars.rows,
                on_stage=bars.stage,
                **options,
            )
        except KeyboardInterrupt:
            bars.close()
            stored, _ = target.store.counts()
            interrupted(f"{stored} documents are stored. Run the same command to go on.")


def _shard(given: str | None) -> Shard | None:
    try:
        return None if given is None else Shard.of(given)
    except InvalidRequest as error:
        raise click.BadParameter(str(error)) from None


class _Bars:
    """A bar of documents, and another once what follows them takes long."""

    def __init__(self, name: str, total: int | None) -> None:
        self._documents = tqdm(total=total, unit="doc", desc=name, file=sys.stderr)
        self._stages: Bar | None = None

    def rows(self, count: int) -> None:
        self._documents.update(count)

    def stage(self, stage: str, done: float) -> None:
        if self._stages is None:
            self._documents.close()
            self._stages = Bar()
        self._stages(stage, done)

    def close(self) -> None:
        self._documents.close()
        if self._stages is not None:
            self._stages.close()


def _mapped(name: str, **fields: Any) -> Mapped:
    source = open_source(name)
    rows = sample(source)
    found = guess(rows, source=source, **fields)
    click.echo(f"{source.name}: {describe(found, rows)}", err=True)
    return Mapped(source, found)


def _width(mapped: list[Mapped]) -> dict[str, int]:
    """The dimension of the vectors that the sources bring, if they do."""
    found = [_first_width(each) for each in mapped]
    widths = sorted({width for width in found if width is not None})
    if len(widths) > 1:
        raise SourceError(
            f"The sources bring vectors of {' and '.join(map(str, widths))} dimensions, but a "
            f"collection has one width. Build them into separate collections."
        )
    return {"dimension": widths[0]} if widths else {}


def _first_width(mapped: Mapped) -> int | None:
    if (field := mapped.map.vector) is None:
        return None
    rows = islice(mapped.source.rows(), LOOKAHEAD_ROWS)
    vectors = (as_vector(row.cells.get(field)) for row in rows if isinstance(row, Row))
    return next((len(vector) for vector in vectors if vector is not None), None)


def _sentence(built: Built, collection: str) -> str:
    rate = built.read / built.seconds if built.seconds else 0
    return (
        f"{collection}: {built.added} added, {built.updated} updated, {built.revised} revised, "
        f"{built.unchanged} unchanged, {built.removed} removed, {built.refused} refused; "
        f"{built.encoded} texts encoded in {built.seconds:.1f} s ({rate:.0f} documents/s). "
        f"{built.documents} documents, {built.keys} keys."
    )
