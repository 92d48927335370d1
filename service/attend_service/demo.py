"""The demo: the standard library's docstrings, indexed and served. `make demo` runs it."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from tqdm import tqdm

import attend.build
from attend import DEFAULT_COLLECTION, AttendError, Data
from attend.build import Built, Mapped
from attend_service.docstrings import Docstring, StandardLibrary, standard_library
from attend_service.server import CannotServe, run
from attend_service.settings import ServerSettings

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


def build(data: Data, docstrings: Sequence[Docstring]) -> Built:
    """Make the default collection hold these docstrings and no others."""
    # An existing one is opened without its encoder, which an unchanged library does not need.
    if DEFAULT_COLLECTION in data.names():
        collection = data.collection(DEFAULT_COLLECTION)
    else:
        collection = data.create(DEFAULT_COLLECTION, values=VALUES)
    source = Mapped(StandardLibrary(docstrings), StandardLibrary.fields)
    with tqdm(total=len(docstrings), unit=" documents", desc="Indexing") as bar:
        return attend.build.build(collection, [source], sync=True, on_progress=bar.update)


def _index_and_report(folder: Path, as_json: bool) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = Data(folder)
    try:
        built = build(data, standard_library())
    finally:
        data.close()
    if as_json:
        click.echo(json.dumps(asdict(built)))
    else:
        click.echo(
            f"{built.added} added, {built.updated} updated, {built.revised} revised, "
            f"{built.unchanged} unchanged.",
            err=True,
        )


def _announce(address: str) -> None:
    search = f"{address}/v1/collections/{DEFAULT_COLLECTION}/search"
    click.echo(f"""Serving on {address}

Try, in another terminal or in a browser:

  The best documents:
  curl '{address}/search?q=parse+a+date&k=3'

  The modules that answer a question, by weight:
  curl {search} {HEADER} \\
    -d '{{"query": "compress a file", "mode": "soft", "value": "module", "k": 3}}'

  Several at once:
  curl {search}/batch {HEADER} \\
    -d '{{"searches": [{{"query": "sort a list"}}, {{"query": "open a web page", "k": 1}}]}}'

Ctrl-C stops.""")


if __name__ == "__main__":
    main()
