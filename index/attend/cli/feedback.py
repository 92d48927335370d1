"""`attend teach`, and the files of feedback that `train` and `evaluate` read as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import click

from attend.cli.options import FILE, Bar, Problems, Target, interrupted, on_collection, with_options
from attend.collection import Collection
from attend.errors import SourceError
from attend.feedback import (
    CLICKS,
    INTERACTIONS,
    LABELS,
    Gathered,
    add_feedback,
    add_interactions,
    gather,
    label_columns,
    read_clicks,
    read_interactions,
    read_judgements,
    read_labels,
    unfit,
)
from attend.feedback.clicks import CLIP, ETA
from attend.feedback.gathering import Entry
from attend.source import RowItem, RowProblem, Source, open_source
from attend.source.columns import Columns, guess_columns
from attend.store import Interaction
from attend.types import Example

Command = TypeVar("Command", bound=Callable[..., Any])

_LABEL_FILES = (
    click.option("--queries", type=FILE, help="JSON lines with _id and text; with --qrels."),
    click.option("--qrels", type=FILE, help="query id, document id, grade (any number)."),
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
        help="With --clicks: rank r is seen with probability (1/r)^eta; 0: no position bias.",
    ),
    click.option(
        "--clip",
        type=click.FloatRange(1, 1e6),
        default=CLIP,
        show_default=True,
        help="With --clicks: the largest weight of one click.",
    ),
    click.option(
        "--negatives",
        is_flag=True,
        help="With --clicks: documents shown and never clicked get a negative label.",
    ),
    click.option("--strict", is_flag=True, help="Stop at the first row that cannot be used."),
    click.option(
        "--delete-stored",
        "--forget",
        "delete_stored",
        is_flag=True,
        help="First delete the stored feedback of the same kind.",
    ),
)
_LABEL_OPTIONS = (
    *("queries", "qrels", "examples", "clicks", "query_column", "document_column"),
    *("label_column", "position_column", "clicked_column", "eta", "clip", "negatives"),
    *("strict", "delete_stored"),
)
_CLICK_DEFAULTS = {"eta": ETA, "clip": CLIP, "negatives": False, "clicked_column": None}

_INTERACTION_FILE = (
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


def with_label_files(command: Command) -> Command:
    """Declare the options that name files of labels."""
    return with_options(command, _LABEL_FILES)


def with_interactions(command: Command) -> Command:
    """Declare the options of a file of interactions."""
    return with_options(command, _INTERACTION_FILE)


@click.command("teach")
@on_collection
@with_label_files
@with_interactions
def teach_command(target: Target, **options: Any) -> None:
    """Add feedback: labels of documents for queries, or interactions of users with items.

    `train` learns from it. A version whose training found it useful also takes the queries of
    relevant documents as keys of these, at once. Interactions (--interactions) count at once as
    the histories of their users.

    \b
    Example:
      attend teach --data library --queries queries.jsonl --qrels qrels.tsv
      attend teach --data library --clicks clicks.csv
      attend teach --data library --interactions ratings.tsv
    """
    interactions = InteractionFile.taken_from(options)
    labels = LabelFiles.taken_from(options)
    if bool(labels) == (interactions is not None):
        raise click.UsageError(
            "Give examples (--queries with --qrels, --examples or --clicks) or --interactions."
        )
    collection = target.collection()
    try:
        counts, text = add_files(collection, labels, interactions)
    except KeyboardInterrupt:
        stored = collection.store.example_count()
        interrupted(f"{stored} examples are stored; none comes by halves.")
    target.show(counts | {"collection": target.name}, f"{target.name}: {text}")


@dataclass(frozen=True)
class LabelFiles:
    """The files of labels that a command's options name, and how to read them."""

    options: Mapping[str, Any]

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> LabelFiles:
        """Remove these options from all options of a command.

        Raises:
            UsageError: queries without judgements, judgements without queries, or options of
                click logs without a log.
        """
        taken = {name: options.pop(name) for name in _LABEL_OPTIONS}
        if (taken["queries"] is None) != (taken["qrels"] is None):
            raise click.UsageError("--queries and --qrels belong together; give both or neither.")
        changed = [name for name, default in _CLICK_DEFAULTS.items() if taken[name] != default]
        if changed and taken["clicks"] is None:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
            raise click.UsageError(f"{flags} applies to clicks alone; add --clicks LOG.")
        return cls(taken)

    def __bool__(self) -> bool:
        return any(self.options[name] is not None for name in ("queries", "examples", "clicks"))

    def read(self, vectors: bool) -> Iterator[RowItem[Example] | RowProblem]:
        """Yield all rows of all files, as examples or problems."""
        options = self.options
        if options["queries"] is not None:
            yield from read_judgements(options["queries"], options["qrels"], vectors=vectors)
        common = {role: options[f"{role}_column"] for role in ("query", "document", "position")}
        if options["examples"] is not None:
            source = open_source(options["examples"])
            named = common | {"label": options["label_column"]}
            columns = label_columns(source, LABELS, vectors=vectors, **named)
            yield from read_labels(source, _shown(source, columns), vectors=vectors)
        if options["clicks"] is not None:
            source = open_source(options["clicks"])
            named = common | {"clicked": options["clicked_column"]}
            columns = label_columns(source, CLICKS, vectors=vectors, **named)
            settings = {name: options[name] for name in ("eta", "clip", "negatives")}
            yield from read_clicks(source, _shown(source, columns), vectors=vectors, **settings)


@dataclass(frozen=True)
class InteractionFile:
    """A file of interactions, and the columns that the caller named."""

    path: str
    columns: Mapping[str, str | None]

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> InteractionFile | None:
        """Remove these options from all options of a command; None if they name no file.

        Raises:
            UsageError: a column without a file.
        """
        path = options.pop("interactions")
        columns = {role: options.pop(f"{role}_column") for role in INTERACTIONS.names}
        if path is not None:
            return cls(path, columns)
        if flags := [f"--{role}" for role, column in columns.items() if column is not None]:
            raise click.UsageError(
                f"{', '.join(flags)}: a column of --interactions; give that file, too."
            )
        return None

    def read(
        self, collection: Collection, path: str | None = None, *, strict: bool = False
    ) -> Gathered[Interaction]:
        """Read what the collection takes of the file, or of another with the same columns."""
        source = open_source(path or self.path)
        columns = _shown(source, guess_columns(source, INTERACTIONS, **self.columns))
        return _gathered(collection, read_interactions(source, columns), strict)


def add_files(
    collection: Collection, labels: LabelFiles, interactions: InteractionFile | None
) -> tuple[dict[str, int], str]:
    """Store the usable rows of files; return counts for --json, and a sentence.

    Raises:
        SourceError: no row can be used; nothing was stored, nothing deleted.
    """
    strict, delete = labels.options["strict"], labels.options["delete_stored"]
    rows: Gathered[Interaction] | Gathered[Example]
    if interactions is not None:
        rows = interactions.read(collection, strict=strict)
        before = collection.store.interaction_counts()[0]
        counts = add_interactions(collection, rows.entries, delete_stored=delete).json()
    else:
        rows = _gathered(collection, labels.read(collection.settings.encoder is None), strict)
        before = collection.store.example_count()
        with Bar() as bar:
            counts = add_feedback(
                collection, rows.entries, progress=bar, delete_stored=delete
            ).json()
    counts |= {"skipped": rows.skipped, "repeated": rows.repeated}
    counts["forgotten"] = before if delete else 0
    return counts, _sentence(counts)


def _sentence(counts: Mapping[str, int]) -> str:
    kind = "interactions" if "users" in counts else "examples"
    deleted = f"{counts['forgotten']} deleted, " if counts["forgotten"] else ""
    changes = (
        f"{deleted}{counts['added']} {kind} added, {counts['replaced']} replaced, "
        f"{counts['repeated']} repeated, {counts['skipped']} rows skipped"
    )
    if "users" in counts:
        users = f"{counts['interactions']} interactions of {counts['users']} users"
        return f"{changes}. {users} are stored."
    return f"{changes}; {counts['questions']} queries. {counts['examples']} examples are stored."


def _gathered(
    collection: Collection, items: Iterable[RowItem[Entry] | RowProblem], strict: bool
) -> Gathered[Entry]:
    """Print the rows that cannot be used, and return the others."""
    problems = Problems()
    rows = gather(items, partial(unfit, collection), strict=strict, on_problem=problems)
    problems.summary()
    if not rows.entries:
        raise SourceError(
            "No row can be used, and nothing was changed. Check that the file is about this "
            "collection's documents, and the problems reported above."
        )
    return rows


def _shown(source: Source, columns: Columns) -> Columns:
    click.echo(f"{source.name}: {columns.describe()}", err=True)
    return columns
