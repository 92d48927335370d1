"""The demo: the standard library's docstrings, indexed and served. `make demo` runs it."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from attend import DEFAULT_COLLECTION, AttendError, Collection, Data
from attend.api.documents import Written
from attend_service.docstrings import Docstring, standard_library
from attend_service.server import CannotServe, run
from attend_service.settings import ServerSettings

WINDOW = 256
"""Documents that are written together: what an interruption can lose."""

HEADER = "-H 'Content-Type: application/json'"
VALUES = {"name": "text", "module": "category", "kind": "category"}


@click.command(epilog="Example: python -m attend_service.demo --data demo-data --port 8000")
@click.option(
    "--data",
    "folder",
    default=Path("demo-data"),
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The data folder; it is made where it is missing.",
)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535))
@click.option("--no-serve", is_flag=True, help="Index only.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def main(folder: Path, port: int, no_serve: bool, as_json: bool) -> None:
    """Index the docstrings of the Python standard library, and serve them."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    try:
        _index_and_report(folder, as_json)
        if not no_serve:
            run(folder, ServerSettings(port=port, log_level="warning"), _announce)
    except (AttendError, CannotServe) as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        click.echo("\nStopped. The next run goes on from here.", err=True)
        raise SystemExit(130) from None


def build(data: Data, docstrings: Sequence[Docstring]) -> Written:
    """Make the default collection hold these docstrings and no others."""
    documents = [docstring.document() for docstring in docstrings]
    collection = _collection(data)
    _delete_others(collection, {document["id"] for document in documents})
    written = _write(collection, documents)
    if written.added or written.updated:
        collection.publish()
    return written


def _collection(data: Data) -> Collection:
    # An existing one is opened without its encoder, which an unchanged library does not need.
    if DEFAULT_COLLECTION in data.names():
        return data.collection(DEFAULT_COLLECTION)
    return data.create(DEFAULT_COLLECTION, values=VALUES)


def _delete_others(collection: Collection, ids: set[str]) -> None:
    """Another version of Python may have left names that this one does not have."""
    stale = collection.ids() - ids
    if stale:
        collection.delete(sorted(stale))


def _write(collection: Collection, documents: Sequence[dict[str, Any]]) -> Written:
    written = Written()
    with tqdm(total=len(documents), unit=" documents", desc="Indexing") as bar:
        for start in range(0, len(documents), WINDOW):
            window = documents[start : start + WINDOW]
            written += collection.upsert(window)
            bar.update(len(window))
    return written


def _index_and_report(folder: Path, as_json: bool) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = Data(folder)
    try:
        written = build(data, standard_library())
    finally:
        data.close()
    if as_json:
        click.echo(json.dumps(vars(written)))
    else:
        click.echo(
            f"{written.added} added, {written.updated} updated, {written.revised} revised, "
            f"{written.unchanged} unchanged.",
            err=True,
        )


def _announce(address: str) -> None:
    search = f"{address}/v1/collections/{DEFAULT_COLLECTION}/search"
    click.echo(f"""Serving on {address}

Try, in another terminal or in a browser:

  The best documents:
  curl '{address}/search?q=parse+a+date&k=3'

  The modules that speak to a question, by weight:
  curl {search} {HEADER} \\
    -d '{{"query": "compress a file", "mode": "soft", "value": "module", "k": 3}}'

  Several at once:
  curl {search}/batch {HEADER} \\
    -d '{{"searches": [{{"query": "sort a list"}}, {{"query": "open a web page", "k": 1}}]}}'

Ctrl-C stops.""")


if __name__ == "__main__":
    main()
