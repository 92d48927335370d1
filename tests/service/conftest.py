"""A fresh application over a fresh data folder for every test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, Response
from flask.testing import FlaskClient

from attend import Collection, Data
from attend_service import openapi
from attend_service.app import create_app
from attend_service.context import requested_operation
from attend_service.jobs import Jobs
from attend_service.replies import QDRANT, ProblemDetails, QdrantError
from attend_service.routes import all_operations
from attend_service.settings import ServerSettings

BOOKS: list[dict[str, Any]] = [
    {"id": "whale", "vector": [1, 0, 0], "value": 4.0, "payload": {"year": 1851}},
    {"id": "emma", "vector": [0, 1, 0], "value": 3.0, "payload": {"year": 1815}},
    {"id": "https://x.example//a/b", "vector": [0, 0, 1], "value": None, "payload": {}},
]
MAX_BODY = 100_000
LIMIT = 300.0
"""Seconds that anything here may take on a busy machine."""


class SlowTrainer:
    """A trainer that learns nothing, and takes its time: until it may finish, or is cancelled."""

    def __init__(self) -> None:
        self.may_finish = threading.Event()
        self.begun: list[str] = []
        self.fields: list[dict[str, Any]] = []
        self.error: Exception | None = None

    def __call__(
        self,
        collection: Collection,
        *,
        progress: Callable[[str, float], None],
        cancelled: Callable[[], bool],
        **fields: Any,
    ) -> Mapping[str, Any]:
        self.begun.append(collection.name)
        self.fields.append(fields)
        progress("fit", 0.25)
        while not self.may_finish.wait(0.01):
            if cancelled():
                raise InterruptedError("cancelled")
        if self.error is not None:
            raise self.error
        progress("gate", 0.9)
        return {"promoted": False, "reason": "Nothing was learned.", "before": float("nan")}


@pytest.fixture
def trainer() -> SlowTrainer:
    return SlowTrainer()


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Data]:
    data = Data(tmp_path)
    yield data
    data.close()


@pytest.fixture
def jobs(data: Data, trainer: SlowTrainer) -> Iterator[Jobs]:
    jobs = Jobs(data, trainer, limit=2)
    yield jobs
    jobs.stop(LIMIT)


@pytest.fixture
def app(data: Data, jobs: Jobs, request: pytest.FixtureRequest) -> Iterator[Flask]:
    """An application; each of its answers in JSON must be as its OpenAPI document says."""
    names = {"tiny_encoder_folder"} & set(request.fixturenames)  # it takes seconds to make
    folders = tuple(str(request.getfixturevalue(name)) for name in names)
    app = create_app(data, ServerSettings(allow_encoder=folders), jobs=jobs)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY
    undocumented: list[str] = []

    def check(response: Response) -> Response:
        operation = requested_operation()
        if operation is not None and response.is_json and response.is_sequence:
            refusal = QdrantError if operation.path.startswith(QDRANT) else ProblemDetails
            other = refusal if response.status_code >= 400 else None
            validator = validator_of(operation.returns.get(response.status_code, other))
            errors = validator.iter_errors(response.get_json())
            undocumented.extend(f"{operation.name}: {error}" for error in errors)
        return response

    app.after_request(check)
    yield app
    assert not undocumented


@cache
def validator_of(model: Any) -> Any:
    """A validator of an answer, by the schema that is published of it; None takes any object."""
    jsonschema = pytest.importorskip("jsonschema_rs")
    schemas = openapi.document(all_operations())["components"]
    schema = {"type": "object"} if model is None else openapi.reference(model)
    return jsonschema.Draft202012Validator({**schema, "components": schemas})


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    """A client of a service without collections."""
    return app.test_client()


@pytest.fixture
def books(client: FlaskClient) -> FlaskClient:
    """A client of a service with a collection `books` of three vectors."""
    assert client.put("/v1/collections/books", json={"dimension": 3}).status_code == 201
    assert client.post("/v1/collections/books/documents", json=BOOKS).status_code == 200
    return client
