"""Values of the fields of a request that are legal, the heaviest first.

Most follow from the OpenAPI document; `FIXED` and `Material` have those of fields whose weight or
whose meaning a schema does not tell.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

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
