"""`attend export` and `import`: a version for other libraries, or a backup of everything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from attend.cli.common import Bar, on_collection, open_collection, open_data, show
from attend.collection import Collection
from attend.data import Data
from attend.exchange import (
    BackupContents,
    Imported,
    MissingPart,
    Sides,
    export_model,
    export_weights,
    import_projection,
    restore_backup,
    save_backup,
)

FORMS = ("--sentence-transformers", "--safetensors", "--snapshot")
"""The forms of an export, of which a call has exactly one."""


@click.command("export")
@on_collection
@click.option("--projection", "version", type=click.IntRange(1, 2**63 - 1), help="Else the active.")
@click.option(
    "--sentence-transformers",
    "model",
    type=click.Path(path_type=Path),
    help="Folder for a model of that library: the encoder, then W_Q and W_K.",
)
@click.option(
    "--safetensors",
    "weights",
    type=click.Path(path_type=Path),
    help="File for the projection's own bytes.",
)
@click.option(
    "--snapshot",
    "snapshot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for everything: all collections, or the one that --collection names.",
)
@click.option("--without-index", is_flag=True, help="A smaller backup, slower to restore.")
@click.option("--force", is_flag=True, help="Replace an existing file or folder.")
def export_command(
    folder: Path,
    collection: str,
    precision: str,
    as_json: bool,
    version: int | None,
    model: Path | None,
    weights: Path | None,
    snapshot: Path | None,
    without_index: bool,
    force: bool,
) -> None:
    """Write a version's matrices for other libraries, or a backup of everything.

    A backup is of one moment, and a server may write meanwhile. Key offsets, example keys, the
    lexical bias, the scale and the null key of a version are not exported: they are listed with
    their figures.

    \b
    Example:
      attend export --data library --sentence-transformers pair
      attend export --data library --projection 3 --safetensors pair.safetensors
      attend export --data library --snapshot library.tar
    """
    if sum(each is not None for each in (model, weights, snapshot)) != 1:
        raise click.UsageError(f"Give one of {', '.join(FORMS)}: the file or folder to write.")
    if snapshot is not None:
        names = [collection] if _is_given("collection") else None
        _save(open_data(folder, precision), snapshot, names, as_json, not without_index, force)
        return
    opened = open_collection(folder, collection, precision)
    if model is not None:
        result, text, left = _write_model(opened, model, version, force)
    elif weights is not None:
        result, text, left = _write_weights(opened, weights, version, force)
    result["cannot_travel"] = [each._asdict() for each in left]
    show(as_json, result, f"{text}\n{_told(left)}")


def _write_model(
    opened: Collection, target: Path, version: int | None, force: bool
) -> tuple[dict[str, Any], str, list[MissingPart]]:
    done = export_model(opened, target, version=version, force=force)
    result = {
        "projection": done.version,
        "sentence_transformers": str(done.folder),
        "dimensions": done.dimensions,
        "similarity": done.similarity,
        "difference": done.difference,
    }
    text = (
        f"Projection {done.version} is a sentence-transformers model in {done.folder}; its scores "
        f"differ by at most {done.difference:.1e} from float32 here."
    )
    return result, text, done.cannot_travel


def _write_weights(
    opened: Collection, target: Path, version: int | None, force: bool
) -> tuple[dict[str, Any], str, list[MissingPart]]:
    done = export_weights(opened, target, version=version, force=force)
    result = {
        "projection": done.version,
        "safetensors": str(done.file),
        "fingerprint": done.fingerprint,
    }
    return result, f"Projection {done.version} is in {done.file}.", done.cannot_travel


def _save(
    data: Data,
    target: Path,
    names: list[str] | None,
    as_json: bool,
    indexes: bool,
    force: bool,
) -> None:
    with Bar() as bar:
        done = save_backup(data, target, names, indexes=indexes, force=force, on_progress=bar)
    text = f"{_counted(done)} are in {target} ({done.size:,} bytes)."
    show(as_json, {"snapshot": str(target), **done.json()}, text)


def _counted(contents: BackupContents) -> str:
    listed = ", ".join(
        f"{name} ({figures['documents']} documents)"
        for name, figures in contents.collections.items()
    )
    return f"{len(contents.collections)} collections, {listed or 'none'},"


def _is_given(option: str) -> bool:
    """Whether an option was named, and has not only its default."""
    source = click.get_current_context().get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


def _told(left: list[MissingPart]) -> str:
    lines = [f"  {'*' if each.in_use else ' '} {each.sentence()}" for each in left]
    return "\n".join(["What cannot travel (* is in use here):", *lines])


@click.command("import")
@on_collection
@click.argument("source", required=False, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--snapshot",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A backup: restore all its collections, or the one that --collection names.",
)
@click.option("--query-only", is_flag=True, help="As W_Q alone; keys stay the embeddings.")
@click.option("--document-only", is_flag=True, help="As W_K alone; queries stay the embeddings.")
@click.option("--activate", is_flag=True, help="Answer with it from now on.")
def import_command(
    folder: Path,
    collection: str,
    precision: str,
    as_json: bool,
    source: Path | None,
    snapshot: Path | None,
    query_only: bool,
    document_only: bool,
    activate: bool,
) -> None:
    """Store W_Q and W_K from SOURCE as a version, or restore a backup.

    A version answers only with --activate. A backup is read and checked before any of it is
    visible, and replaces no existing collection.

    SOURCE is the folder of a sentence-transformers Dense layer, of its Router or of a whole model
    with one of them after its encoder, or a projection's safetensors. Pickles are not read.

    \b
    Example:
      attend import --data library pair.safetensors
      attend import --data library model/2_Dense --query-only --activate
      attend import --data other --snapshot library.tar
    """
    if (source is None) == (snapshot is None):
        raise click.UsageError("Give either SOURCE or --snapshot: the file or folder to read.")
    if snapshot is not None:
        names = [collection] if _is_given("collection") else None
        _restore(open_data(folder, precision), snapshot, names, as_json)
    elif source is not None:
        _import(
            open_collection(folder, collection, precision),
            source, query_only, document_only, activate, as_json,
        )  # fmt: skip


def _restore(data: Data, source: Path, names: list[str] | None, as_json: bool) -> None:
    with open(source, "rb") as file, Bar() as bar:
        done = restore_backup(file, data, names, on_progress=bar)
    told = replace(done, collections=_only(done, names))
    text = f"{_counted(told)} are in {data.folder}, as of {done.created}."
    show(as_json, {"data": str(data.folder), **told.json()}, text)


def _only(done: BackupContents, names: list[str] | None) -> dict[str, Any]:
    return {name: done.collections[name] for name in names or done.collections}


def _import(
    opened: Collection,
    source: Path,
    query_only: bool,
    document_only: bool,
    activate: bool,
    as_json: bool,
) -> None:
    if query_only and document_only:
        raise click.UsageError("--query-only and --document-only leave nothing to import together.")
    sides: Sides = "query" if query_only else "document" if document_only else "both"
    done = import_projection(opened, source, sides=sides, activate=activate)
    if done.encoder_checked is False:
        click.echo("Its encoder could not be compared with the collection's.", err=True)
    show(as_json, _imported(done), _imported_text(done))


def _imported(done: Imported) -> dict[str, Any]:
    told = done._asdict()
    return {"projection": told.pop("version"), **told}


def _imported_text(done: Imported) -> str:
    if done.active:
        return f"Projection {done.version} is active ({done.source}, {done.dimensions} dimensions)."
    return (
        f"Projection {done.version} is stored ({done.source}, {done.dimensions} dimensions); "
        f"'projections activate {done.version}' makes it answer."
    )
