"""`attend build`."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from typing import Any

import click
from tqdm import tqdm

from attend.api.documents import CollectionSettings
from attend.build import Built, Mapped, Shard, build, check_ids
from attend.cli.options import Bar, Problems, Target, interrupted, model_options, on_collection
from attend.collection import Collection
from attend.errors import InvalidRequest, SourceError
from attend.source import Row, describe, guess, open_source, sample
from attend.source.cells import as_vector
from attend.source.rows import LOOKAHEAD_ROWS


def _shard(_context: click.Context, _option: click.Parameter, written: str | None) -> Shard | None:
    try:
        return None if written is None else Shard.of(written)
    except InvalidRequest as error:
        raise click.BadParameter(str(error)) from None


@click.command("build")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@on_collection
@click.option("--id", metavar="F", help="The field that holds the id.")
@click.option("--text", multiple=True, metavar="F", help="A key field; repeatable.")
@click.option("--vector", metavar="F", help="The field that holds an embedding.")
@click.option(
    "--value", multiple=True, metavar="F", help="A field to return; several make an object."
)
@model_options(CollectionSettings, "encoder")
@click.option(
    "--passages/--no-passages",
    default=None,
    help="Split texts longer than the encoder's window (default), or cut them off.",
)
@click.option("--overlap", type=click.IntRange(0), help="Tokens that neighbouring passages share.")
@click.option("--normalize", is_flag=True, default=None, help="Scale brought vectors to length 1.")
@model_options(CollectionSettings, "scorer", "scale")
@click.option(
    "--recall",
    type=click.FloatRange(0, 1, min_open=True),
    help="The share of the ten nearest to find where keys are too many for exact search.  "
    "[default: 0.95]",
)
@click.option(
    "--exact-below",
    type=click.IntRange(0),
    help="Search exactly below this number of keys.  [default: the number that takes 10 ms]",
)
@click.option(
    "--sync",
    is_flag=True,
    help="Delete documents that no source has; nothing is deleted if a row could not be read.",
)
@click.option(
    "--shard",
    metavar="I/N",
    callback=_shard,
    help="Take only the I-th of N parts of the documents: for N processes at once.",
)
@click.option("--strict", is_flag=True, help="Stop at the first row that cannot be used.")
def build_command(target: Target, sources: tuple[str, ...], **options: Any) -> None:
    """Read documents from SOURCEs and index what is new or changed.

    A SOURCE is a .jsonl, .csv, .tsv, .parquet or .json file, a folder of Markdown or
    text, a folder in BEIR's layout, a SQLite table (file.db:table), or - for JSON lines on
    stdin. The rest of each row becomes payload. If a build is interrupted, rerun the command to
    resume it.

    \b
    Example:
      attend build books.csv --data library --text title --text blurb --value price
    """
    fields = {name: options.pop(name) for name in ("id", "text", "vector", "value")}
    mapped = [_mapped(name, **fields) for name in sources]
    check_ids(mapped)
    run = {name: options.pop(name) for name in ("sync", "shard", "strict")}
    tuning = options.pop("recall"), options.pop("exact_below")
    settings = {name: value for name, value in options.items() if value is not None}
    collection = target.library().ensure(target.name, **settings, **_width(mapped))
    problems = Problems()
    built = _build(collection, mapped, problems, publish=collection.tune(*tuning), **run)
    problems.summary()
    if run["sync"] and built.refused:
        click.echo("Nothing was deleted: not every row could be read.", err=True)
    target.show(asdict(built) | {"collection": target.name}, _sentence(built, target.name))


def _build(
    collection: Collection, mapped: list[Mapped], problems: Problems, **options: Any
) -> Built:
    """Build with bars; if it is interrupted, print the number of stored documents."""
    with closing(_Bars(collection.name)) as bars:
        try:
            return build(
                collection,
                mapped,
                on_problem=problems,
                on_progress=bars.rows,
                on_stage=bars.stage,
                **options,
            )
        except KeyboardInterrupt:
            bars.close()
            stored, _ = collection.store.counts()
            interrupted(f"{stored} documents are stored. Run the same command to go on.")


class _Bars:
    """A bar of documents, and another one for the stages that follow them."""

    def __init__(self, name: str) -> None:
        self._documents = tqdm(unit="doc", desc=name, file=sys.stderr)
        self._stages: Bar | None = None

    def rows(self, count: int) -> None:
        self._documents.update(count)

    def stage(self, stage: str, fraction: float) -> None:
        if self._stages is None:
            self._documents.close()
            self._stages = Bar()
        self._stages(stage, fraction)

    def close(self) -> None:
        self._documents.close()
        if self._stages is not None:
            self._stages.close()


def _mapped(name: str, **fields: Any) -> Mapped:
    source = open_source(name)
    rows = sample(source)
    map = guess(rows, source=source, **fields)
    click.echo(f"{source.name}: {describe(map, rows)}", err=True)
    return Mapped(source, map)


def _width(mapped: list[Mapped]) -> dict[str, int]:
    """Return the dimension of the vectors that the sources bring, if they do."""
    widths = sorted({width for source in mapped if (width := _first_width(source)) is not None})
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
