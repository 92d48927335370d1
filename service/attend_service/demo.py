"""The demo: three collections that are built and taught while the server answers.

`make demo` runs it. The server is in the foreground; a process of its own builds, at a lower
priority, and the pages show its progress. `shop` has products and the ratings of twenty users,
`desk` the questions of a shop's customers, `default` the docstrings of Python's standard library.
The small ones are first. A run that is stopped, in whatever way, is continued by the next.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
from tqdm import tqdm

import attend.write.build
from attend import DEFAULT_COLLECTION, AttendError, Collection, Data
from attend.core.progress import Bar
from attend.core.types import OnStage
from attend.learning import CUT_OFF, train
from attend.write.build import Built, Mapped
from attend.write.feedback import add_feedback, add_interactions
from attend_service.background import Reports, announced
from attend_service.docstrings import Docstring, StandardLibrary, standard_library
from attend_service.jobs import end_with_parent
from attend_service.pages import FOREIGN, StartQuestion, store_questions
from attend_service.server import CannotServe, run
from attend_service.settings import ServerSettings

log = logging.getLogger("attend")

HEADER = "-H 'Content-Type: application/json'"

SETTING = "demo"
"""The setting of a collection that says what it was made of, and whether its training is done."""

HERE = Path(__file__).parent

QUESTIONS = HERE / "demo_questions.tsv"
"""Questions in people's words, each with the names that answer it, judged by hand."""

PRODUCTS = HERE / "demo_shop.tsv"
PURCHASES = HERE / "demo_purchases.tsv"
"""What twenty users bought, and how they rated it."""

INTENTS = HERE.parents[1] / "examples" / "intents.csv"
"""Questions of a shop's customers with their intents; only a checkout has them."""

VALUES = {"name": "text", "module": "category", "kind": "category"}
SHOP_VALUES = {"price": "number", "rating": "number", "category": "category"}

START = (
    StartQuestion(query="compress a file", value="module"),
    StartQuestion(query="delete a directory tree"),
    StartQuestion(query="open a web page"),
    StartQuestion(query="average of numbers"),
    StartQuestion(query=FOREIGN, remark="one that nothing here answers", kind="unanswered"),
)
"""Questions of the start page; none of them is taught."""

DESK_START = (
    StartQuestion(query="they took the money twice", kind="learned"),
    StartQuestion(query="it came smashed to bits"),
    StartQuestion(
        query="how do I get hold of a human",
        remark="an intent that no document has",
        kind="unanswered",
    ),
)

SHOP_START = (
    StartQuestion(query="something warm for a winter hike", value="price"),
    StartQuestion(query="a present for someone who bakes", value="category"),
    StartQuestion(query=FOREIGN, remark="one that nothing here answers", kind="unanswered"),
)

EARLY = frozenset(
    {"bz2", "gzip", "lzma", "shutil", "statistics", "tarfile", "webbrowser", "zipfile", "zlib"}
)
"""Modules that are indexed first, since they answer the questions of the start page."""

ONLY_CALIBRATED = ("words",)
"""Parts that are learned where a ranking was not proved better: few, and confidence is fitted."""

NICE = 5
"""The niceness of the process that builds, so that searches come first."""

STOP_SECONDS = 5.0
"""How long it may take to stop; then it is killed, and what it was writing is undone."""

INTERRUPTED = "Stopped. The next run goes on from here."

Report = Callable[[str, float], object]
"""Receives one sentence about a collection's progress, and the share of this step, 0 to 1."""


class DemoCollection(NamedTuple):
    """A collection of the demo.

    Attributes:
        values: its declared types of values; None if they are guessed.
        questions: those of the start page.
        content: identifies what it is made of.
        build: brings its documents up to date.
        teach: adds what is to be learned from, and trains; returns the report, empty if there is
            nothing to train or it was trained before.
    """

    name: str
    values: Mapping[str, str] | None
    questions: Sequence[StartQuestion]
    content: str
    build: Callable[[Collection, Report], Built]
    teach: Callable[[Collection, Report], Mapping[str, Any]]

    def state(self, collection: Collection) -> dict[str, Any]:
        """Return what the collection follows from once everything is done, to be stored."""
        documents = collection.store.counts()[0]
        version = attend.__version__
        return {"content": self.content, "attend": version, "documents": documents, "taught": True}

    def is_done(self, data: Data) -> bool:
        """Return whether the collection is built and taught from what there is now."""
        if self.name not in data.names():
            return False
        collection = data.collection(self.name)
        return bool(collection.store.settings().get(SETTING) == self.state(collection))


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
    """Serve three collections, and index and train them meanwhile.

    A shop with the ratings of twenty users, the questions of its customers with their intents, and
    the docstrings of the Python standard library. Pages show the progress. Ctrl-C stops; the next
    run goes on from there.
    """
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if no_serve:
            with announced(folder) as reports:
                prepare_and_show(folder, reports, as_json)
        else:
            _serve(folder, port, as_json)
    except (AttendError, CannotServe) as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        click.echo(f"\n{INTERRUPTED}", err=True)
        raise SystemExit(130) from None


def _serve(folder: Path, port: int, as_json: bool) -> None:
    """Serve the folder, and build meanwhile if anything is to do.

    Raises KeyboardInterrupt if the server was stopped before the building was done.
    """
    settings = ServerSettings(port=port, log_level="warning")
    with closing(Data(folder)) as data:
        is_done = all(part.is_done(data) for part in parts())
    if is_done and not as_json:
        run(folder, settings, _announce)
        return
    with announced(folder) as reports:
        reports("The demo is being prepared.")
        builder = Builder(folder, reports, as_json)
        builder.start()
        try:
            run(folder, settings, _announce)
        finally:
            is_cut_off = builder.stop()
    if is_cut_off:
        raise KeyboardInterrupt


class Builder:
    """The process that builds, a fresh one: neither FAISS nor torch survives a fork."""

    def __init__(self, folder: Path, reports: Reports, as_json: bool) -> None:
        self._reports = reports
        self._stopping = False
        spawn = multiprocessing.get_context("spawn")
        arguments = (folder.absolute(), as_json)
        self._process = spawn.Process(target=_build, args=arguments, name="building")
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Start it, and watch it: an end that was not meant is shown in the terminal and pages."""
        # A Ctrl-C is for the server, which stops this; the process begins without a handler.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, handler)
        self._watcher.start()

    def stop(self) -> bool:
        """Stop it, and return whether it was still at work."""
        self._stopping = True
        is_cut_off = self._process.is_alive()
        if is_cut_off and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGINT)
            self._process.join(STOP_SECONDS)
            self._process.kill()
        self._watcher.join(STOP_SECONDS)
        return is_cut_off

    def _watch(self) -> None:
        self._process.join()
        status = self._process.exitcode
        if self._stopping:
            return
        if status == 0:
            self._reports.clear()
        elif not self._reports.has_failed():  # it had no time to say why
            reason = f"The process that builds the demo ended with status {status}"
            fail(self._reports, f"{reason} (-9 is most often too little memory).")


def _build(folder: Path, as_json: bool) -> None:
    """Build everything; run by the new process."""
    os.setsid()  # a Ctrl-C is for the server
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.nice(NICE)
    threading.Thread(target=end_with_parent, daemon=True).start()
    # Its own lock is one between processes, which would be left behind where this one is killed.
    tqdm.set_lock(threading.RLock())
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    reports = Reports(folder)
    try:
        prepare_and_show(folder, reports, as_json)
    except KeyboardInterrupt:
        os._exit(130)  # the data is closed, and Python's own clean-up takes seconds
    except AttendError as error:
        fail(reports, str(error))
        raise SystemExit(1) from None
    except Exception as error:
        traceback.print_exc()
        fail(reports, f"{type(error).__name__}: {error}")
        raise SystemExit(1) from None


def fail(reports: Reports, reason: str) -> None:
    """Say in the terminal and on the pages that the building ended by an error."""
    message = f"The demo is not complete: {reason} The next run goes on from here."
    click.echo(f"Error: {message}", err=True)
    reports.fail(message)


def prepare_and_show(folder: Path, reports: Reports, as_json: bool) -> None:
    """Build and teach what is not done yet, and print what was done to each collection."""
    shown: dict[str, Any] = {}
    with closing(Data(folder)) as data:
        for part in parts():
            with Bar() as bar:

                def show(text: str, share: float, bar: Bar = bar, name: str = part.name) -> None:
                    bar(text, share)
                    reports(text, share, name)

                prepared = prepare(data, part, show)
            documents = data.collection(part.name).store.counts()[0]
            shown[part.name] = asdict(prepared[0]) if prepared else {"documents": documents}
            if not as_json:
                click.echo(f"{part.name}: {described(prepared, documents)}", err=True)
    if as_json:
        click.echo(json.dumps(shown))


def described(prepared: tuple[Built, Mapping[str, Any]] | None, documents: int) -> str:
    """Describe in sentences what was done to a collection, and which version answers now."""
    if prepared is None:
        return f"{documents:,} documents, unchanged."
    built, report = prepared
    counts = f"{built.added:,} added, {built.updated:,} updated, {built.unchanged:,} unchanged."
    if not report:
        return counts
    if report["version"] is None:
        return f"{counts} {report['reason']}"
    proof = "" if report["promoted"] else " Its confidence is fitted; no better ranking is proved."
    return f"{counts} Version {report['version']} answers from now on.{proof} {report['reason']}"


def prepare(
    data: Data, part: DemoCollection, report: Report = lambda message, fraction: None
) -> tuple[Built, Mapping[str, Any]] | None:
    """Build and teach a collection of the demo; return None where both are done already.

    Each step can be stopped: what it has written stays, and the next call does the rest.

    Returns: what was built, and the report of the training, empty where nothing was trained.
    """
    if part.is_done(data):
        return None
    report(f"Reading the documents of {part.name}", 0.0)
    # An existing one is opened without its encoder, which unchanged documents do not need.
    if part.name in data.names():
        collection = data.collection(part.name)
    else:
        collection = data.create(part.name, values=part.values)
    store_questions(collection, part.questions)
    built = part.build(collection, report)
    stored = collection.store.settings().get(SETTING)
    is_taught = isinstance(stored, dict) and bool(stored.get("taught") or stored.get("versions"))
    learned = {} if is_taught else part.teach(collection, report)
    collection.store.put_settings({SETTING: part.state(collection)})
    return built, learned


def parts(read: Callable[[], Sequence[Docstring]] = standard_library) -> list[DemoCollection]:
    """Return the collections of the demo in the order of their building.

    Args:
        read: reads the docstrings, which takes seconds; called only where something is to do.
    """

    def library(collection: Collection, report: Report) -> Built:
        return build(collection, read(), report)

    product_files = _checksum(PRODUCTS, PURCHASES)
    shop = DemoCollection(
        "shop", SHOP_VALUES, SHOP_START, product_files, _build_shop, lambda *_: {}
    )
    default = DemoCollection(DEFAULT_COLLECTION, VALUES, START, sys.version, library, teach)
    if not INTENTS.is_file():
        log.warning("There is no %s: the collection desk is left out.", INTENTS)
        return [shop, default]
    intents = Mapped.of(INTENTS, id="id", text="text", value="intent")
    build_desk = partial(_build_source, source=intents)
    desk = DemoCollection("desk", None, DESK_START, _checksum(INTENTS), build_desk, _teach_desk)
    return [shop, desk, default]


def build(
    collection: Collection,
    docstrings: Sequence[Docstring],
    report: Report = lambda message, fraction: None,
) -> Built:
    """Make a collection hold these docstrings and no others, the modules in `EARLY` first."""
    early = sorted(docstrings, key=lambda docstring: docstring.module not in EARLY)
    source = Mapped(StandardLibrary(early), StandardLibrary.fields)
    return _build_source(collection, report, source)


def teach(
    collection: Collection, report: Report = lambda message, fraction: None
) -> Mapping[str, Any]:
    """Teach a collection the demo's questions, and train it once.

    The trained version answers if it passes the promotion test. Otherwise a version answers that
    ranks almost as before and has a fitted confidence, so that questions which nothing answers are
    told from the others.

    Returns: the report of the training; empty where a trained version answers already.
    """
    if _is_trained(collection):
        return {}
    lines = [line.split("\t") for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    labels = [
        {"query": query, "id": id, "source": "demo"} for query, ids in lines for id in ids.split()
    ]
    present = set(collection.store.rows_of(sorted({label["id"] for label in labels})))
    add_feedback(collection, [label for label in labels if label["id"] in present])
    # A run that was stopped may have trained a version, which the test did not promote.
    stored = [version.report for version in collection.projections()]
    before = next((one for one in stored if one.get("kept")), None)
    if before is not None and CUT_OFF not in str(before["reason"]):
        trained = dict(before)
    else:
        trained = train(collection, progress=_learning(collection, len(lines), report))
    if trained["promoted"]:
        return trained

    def show(_stage: str, fraction: float) -> None:
        report(f"Fitting the confidence of {collection.name}", fraction)

    plain = train(collection, parts=list(ONLY_CALIBRATED), promote=False, progress=show)
    if plain["version"] is not None:
        collection.activate(int(str(plain["version"])))
    return trained | {"version": plain["version"]}


def _teach_desk(collection: Collection, report: Report) -> Mapping[str, Any]:
    """Train the collection on its own values, as `attend train --answers` does."""
    if _is_trained(collection):
        return {}
    show = _learning(collection, collection.store.counts()[0], report)
    return train(collection, objective="answers", progress=show)


def _build_shop(collection: Collection, report: Report) -> Built:
    """Store the products, and what users bought: histories to recommend from."""
    source = Mapped.of(PRODUCTS, id="id", text=("name", "description"), value=tuple(SHOP_VALUES))
    built = _build_source(collection, report, source)
    items = []
    for line in PURCHASES.read_text(encoding="utf-8").splitlines()[1:]:
        user, id, stars, day = line.split("\t")
        items.append({"user": user, "id": id, "value": int(stars), "time": day})
    add_interactions(collection, items)
    return built


def _build_source(collection: Collection, report: Report, source: Mapped) -> Built:
    """Make a collection hold the documents of a source and no others."""
    done, total = 0, sum(1 for _ in source.source.rows())

    def count(documents: int) -> None:
        nonlocal done
        done += documents
        report(
            f"{done:,} of {total:,} documents of {collection.name} are indexed; searches answer "
            f"already",
            done / total,
        )

    report(f"Indexing {total:,} documents of {collection.name}", 0.0)
    return attend.write.build.build(collection, [source], sync=True, on_progress=count)


def _is_trained(collection: Collection) -> bool:
    active = collection.store.active("search")
    return active is not None and bool(active.report)


def _learning(collection: Collection, questions: int, report: Report) -> OnStage:
    """Return what follows a training and reports it."""
    message = f"{collection.name} learns from {questions} questions"
    return lambda _stage, fraction: report(message, fraction)


def _checksum(*paths: Path) -> str:
    return " ".join(f"{zlib.crc32(path.read_bytes()):08x}" for path in paths)


def _announce(address: str) -> None:
    search = f"{address}/v1/collections/{DEFAULT_COLLECTION}/search"
    if sys.stderr.isatty():  # a bar of the other process may stand in this line
        click.echo("\r\x1b[K", err=True, nl=False)
    click.echo(f"""Serving on {address}

Open it in a browser. Pages show what is still indexed and trained. Or try in another terminal:

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
