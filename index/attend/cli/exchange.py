"""`attend export` and `import`: a version for other libraries, documents, or a whole backup."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import click

from attend import exchange
from attend.cli.options import (
    FILE,
    VERSION,
    CommandOptions,
    InputFile,
    JsonType,
    Target,
    collection_command,
    flags_of,
    model_options,
)
from attend.cli.output import Bar, counted
from attend.core.errors import AttendError

FORMS = ("sentence_transformers", "safetensors", "snapshot", "jsonl")
"""The formats of an export; a command writes exactly one."""


class ExportOptions(CommandOptions):
    """The files of an export, of which a command names one, and what goes into it."""

    projection: Annotated[int | None, VERSION] = None
    """Version to export.  [default: the active one]"""
    sentence_transformers: Annotated[Path | None, click.Path(path_type=Path)] = None
    """Folder for a model of that library: the encoder, then W_Q and W_K."""
    safetensors: Annotated[Path | None, click.Path(path_type=Path)] = None
    """File for the projection's own bytes."""
    snapshot: Annotated[Path | None, click.Path(dir_okay=False, path_type=Path)] = None
    """File for everything: all collections, or the one that --collection names."""
    jsonl: Annotated[Path | None, click.Path(dir_okay=False, allow_dash=True, path_type=Path)] = (
        None
    )
    """File for the documents as JSON lines, which `attend build` reads; - for stdout."""
    filter: Annotated[dict[str, Any] | None, JsonType(dict)] = None
    """With --jsonl: only the documents that pass, such as {"year": {"lt": 1900}}."""
    force: bool = False
    """Replace an existing file or folder."""


@collection_command("export")
@model_options(ExportOptions)
@click.option(
    "--without-index", is_flag=True, expose_value=False, hidden=True, help="As is always done now."
)
def export_command(target: Target, **options: Any) -> None:
    """Write a version's matrices for other libraries, the documents, or a backup of everything.

    A backup and the documents are of one moment, and a server may write meanwhile. --jsonl writes
    texts, values, payloads and the vectors that documents brought, but neither feedback nor
    versions: a backup has all of it. Key offsets, example keys, the BM25 weight, the move by
    feedback, the scale and the no-answer score of a version cannot be exported: they are listed
    with their figures.

    \b
    Example:
      attend export --data library --sentence-transformers pair
      attend export --data library --projection 3 --safetensors pair.safetensors
      attend export --data library --snapshot library.tar
      attend export --data library --jsonl documents.jsonl
    """
    export = ExportOptions.take(options)
    forms = {form: path for form in FORMS if (path := getattr(export, form)) is not None}
    if len(forms) != 1:
        raise click.UsageError(f"Give one of {flags_of(FORMS)}: the form to write.")
    ((form, path),) = forms.items()
    if export.filter is not None and form != "jsonl":
        raise click.UsageError("--filter selects documents: give it with --jsonl.")
    if export.projection is not None and form in ("snapshot", "jsonl"):
        raise click.UsageError(f"--projection selects a version, and --{form} has none or all.")
    if form == "snapshot":
        library, names = target.library(), target.named()
        with Bar() as bar:
            contents = exchange.save_backup(
                library, path, names, force=export.force, on_progress=bar
            )
        text = f"{_counted(contents)} are in {path} ({contents.size:,} bytes)."
        target.show({"snapshot": str(path), **contents.json()}, text)
    elif form == "jsonl":
        _write_documents(target, path, export)
    else:
        _write_version(target, form, path, export)


def _write_documents(target: Target, path: Path, export: ExportOptions) -> None:
    collection = target.collection()
    if str(path) == "-":
        if target.as_json:
            raise click.UsageError("--json and --jsonl - would both write to stdout; name a file.")
        exchange.write_documents(collection, sys.stdout.buffer, export.filter)
        return
    with Bar() as bar:
        count = exchange.export_documents(
            collection, path, export.filter, force=export.force, on_progress=bar
        )
    documents = f"{counted(count, 'document')} {'is' if count == 1 else 'are'}"
    result = {"jsonl": str(path), "collection": collection.name, "documents": count}
    target.show(result, f"{documents} in {path} ({path.stat().st_size:,} bytes).")


def _write_version(target: Target, form: str, path: Path, export: ExportOptions) -> None:
    """Write a version as one of two forms, and print what of it cannot be exported."""
    collection, version, force = target.collection(), export.projection, export.force
    if form == "safetensors":
        weights = exchange.export_weights(collection, path, version=version, force=force)
        parts = weights.cannot_travel
        result: dict[str, Any] = {"projection": weights.version, form: str(weights.file)}
        result["fingerprint"] = weights.fingerprint
        text = f"Projection {weights.version} is in {weights.file}."
    else:
        model = exchange.export_model(collection, path, version=version, force=force)
        parts = model.cannot_travel
        result = {"projection": model.version, form: str(model.folder)}
        result |= {name: getattr(model, name) for name in ("dimensions", "similarity")}
        result["difference"] = model.difference
        text = (
            f"Projection {model.version} is a sentence-transformers model in {model.folder}; its "
            f"scores differ by at most {model.difference:.1e} from float32 here."
        )
    result["cannot_travel"] = [part._asdict() for part in parts]
    lines = [f"  {'*' if part.in_use else ' '} {part.sentence()}" for part in parts]
    target.show(result, "\n".join([text, "Not exported (* is in use here):", *lines]))


def _counted(contents: exchange.BackupContents) -> str:
    listed = ", ".join(
        f"{name} ({figures['documents']} documents)"
        for name, figures in contents.collections.items()
    )
    return f"{len(contents.collections)} collections, {listed or 'none'},"


class ImportOptions(CommandOptions):
    """What to import, beside the file of a version."""

    snapshot: InputFile = None
    """A backup to restore: all its collections, or the one that --collection names."""
    activate: bool = False
    """Answer with it from now on."""


@collection_command("import")
@click.argument("source", required=False, type=FILE)
@model_options(ImportOptions)
def import_command(
    target: Target, source: Path | None, snapshot: Path | None, activate: bool
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
    version, width = exchange.import_projection(target.collection(), source, activate=activate)
    text = f"Projection {version} is active ({width} dimensions)."
    if not activate:
        text = (
            f"Projection {version} is stored ({width} dimensions); "
            f"'projections activate {version}' makes it answer."
        )
    target.show({"projection": version, "dimensions": width, "active": activate}, text)


def _restore(target: Target, source: Path) -> None:
    names, library = target.named(), target.library()
    with open(source, "rb") as file, Bar() as bar:
        contents = exchange.restore_backup(file, library, names, on_progress=bar)
        for name in names or contents.collections:
            try:
                library.collection(name).publish(bar, only_fresh=True)
            except (AttendError, OSError) as error:  # it is restored, and to try again would fail
                click.echo(f"{name}: the first search writes the index ({error}).", err=True)
    selected = {name: contents.collections[name] for name in names or contents.collections}
    contents = replace(contents, collections=selected)
    text = f"{_counted(contents)} are in {library.folder}, as of {contents.created}."
    target.show({"data": str(library.folder), **contents.json()}, text)
