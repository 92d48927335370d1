"""Requests of every route, whose fields are changed one at a time until they take the most.

The routes, their fields and their limits are those of the OpenAPI document.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

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
