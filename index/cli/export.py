"""`python -m index export` and `import`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from index.cli.common import on_collection, open_collection, show
from index.collection import Collection
from index.interchange import (
    Imported,
    Leftover,
    Sides,
    export_model,
    export_weights,
    import_projection,
)

FORMS = ("--sentence-transformers", "--safetensors")
"""What a version can be written as; exactly one is asked for at a time."""


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
@click.option("--force", is_flag=True, help="Replace what is there, with all it holds.")
def export_command(
    folder: Path,
    collection: str,
    precision: str,
    as_json: bool,
    version: int | None,
    model: Path | None,
    weights: Path | None,
    force: bool,
) -> None:
    """Write a version's matrices for other libraries.

    Key offsets, example keys, the lexical bias, the scale and the null key cannot travel: they
    are named with their figures.

    \b
    Example:
      python -m index export --data library --sentence-transformers pair
      python -m index export --data library --projection 3 --safetensors pair.safetensors
    """
    if (model is None) == (weights is None):
        raise click.UsageError(f"Give one of {' and '.join(FORMS)}: what is to be written.")
    opened = open_collection(folder, collection, precision)
    if model is not None:
        result, text, left = _write_model(opened, model, version, force)
    elif weights is not None:
        result, text, left = _write_weights(opened, weights, version, force)
    result["cannot_travel"] = [each._asdict() for each in left]
    show(as_json, result, f"{text}\n{_told(left)}")


def _write_model(
    opened: Collection, target: Path, version: int | None, force: bool
) -> tuple[dict[str, Any], str, list[Leftover]]:
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
) -> tuple[dict[str, Any], str, list[Leftover]]:
    done = export_weights(opened, target, version=version, force=force)
    result = {
        "projection": done.version,
        "safetensors": str(done.file),
        "fingerprint": done.fingerprint,
    }
    return result, f"Projection {done.version} is in {done.file}.", done.cannot_travel


def _told(left: list[Leftover]) -> str:
    lines = [f"  {'*' if each.in_use else ' '} {each.sentence()}" for each in left]
    return "\n".join(["What cannot travel (* is in use here):", *lines])


@click.command("import")
@on_collection
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("--query-only", is_flag=True, help="As W_Q alone; keys stay the embeddings.")
@click.option("--document-only", is_flag=True, help="As W_K alone; queries stay the embeddings.")
@click.option("--activate", is_flag=True, help="Answer with it from now on.")
def import_command(
    folder: Path,
    collection: str,
    precision: str,
    as_json: bool,
    source: Path,
    query_only: bool,
    document_only: bool,
    activate: bool,
) -> None:
    """Store W_Q and W_K from SOURCE as a version; it answers only with --activate.

    SOURCE is the folder of a sentence-transformers Dense layer, of its Router or of a whole model
    with one of them after its encoder, or a projection's safetensors. Pickles are not read.

    \b
    Example:
      python -m index import --data library pair.safetensors
      python -m index import --data library model/2_Dense --query-only --activate
    """
    if query_only and document_only:
        raise click.UsageError("--query-only and --document-only leave nothing to import together.")
    sides: Sides = "query" if query_only else "document" if document_only else "both"
    opened = open_collection(folder, collection, precision)
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
