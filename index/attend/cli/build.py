"""`attend build`, and `attend configure`: the settings of a collection that may change."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any

import click
from pydantic import BeforeValidator, Field

from attend import encoder as encoders
from attend.api.documents import CollectionSettings
from attend.cli.options import (
    Column,
    CommandOptions,
    FormatOptions,
    Target,
    collection_command,
    model_options,
)
from attend.cli.output import Bar, Problems, end, interrupted, plain
from attend.collection.collection import Collection
from attend.core.progress import Counter
from attend.keys.vectors import LEAST_KEYS
from attend.source import RowProblem
from attend.source.rows import listed
from attend.write.build import Built, Mapped, Shard, build, collection_for

MAX_NAMES = 1000
"""Skipped files that are named for one reason; --json has all."""


INFERRED = "auto"
"""The value type that stands for none: types are inferred again."""


class ChangeableOptions(CommandOptions):
    """Options for the settings that may change while a collection holds documents."""

    recall: Annotated[float | None, click.FloatRange(0, 1, min_open=True)] = None
    """The share of the ten nearest to find where keys are too many for exact search.  [default:
    0.95]"""
    exact_below: Annotated[int | None, click.IntRange(0)] = None
    """Search exactly below this number of keys; fewer than 1,000 are always searched exactly.
    [default: the number that takes 10 ms]"""
    scale: Annotated[float | None, click.FloatRange(0, min_open=True)] = None
    """Factor on scores before the softmax.  [default: 20 for embeddings of length one, else
    1/√d]"""
    value_types: Annotated[list[str], "[F=]TYPE"] = Field([])
    """The type of the value (number, category, labels, text, boolean, vector, image, mixed), or
    of one field of it; repeatable. auto infers it again."""

    def changes(self) -> dict[str, Any]:
        """Return the settings to change, by name."""
        changes = self.model_dump(include={"recall", "exact_below", "scale"}, exclude_none=True)
        if self.value_types:
            changes["values"] = value_types(self.value_types)
        return changes


def value_types(words: Sequence[str]) -> Any:
    """Return the value types of a command line as the setting `values` has them.

    Raises:
        UsageError: one type for the whole value, and others for its fields.

    >>> value_types(["number"]), value_types(["module=category", "score=number"])
    ('number', {'module': 'category', 'score': 'number'})
    """
    fields = dict(word.split("=", 1) for word in words if "=" in word)
    if fields and len(fields) == len(words):
        return fields
    if len(words) > 1:
        raise click.UsageError(
            f"--value-type is {', '.join(words)}, but either one type is expected, or one for "
            f"each field of the value: --value-type module=category --value-type score=number."
        )
    return None if words[0] == INFERRED else words[0]


def warn_of_floor(exact_below: int | None) -> None:
    """Print that few keys are searched exactly, whatever the settings say."""
    if exact_below is not None and exact_below < LEAST_KEYS:
        click.echo(
            f"--exact-below {exact_below}: fewer than {LEAST_KEYS:,} keys are always searched "
            f"exactly.",
            err=True,
        )


class BuildOptions(FormatOptions):
    """The options of a build, but for settings of a collection."""

    id: Column = None
    """The field that holds the id; '' numbers the rows."""
    text: Annotated[list[str], "F"] = Field([])
    """A key field; repeatable."""
    vector: Column = None
    """The field that holds an embedding."""
    value: Annotated[list[str], "F"] = Field([])
    """A field to return; several make an object, and '' stands for none."""
    overlap: Annotated[int | None, click.IntRange(0)] = None
    """Tokens that neighbouring passages share."""
    normalize: bool = False
    """Scale brought vectors to length 1."""
    sync: bool = False
    """Delete documents that no source has; nothing is deleted if a row could not be read."""
    shard: Annotated[Shard | None, BeforeValidator(Shard.of), "I/N"] = None
    """Take only the I-th of N parts of the documents: for N processes at once."""
    strict: bool = False
    """Stop at the first row that cannot be used."""
    remap: bool = False
    """Change stored values, their types or ids where the sources or their fields are others."""


@collection_command("build")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@model_options(BuildOptions, "id", "text", "vector", "value")
@model_options(CollectionSettings, "encoder")
@click.option(
    "--passages/--no-passages",
    default=None,
    help="Split texts longer than the encoder's window (default), or cut them off.",
)
@model_options(BuildOptions, "overlap", "normalize")
@model_options(CollectionSettings, "scorer")
@model_options(ChangeableOptions)
@model_options(BuildOptions, "delimiter", "encoding", "no_header")
@model_options(BuildOptions, "sync", "shard", "strict", "remap")
def build_command(target: Target, sources: tuple[str, ...], **options: Any) -> None:
    """Read documents from SOURCEs and index what is new or changed.

    A SOURCE is a .jsonl, .csv, .tsv, .parquet or .json file, a folder of Markdown, text, PDF, Word,
    HTML and e-mail files (the extra `documents`), an .mbox file, a folder in BEIR's layout, a
    SQLite table (file.db:table), or - for JSON lines on stdin. The rest of each row becomes
    payload. If a build is interrupted, rerun the command to resume it. The fields of a build
    are remembered: later builds of the collection use them where no others are named, and ask
    for --remap before other fields change stored values.

    Exit status: 0 if every row was used, 3 if some were rejected (--json has their number as
    `refused`).

    \b
    Example:
      attend build books.csv --data library --text title --text blurb --value price
    """
    selection, changeable = BuildOptions.take(options), ChangeableOptions.take(options)
    library = target.library()
    exists = library.resolve(target.name) in library.names()
    existing = library.collection(target.name) if exists else None
    fields = selection.model_dump(include={"id", "text", "vector", "value"})
    mapped = []
    for name in sources:
        mapped.append(Mapped.of(name, existing, selection.format(), **fields))
        click.echo(mapped[-1].described(existing, remap=selection.remap), err=True)
    settings = selection.model_dump(include={"overlap", "normalize"}, exclude_unset=True)
    settings |= {name: value for name, value in options.items() if value is not None}
    collection = collection_for(library, target.name, mapped, **settings)
    encoder = collection.settings.encoder
    if exists and not settings.get("encoder") and encoder not in (None, encoders.DEFAULT):
        click.echo(f"as before: encoder: {encoder}", err=True)
    problems = Problems()
    changes = changeable.changes()
    publish = bool(changes) and collection.configure(**changes)
    warn_of_floor(changeable.exact_below)
    built = _build(collection, mapped, problems, selection, publish)
    problems.summary()
    if built.skipped:
        click.echo(_skipped_files(built), err=True)
    if selection.sync and built.refused:
        click.echo("Nothing was deleted: not every row could be read.", err=True)
    target.show(asdict(built) | {"collection": target.name}, _sentence(built, target.name))
    end(built.refused)


def _build(
    collection: Collection,
    mapped: list[Mapped],
    problems: Problems,
    selection: BuildOptions,
    publish: bool,
) -> Built:
    """Build with bars; if it is interrupted, print the number of stored documents."""
    with closing(Counter(collection.name, " documents")) as rows, Bar() as stages:

        def on_problem(problem: RowProblem) -> None:
            if not problem.skips:  # files are listed at the end
                problems(problem)

        def on_stage(stage: str, fraction: float) -> None:
            rows.close()
            stages(stage, fraction)

        try:
            return build(
                collection,
                mapped,
                on_problem=on_problem,
                on_progress=rows,
                on_stage=on_stage,
                publish=publish,
                sync=selection.sync,
                shard=selection.shard,
                strict=selection.strict,
                remap=selection.remap,
            )
        except KeyboardInterrupt:
            rows.close()
            stages.close()
            stored, _ = collection.store.counts()
            interrupted(f"{stored} documents are stored. Run the same command to go on.")


def _skipped_files(built: Built) -> str:
    """Return the number of files that were skipped, and their names by the reason."""
    files: dict[str, list[str]] = {}
    for entry in built.skipped:
        files.setdefault(entry["reason"], []).append(entry["file"])
    lines = [f"{listed(names, limit=MAX_NAMES)}: {reason}" for reason, names in files.items()]
    return "\n  ".join([f"Files that were skipped: {len(built.skipped)}.", *lines])


def _sentence(built: Built, collection: str) -> str:
    rate = built.read / built.seconds if built.seconds else 0
    return (
        f"{collection}: {built.added} added, {built.updated} updated, {built.revised} revised, "
        f"{built.unchanged} unchanged, {built.removed} removed, {built.refused} rejected; "
        f"{built.encoded} texts encoded in {built.seconds:.1f} s ({rate:.0f} documents/s). "
        f"{built.documents} documents, {built.keys} keys."
    )


@collection_command("configure")
@model_options(ChangeableOptions)
def configure_command(target: Target, **options: Any) -> None:
    """Change settings of a collection, without its source.

    Servers that run have the new settings at their next request. With --recall or --exact-below
    the index is written again; searches go on meanwhile.

    \b
    Example:
      attend configure --data library --recall 0.99
      attend configure --data library --value-type price=number --value-type genre=category
    """
    selection = ChangeableOptions.take(options)
    changes = selection.changes()
    if not changes:
        raise click.UsageError(
            "Give a setting to change: --recall, --exact-below, --scale or --value-type."
        )
    collection = target.collection()
    before = collection.settings.stored()
    is_changed = collection.configure(**changes)
    warn_of_floor(selection.exact_below)
    if changes.keys() & {"recall", "exact_below"}:
        try:
            with Bar() as bar:
                collection.publish(bar)
        except KeyboardInterrupt:
            interrupted("the settings are stored. Run the same command to write the index.")
    after = collection.settings.stored()
    lines = [f"{name}: {plain(after[name])} (was {plain(before[name])})" for name in changes]
    result = {"collection": target.name, "changed": is_changed, "settings": after}
    target.show(result, "\n".join(lines))
