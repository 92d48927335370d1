"""A fresh application over a fresh data folder for every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from index import Data
from service.app import create_app
from service.settings import ServiceSettings

BOOKS: list[dict[str, Any]] = [
    {"id": "whale", "vector": [1, 0, 0], "value": 4.0, "payload": {"year": 1851}},
    {"id": "emma", "vector": [0, 1, 0], "value": 3.0, "payload": {"year": 1815}},
    {"id": "https://x.example//a/b", "vector": [0, 0, 1], "value": None, "payload": {}},
]
MAX_BODY = 100_000


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Data]:
    data = Data(tmp_path)
    yield data
    data.close()


@pytest.fixture
def app(data: Data) -> Flask:
    return create_app(data, ServiceSettings(max_body=MAX_BODY))


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
