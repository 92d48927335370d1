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
import math
import random
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import click
import numpy as np
import psutil

from attend import Data
from attend_service.routes import all_operations
from tests.soak.client import Client, Server
from tests.workers import workers_of

WIDTH = 384
"""Numbers of a vector."""

ABSENT: Any = object()
"""The value of a field that is left out."""

Value = Callable[[int], Any]
"""From the number of an item in its list to the value of a field."""

FIXED: Mapping[str, list[Any]] = {
    "value": ["@key", "n", "text", "nothing"],
    "HistoryItem.value": [1, {"a": [[i] for i in range(10)]}],
    "TrainRequest.value": ["n"],
    "TrainRequest.objective": ["answers", "ranking"],
    "CollectionSettings.values": ["number"],
    "ProfileItem.value": [1],
    "field": ["n"],
    "fields": [["text"], [f"f{n}" for n in range(256)]],
    "DocumentRequest.fields": [ABSENT],
    "group_by": ["n", "genre", "nothing"],
    "heads": [[1.0]],
    "FeedbackDeletion.ids": [list(range(10**6, 10**6 + 10_000))],
    "user": ["user 0"],
    "InteractionDeletion.user": ["nobody"],
    "all": [ABSENT],
    "source": ["x" * 256],
    "time": ["2024-05-17", 1.0],
    "cursor": [ABSENT],
    "collection": ["texts"],
    "collections": [[f"shelf{n}" for n in range(32)], ["books"]],
    "by": ["ndcg@10"],
    "encoder": [ABSENT],
    "before": [1],
    "after": [1],
    "min_score": [-1e6],
    "dimension": [65_536],
}
"""The same values in each item, by field, or by model and field."""


def constant(value: Any) -> Value:
    return lambda n: value


@dataclass(frozen=True)
class Material:
    """Values for the collections of the benchmark.

    Attributes:
        documents: their ids are the numbers below it.
        schemas: those of the OpenAPI document, by name.
        width: of the vectors.
        texts: whether queries are texts, of a collection that has an encoder.
        longest: the longest list of objects.
    """

    documents: int
    schemas: Mapping[str, Any]
    width: int = WIDTH
    texts: bool = False
    longest: int = 100_000
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def options(self, model: str, name: str, schema: Mapping[str, Any]) -> Iterator[Value]:
        """Yield values of a field, the heaviest first."""
        for key in (f"{model}.{name}", name):
            if key in FIXED:
                yield from map(constant, FIXED[key])
                return
            if key in (drawn := self._drawn()):
                yield from drawn[key]
                return
        for kind in self.kinds(schema):
            if "enum" in kind or "const" in kind:
                yield from map(constant, kind.get("enum") or [kind["const"]])
            elif kind.get("type") == "boolean":
                yield from (constant(True), constant(False))
            elif kind.get("type") in ("integer", "number"):
                largest = kind.get("maximum", 1)
                yield constant(largest if largest < 2**31 else 1)
                if kind.get("minimum") not in (None, largest):
                    yield constant(kind["minimum"])
            elif kind.get("type") == "string":
                yield constant("text")

    def kinds(self, schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the alternatives of a schema, without references and null."""
        schema = self.schemas[schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema
        if "anyOf" in schema:
            return [kind for option in schema["anyOf"] for kind in self.kinds(option)]
        return [] if schema.get("type") == "null" else [schema]

    def model(self, schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the schema of an object with fields; None for anything else."""
        objects = [kind for kind in self.kinds(schema) if "properties" in kind]
        return objects[0] if objects else None

    def vector(self, _: int = 0) -> list[float]:
        return [round(self.rng.gauss(0, 1), 4) for _ in range(self.width)]

    def id(self, n: int = 0) -> str:
        return str(self.rng.randrange(self.documents))

    def ids(self, count: int) -> Value:
        return lambda n: [str(number % self.documents) for number in range(count)]

    def text(self, words: int) -> Value:
        return lambda n: " ".join(
            self.rng.choice(("whale", "sea", "ship", "storm", "island"))
            + str(self.rng.randrange(10**6))
            for _ in range(words)
        )

    def filter(self, conditions: int) -> Value:
        def build(n: int) -> dict[str, Any]:
            number = self.rng.randrange(10**9)
            return {"$or": [{f"nothing {number} {i}": "a"} for i in range(conditions)]}

        return build

    def unknown(self, count: int) -> Value:
        return lambda n: [f"unknown {n} {i}" for i in range(count)]

    def parts(self, count: int) -> Value:
        return lambda n: [{"vector": self.vector()} for _ in range(count)]

    def text_parts(self, count: int) -> Value:
        return lambda n: [{"text": self.text(100)(n)} for _ in range(count)]

    def nested(self, size: int) -> Value:
        return lambda n: {"a": [[i] for i in range(size)], "n": self.rng.randrange(10**9)}

    def _drawn(self) -> dict[str, list[Value]]:
        """Return values that differ from item to item, by field, or by model and field."""
        drawn = self._drawn_of_vectors()
        if self.texts:
            drawn["query"] = [
                self.text(300),
                lambda n: {"mixture": self.text_parts(1000)(n)},
                lambda n: {"mixture": self.text_parts(100)(n)},
                lambda n: {"blend": self.text_parts(100)(n)},
            ]
        return drawn

    def _drawn_of_vectors(self) -> dict[str, list[Value]]:
        unknown_fields: Value = lambda n: [f"nothing {self.rng.random()}" for _ in range(32)]  # noqa: E731
        facets = [unknown_fields, constant(["text", "n", "genre"])]
        return {
            "query": [
                self.vector,
                lambda n: {"mixture": self.parts(1000)(n)},
                lambda n: {"mixture": self.parts(100)(n)},
                lambda n: {"blend": self.parts(1000)(n)},
                lambda n: {"ids": self.ids(1000)(n)},
            ],
            "FeedbackItem.query": [
                lambda n: {"vector": self.vector()},
                lambda n: {"text": self.text(100)(n)},
            ],
            "mask": [
                lambda n: {"only": self.ids(100_000)(n)},
                lambda n: {"exclude": self.ids(self.documents)(n)},
                lambda n: {"exclude": self.unknown(500)(n)},
            ],
            "filter": [self.filter(250), self.filter(20)],
            "DeletionRequest.filter": [self.filter(250)],
            "payload": [self.nested(500), lambda n: {"text": "x" * 20_000}, self.nested(5)],
            "DocumentRequest.value": [self.nested(500), constant(1)],
            "UpdateRequest.value": [self.nested(50_000), constant(1)],
            "InteractionItem.value": [self.nested(100), constant(1)],
            "FacetsRequest.fields": facets,
            "facets": facets,
            "id": [self.id],
            "DocumentRequest.id": [str],
            "InteractionItem.id": [lambda n: str(n % 1000)],
            "ids": [self.ids(10_000)],
            "DeletionRequest.ids": [self.unknown(10_000)],
            "documents": [self.unknown(10_000)],
            "InteractionItem.user": [lambda n: f"user {n % 1000}"],
            "vector": [self.vector],
            "text": [constant(ABSENT), self.text(100)],
            "q": [self.text(300), self.text(10)],
        }


METHODS = ("get", "put", "post", "patch", "delete")

EARLY = ("query", "attend", "mode", "value", "k")
"""Fields that are tried first: others are legal, or heavy, only with large values of these."""

LENGTHS = (1.0, 0.3, 0.1, 0.01)
"""Lengths of a list that are tried, as shares of the largest: sums have limits of their own."""

ADDRESS = 16_000
"""Bytes of parameters that fit into an address."""

JSON = "application/json"


class Route(NamedTuple):
    """One operation of the OpenAPI document.

    Attributes:
        body: the schema of the JSON body, or of the parameters in the address, or None.
        limit: bytes of the body or address.
    """

    method: str
    path: str
    name: str
    body: Mapping[str, Any] | None
    limit: int
    in_address: bool


class Sent(NamedTuple):
    """A request as it goes to the server."""

    method: str
    path: str
    body: bytes | None
    media: str = JSON


def routes(document: Mapping[str, Any], limits: Mapping[str, int]) -> Iterator[Route]:
    """Yield the operations of an OpenAPI document.

    Args:
        limits: the bytes of a body by the name of its operation.
    """
    for path, item in document["paths"].items():
        for method in METHODS:
            if method not in item:
                continue
            operation = item[method]
            name = operation["operationId"]
            parameters = {
                parameter["name"]: (parameter.get("content", {}).get(JSON) or parameter)["schema"]
                for parameter in operation.get("parameters", ())
                if parameter["in"] == "query"
            }
            content = operation.get("requestBody", {}).get("content", {}).get(JSON)
            if content is not None:
                yield Route(method.upper(), path, name, content["schema"], limits[name], False)
            else:
                schema = {"title": name, "properties": parameters} if parameters else None
                yield Route(method.upper(), path, name, schema, ADDRESS, True)


@dataclass(frozen=True)
class Draft:
    """A request whose fields can be changed one at a time.

    Attributes:
        fields: by dotted name; those of objects in a list have `*` for its number.
        lengths: of the lists of objects, by the names of these.
    """

    route: Route
    fields: Mapping[str, Value]
    lengths: Mapping[str, int]

    def with_field(self, name: str, value: Value) -> Draft:
        return replace(self, fields={**self.fields, name: value})

    def with_length(self, name: str, length: int) -> Draft:
        return replace(self, lengths={**self.lengths, name: length})

    def content(self) -> dict[str, Any]:
        """Return the body, or the parameters."""
        content: dict[str, Any] = {}
        for name, value in self.fields.items():
            first, star, rest = name.partition(".*.")
            if not star:
                place(content, first, value(0))
                continue
            items = content.setdefault(first, [{} for _ in range(self.lengths[first])])
            for number, item in enumerate(items):
                place(item, rest, value(number))
        return content

    def fitted(self) -> tuple[Draft, bytes]:
        """Return the draft with lists as long as its bytes may be, and its JSON."""
        draft, text = self, json.dumps(self.content(), separators=(",", ":")).encode()
        while len(text) > self.route.limit and any(n > 1 for n in draft.lengths.values()):
            share = 0.95 * self.route.limit / len(text)
            lengths = {name: max(1, int(n * share)) for name, n in draft.lengths.items()}
            draft = replace(draft, lengths=lengths)
            text = json.dumps(draft.content(), separators=(",", ":")).encode()
        return draft, text

    def sent(self, **places: str) -> Sent:
        """Return the request, with `places` for the parameters of its path."""
        path = self.route.path.format(**{name: quote(each) for name, each in places.items()})
        if self.route.body is None:
            return Sent(self.route.method, path, None)
        if self.route.in_address:
            content = self.content().items()
            parameters = {
                name: value if isinstance(value, str) else json.dumps(value)
                for name, value in content
            }
            return Sent(self.route.method, f"{path}?{urlencode(parameters)}", None)
        return Sent(self.route.method, path, self.fitted()[1])


def place(content: dict[str, Any], name: str, value: Any) -> None:
    if value is not ABSENT:
        content[name] = value


def first_draft(route: Route, material: Material) -> Draft:
    """Return the smallest request of a route: its required fields, and lists of one."""
    fields: dict[str, Value] = {}
    lengths: dict[str, int] = {}
    model = None if route.body is None else material.model(route.body)
    for name, schema in {} if model is None else model["properties"].items():
        items = item_model(material, schema)
        if items is not None and name in required(model):
            lengths[name] = 1
            title = items.get("title", "")
            for inner in required(items):
                options = material.options(title, inner, items["properties"][inner])
                fields[f"{name}.*.{inner}"] = next(options, constant(1))
        elif name in required(model):
            fields[name] = next(material.options(model.get("title", ""), name, schema), constant(1))
    return Draft(route, fields, lengths)


def required(model: Mapping[str, Any]) -> list[str]:
    """Return the fields that a model cannot do without; one of several where it needs any."""
    either = {
        "DocumentRequest": ["vector"],
        "DeletionRequest": ["filter"],
        "FeedbackDeletion": ["documents"],
        "InteractionDeletion": ["user"],
        "UpdateRequest": ["value"],
        "RecommendRequest": ["history"],
        "ExampleItem": ["vector"],
        "ProfileItem": ["field", "value"],
        "plain_search": ["q", "collection"],
        "CollectionSettings": ["dimension"],
    }
    return [*model.get("required", ()), *either.get(model.get("title", ""), ())]


def item_model(material: Material, schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema of the objects in a list; None for any other field."""
    lists = [kind for kind in material.kinds(schema) if kind.get("type") == "array"]
    return material.model(lists[0]["items"]) if lists and "items" in lists[0] else None


Edit = Callable[[Draft], Draft]
"""A change of one field, or of one length."""


def edits(route: Route, material: Material) -> Iterator[tuple[str, list[Edit]]]:
    """Yield each field with its changes, the heaviest first; of a list also before its items."""
    model = None if route.body is None else material.model(route.body)
    properties = {} if model is None else model["properties"]
    for name in sorted(properties, key=lambda name: name not in EARLY):
        items = item_model(material, properties[name])
        if items is None:
            options = material.options(model.get("title", ""), name, properties[name])
            yield name, [partial(Draft.with_field, name=name, value=value) for value in options]
            continue
        arrays = [kind for kind in material.kinds(properties[name]) if "items" in kind]
        most = min(arrays[0].get("maxItems", 1000), material.longest)
        lengths: list[Edit] = [
            partial(with_items, name=name, items=items, material=material, length=int(most * share))
            for share in LENGTHS
        ]
        yield name, lengths
        for inner in sorted(items["properties"], key=lambda name: name not in EARLY):
            options = material.options(items.get("title", ""), inner, items["properties"][inner])
            path = f"{name}.*.{inner}"
            yield path, [partial(Draft.with_field, name=path, value=value) for value in options]
        yield name, lengths


def with_items(
    draft: Draft, name: str, items: Mapping[str, Any], material: Material, length: int
) -> Draft:
    """Return a draft with a list of so many objects; new ones have their required fields."""
    if name not in draft.lengths:
        for inner in required(items):
            options = material.options(items.get("title", ""), inner, items["properties"][inner])
            draft = draft.with_field(f"{name}.*.{inner}", next(options, constant(1)))
    return draft.with_length(name, max(1, length))


class Cost(NamedTuple):
    """The cost of one request: memory in MiB above what the worker had, and seconds."""

    mebibytes: float
    seconds: float
    status: int

    @property
    def score(self) -> float:
        """A second counts as much as 30 MiB."""
        return self.mebibytes + 30 * self.seconds


def search(
    route: Route,
    material: Material,
    measure: Callable[[Draft], Cost],
    trials: int,
    seconds: float = math.inf,
) -> list[tuple[Draft, Cost]]:
    """Return the drafts that took the most memory and the most time."""
    best = first_draft(route, material)
    cost = measure(best)
    results = [(best, cost)]
    left, end = trials, time.monotonic() + seconds
    for name, changes in edits(route, material):
        if ".*." in name and name.partition(".*.")[0] not in best.lengths:
            continue
        for change in changes[: max(left, 0)]:
            if time.monotonic() > end:
                break
            left -= 1
            draft = change(best)
            tried = measure(draft)
            results.append((draft, tried))
            if tried.status < 300 and tried.score > 1.05 * cost.score:
                best, cost = draft, tried
                break
            if tried.status == 503:  # over its deadline: heavier than any that is answered
                break
    legal = [(draft, cost) for draft, cost in results if cost.status < 300 or cost.status == 503]
    if not legal:
        return []
    heaviest = max(legal, key=lambda result: result[1].mebibytes)
    longest = max(legal, key=lambda result: result[1].seconds)
    return [heaviest] if heaviest is longest else [heaviest, longest]


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
