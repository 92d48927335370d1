"""`attend build`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any

import click
from pydantic import BeforeValidator, Field
from tqdm import tqdm

from attend.api.documents import CollectionSettings
from attend.build import Built, Mapped, Shard, build, check_ids
from attend.cli.formats import FormatOptions
from attend.cli.options import (
    Bar,
    Column,
    Problems,
    Target,
    interrupted,
    model_options,
    on_collection,
    take,
)
from attend.collection import Collection
from attend.errors import SourceError
from attend.source import Row, Source, describe, guess, open_source, sample
from attend.source.cells import as_vector
from attend.source.rows import LOOKAHEAD_ROWS


class BuildOptions(FormatOptions):
    """The options of a build, but for settings of a collection."""

    id: Column = None
    """The field that holds the id."""
    text: Annotated[list[str], "F"] = Field([])
    """A key field; repeatable."""
    vector: Column = None
    """The field that holds an embedding."""
    value: Annotated[list[str], "F"] = Field([])
    """A field to return; several make an object."""
    overlap: Annotated[int | None, click.IntRange(0)] = None
    """Tokens that neighbouring passages share."""
    normalize: bool = False
    """Scale brought vectors to length 1."""
    recall: Annotated[float | None, click.FloatRange(0, 1, min_open=True)] = None
    """The share of the ten nearest to find where keys are too many for exact search.  [default:
    0.95]"""
    exact_below: Annotated[int | None, click.IntRange(0)] = None
    """Search exactly below this number of keys.  [default: the number that takes 10 ms]"""
    sync: bool = False
    """Delete documents that no source has; nothing is deleted if a row could not be read."""
    shard: Annotated[Shard | None, BeforeValidator(Shard.of), "I/N"] = None
    """Take only the I-th of N parts of the documents: for N processes at once."""
    strict: bool = False
    """Stop at the first row that cannot be used."""


@click.command("build")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@on_collection
@model_options(BuildOptions, "id", "text", "vector", "value")
@model_options(CollectionSettings, "encoder")
@click.option(
    "--passages/--no-passages",
    default=None,
    help="Split texts longer than the encoder's window (default), or cut them off.",
)
@model_options(BuildOptions, "overlap", "normalize")
@model_options(CollectionSettings, "scorer", "scale")
@model_options(BuildOptions, "delimiter", "encoding", "no_header")
@model_options(BuildOptions, "recall", "exact_below", "sync", "shard", "strict")
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
    selection = take(BuildOptions, options)
    mapped = [_mapped(open_source(name, selection.format()), selection) for name in sources]
    check_ids(mapped)
    settings = selection.model_dump(include={"overlap", "normalize"}, exclude_unset=True)
    settings |= {name: value for name, value in options.items() if value is not None}
    collection = target.library().ensure(target.name, **(settings | _width(mapped)))
    problems = Problems()
    publish = collection.tune(selection.recall, selection.exact_below)
    built = _build(collection, mapped, problems, selection, publish)
    problems.summary()
    if selection.sync and built.refused:
        click.echo("Nothing was deleted: not every row could be read.", err=True)
    target.show(asdict(built) | {"collection": target.name}, _sentence(built, target.name))


def _build(
    collection: Collection,
    mapped: list[Mapped],
    problems: Problems,
    selection: BuildOptions,
    publish: bool,
) -> Built:
    """Build with bars; if it is interrupted, print the number of stored documents."""
    with tqdm(unit="doc", desc=collection.name, file=sys.stderr) as rows, Bar() as stages:

        def on_stage(stage: str, fraction: float) -> None:
            rows.close()
            stages(stage, fraction)

        try:
            return build(
                collection,
                mapped,
                on_problem=problems,
                on_progress=rows.update,
                on_stage=on_stage,
                publish=publish,
                sync=selection.sync,
                shard=selection.shard,
                strict=selection.strict,
            )
        except KeyboardInterrupt:
            rows.close()
            stages.close()
            stored, _ = collection.store.counts()
            interrupted(f"{stored} documents are stored. Run the same command to go on.")


def _mapped(source: Source, selection: BuildOptions) -> Mapped:
    rows = sample(source)
    fields = selection.model_dump(include={"id", "text", "vector", "value"})
    map = guess(rows, source=source, **fields)
    click.echo(f"{source.name}: {describe(map, rows, source)}", err=True)
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
