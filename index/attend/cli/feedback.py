"""`attend teach`, and the files of feedback that `train` and `evaluate` read as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import click
from pydantic import model_validator

from attend.api.base import Request
from attend.cli.formats import FormatOptions
from attend.cli.options import Column, InputFile, Target, model_options, on_collection, take
from attend.cli.output import Bar, Problems, end, interrupted
from attend.collection.collection import Collection
from attend.core.errors import SourceError
from attend.core.types import Example, Json
from attend.source import RowItem, RowProblem, Source, TableFormat, open_source
from attend.source.columns import Columns, guess_columns, with_format
from attend.source.files import DETECTED
from attend.store import Interaction
from attend.write.feedback import (
    FeedbackEntry,
    Gathered,
    add_feedback,
    add_interactions,
    gather,
    unfit,
)
from attend.write.labels import (
    CLICKS,
    CLIP,
    ETA,
    INTERACTIONS,
    LABELS,
    are_times,
    label_columns,
    read_clicks,
    read_interactions,
    read_judgements,
    read_labels,
)

OPTIONS_OF = {
    ("clicks",): ("eta", "clip", "negatives", "clicked_column"),
    ("examples",): ("label_column",),
    ("examples", "clicks"): ("query_column", "document_column", "position_column"),
}
"""Files of labels, and the options that are about these alone."""


class LabelFiles(Request):
    """The files of labels that a command's options name, and how to read them."""

    queries: InputFile = None
    """JSON lines with _id and text; with --qrels."""
    qrels: InputFile = None
    """query id, document id, grade (any number)."""
    examples: Annotated[str | None, "TABLE"] = None
    """A table with a row for each query and document; a label of 0 or less is not relevant, without
    labels each row is."""
    clicks: Annotated[str | None, "LOG"] = None
    """A table of documents shown: query, document, position, clicked (0 or 1). People look at the
    first results most, so that a click counts the more the further down it was."""
    query_column: Column = None
    """In a table or log; else guessed by name."""
    document_column: Column = None
    """The document's id."""
    label_column: Column = None
    """A number."""
    position_column: Column = None
    """The rank, from 1."""
    clicked_column: Column = None
    """0 or 1."""
    eta: Annotated[float, click.FloatRange(0, 10)] = ETA
    """With --clicks: rank r is seen with probability (1/r)^eta; 0: no position bias."""
    clip: Annotated[float, click.FloatRange(1, 1e6)] = CLIP
    """With --clicks: the largest weight of one click."""
    negatives: bool = False
    """With --clicks: documents shown and never clicked get a negative label."""
    strict: bool = False
    """Stop at the first row that cannot be used."""
    delete_stored: Annotated[bool, "--forget"] = False
    """First delete the stored feedback of the same kind."""

    @model_validator(mode="after")
    def _belong_together(self) -> LabelFiles:
        if (self.queries is None) != (self.qrels is None):
            raise click.UsageError("--queries and --qrels belong together; give both or neither.")
        for files, names in OPTIONS_OF.items():
            flags = [f"--{n.replace('_', '-')}" for n in names if n in self.model_fields_set]
            if flags and all(getattr(self, file) is None for file in files):
                needed = " or ".join(f"--{file}" for file in files)
                raise click.UsageError(f"Give {needed} with {', '.join(flags)}, or leave that out.")
        return self

    def __bool__(self) -> bool:
        return any(file is not None for file in (self.queries, self.examples, self.clicks))

    def read(
        self, vectors: bool, format: TableFormat = DETECTED
    ) -> Iterator[RowItem[Example] | RowProblem]:
        """Yield all rows of all files, as examples or problems."""
        if self.queries is not None and self.qrels is not None:
            yield from read_judgements(
                self.queries, self.qrels, vectors=vectors, encoding=format.encoding
            )
        roles = {
            "query": self.query_column,
            "document": self.document_column,
            "position": self.position_column,
        }
        if self.examples is not None:
            source = open_source(self.examples, format)
            roles_with_label = roles | {"label": self.label_column}
            columns = label_columns(source, LABELS, vectors=vectors, **roles_with_label)
            yield from read_labels(source, _shown(source, columns), vectors=vectors)
        if self.clicks is not None:
            source = open_source(self.clicks, format)
            roles_with_click = roles | {"clicked": self.clicked_column}
            columns = label_columns(source, CLICKS, vectors=vectors, **roles_with_click)
            yield from read_clicks(
                source,
                _shown(source, columns),
                eta=self.eta,
                clip=self.clip,
                negatives=self.negatives,
                vectors=vectors,
            )


class InteractionFile(FormatOptions):
    """A file of interactions, the columns that the caller names, and the format of text files."""

    interactions: Annotated[str | None, "FILE"] = None
    """A table with a row for each user and item: CSV, TSV, JSONL, Parquet or SQLite."""
    user: Column = None
    """Its column; else guessed by name."""
    item: Column = None
    """The document's id; else guessed by name, or by the ids that it holds."""
    value: Column = None
    """A rating or label, if any."""
    time: Column = None
    """Seconds since 1970, or ISO dates; else guessed likewise."""
    liked_from: float | None = None
    """Values from here up are likes; chosen from the data if absent."""

    @model_validator(mode="after")
    def _columns_of_a_file(self) -> InteractionFile:
        names = (*INTERACTIONS.names, "liked_from")
        flags = [f"--{name.replace('_', '-')}" for name in names if name in self.model_fields_set]
        if flags and self.interactions is None:
            raise click.UsageError(
                f"Give --interactions with {', '.join(flags)}, or leave that out."
            )
        return self

    def __bool__(self) -> bool:
        return self.interactions is not None

    def check_format(self, labels: LabelFiles) -> None:
        """Raise UsageError for options of text files where no file has a use for them."""
        names = {"delimiter", "no_header"} | (set() if labels else {"encoding"})
        tables = self.interactions or labels.examples or labels.clicks
        flags = [f"--{n.replace('_', '-')}" for n in sorted(names & self.model_fields_set)]
        if flags and not tables:
            raise click.UsageError(
                f"Give --examples, --clicks or --interactions with {', '.join(flags)}, or leave "
                f"that out."
            )

    def read(
        self, collection: Collection, path: str | None = None, *, strict: bool = False
    ) -> Gathered[Interaction]:
        """Read what the collection takes of the file, or of another with the same columns."""
        source = open_source(path or self.interactions or "", self.format())
        names = self.model_dump(include=set(INTERACTIONS.names))
        holds: dict[str, Callable[[Sequence[Json]], bool]] = {
            "item": partial(_are_stored, collection),
            "time": are_times,
        }
        columns = guess_columns(source, replace(INTERACTIONS, holds=holds), **names)
        return _gathered(collection, read_interactions(source, _shown(source, columns)), strict)


@click.command("teach")
@on_collection
@model_options(LabelFiles)
@model_options(InteractionFile)
def teach_command(target: Target, **options: Any) -> None:
    """Add feedback: labels of documents for queries, or interactions of users with items.

    `train` learns from it. A version whose training found it useful also takes the queries of
    relevant documents as keys of these, at once. Interactions (--interactions) count at once as
    the histories of their users. Exit status: 0 if every row was used, 3 if some were rejected
    (--json has their number as `skipped`).

    \b
    Example:
      attend teach --data library --queries queries.jsonl --qrels qrels.tsv
      attend teach --data library --clicks clicks.csv
      attend teach --data library --interactions ratings.tsv
      attend teach --data library --interactions u.data --no-header \\
        --user column_1 --item column_2 --value column_3 --time column_4
    """
    interactions = take(InteractionFile, options)
    labels = take(LabelFiles, options)
    if bool(labels) == bool(interactions):
        raise click.UsageError(
            "Give examples (--queries with --qrels, --examples or --clicks) or --interactions."
        )
    interactions.check_format(labels)
    collection = target.collection()
    try:
        counts, text = add_files(collection, labels, interactions)
    except KeyboardInterrupt:
        stored = collection.store.example_count()
        interrupted(f"{stored} examples are stored; none comes by halves.")
    target.show(counts | {"collection": target.name}, f"{target.name}: {text}")
    end(counts["skipped"])


def add_files(
    collection: Collection, labels: LabelFiles, interactions: InteractionFile
) -> tuple[dict[str, Any], str]:
    """Store the usable rows of files; return counts for --json, and a sentence.

    Raises:
        SourceError: no row can be used; nothing was stored, nothing deleted.
    """
    strict, delete = labels.strict, labels.delete_stored
    rows: Gathered[Interaction] | Gathered[Example]
    if interactions:
        rows = interactions.read(collection, strict=strict)
        before = collection.store.interaction_counts()[0]
        threshold = (
            {} if interactions.liked_from is None else {"liked_from": interactions.liked_from}
        )
        added = add_interactions(collection, rows.entries, delete_stored=delete, **threshold)
        counts: dict[str, Any] = added.json()
    else:
        vectors = collection.settings.encoder is None
        examples = labels.read(vectors, interactions.format())
        rows = _gathered(collection, examples, strict)
        before = collection.store.example_count()
        with Bar() as bar:
            labels_added = add_feedback(
                collection, rows.entries, progress=bar, delete_stored=delete
            )
        counts = labels_added.json()
    counts |= {"skipped": rows.skipped, "repeated": rows.repeated}
    counts["forgotten"] = before if delete else 0
    sentence = _sentence(counts)
    if interactions:
        liking = str(collection.store.liking())
        sentence = f"{sentence} {liking[0].upper()}{liking[1:]}."
    return counts, sentence


def _sentence(counts: Mapping[str, Any]) -> str:
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
    collection: Collection, items: Iterable[RowItem[FeedbackEntry] | RowProblem], strict: bool
) -> Gathered[FeedbackEntry]:
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


def _are_stored(collection: Collection, cells: Sequence[Json]) -> bool:
    """Return whether half of some cells or more are ids of documents."""
    ids = list({str(cell) for cell in cells})
    return 2 * len(collection.store.rows_of(ids)) >= len(ids)


def _shown(source: Source, columns: Columns) -> Columns:
    click.echo(f"{source.name}: {with_format(columns.describe(), source)}", err=True)
    return columns
