"""Files of interactions, which `teach`, `train` and `evaluate` read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import click

from attend.cli.common import Problems
from attend.collection import Collection
from attend.errors import SourceError
from attend.feedback import (
    INTERACTIONS,
    Gathered,
    add_interactions,
    gather,
    read_interactions,
    unfit,
)
from attend.source import guess_columns, open_source
from attend.store import Interaction

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--interactions",
        metavar="FILE",
        help="A table with a row for each user and item: CSV, TSV, JSONL, Parquet or SQLite.",
    ),
    click.option("--user", "user_column", metavar="F", help="Its column; else guessed by name."),
    click.option("--item", "item_column", metavar="F", help="The document's id."),
    click.option("--value", "value_column", metavar="F", help="A rating or label, if any."),
    click.option("--time", "time_column", metavar="F", help="Seconds since 1970, or ISO dates."),
)


@dataclass(frozen=True)
class InteractionFile:
    """A file of interactions, and how it is to be read."""

    path: str
    columns: dict[str, str | None]

    @classmethod
    def taken_from(cls, given: dict[str, Any]) -> InteractionFile | None:
        """Take these options out of all that were given; None where no file was.

        Raises:
            UsageError: a column without a file.
        """
        path = given.pop("interactions")
        columns = {name: given.pop(f"{name}_column") for name in ("user", "item", "value", "time")}
        if path is not None:
            return cls(path, columns)
        if named := [f"--{name}" for name, column in columns.items() if column is not None]:
            raise click.UsageError(
                f"{', '.join(named)}: a column of --interactions; give that file, too."
            )
        return None

    def beside(self, path: str) -> InteractionFile:
        """Another file with the same columns."""
        return InteractionFile(path, self.columns)

    def read(self, collection: Collection, *, strict: bool = False) -> Gathered[Interaction]:
        """What can be used of it; the rest is told on stderr."""
        problems = Problems()
        source = open_source(self.path)
        columns = guess_columns(source, INTERACTIONS, **self.columns)
        click.echo(f"{source.name}: {columns.describe()}", err=True)
        gathered = gather(
            read_interactions(source, columns),
            partial(unfit, collection),
            strict=strict,
            on_problem=problems,
        )
        problems.summary()
        if not gathered.entries:
            raise SourceError(
                f"No row of {source.name} can be used, and nothing was changed. Check that it is "
                f"about this collection's documents, and the problems reported above."
            )
        return gathered


def with_interactions(command: Command) -> Command:
    """The options of a file of interactions."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def record_file(
    collection: Collection, file: InteractionFile, *, strict: bool = False, forget: bool = False
) -> dict[str, int]:
    """Store what can be used of a file. Returns counts, for --json.

    Raises:
        SourceError: no row can be used; nothing was stored, nothing forgotten.
    """
    found = file.read(collection, strict=strict)
    forgotten = collection.store.interaction_counts()[0] if forget else 0
    recorded = add_interactions(collection, found.entries, delete_stored=forget)
    counts = {"skipped": found.skipped, "repeated": found.repeated, "forgotten": forgotten}
    return recorded.json() | counts


def sentence(recorded: dict[str, int]) -> str:
    """What was taken of a file and what not, for a person."""
    forgotten = f"{recorded['forgotten']} forgotten, " if recorded["forgotten"] else ""
    return (
        f"{forgotten}{recorded['added']} interactions added, {recorded['replaced']} replaced, "
        f"{recorded['repeated']} repeated, {recorded['skipped']} rows skipped. "
        f"{recorded['interactions']} interactions of {recorded['users']} users are stored."
    )
