"""Bad input: whatever is sent, the answer is one that the API documents, and never a 5xx."""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from attend import Data
from attend.api.base import Request
from attend.encoder import DEFAULT, SentenceEncoder
from attend_service import openapi
from attend_service.app import create_app
from attend_service.context import Operation
from attend_service.jobs import Jobs
from attend_service.routes import all_operations
from attend_service.settings import ServerSettings
from tests.service.conftest import BOOKS, MAX_BODY
from tests.service.test_openapi import filled
from tests.service.test_server import running, wait_until_ready

BODIES = int(os.environ.get("ATTEND_FUZZ_BODIES", "1000"))
"""Mutated bodies in all; ATTEND_FUZZ_BODIES=10000 for the full number."""

EXAMPLES = int(os.environ.get("ATTEND_FUZZ_EXAMPLES", "5"))
"""Requests that schemathesis draws for an operation; it adds its own to cover every keyword."""

CHUNK = 100
"""Bodies sent to one service, before it is made anew."""

OPERATIONS = [each for each in all_operations() if each.body is not None]

STRANGE: list[Any] = [
    None, True, False, 0, -1, 1, 0.5, 1e308, -1e308, 5e-324, 2**31, 2**63, 2**64, -(2**63), 10**400,
    "", " ", "\x00", "a\x00b", "\ud800", "\U0010ffff", "é" * 300, "x" * 5000, "NaN", "all",
    "' OR 1=1 --", '"', "$or", "../..", "@id", "@key", "{}", "whale", [], {}, [[]], [{}],
    {"": None},
    {"$not": {}}, {"$or": []}, {"gte": {}}, {"eq": []}, {"@text": {"match": '"'}}, {"a.b.c": 1},
    {"year": {"gte": "x", "lt": 3}}, [0] * 3, [1e39] * 3, [0.0] * 65, {"id": "whale"},
    {"ids": ["whale", "emma"]}, {"blend": [[1, 0, 0], {"id": "emma", "weight": -1}]},
]  # fmt: skip
"""Values from the borders of types, limits, encodings and the words that mean something here."""

GARBAGE = [
    b"", b"{", b"[" * 2000, b'{"a":' * 500, b"\xff\xfe", b"nul", b"1", b'"x"', b"[1, 2,]", b"\x00",
    b'{"query": [NaN, 1, 2]}', b'{"query": "\\ud800"}', b'{"k": 1e999}', b"{}{}",
    b'{"query": [1, 2, 3], "query": 7}', b'{"__proto__": {}}',
]  # fmt: skip
"""What is no JSON, or not quite."""


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in it."""
    yield path
    if isinstance(tree, dict | list):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            yield from places(tree[key], (*path, key))


def mutated(example: Any, rng: random.Random) -> Any:
    """An example in which some values are others, are gone, are wrapped, or come more often."""
    tree = copy.deepcopy(example)
    for _ in range(rng.choice([1, 1, 2, 3])):
        *way, last = rng.choice(list(places(tree))) or (None,)
        if last is None:
            return rng.choice(STRANGE)
        parent = tree
        for key in way:
            parent = parent[key]
        rng.choice(CHANGES)(parent, last, rng)
    return tree


def _replace(parent: Any, key: Any, rng: random.Random) -> None:
    parent[key] = copy.deepcopy(rng.choice(STRANGE))


def _remove(parent: Any, key: Any, _: random.Random) -> None:
    del parent[key]


def _wrap(parent: Any, key: Any, rng: random.Random) -> None:
    parent[key] = rng.choice([[parent[key]], {"text": parent[key]}, {"eq": parent[key]}])


def _repeat(parent: Any, key: Any, rng: random.Random) -> None:
    if isinstance(parent, list):
        parent.extend([parent[key]] * rng.choice([1, 300]))
    else:
        parent[str(rng.choice(STRANGE))] = parent[key]


def _rename(parent: Any, key: Any, rng: random.Random) -> None:
    if isinstance(parent, dict):
        names = ["filter", "mask", "scorer", "heads", "value", "payload", "ids", "vector", "text"]
        parent[rng.choice(names)] = copy.deepcopy(rng.choice([parent[key], *STRANGE]))


CHANGES: list[Callable[[Any, Any, random.Random], None]] = [
    _replace, _replace, _remove, _wrap, _repeat, _rename,
]  # fmt: skip


def body(operation: Operation, rng: random.Random) -> bytes:
    if rng.random() < 0.05:
        return rng.choice(GARBAGE)
    example = rng.choice([operation.example, {}, SEARCH if "search" in operation.path else {}])
    raw = json.dumps(mutated(example or operation.example, rng)).encode()
    if rng.random() < 0.05:  # a byte that is another
        at = rng.randrange(len(raw))
        raw = raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
    return raw


SEARCH = {
    "query": {"blend": [{"vector": [1, 0.5, 0], "weight": 2}, {"id": "emma", "weight": -0.5}]},
    "k": 2, "offset": 0, "attend": 3, "filter": {"$or": [{"year": {"gte": 1800, "lt": 1900}}]},
    "mask": {"exclude": ["whale"], "only": None}, "mode": "soft", "value": "@id", "pool": "sum",
    "temperature": 0.7, "scorer": "cosine", "scale": 3.0, "heads": [1.0], "lexical": 0.5,
    "min_confidence": 0.1, "decode": True, "min_score": -3.5, "group_by": "year", "diversity": 0.3,
    "fields": ["year"], "facets": ["year", "@value"], "highlight": True, "explain": True,
}  # fmt: skip
"""Every option at once."""


def service(data: Data, jobs: Jobs) -> FlaskClient:
    app = create_app(data, ServerSettings(max_collections=5), jobs=jobs)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY
    client = app.test_client()
    client.put("/v1/collections/books", json={"dimension": 3})
    client.post("/v1/collections/books/documents", json=BOOKS)
    return client


def learned_nothing(*_: object, **__: object) -> dict[str, Any]:
    return {"promoted": False, "reason": "Nothing was learned."}


@pytest.mark.parametrize("chunk", range(-(-BODIES // CHUNK)))
def test_no_mutated_body_is_a_failure_of_the_server(
    tmp_path: Path, chunk: int, tiny_encoder: SentenceEncoder
) -> None:
    rng = random.Random(chunk)
    data = Data(
        tmp_path,
        load_encoder=lambda name: tiny_encoder if name == DEFAULT else no_encoder(name),
    )
    jobs = Jobs(data, learned_nothing, limit=2)
    client = service(data, jobs)
    for _ in range(CHUNK):
        operation = rng.choice(OPERATIONS)
        raw = body(operation, rng)
        answer = client.open(
            filled(operation.path),
            method=operation.method,
            data=raw,
            content_type="application/json",
        )
        assert answer.status_code < 500, f"{operation.name} {raw[:2000]!r}: {answer.text}"
        documented = {*operation.returns, *operation.errors}
        assert answer.status_code in documented, f"{operation.name} {raw[:2000]!r}: {answer.text}"
    assert client.get("/healthz").status_code == 200
    jobs.stop(10)
    data.close()


def no_encoder(name: str) -> Any:
    """No other model is loaded: its name is told as one that is not there."""
    from attend.core.errors import EncoderError

    raise EncoderError(f"There is no encoder {name!r}.")


def with_nulls(document: dict[str, Any]) -> dict[str, Any]:
    """The document with null for each field that a request may leave out.

    The server takes that, too; the document asks for the field to be left out, as a typed client
    does. Of alternatives all but one may be null.
    """
    queries = [
        parameter
        for methods in document["paths"].values()
        for operation in methods.values()
        for parameter in operation.get("parameters", ())
        if not parameter.get("required")
    ]
    for parameter in queries:
        place = next(iter(parameter.get("content", {"": parameter}).values()))
        place["schema"] = {"anyOf": [place["schema"], {"type": "null"}]}
    models = [Request]
    for model in models:
        models += model.__subclasses__()
        schema = document["components"]["schemas"].get(model.__name__, {})
        schema.pop("oneOf", None)
        for name in schema.get("properties", {}).keys() - {*schema.get("required", ())}:
            nullable = {"anyOf": [schema["properties"][name], {"type": "null"}]}
            schema["properties"][name] = nullable
    return document


def test_schemathesis_finds_no_fault(tmp_path: Path) -> None:
    """Every check of schemathesis, over the whole OpenAPI document and a real server.

    Its `coverage` phase takes minutes and runs where ATTEND_FUZZ_EXAMPLES is given.
    """
    described = tmp_path / "openapi.json"
    described.write_text(json.dumps(with_nulls(openapi.document(OPERATIONS))))
    full = "ATTEND_FUZZ_EXAMPLES" in os.environ
    phases = "examples,coverage,fuzzing,stateful" if full else "examples,fuzzing"
    with running(tmp_path) as server:
        wait_until_ready(server)
        assert server.request("PUT", "/v1/collections/books", {"dimension": 3})[0] == 201
        command = [
            *(sys.executable, "-m", "schemathesis.cli"),
            *("--config-file", str(Path(__file__).with_name("schemathesis.toml"))),
            *("run", str(described), "--url", f"http://{server.host}:{server.port}"),
            *("--phases", phases, "--max-examples", str(EXAMPLES), "--seed", "1", "--no-color"),
            *("--request-timeout", "120", "--max-response-time", "120", "--warnings", "off"),
            *("--suppress-health-check", "all", "--continue-on-failure"),
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        assert server.stop() == 0
