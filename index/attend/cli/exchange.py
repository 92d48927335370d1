"""`attend export` and `import`: a version for other libraries, documents, or a whole backup."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from attend.cli.options import VERSION, JsonType, Target, on_collection
from attend.cli.output import Bar
from attend.core.errors import AttendError
from attend.exchange import (
    BackupContents,
    MissingPart,
    export_documents,
    export_model,
    export_weights,
    import_projection,
    restore_backup,
    save_backup,
    write_documents,
)

FORMS = ("sentence_transformers", "safetensors", "snapshot", "jsonl")
"""The formats of an export; a command writes exactly one."""

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("export")
@on_collection
@click.option("--projection", type=VERSION, help="Version to export.  [default: the active one]")
@click.option(
    "--sentence-transformers",
    type=click.Path(path_type=Path),
    help="Folder for a model of that library: the encoder, then W_Q and W_K.",
)
@click.option(
    "--safetensors", type=click.Path(path_type=Path), help="File for the projection's own bytes."
)
@click.option(
    "--snapshot",
    type=_FILE,
    help="File for everything: all collections, or the one that --collection names.",
)
@click.option(
    "--jsonl",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="File for the documents as JSON lines, which `attend build` reads; - for stdout.",
)
@click.option(
    "--filter",
    type=JsonType(dict),
    metavar="JSON",
    help='With --jsonl: only the documents that pass, such as {"year": {"lt": 1900}}.',
)
@click.option(
    "--without-index", is_flag=True, expose_value=False, hidden=True, help="As is always done now."
)
@click.option("--force", is_flag=True, help="Replace an existing file or folder.")
def export_command(
    target: Target,
    projection: int | None,
    filter: dict[str, Any] | None,
    force: bool,
    **paths: Path | None,
) -> None:
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
    forms = {form: path for form in FORMS if (path := paths[form]) is not None}
    if len(forms) != 1:
        flags = ", ".join(f"--{form.replace('_', '-')}" for form in FORMS)
        raise click.UsageError(f"Give one of {flags}: the form to write.")
    ((form, path),) = forms.items()
    if filter is not None and form != "jsonl":
        raise click.UsageError("--filter selects documents: give it with --jsonl.")
    if projection is not None and form in ("snapshot", "jsonl"):
        raise click.UsageError(f"--projection selects a version, and --{form} has none or all.")
    if form == "snapshot":
        _save(target, path, force=force)
    elif form == "jsonl":
        _write_documents(target, path, filter, force=force)
    elif form == "safetensors":
        weights = export_weights(target.collection(), path, version=projection, force=force)
        result: dict[str, Any] = {
            "projection": weights.version,
            "safetensors": str(weights.file),
            "fingerprint": weights.fingerprint,
        }
        text = f"Projection {weights.version} is in {weights.file}."
        _show_export(target, result, text, weights.cannot_travel)
    else:
        model = export_model(target.collection(), path, version=projection, force=force)
        result = {
            "projection": model.version,
            "sentence_transformers": str(model.folder),
            "dimensions": model.dimensions,
            "similarity": model.similarity,
            "difference": model.difference,
        }
        text = (
            f"Projection {model.version} is a sentence-transformers model in {model.folder}; its "
            f"scores differ by at most {model.difference:.1e} from float32 here."
        )
        _show_export(target, result, text, model.cannot_travel)


def _write_documents(
    target: Target, path: Path, filter: dict[str, Any] | None, *, force: bool
) -> None:
    collection = target.collection()
    if str(path) == "-":
        if target.as_json:
            raise click.UsageError("--json and --jsonl - would both write to stdout; name a file.")
        write_documents(collection, sys.stdout.buffer, filter)
        return
    with Bar() as bar:
        count = export_documents(collection, path, filter, force=force, on_progress=bar)
    documents = "1 document is" if count == 1 else f"{count} documents are"
    result = {"jsonl": str(path), "collection": collection.name, "documents": count}
    target.show(result, f"{documents} in {path} ({path.stat().st_size:,} bytes).")


def _show_export(
    target: Target, result: dict[str, Any], text: str, leftovers: list[MissingPart]
) -> None:
    result["cannot_travel"] = [leftover._asdict() for leftover in leftovers]
    lines = [f"  {'*' if leftover.in_use else ' '} {leftover.sentence()}" for leftover in leftovers]
    target.show(result, "\n".join([text, "Not exported (* is in use here):", *lines]))


def _save(target: Target, path: Path, *, force: bool) -> None:
    with Bar() as bar:
        library, names = target.library(), target.named()
        contents = save_backup(library, path, names, force=force, on_progress=bar)
    text = f"{_counted(contents)} are in {path} ({contents.size:,} bytes)."
    target.show({"snapshot": str(path), **contents.json()}, text)


def _counted(contents: BackupContents) -> str:
    listed = ", ".join(
        f"{name} ({figures['documents']} documents)"
        for name, figures in contents.collections.items()
    )
    return f"{len(contents.collections)} collections, {listed or 'none'},"


@click.command("import")
@on_collection
@click.argument(
    "source", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--snapshot",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A backup to restore: all its collections, or the one that --collection names.",
)
@click.option("--activate", is_flag=True, help="Answer with it from now on.")
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
    imported = import_projection(target.collection(), source, activate=activate)
    result = imported._asdict()
    text = f"Projection {imported.version} is active ({imported.dimensions} dimensions)."
    if not activate:
        text = (
            f"Projection {imported.version} is stored ({imported.dimensions} dimensions); "
            f"'projections activate {imported.version}' makes it answer."
        )
    target.show({"projection": result.pop("version"), **result}, text)


def _restore(target: Target, source: Path) -> None:
    names, library = target.named(), target.library()
    with open(source, "rb") as file, Bar() as bar:
        contents = restore_backup(file, library, names, on_progress=bar)
        for name in names or contents.collections:
            try:
                library.collection(name).publish(bar, only_fresh=True)
            except (AttendError, OSError) as error:  # it is restored, and to try again would fail
                click.echo(f"{name}: the first search writes the index ({error}).", err=True)
    selected = {name: contents.collections[name] for name in names or contents.collections}
    contents = replace(contents, collections=selected)
    text = f"{_counted(contents)} are in {library.folder}, as of {contents.created}."
    target.show({"data": str(library.folder), **contents.json()}, text)
