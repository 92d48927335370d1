"""`attend teach` and `attend train`, and the files of feedback that `evaluate` reads as well."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import click
import numpy as np

from attend.api.learning import FOR_OBJECTIVES, TrainRequest
from attend.cli import common
from attend.collection.collection import Collection
from attend.core.errors import SourceError
from attend.core.types import Example, Json
from attend.source import RowItem, RowProblem, Source, TableFormat, open_source
from attend.source.columns import Columns, guess_columns, with_format
from attend.source.files import DETECTED
from attend.store import ROLES, Interaction
from attend.write import labels
from attend.write.feedback import (
    FeedbackEntry,
    Gathered,
    add_feedback,
    add_interactions,
    gather,
    unfit,
)

OPTIONS_OF = {
    ("clicks",): ("eta", "clip", "negatives", "clicked_column"),
    ("examples",): ("label_column",),
    ("examples", "clicks"): ("query_column", "document_column", "position_column"),
}
"""Files of labels, and the options that are about these alone."""


class LabelFiles(common.CommandOptions):
    """The files of labels that a command's options name, and how to read them."""

    queries: common.InputFile = None
    """JSON lines with _id and text; with --qrels."""
    qrels: common.InputFile = None
    """query id, document id, grade (any number)."""
    examples: Annotated[str | None, "TABLE"] = None
    """A table with a row for each query and document; a label of 0 or less is not relevant, without
    labels each row is."""
    clicks: Annotated[str | None, "LOG"] = None
    """A table of documents shown: query, document, position, clicked (0 or 1). People look at the
    first results most, so that a click counts the more the further down it was."""
    query_column: common.Column = None
    """In a table or log; else guessed by name."""
    document_column: common.Column = None
    """The document's id."""
    label_column: common.Column = None
    """A number."""
    position_column: common.Column = None
    """The rank, from 1."""
    clicked_column: common.Column = None
    """0 or 1."""
    eta: Annotated[float, click.FloatRange(0, 10)] = labels.ETA
    """With --clicks: rank r is seen with probability (1/r)^eta; 0: no position bias."""
    clip: Annotated[float, click.FloatRange(1, 1e6)] = labels.CLIP
    """With --clicks: the largest weight of one click."""
    negatives: bool = False
    """With --clicks: documents shown and never clicked get a negative label."""
    strict: bool = False
    """Stop at the first row that cannot be used."""
    delete_stored: Annotated[bool, "--forget"] = False
    """First delete the stored feedback of the same kind."""

    def check(self) -> None:
        if (self.queries is None) != (self.qrels is None):
            raise click.UsageError("--queries and --qrels belong together; give both or neither.")
        for kinds, names in OPTIONS_OF.items():
            named = self.flags(*names)
            if named and all(getattr(self, kind) is None for kind in kinds):
                needed = " or ".join(f"--{kind}" for kind in kinds)
                raise click.UsageError(f"Give {needed} with {named}, or leave that out.")

    def __bool__(self) -> bool:
        return any(file is not None for file in (self.queries, self.examples, self.clicks))

    def read(
        self, vectors: bool, format: TableFormat = DETECTED
    ) -> Iterator[RowItem[Example] | RowProblem]:
        """Yield all rows of all files, as examples or problems."""
        if self.queries is not None and self.qrels is not None:
            yield from labels.read_judgements(
                self.queries, self.qrels, vectors=vectors, encoding=format.encoding
            )
        roles = ("query", "document", "position")
        columns_of = {role: getattr(self, f"{role}_column") for role in roles}
        if self.examples is not None:
            source = open_source(self.examples, format)
            columns = labels.label_columns(
                source, labels.LABELS, vectors=vectors, label=self.label_column, **columns_of
            )
            yield from labels.read_labels(source, _shown(source, columns), vectors=vectors)
        if self.clicks is not None:
            source = open_source(self.clicks, format)
            columns = labels.label_columns(
                source, labels.CLICKS, vectors=vectors, clicked=self.clicked_column, **columns_of
            )
            weighing = self.model_dump(include={"eta", "clip", "negatives"})
            shown = _shown(source, columns)
            yield from labels.read_clicks(source, shown, vectors=vectors, **weighing)


class InteractionFile(common.FormatOptions):
    """A file of interactions, the columns that the caller names, and the format of text files."""

    interactions: Annotated[str | None, "FILE"] = None
    """A table with a row for each user and item: CSV, TSV, JSONL, Parquet or SQLite."""
    user: common.Column = None
    """Its column; else guessed by name."""
    item: common.Column = None
    """The document's id; else guessed by name, or by the ids that it holds."""
    value: common.Column = None
    """A rating or label, if any."""
    time: common.Column = None
    """Seconds since 1970, or ISO dates; else guessed likewise."""
    liked_from: float | None = None
    """Values from here up are likes; chosen from the data if absent."""

    def check(self) -> None:
        named = self.flags(*labels.INTERACTIONS.names, "liked_from")
        if named and self.interactions is None:
            raise click.UsageError(f"Give --interactions with {named}, or leave that out.")

    def __bool__(self) -> bool:
        return self.interactions is not None

    def check_format(self, files: LabelFiles) -> None:
        """Raise UsageError for options of text files where no file has a use for them."""
        names = ("delimiter", "no_header") if files else ("delimiter", "encoding", "no_header")
        named = self.flags(*names)
        if named and not (self.interactions or files.examples or files.clicks):
            raise click.UsageError(
                f"Give --examples, --clicks or --interactions with {named}, or leave that out."
            )

    def read(
        self, collection: Collection, path: str | None = None, *, strict: bool = False
    ) -> Gathered[Interaction]:
        """Read what the collection takes of the file, or of another with the same columns."""
        source = open_source(path or self.interactions or "", self.format())

        def are_stored(cells: Sequence[Json]) -> bool:
            """Return whether half of some cells or more are ids of documents."""
            ids = list({str(cell) for cell in cells})
            return 2 * len(collection.store.rows_of(ids)) >= len(ids)

        layout = replace(labels.INTERACTIONS, holds={"item": are_stored, "time": labels.are_times})
        names = self.model_dump(include=set(labels.INTERACTIONS.names))
        columns = _shown(source, guess_columns(source, layout, **names))
        return _gathered(collection, labels.read_interactions(source, columns), strict)


@common.collection_command("teach")
@common.model_options(LabelFiles)
@common.model_options(InteractionFile)
def teach_command(target: common.Target, **options: Any) -> None:
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
    interactions = InteractionFile.take(options)
    files = LabelFiles.take(options)
    if bool(files) == bool(interactions):
        raise click.UsageError(
            "Give examples (--queries with --qrels, --examples or --clicks) or --interactions."
        )
    interactions.check_format(files)
    collection = target.collection()
    try:
        counts, text = add_files(collection, files, interactions)
    except KeyboardInterrupt:
        stored = collection.store.example_count()
        common.interrupted(f"{stored} examples are stored; none comes by halves.")
    target.show(counts | {"collection": target.name}, f"{target.name}: {text}")
    common.end(counts["skipped"])


def add_files(
    collection: Collection, files: LabelFiles, interactions: InteractionFile
) -> tuple[dict[str, Any], str]:
    """Store the usable rows of files; return counts for --json, and a sentence.

    Raises:
        SourceError: no row can be used; nothing was stored, nothing deleted.
    """
    delete, store = files.delete_stored, collection.store
    rows: Gathered[Interaction] | Gathered[Example]
    if interactions:
        rows = interactions.read(collection, strict=files.strict)
        before = store.interaction_counts()[0]
        named = interactions.model_dump(include={"liked_from"}, exclude_none=True)
        added = add_interactions(collection, rows.entries, delete_stored=delete, **named)
        counts = added.json()
    else:
        examples = files.read(collection.settings.encoder is None, interactions.format())
        rows = _gathered(collection, examples, files.strict)
        before = store.example_count()
        with common.Bar() as bar:
            labelled = add_feedback(collection, rows.entries, progress=bar, delete_stored=delete)
        counts = labelled.json()
    counts |= {"skipped": rows.skipped, "repeated": rows.repeated}
    counts["forgotten"] = before if delete else 0
    changes = (
        f"{f'{before} deleted, ' if counts['forgotten'] else ''}{counts['added']} "
        f"{'interactions' if interactions else 'examples'} added, {counts['replaced']} replaced, "
        f"{rows.repeated} repeated, {rows.skipped} rows skipped"
    )
    if not interactions:
        stored = f"{counts['questions']} queries. {counts['examples']} examples are stored."
        return counts, f"{changes}; {stored}"
    liking = str(store.liking())
    stored = f"{counts['interactions']} interactions of {counts['users']} users are stored."
    return counts, f"{changes}. {stored} {liking[0].upper()}{liking[1:]}."


def _gathered(
    collection: Collection, items: Iterable[RowItem[FeedbackEntry] | RowProblem], strict: bool
) -> Gathered[FeedbackEntry]:
    """Print the rows that cannot be used, and return the others."""
    problems = common.Problems()
    rows = gather(items, partial(unfit, collection), strict=strict, on_problem=problems)
    problems.summary()
    if not rows.entries:
        raise SourceError(
            "No row can be used, and nothing was changed. Check that the file is about this "
            "collection's documents, and the problems reported above."
        )
    return rows


def _shown(source: Source, columns: Columns) -> Columns:
    click.echo(f"{source.name}: {with_format(columns.describe(), source)}", err=True)
    return columns


HEADER = ("before", "after", "gain", "95 % interval", "p", "queries")


@common.collection_command("train")
@common.model_options(LabelFiles)
@common.model_options(InteractionFile)
@click.option("--answers", is_flag=True, help="Learn from the stored values; see --objective.")
@common.model_options(
    TrainRequest,
    "share_seen",
    "seed",
    "dimensions",
    "heads",
    "parts",
    "deep",
    "error_rate",
    "tolerance",
)
@common.model_options(TrainRequest, "objective")
@click.option(
    "--no-promote", is_flag=True, help="Store the trained version, but do not activate it."
)
@click.option("--no-used", is_flag=True, help="Learn nothing from the log of searches.")
def train_command(target: common.Target, answers: bool, no_promote: bool, **options: Any) -> None:
    """Learn W_Q and W_K from examples, and activate them if significantly better.

    Learns from the files given, which are stored (see `teach`), and from all examples stored
    before, such as feedback. The result is measured on held-out queries: unless the gain is
    significant, and a loss is ruled out where documents are new, nothing changes.

    With --interactions, or --objective interactions, it learns what `recommend` answers: the next
    interactions of users, from all before; and if these have numbers, also the users' ratings of
    documents, as with --objective ratings.

    Exit status: 0 if the training ended, promoted or not; 3 if some rows of the files were
    rejected (--json has their number as `taught.skipped`).

    \b
    Example:
      attend train --data library --queries queries.jsonl --qrels qrels.tsv
      attend train --data library --clicks clicks.csv --share-seen 0.8
      attend train --data library --deep
      attend train --data library --answers --value price
      attend train --data library --dimensions 64 --part matrices --part offsets
      attend train --data library --interactions ratings.tsv --user reader --item book
    """
    value = None
    if options["interactions"] is None:  # then --value is what --answers learns
        value, options["value"] = options["value"], None
    interactions, files = InteractionFile.take(options), LabelFiles.take(options)
    options["value"] = value
    request = _request(answers, no_promote, common.present(options), bool(interactions))
    interactions.check_format(files)
    if files and interactions:
        raise click.UsageError("Examples and interactions teach different things; train for each.")
    if files.delete_stored and not files and not interactions:
        raise click.UsageError(
            "--delete-stored would leave nothing to learn from; give files as well."
        )
    collection = target.collection()
    store = collection.store
    before = store.state()
    result: dict[str, Any] = {}
    try:
        if files or interactions:
            result["taught"], sentence = add_files(collection, files, interactions)
            click.echo(f"{collection.name}: {sentence}", err=True)
        report = _train(collection, request)
        text = as_text(report)
        values = store.interactions().values if interactions else np.empty(0)
        different = len(np.unique(values[np.isfinite(values)])) > 1
        if options["objective"] is None and different:
            shared = {name: item for name, item in request.items() if name not in FOR_OBJECTIVES}
            ratings = _train(collection, {**shared, "objective": "ratings"})
            result["ratings"] = dict(ratings)
            text = f"{text}\n\nRatings of documents by users:\n{as_text(ratings)}"
    except KeyboardInterrupt:
        now = store.state()
        changed = [now.active(role) for role in ROLES if now.active(role) != before.active(role)]
        promoted = f"version {changed[0]} was promoted" if changed else "nothing was promoted"
        common.interrupted(
            f"{promoted}, and nothing was lost. {store.example_count()} examples and "
            f"{store.interaction_counts()[0]} interactions are stored; the same command begins "
            f"again."
        )
    target.show({**report, **result}, text)
    common.end(result["taught"]["skipped"] if "taught" in result else 0)


def _request(
    answers: bool, no_promote: bool, fields: dict[str, Any], interactions: bool
) -> dict[str, Any]:
    """Return the fields of a TrainRequest, checked before anything is stored."""
    if answers and fields.setdefault("objective", "answers") != "answers":
        raise click.UsageError("--answers is --objective answers; give one of them.")
    if interactions and fields.setdefault("objective", "interactions") in ("ranking", "answers"):
        raise click.UsageError(
            "--interactions go with the objectives interactions and ratings alone."
        )
    if no_promote:
        fields["promote"] = False
    if fields.pop("no_used", False):
        fields["used"] = False
    common.checked(TrainRequest, fields)
    return fields


def _train(collection: Collection, request: Mapping[str, Any]) -> Mapping[str, Any]:
    from attend.learning import train  # here: torch takes seconds to import

    with common.Bar() as bar:
        return train(collection, progress=bar, cancelled=None, **request)


def as_text(report: Mapping[str, Any]) -> str:
    """Format a report for a person: the decision, its reason and the figures."""
    views = [split for split in report["views"].values() if split]
    means = [(split["before"], split["after"]) for split in views]
    rows = [_row(split["label"], split) for split in views]
    # A measure that has the means of a split is named in the corner; others have a row.
    corner = []
    for name in [name for name in report["before"] if name not in report["views"]]:
        before, after = report["before"][name], report["after"].get(name)
        if (before, after) in means:
            corner.append(name)
        elif after is not None:
            rows.append(_row(name, {"before": before, "after": after}))
    lines = [_verdict(report), ""]
    if used := report.get("used"):
        lines += [
            f"from the log: {used['searches']:,} searches with a report, {used['used']:,} uses, "
            f"{used['relevant']:,} labels; {len(used['weighed_down'])} of {used['sources']} "
            f"sources count less",
            "",
        ]
    if rows:  # a training that could not begin measured nothing
        lines += [common.table([(", ".join(corner), *HEADER), *rows], right=True), ""]
        before = f"version {report['previous']}" if report["previous"] else "the untrained version"
        lines.append(
            f"look {report['tests']} at {report['groups']:,} groups against {before}, level "
            f"{report['level']:.4f}"
        )
    if report.get("chosen"):
        listed = ", ".join(f"{name} {_short(value)}" for name, value in report["chosen"].items())
        lines.append(f"chosen: {listed}")
    return "\n".join([*lines, f"{report['seconds']:.1f} s"])


def _verdict(report: Mapping[str, Any]) -> str:
    version = report["version"]
    if report["promoted"]:
        return f"Version {version} answers from now on. {report['reason']}"
    if version is not None:
        force = " --force" if report.get("kept") else ""
        advice = f" 'projections activate {version}{force}' makes it answer."
    else:  # a training that measured nothing has nothing to store either
        advice = ""
    return f"Nothing was promoted. {report['reason']}{advice}"


def _row(name: str, figures: Mapping[str, Any]) -> list[str]:
    before, after = figures["before"], figures["after"]
    gain = figures.get("difference", after - before)
    interval, p = figures.get("interval"), figures.get("p")
    return [
        name,
        f"{before:.3f}",
        f"{after:.3f}",
        f"{gain:+.3f}",
        "" if interval is None else f"[{interval[0]:+.3f}, {interval[1]:+.3f}]",
        "" if p is None else f"{p:.4f}",
        str(figures.get("queries", "")),
    ]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
