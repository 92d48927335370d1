"""What goes into a library and out of it: `attend build` and `configure`, `export` and `import`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import click
from pydantic import BeforeValidator, Field

from attend import encoder as encoders
from attend.api.documents import CollectionSettings
from attend.cli import common
from attend.collection.collection import Collection
from attend.core.errors import AttendError
from attend.core.progress import Counter
from attend.exchange import backup, models, parquet
from attend.keys.vectors import LEAST_KEYS
from attend.source import RowProblem
from attend.source.rows import listed
from attend.write.build import Built, Mapped, Shard, build, collection_for

MAX_NAMES = 1000
"""Skipped files that are named for one reason; --json has all."""


INFERRED = "auto"
"""The value type that stands for none: types are inferred again."""


class ChangeableOptions(common.CommandOptions):
    """Options for the settings that may change while a collection holds documents."""

    recall: Annotated[float | None, click.FloatRange(0, 1, min_open=True)] = None
    """The share of the ten nearest to find where keys are too many for exact search.  [default:
    0.95]"""
    exact_below: Annotated[int | None, click.IntRange(0)] = None
    """Search exactly below this number of keys; fewer than 1,000 are always searched exactly.
    [default: the number that takes 5 ms]"""
    scale: Annotated[float | None, click.FloatRange(0, min_open=True)] = None
    """Factor on scores before the softmax.  [default: 20 for embeddings of length one, else
    1/√d]"""
    value_types: Annotated[list[str], "[F=]TYPE"] = Field([])
    """The type of the value (number, category, labels, text, boolean, vector, image, mixed), or
    of one field of it; repeatable. auto infers it again."""
    about: Annotated[list[str], "F=TEXT"] = Field([])
    """What the collection's page says: title, description, licence or source; repeatable. Those
    that are not named are removed."""

    def changes(self) -> dict[str, Any]:
        """Return the settings to change, by name."""
        changes = self.model_dump(include={"recall", "exact_below", "scale"}, exclude_none=True)
        if self.value_types:
            changes["values"] = value_types(self.value_types)
        if self.about:
            changes["about"] = about(self.about)
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


def about(words: Sequence[str]) -> dict[str, str]:
    """Return the texts about a collection of a command line by name.

    Raises:
        UsageError: one has no name.

    >>> about(["title=Books", "licence=CC0"])
    {'title': 'Books', 'licence': 'CC0'}
    """
    for word in words:
        if "=" not in word:
            raise click.UsageError(
                f"--about is {common.quoted(word)}, but a name and a text are expected: "
                f"--about title=Books --about licence=CC0."
            )
    return dict(word.split("=", 1) for word in words)


def warn_of_floor(exact_below: int | None) -> None:
    """Print that few keys are searched exactly, whatever the settings say."""
    if exact_below is not None and exact_below < LEAST_KEYS:
        click.echo(
            f"--exact-below {exact_below}: fewer than {LEAST_KEYS:,} keys are always searched "
            f"exactly.",
            err=True,
        )


class BuildOptions(common.FormatOptions):
    """The options of a build, but for settings of a collection."""

    id: common.Column = None
    """The field that holds the id; '' numbers the rows."""
    text: Annotated[list[str], "F"] = Field([])
    """A key field; repeatable."""
    vector: common.Column = None
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


@common.collection_command("build")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@common.model_options(BuildOptions, "id", "text", "vector", "value")
@common.model_options(CollectionSettings, "encoder")
@click.option(
    "--passages/--no-passages",
    default=None,
    help="Split texts longer than the encoder's window (default), or cut them off.",
)
@common.model_options(BuildOptions, "overlap", "normalize")
@common.model_options(CollectionSettings, "scorer")
@common.model_options(ChangeableOptions)
@common.model_options(BuildOptions, "delimiter", "encoding", "no_header")
@common.model_options(BuildOptions, "sync", "shard", "strict", "remap")
def build_command(target: common.Target, sources: tuple[str, ...], **options: Any) -> None:
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
    problems = common.Problems()
    changes = changeable.changes()
    is_changed = bool(changes) and collection.configure(**changes)
    publish = is_changed and changes.keys() != {"about"}
    warn_of_floor(changeable.exact_below)
    built = _build(collection, mapped, problems, selection, publish)
    problems.summary()
    if built.skipped:
        click.echo(_skipped_files(built), err=True)
    if selection.sync and built.refused:
        click.echo("Nothing was deleted: not every row could be read.", err=True)
    target.show(asdict(built) | {"collection": target.name}, _sentence(built, target.name))
    common.end(built.refused)


def _build(
    collection: Collection,
    mapped: list[Mapped],
    problems: common.Problems,
    selection: BuildOptions,
    publish: bool,
) -> Built:
    """Build with bars; if it is interrupted, print the number of stored documents."""
    with closing(Counter(collection.name, " documents")) as rows, common.Bar() as stages:

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
            common.interrupted(f"{stored} documents are stored. Run the same command to go on.")


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


@common.collection_command("configure")
@common.model_options(ChangeableOptions)
def configure_command(target: common.Target, **options: Any) -> None:
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
            "Give a setting to change: --recall, --exact-below, --scale, --value-type or --about."
        )
    collection = target.collection()
    before = collection.settings.stored()
    is_changed = collection.configure(**changes)
    warn_of_floor(selection.exact_below)
    if changes.keys() & {"recall", "exact_below"}:
        try:
            with common.Bar() as bar:
                collection.publish(bar)
        except KeyboardInterrupt:
            common.interrupted("the settings are stored. Run the same command to write the index.")
    after = collection.settings.stored()
    lines = [
        f"{name}: {common.plain(after[name])} (was {common.plain(before[name])})"
        for name in changes
    ]
    result = {"collection": target.name, "changed": is_changed, "settings": after}
    target.show(result, "\n".join(lines))


# -- export and import -----------------------------------------------------------------------------

LINES_FILE = click.Path(dir_okay=False, allow_dash=True, path_type=Path)

FORMS = ("sentence_transformers", "safetensors", "snapshot", "jsonl", "parquet")
"""The formats of an export; a command writes exactly one."""


class ExportOptions(common.CommandOptions):
    """The files of an export, of which a command names one, and what goes into it."""

    projection: Annotated[int | None, common.VERSION] = None
    """Version to export.  [default: the active one]"""
    sentence_transformers: Annotated[Path | None, click.Path(path_type=Path)] = None
    """Folder for a model of that library: the encoder, then W_Q and W_K."""
    safetensors: Annotated[Path | None, click.Path(path_type=Path)] = None
    """File for the projection's own bytes."""
    snapshot: Annotated[Path | None, click.Path(dir_okay=False, path_type=Path)] = None
    """File for everything: all collections, or the one that --collection names."""
    jsonl: Annotated[Path | None, LINES_FILE] = None
    """File for the documents as JSON lines, which `attend build` reads; - for stdout."""
    parquet: Annotated[Path | None, click.Path(dir_okay=False, path_type=Path)] = None
    """File for the documents as Parquet, for data frames and `attend build`."""
    embeddings: bool = False
    """With --parquet: also all embeddings of each document, which a build leaves out."""
    filter: Annotated[dict[str, Any] | None, common.JsonType(dict)] = None
    """With --jsonl or --parquet: only the documents that pass, such as {"year": {"lt": 1900}}."""
    force: bool = False
    """Replace an existing file or folder."""


@common.collection_command("export")
@common.model_options(ExportOptions)
@click.option(
    "--without-index", is_flag=True, expose_value=False, hidden=True, help="As is always done now."
)
def export_command(target: common.Target, **options: Any) -> None:
    """Write a version's matrices for other libraries, the documents, or a backup of everything.

    A backup and the documents are of one moment, and a server may write meanwhile. --jsonl and
    --parquet write texts, values, payloads and the vectors that documents brought, but neither
    feedback nor versions: a backup has all of it. Key offsets, example keys, the BM25 weight, the
    move by feedback, the scale and the no-answer score of a version cannot be exported: they are
    listed with their figures.

    \b
    Example:
      attend export --data library --sentence-transformers pair
      attend export --data library --projection 3 --safetensors pair.safetensors
      attend export --data library --snapshot library.tar
      attend export --data library --jsonl documents.jsonl
      attend export --data library --parquet documents.parquet
    """
    export = ExportOptions.take(options)
    forms = {form: path for form in FORMS if (path := getattr(export, form)) is not None}
    if len(forms) != 1:
        raise click.UsageError(f"Give one of {common.flags_of(FORMS)}: the form to write.")
    ((form, path),) = forms.items()
    if export.filter is not None and form not in ("jsonl", "parquet"):
        raise click.UsageError("--filter selects documents: give it with --jsonl or --parquet.")
    if export.embeddings and form != "parquet":
        raise click.UsageError("--embeddings goes with --parquet: the other forms have no place.")
    if export.projection is not None and form in ("snapshot", "jsonl", "parquet"):
        raise click.UsageError(f"--projection selects a version, and --{form} has none or all.")
    if form == "snapshot":
        library, names = target.library(), target.named()
        with common.Bar() as bar:
            contents = backup.save_backup(library, path, names, force=export.force, on_progress=bar)
        text = f"{_counted(contents)} are in {path} ({contents.size:,} bytes)."
        target.show({"snapshot": str(path), **contents.json()}, text)
    elif form in ("jsonl", "parquet"):
        _write_documents(target, form, path, export)
    else:
        _write_version(target, form, path, export)


def _write_documents(target: common.Target, form: str, path: Path, export: ExportOptions) -> None:
    collection = target.collection()
    if form == "jsonl" and str(path) == "-":
        if target.as_json:
            raise click.UsageError("--json and --jsonl - would both write to stdout; name a file.")
        backup.write_documents(collection, sys.stdout.buffer, export.filter)
        return
    with common.Bar() as bar:
        options: dict[str, Any] = {"force": export.force, "on_progress": bar}
        if form == "jsonl":
            count = backup.export_documents(collection, path, export.filter, **options)
        else:
            options["embeddings"] = export.embeddings
            count = parquet.export_parquet(collection, path, export.filter, **options)
    documents = f"{common.counted(count, 'document')} {'is' if count == 1 else 'are'}"
    result = {form: str(path), "collection": collection.name, "documents": count}
    target.show(result, f"{documents} in {path} ({path.stat().st_size:,} bytes).")


def _write_version(target: common.Target, form: str, path: Path, export: ExportOptions) -> None:
    """Write a version as one of two forms, and print what of it cannot be exported."""
    collection, version, force = target.collection(), export.projection, export.force
    if form == "safetensors":
        weights = models.export_weights(collection, path, version=version, force=force)
        parts = weights.cannot_travel
        result: dict[str, Any] = {"projection": weights.version, form: str(weights.file)}
        result["fingerprint"] = weights.fingerprint
        text = f"Projection {weights.version} is in {weights.file}."
    else:
        model = models.export_model(collection, path, version=version, force=force)
        parts = model.cannot_travel
        result = {"projection": model.version, form: str(model.folder)}
        facts = ("dimensions", "similarity", "difference")
        result |= {name: getattr(model, name) for name in facts}
        text = (
            f"Projection {model.version} is a sentence-transformers model in {model.folder}; its "
            f"scores differ by at most {model.difference:.1e} from float32 here."
        )
    result["cannot_travel"] = [part._asdict() for part in parts]
    lines = [f"  {'*' if part.in_use else ' '} {part.sentence()}" for part in parts]
    target.show(result, "\n".join([text, "Not exported (* is in use here):", *lines]))


def _counted(contents: backup.BackupContents) -> str:
    listed = ", ".join(
        f"{name} ({figures['documents']} documents)"
        for name, figures in contents.collections.items()
    )
    return f"{len(contents.collections)} collections, {listed or 'none'},"


class ImportOptions(common.CommandOptions):
    """What to import, beside the file of a version."""

    snapshot: common.InputFile = None
    """A backup to restore: all its collections, or the one that --collection names."""
    activate: bool = False
    """Answer with it from now on."""


@common.collection_command("import")
@click.argument("source", required=False, type=common.FILE)
@common.model_options(ImportOptions)
def import_command(
    target: common.Target, source: Path | None, snapshot: Path | None, activate: bool
) -> None:
    """Store W_Q and W_K from SOURCE as a version, or restore a backup.

    A version answers only with --activate. A backup is read and checked before any of it
    is visible, and replaces no existing collection.

    SOURCE is a file that `attend export --safetensors` wrote.

    \b
    Example:
      attend import --data library pair.safetensors --activate
      attend import --data other --snapshot library.tar
    """
    if (source is None) == (snapshot is None):
        raise click.UsageError("Give either SOURCE or --snapshot: the file to read.")
    if snapshot is not None:
        if activate:
            raise click.UsageError("--activate is about SOURCE; a backup is restored as it was.")
        _restore(target, snapshot)
        return
    assert source is not None  # as was checked
    version, width = models.import_projection(target.collection(), source, activate=activate)
    text = f"Projection {version} is active ({width} dimensions)."
    if not activate:
        text = (
            f"Projection {version} is stored ({width} dimensions); "
            f"'projections activate {version}' makes it answer."
        )
    target.show({"projection": version, "dimensions": width, "active": activate}, text)


def _restore(target: common.Target, source: Path) -> None:
    names, library = target.named(), target.library()
    with open(source, "rb") as file, common.Bar() as bar:
        contents = backup.restore_backup(file, library, names, on_progress=bar)
        for name in names or contents.collections:
            try:
                library.collection(name).publish(bar, only_fresh=True)
            except (AttendError, OSError) as error:  # it is restored, and to try again would fail
                click.echo(f"{name}: the first search writes the index ({error}).", err=True)
    selected = {name: contents.collections[name] for name in names or contents.collections}
    contents = replace(contents, collections=selected)
    text = f"{_counted(contents)} are in {library.folder}, as of {contents.created}."
    target.show({"data": str(library.folder), **contents.json()}, text)
