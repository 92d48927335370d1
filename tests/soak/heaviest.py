"""The heaviest legal request of each route: 30 at once, their memory and their time.

    python -m tests.soak.heaviest [--quick] [--json] [--only NAME,…] [--folder DATA] [--texts]

The routes and their limits are those of the OpenAPI document. For each, a search changes one
field of a request after the other, and keeps what makes the answer take more memory or time.
Then 30 of the heaviest requests are sent at once, each on a connection of its own, while another
client goes on with a small search and a health check.

- `mebibytes`: the most memory of the server's processes meanwhile, above an idle server.
- `longest_s`: from the last byte of a request to the first byte of its answer.
- `busy_after_s`: how long the server worked on after the last answer.
- `light_s`, `health_s`: the longest times of the small requests meanwhile.
"""

from __future__ import annotations

import http.client
import json
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import psutil

from attend import Data
from attend_service.routes import all_operations
from tests.soak.client import Client, Server
from tests.soak.drafts import WIDTH, Cost, Draft, Material, Route, Sent, first_draft, routes, search
from tests.workers import workers_of

MEBIBYTE = 2**20


class Target(NamedTuple):
    """A running server, and the process that works."""

    address: tuple[str, int]
    worker: int

    def send(self, request: Sent, timeout: float = 600) -> tuple[int, float]:
        """Send a request on a connection of its own, and read its answer to the end.

        Returns: the status, and the seconds from the last byte of the request to the first of the
            answer.
        """
        body = request.body or b""
        head = (
            f"{request.method} {request.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n"
            + (f"Content-Type: {request.media}\r\n" if request.body is not None else "")
            + "\r\n"
        )
        with socket.create_connection(self.address, timeout=timeout) as client:
            with suppress(BrokenPipeError, ConnectionResetError):  # refused before its end
                client.sendall(head.encode() + body)
            begun = time.perf_counter()
            first = client.recv(MEBIBYTE)
            seconds = time.perf_counter() - begun
            while client.recv(MEBIBYTE):
                pass
        return int(first[9:12] or 0), seconds


@contextmanager
def running(folder: Path, deadline: float) -> Iterator[Target]:
    quiet = ("--log-level", "error")
    with tempfile.NamedTemporaryFile() as log:
        server = Server(folder, Path(log.name), "service", "--deadline", str(deadline), *quiet)
        try:
            yield Target(server.address, workers_of(server.process)[0])
        finally:
            server.stop()


def processes(pid: int) -> list[psutil.Process]:
    """Return a process and those that it started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def resident(pid: int) -> float:
    """Return the memory of a process and those that it started, in MiB."""
    total = 0
    for process in processes(pid):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total / MEBIBYTE


def peak(process: int) -> float:
    """Return the most memory of a process since `forget_peak`, in MiB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def forget_peak(process: int) -> None:
    Path(f"/proc/{process}/clear_refs").write_text("5")


def busy_seconds(pid: int) -> float:
    """Return the seconds of the processor that a process and those that it started took."""
    total = 0.0
    for process in processes(pid):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


TRIAL_SECONDS = 15
"""The deadline of a server whose requests are tried one at a time."""

AT_ONCE = 30
TAR = "application/x-tar"
TEXT = "x" * 1000 + " a whale, a ship, and the sea " * 33
WRITING = ("upsert", "revise", "delete", "add_", "give_", "activate", "roll", "start_")
"""Operations whose names begin so change a collection of their own."""

LIGHT = json.dumps({"query": [1.0] * WIDTH, "k": 3}).encode()


class Sizes(NamedTuple):
    """Documents of the collections, and trials for a route."""

    books: int
    scratch: int
    saved: int
    shelf: int
    shelves: int
    trials: int


FULL = Sizes(20_000, 10_000, 9_500, 500, 32, 60)
QUICK = Sizes(2_000, 1_000, 1_000, 200, 4, 30)


class Fired(NamedTuple):
    """The outcome of 30 requests at once."""

    mebibytes: float
    longest_s: float
    busy_after_s: float
    light_s: float
    health_s: float
    statuses: Mapping[str, int]
    body_bytes: int


@click.command()
@click.option("--quick", is_flag=True, help="Small collections, and fewer trials.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--only", help="Names of operations, with commas between.")
@click.option("--deadline", default=60.0, show_default=True, help="Of the server, in seconds.")
@click.option("--seconds", default=120.0, show_default=True, help="Of the search for a route.")
@click.option("--texts", is_flag=True, help="Queries are texts, not vectors.")
@click.option("--folder", type=click.Path(path_type=Path), help="To make data in, or use it again.")
def main(folder: Path | None, **options: Any) -> None:
    """Find the heaviest legal request of each route, and send 30 of it at once."""
    if folder is not None:
        run(folder, **options)
        return
    with tempfile.TemporaryDirectory(prefix="attend-heaviest-") as made:
        run(Path(made), **options)


def run(
    folder: Path,
    quick: bool,
    as_json: bool,
    only: str | None,
    deadline: float,
    seconds: float,
    texts: bool,
) -> None:
    sizes = QUICK if quick else FULL
    if not (folder / "collections").exists():
        click.echo("building the collections", err=True)
        build(folder, sizes)
    figures: dict[str, Any] = {}
    with running(folder, TRIAL_SECONDS) as server:
        document = Client(server.address).ask("GET", "/openapi.json")
    limits = {each.name: each.body_limit or 64 * MEBIBYTE for each in all_operations()}
    material = Material(sizes.scratch, document["components"]["schemas"], texts=texts)
    for route in routes(document, limits):
        if only is not None and route.name not in only.split(","):
            continue
        for draft, cost in heaviest_of(folder, route, material, sizes.trials, seconds):
            fired = fire(folder, draft, deadline, texts)
            name = f"{route.method} {route.path}"
            told = f"alone {cost.mebibytes:.0f} MiB, {cost.seconds:.1f} s; at once {fired}"
            click.echo(f"{name}: {told} of {sorted(draft.fields)} {dict(draft.lengths)}", err=True)
            figures.setdefault(name, []).append(
                {"alone": cost._asdict(), "at_once": fired._asdict(), "lengths": draft.lengths}
            )
    if as_json:
        click.echo(json.dumps(figures))


# -- the collections ----------------------------------------------------------------------------


def build(folder: Path, sizes: Sizes) -> None:
    """Fill a library: `books` and `texts` to read, `scratch` to change, `saved` to restore.

    `texts` has an encoder, and vectors beside its texts, so that nothing is encoded here.
    """
    rng = np.random.default_rng(0)
    with closing(Data(folder)) as data:
        fill(data, "books", sizes.books, rng)
        fill(data, "texts", sizes.books, rng, texts=True)
        fill(data, "scratch", sizes.scratch, rng)
        fill(data, "saved", sizes.saved, rng)
        for number in range(sizes.shelves):
            fill(data, f"shelf{number}", sizes.shelf, rng)
        for name in ("books", "scratch"):
            collection = data.collection(name)
            for _ in range(2):
                collection.add_projection(collection.fit_projection("pca", WIDTH // 2))


def fill(data: Data, name: str, count: int, rng: np.random.Generator, texts: bool = False) -> None:
    collection = data.create(name) if texts else data.create(name, dimension=WIDTH)
    for start in range(0, count, 1000):
        vectors = rng.standard_normal((min(1000, count - start), WIDTH)).astype(np.float32)
        collection.upsert(
            {
                "id": str(start + n),
                "vector": vector,
                **({"text": f"{start + n} {TEXT}"} if texts else {}),
                "value": {"n": start + n},
                "payload": {"text": TEXT, "n": start + n, "genre": f"g{n % 20}"},
            }
            for n, vector in enumerate(vectors.round(4).tolist())
        )
    collection.publish()


# -- one request, and thirty --------------------------------------------------------------------


class Trials:
    """Requests one at a time to one server, which is started again where one was killed."""

    def __init__(self, server: Target, texts: bool) -> None:
        self.server, self.texts = server, texts
        self.numbers = 0
        self.snapshot: bytes | None = None

    def request(self, draft: Draft) -> Sent:
        """Return a draft as a request; it names collections that it may change."""
        self.numbers += 1
        name = draft.route.name
        reading = "texts" if self.texts else "books"
        collection = "scratch" if name.startswith(WRITING) else reading
        if name in ("make_collection", "restore_snapshot"):
            collection = f"new{self.numbers}"
        if name == "drop_collection":
            collection = "nothing"
        sent = draft.sent(
            collection=collection,
            alias=f"alias{self.numbers}" if name == "set_alias" else "alias",
            id=str(self.numbers % 100),
            version=str(1 + self.numbers % 2),
            job=str(self.numbers),
        )
        if name == "restore_snapshot":
            return Sent("PUT", sent.path, self._snapshot(), TAR)
        return sent

    def measure(self, draft: Draft) -> Cost:
        sent, worker = self.request(draft), self.server.worker
        forget_peak(worker)
        before = peak(worker)
        status, seconds = self.server.send(sent)
        if draft.route.name == "start_training":
            until_idle(worker)  # one at a time is trained of a collection
        return Cost(peak(worker) - before, seconds, status)

    def _snapshot(self) -> bytes:
        if self.snapshot is None:
            connection = http.client.HTTPConnection(*self.server.address)
            connection.request("POST", "/v1/collections/saved/snapshot")
            self.snapshot = connection.getresponse().read()
            connection.close()
        return self.snapshot


def heaviest_of(
    folder: Path, route: Route, material: Material, trials: int, seconds: float
) -> list[tuple[Draft, Cost]]:
    if route.body is None:
        return [(first_draft(route, material), Cost(0, 0, 0))]
    with running(folder, TRIAL_SECONDS) as server:
        attempts = Trials(server, material.texts)
        server.send(Sent("POST", "/v1/collections/books/search", LIGHT))
        return search(route, material, attempts.measure, trials, seconds)


def fire(folder: Path, draft: Draft, deadline: float, texts: bool) -> Fired:
    """Send 30 requests at once, and watch the server."""
    with running(folder, deadline) as server, ThreadPoolExecutor(AT_ONCE) as pool:
        attempts = Trials(server, texts)
        light = Sent("POST", "/v1/collections/books/search", LIGHT)
        for _ in range(3):
            server.send(light)
        variants = [attempts.request(draft) for _ in range(3)]
        if draft.route.name in ("restore_snapshot", "make_collection"):
            variants = [attempts.request(draft) for _ in range(AT_ONCE)]
        requests = [variants[n % len(variants)] for n in range(AT_ONCE)]
        before = resident(server.worker)
        watch = Watch(server, light)
        results = list(pool.map(server.send, requests))
        ended = time.perf_counter()
        watch.ask_no_more()
        last = until_idle(server.worker)
        most = watch.stop()
        statuses = Counter(str(status) for status, _ in results)
        return Fired(
            round(most - before),
            round(max(seconds for _, seconds in results), 2),
            round(last - ended, 1),
            round(watch.light, 2),
            round(watch.health, 2),
            dict(statuses),
            len(requests[0].body or b""),
        )


def until_idle(worker: int) -> float:
    """Wait until a server and its trainings do nothing for a second; return when that began."""
    last, worked = time.perf_counter(), 0.0
    while time.perf_counter() - last < 1:
        time.sleep(0.05)
        if (now := busy_seconds(worker)) > worked + 0.02:
            worked, last = now, time.perf_counter()
    return last


class Watch:
    """The most memory of a server, and the longest times of small requests, until `stop`."""

    def __init__(self, server: Target, light: Sent) -> None:
        self.most = self.light = self.health = 0.0
        self._server, self._request = server, light
        self._stopped, self._answered = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._look), threading.Thread(target=self._ask),
        ]  # fmt: skip
        for thread in self._threads:
            thread.start()

    def ask_no_more(self) -> None:
        """Send no small requests any more, whose work would count as the server's."""
        self._answered.set()
        self._threads[1].join()

    def stop(self) -> float:
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        return self.most

    def _look(self) -> None:
        worker = self._server.worker
        while not self._stopped.wait(0.02):
            self.most = max(self.most, resident(worker), peak(worker))

    def _ask(self) -> None:
        while not self._answered.wait(0.2):
            begun = time.perf_counter()
            self._server.send(Sent("GET", "/healthz", None))
            middle = time.perf_counter()
            self.health = max(self.health, middle - begun)
            status, _ = self._server.send(self._request)
            if status == 200:
                self.light = max(self.light, time.perf_counter() - middle)


if __name__ == "__main__":
    main()
