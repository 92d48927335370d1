"""`attend teach`, and the files of examples that `train` reads as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from attend.cli.common import Bar, Problems, interrupted, on_collection, open_collection, show
from attend.cli.interactions import InteractionFile, record_file, with_interactions
from attend.cli.interactions import sentence as recorded
from attend.collection import Collection
from attend.errors import SourceError
from attend.feedback import (
    CLICKS,
    LABELS,
    add_feedback,
    gather,
    label_columns,
    read_clicks,
    read_judgements,
    read_labels,
    unfit,
)
from attend.feedback.clicks import CLIP, ETA
from attend.source import Columns, Layout, RowItem, RowProblem, Source, open_source
from attend.types import Example

Command = TypeVar("Command", bound=Callable[..., Any])

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

_OF_CLICKS = {"eta": ETA, "clip": CLIP, "negatives": False, "clicked_column": None}
"""Options that only a click log heeds, as they are where nobody gave them."""


@dataclass(frozen=True)
class Files:
    """The files of examples that a command was given, and how they are to be read."""

    queries: Path | None
    qrels: Path | None
    examples: str | None
    clicks: str | None
    query_column: str | None
    document_column: str | None
    label_column: str | None
    position_column: str | None
    clicked_column: str | None
    eta: float
    clip: float
    negatives: bool
    strict: bool
    forget: bool

    @classmethod
    def taken_from(cls, given: dict[str, Any]) -> Files:
        """Take these options out of all that were given.

        Raises:
            UsageError: queries without judgements, judgements without queries, or what only
                clicks heed without them.
        """
        files = cls(**{field.name: given.pop(field.name) for field in fields(cls)})
        if (files.queries is None) != (files.qrels is None):
            raise click.UsageError("--queries and --qrels belong together; give both or neither.")
        changed = [name for name, default in _OF_CLICKS.items() if getattr(files, name) != default]
        if changed and files.clicks is None:
            said = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
            raise click.UsageError(f"{said} applies to clicks alone; add --clicks LOG.")
        return files

    def __bool__(self) -> bool:
        return any(each is not None for each in (self.queries, self.examples, self.clicks))

    def read(self, vectors: bool) -> Iterator[RowItem[Example] | RowProblem]:
        """All rows of all files, as examples or problems."""
        if self.queries is not None and self.qrels is not None:
            yield from read_judgements(self.queries, self.qrels, vectors=vectors)
        if self.examples is not None:
            table = open_source(self.examples)
            columns = self._columns(table, LABELS, vectors=vectors, label=self.label_column)
            yield from read_labels(table, columns, vectors=vectors)
        if self.clicks is not None:
            log = open_source(self.clicks)
            columns = self._columns(log, CLICKS, vectors=vectors, clicked=self.clicked_column)
            yield from read_clicks(
                log,
                columns,
                eta=self.eta,
                clip=self.clip,
                negatives=self.negatives,
                vectors=vectors,
            )

    def _columns(self, source: Source, layout: Layout, **named: Any) -> Columns:
        columns = label_columns(
            source,
            layout,
            query=self.query_column,
            document=self.document_column,
            position=self.position_column,
            **named,
        )
        click.echo(f"{source.name}: {columns.describe()}", err=True)
        return columns


_OPTIONS = (
    click.option("--queries", type=_FILE, help="JSON lines with _id and text; with --qrels."),
    click.option("--qrels", type=_FILE, help="query id, document id, grade (any number)."),
    click.option(
        "--examples",
        metavar="TABLE",
        help="A table with a row for each query and document; a label of 0 or less is not "
        "relevant, without labels each row is.",
    ),
    click.option(
        "--clicks",
        metavar="LOG",
        help="A table of documents shown: query, document, position, clicked (0 or 1). People look "
        "at the first results most, so that a click counts the more the further down it was.",
    ),
    click.option("--query-column", metavar="F", help="In a table or log; else guessed by name."),
    click.option("--document-column", metavar="F", help="The document's id."),
    click.option("--label-column", metavar="F", help="A number."),
    click.option("--position-column", metavar="F", help="The rank, from 1."),
    click.option("--clicked-column", metavar="F", help="0 or 1."),
    click.option(
        "--eta",
        type=click.FloatRange(0, 10),
        default=ETA,
        show_default=True,
        help="Of clicks: rank r is looked at with probability (1/r)^eta; 0: no position bias.",
    ),
    click.option(
        "--clip",
        type=click.FloatRange(1, 1e6),
        default=CLIP,
        show_default=True,
        help="Of clicks: the most that one of them counts.",
    ),
    click.option(
        "--negatives",
        is_flag=True,
        help="Of clicks: what was shown and never clicked is a negative label.",
    ),
    click.option("--strict", is_flag=True, help="Stop at the first row that cannot be used."),
    click.option("--forget", is_flag=True, help="First delete what was stored before of its kind."),
)


def with_files(command: Command) -> Command:
    """The options that say where examples come from."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command("teach")
@on_collection
@with_files
@with_interactions
def teach_command(
    folder: Path, collection: str, precision: str, as_json: bool, **given: Any
) -> None:
    """Store examples: which documents answer which queries; or which users met which items.

    They are what `train` learns from. A version whose training found it worth while also
    takes examples for keys of their documents, at once. Interactions (--interactions) count at
    once as the histories of their users.

    \b
    Example:
      attend teach --data library --queries queries.jsonl --qrels qrels.tsv
      attend teach --data library --clicks clicks.csv
      attend teach --data library --interactions ratings.tsv
    """
    met = InteractionFile.taken_from(given)
    files = Files.taken_from(given)
    if bool(files) == (met is not None):
        raise click.UsageError(
            "Give examples (--queries with --qrels, --examples or --clicks) or --interactions."
        )
    opened = open_collection(folder, collection, precision)
    if met is not None:
        told = record_file(opened, met, strict=files.strict, forget=files.forget)
        show(as_json, told | {"collection": collection}, f"{collection}: {recorded(told)}")
        return
    try:
        taught = teach_files(opened, files)
    except KeyboardInterrupt:
        interrupted(f"{opened.store.example_count()} examples are stored; none comes by halves.")
    show(as_json, taught | {"collection": collection}, f"{collection}: {sentence(taught)}")


def teach_files(collection: Collection, files: Files) -> dict[str, int]:
    """Read files and teach what can be used of them. Returns counts, for --json.

    Raises:
        SourceError: no row can be used; nothing was stored, nothing forgotten.
    """
    problems = Problems()
    found = gather(
        files.read(collection.settings.encoder is None),
        partial(unfit, collection),
        strict=files.strict,
        on_problem=problems,
    )
    problems.summary()
    if not found.entries:
        raise SourceError(
            "No row of the files can be taught, and nothing was changed. Check that they are about "
            "this collection's documents, and the problems reported above."
        )
    forgotten = collection.store.example_count() if files.forget else 0
    with Bar() as bar:
        taught = add_feedback(collection, found.entries, progress=bar, delete_stored=files.forget)
    counts = {"skipped": found.skipped, "repeated": found.repeated, "forgotten": forgotten}
    return taught.json() | counts


def sentence(taught: dict[str, int]) -> str:
    """What was taken of the files and what not, for a person."""
    forgotten = f"{taught['forgotten']} forgotten, " if taught["forgotten"] else ""
    return (
        f"{forgotten}{taught['added']} examples added, {taught['replaced']} replaced, "
        f"{taught['repeated']} repeated, {taught['skipped']} rows skipped; "
        f"{taught['questions']} queries. {taught['examples']} examples are stored."
    )
