"""The heaviest legal request of each route: 30 at once, their memory and their time.

    python benchmarks/heaviest.py [--quick] [--json] [--only NAME,…] [--folder DATA] [--texts]

The routes and their limits are those of the OpenAPI document. For each, a search changes one
field of a request after the other, and keeps what makes the answer take more memory or time
(`heaviest_requests.py`). Then 30 of the heaviest requests are sent at once, each on a connection
of its own, while another client goes on with a small search and a health check.

- `mebibytes`: the most memory of the server's processes meanwhile, above an idle server.
- `longest_s`: from the last byte of a request to the first byte of its answer.
- `busy_after_s`: how long the server worked on after the last answer.
- `light_s`, `health_s`: the longest times of the small requests meanwhile.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import parser, progress
from heaviest_requests import Cost, Draft, Route, Sent, first_draft, routes, search
from heaviest_server import (
    MEBIBYTE,
    Server,
    busy_seconds,
    children,
    forget_peak,
    peak,
    resident,
    running,
)
from heaviest_values import WIDTH, Material

from attend import Data
from attend_service.routes import all_operations

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


def main() -> None:
    options = _options()
    sizes = QUICK if options.quick else FULL
    if options.folder is None:
        with tempfile.TemporaryDirectory() as folder:
            run(Path(folder), sizes, options)
    else:
        run(options.folder, sizes, options)


def _options() -> argparse.Namespace:
    flags = parser("The heaviest legal request of each route, 30 at once.")
    flags.add_argument("--only", help="names of operations, with commas between")
    flags.add_argument("--deadline", type=float, default=60, help="of the server, in seconds")
    flags.add_argument("--seconds", type=float, default=120, help="of the search for a route")
    flags.add_argument("--texts", action="store_true", help="queries are texts, not vectors")
    flags.add_argument("--folder", type=Path, help="a data folder to make, or to use again")
    return flags.parse_args()


def run(folder: Path, sizes: Sizes, options: argparse.Namespace) -> None:
    if not (folder / "collections").exists():
        progress("building the collections")
        build(folder, sizes)
    figures: dict[str, Any] = {}
    with running(folder, TRIAL_SECONDS) as server:
        document = json.loads(urllib.request.urlopen(f"{server.address}/openapi.json").read())
        limits = {each.name: each.body_limit or 64 * MEBIBYTE for each in all_operations()}
        schemas = document["components"]["schemas"]
        material = Material(sizes.scratch, schemas, texts=options.texts)
        chosen = [
            route
            for route in routes(document, limits)
            if options.only is None or route.name in options.only.split(",")
        ]
    for route in chosen:
        heaviest = heaviest_of(folder, route, material, sizes.trials, options.seconds)
        for draft, cost in heaviest:
            fired = fire(folder, draft, options.deadline, options.texts)
            name = f"{route.method} {route.path}"
            progress(
                f"{name}: alone {cost.mebibytes:.0f} MiB, {cost.seconds:.1f} s; at once {fired} "
                f"of {sorted(draft.fields)} {dict(draft.lengths)}"
            )
            figures.setdefault(name, []).append(
                {"alone": cost._asdict(), "at_once": fired._asdict(), "lengths": draft.lengths}
            )
    if options.json:
        print(json.dumps(figures))


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

    def __init__(self, server: Server, texts: bool) -> None:
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
        status, seconds, _ = self.server.send(sent)
        if draft.route.name == "start_training":
            until_idle(worker)  # one at a time is trained of a collection
        return Cost(peak(worker) - before, seconds, status)

    def _snapshot(self) -> bytes:
        if self.snapshot is None:
            url = f"{self.server.address}/v1/collections/saved/snapshot"
            taken = urllib.request.Request(url, method="POST")
            self.snapshot = urllib.request.urlopen(taken).read()
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
        before = resident([server.worker])
        watch = Watch(server, light)
        results = list(pool.map(server.send, requests))
        ended = time.perf_counter()
        watch.ask_no_more()
        last = until_idle(server.worker)
        most = watch.stop()
        statuses = Counter(str(status) for status, _, _ in results)
        return Fired(
            round(most - before),
            round(max(seconds for _, seconds, _ in results), 2),
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
        if (now := busy_seconds([worker, *children(worker)])) > worked + 0.02:
            worked, last = now, time.perf_counter()
    return last


class Watch:
    """The most memory of a server, and the longest times of small requests, until `stop`."""

    def __init__(self, server: Server, light: Sent) -> None:
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
            self.most = max(self.most, resident([worker, *children(worker)]), peak(worker))

    def _ask(self) -> None:
        while not self._answered.wait(0.2):
            begun = time.perf_counter()
            self._server.send(Sent("GET", "/healthz", None))
            middle = time.perf_counter()
            self.health = max(self.health, middle - begun)
            status, _, _ = self._server.send(self._request)
            if status == 200:
                self.light = max(self.light, time.perf_counter() - middle)


if __name__ == "__main__":
    main()
