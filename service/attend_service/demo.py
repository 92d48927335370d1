"""The demo: the standard library's docstrings, indexed, taught and served. `make demo` runs it."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

import attend.write.build
from attend import DEFAULT_COLLECTION, AttendError, Collection, Data
from attend.core.progress import Counter
from attend.learning import train
from attend.write.build import Built, Mapped
from attend.write.feedback import add_feedback
from attend_service.docstrings import Docstring, StandardLibrary, standard_library
from attend_service.pages import FOREIGN, StartQuestion, store_questions
from attend_service.server import CannotServe, run
from attend_service.settings import ServerSettings

HEADER = "-H 'Content-Type: application/json'"
VALUES = {"name": "text", "module": "category", "kind": "category"}

SETTING = "demo"
"""The setting of the collection that says what it was made of."""

QUESTIONS = Path(__file__).parent / "demo_questions.tsv"
"""Questions in people's words, each with the names that answer it, judged by hand."""

START = (
    StartQuestion(query="compress a file", value="module"),
    StartQuestion(query="delete a directory tree"),
    StartQuestion(query="open a web page"),
    StartQuestion(query="average of numbers"),
    StartQuestion(query=FOREIGN, remark="one that nothing here answers"),
)
"""Questions of the start page; none of them is taught."""

ONLY_CALIBRATED = ("words",)
"""Parts that are learned where a ranking was not proved better: few, and confidence is fitted."""


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
@click.option("--no-serve", is_flag=True, help="Index and train only.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def main(folder: Path, port: int, no_serve: bool, as_json: bool) -> None:
    """Index the docstrings of the Python standard library, train on questions, and serve them."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    try:
        _prepare_and_report(folder, as_json)
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
    with closing(Counter("Indexing", " documents")) as count:
        return attend.write.build.build(collection, [source], sync=True, on_progress=count)


def prepare(
    data: Data, read: Callable[[], Sequence[Docstring]] = standard_library
) -> tuple[Built, Mapping[str, Any]] | None:
    """Build and teach the default collection; None where both are done for this Python.

    Args:
        read: reads the docstrings, which takes seconds; called only where something is to do.

    Returns: what was built, and the report of the training, empty where it was trained before.
    """
    if DEFAULT_COLLECTION in data.names():
        collection = data.collection()
        if collection.store.settings().get(SETTING) == _state_of(collection):
            return None
    built = build(data, read())
    collection = data.collection()
    report = teach(collection) or {}
    collection.store.put_settings({SETTING: _state_of(collection)})
    return built, report


def _state_of(collection: Collection) -> dict[str, Any]:
    """Return what the contents of the demo's collection follow from, and how many they are."""
    return {
        "python": sys.version,
        "attend": attend.__version__,
        "documents": collection.store.counts()[0],
        "versions": len(collection.projections()) > 1,
    }


def teach(collection: Collection) -> Mapping[str, Any] | None:
    """Teach a collection the demo's questions, and train it once.

    The trained version answers if it passes the promotion test. Otherwise a version answers that
    ranks almost as before and has a fitted confidence, so that questions which nothing answers are
    told from the others.

    Returns: the report of the training; None where the collection was trained before.
    """
    if len(collection.projections()) > 1:
        return None
    judged = []
    for line in QUESTIONS.read_text(encoding="utf-8").splitlines():
        query, names = line.split("\t")
        judged += [{"query": query, "id": id, "source": "demo"} for id in names.split()]
    present = set(collection.store.rows_of(sorted({label["id"] for label in judged})))
    add_feedback(collection, [label for label in judged if label["id"] in present])
    store_questions(collection, START)
    with tqdm(total=100, unit=" %", desc="Training", disable=None) as bar:

        def show(stage: str, done: float) -> None:
            bar.update(max(0, round(100 * done) - bar.n))

        report = train(collection, progress=show)
        if not report["promoted"]:
            plain = train(collection, parts=list(ONLY_CALIBRATED), promote=False)
            report["version"] = plain["version"]
            if plain["version"] is not None:
                collection.activate(int(str(plain["version"])))
    return report


def _prepare_and_report(folder: Path, as_json: bool) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with closing(Data(folder)) as data:
        done = prepare(data)
        documents = data.collection().store.counts()[0]
    built, report = done or (None, {})
    if as_json:
        click.echo(json.dumps({"documents": documents} if built is None else asdict(built)))
        return
    if built is None:
        click.echo(f"{documents} documents, unchanged.", err=True)
        return
    click.echo(
        f"{built.added} added, {built.updated} updated, {built.revised} revised, "
        f"{built.unchanged} unchanged.",
        err=True,
    )
    if report:
        click.echo(f"Trained on {report['questions']} questions: {report['reason']}", err=True)
        if not report["promoted"] and report["version"] is not None:
            click.echo("Until then words answer, with a confidence fitted to them.", err=True)


def _announce(address: str) -> None:
    search = f"{address}/v1/collections/{DEFAULT_COLLECTION}/search"
    click.echo(f"""Serving on {address}

Open it in a browser, or try in another terminal:

  The best documents:
  curl '{address}/search?q=parse+a+date&k=3'

  The modules that answer a question, by weight:
  curl {search} {HEADER} \\
    -d '{{"query": "compress a file", "mode": "soft", "value": "module", "k": 3}}'

  A question that nothing here answers:
  curl '{address}/search?q={FOREIGN.replace(" ", "+")}&mode=soft&k=1'

Ctrl-C stops.""")


if __name__ == "__main__":
    main()
