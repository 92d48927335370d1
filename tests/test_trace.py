"""A request passes through few functions: the path of a search can be read in one sitting."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest

from attend import Data
from attend.core.types import Float32
from attend.encoder.passages import Passage
from attend_service.app import create_app
from tests.places import PACKAGES

SEARCH = "/v1/collections/c/search"
DOCUMENTS = "/v1/collections/c/documents"
PLAIN = {"query": "text number 5"}
RICH = PLAIN | {"filter": {"g": 1}, "lexical": True, "mode": "soft", "explain": True}


class StandIn:
    """A deterministic encoder without a model, so that only the path around it is counted."""

    name, dimension, window, precision = "tiny", 16, 256, "float32"

    def encode_documents(self, texts: Sequence[str]) -> Float32:
        seeds = (int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) for text in texts)
        rows = np.array([np.random.default_rng(seed).normal(size=16) for seed in seeds])
        return (rows / np.sqrt(np.sum(rows**2, axis=1, keepdims=True))).astype(np.float32)

    encode_queries = encode_documents

    def count_tokens(self, texts: Sequence[str]) -> Any:
        return np.array([len(text) for text in texts])

    def passages(self, texts: Sequence[str], overlap: int | None = None) -> list[list[Passage]]:
        return [[Passage(0, len(text))] for text in texts]


class Route(NamedTuple):
    """The functions of the packages that a request calls."""

    calls: int
    functions: int
    files: int
    changes: int
    depth: int


class Tracer:
    """Counts calls of functions that lie in the packages."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, int]] = []
        self.depth = self.deepest = 0

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        file = frame.f_code.co_filename
        if not file.startswith(tuple(f"{top}/" for top in PACKAGES)):
            return
        if event == "call":
            name = frame.f_code.co_qualname
            if not name.rsplit(".", 1)[-1].startswith("<"):  # no lambdas and comprehensions
                self.events.append((file, name, self.depth))
            self.deepest = max(self.deepest, self.depth)
            self.depth += 1
        elif event == "return":
            self.depth -= 1

    def path(self) -> Route:
        folders = [Path(file).parent for file, _, _ in self.events]
        return Route(
            calls=len(self.events),
            functions=len({(file, name) for file, name, _ in self.events}),
            files=len({file for file, _, _ in self.events}),
            changes=sum(before != after for before, after in pairwise(folders)),
            depth=self.deepest,
        )


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    data = Data(tmp_path, load_encoder=lambda name: StandIn())
    data.create("c", encoder="tiny")
    client = create_app(data).test_client()
    documents = [
        {"id": str(n), "text": f"text number {n}", "value": float(n), "payload": {"g": n % 3}}
        for n in range(300)
    ]
    client.post(DOCUMENTS, json=documents)
    client.post(SEARCH, json=PLAIN)
    while data.collection("c").info().foreign is None:  # made in the background
        time.sleep(0.01)
    for body in (PLAIN, RICH):
        client.post(SEARCH, json=body)
    yield client
    data.close()


def traced(request: Callable[[], Any]) -> Route:
    """Return the shortest of three paths: now and then one does work that is not of a search."""
    return min(_traced(request) for _ in range(3))


def _traced(request: Callable[[], Any]) -> Route:
    tracer = Tracer()
    sys.setprofile(tracer)
    try:
        reply = request()
    finally:
        sys.setprofile(None)
    assert reply.status_code == 200, reply.get_data(as_text=True)
    return tracer.path()


def test_the_path_of_a_text_search_is_short(client: Any) -> None:
    path = traced(lambda: client.post(SEARCH, json=PLAIN))
    assert path.calls <= 295
    assert path.functions <= 180
    assert path.files <= 36
    assert path.changes <= 75
    assert path.depth <= 19


def test_filter_words_and_explanation_add_few_calls(client: Any) -> None:
    assert traced(lambda: client.post(SEARCH, json=RICH)).calls <= 413


def test_the_first_search_after_a_write_is_like_any_other(client: Any) -> None:
    warm = traced(lambda: client.post(SEARCH, json=PLAIN))
    document = {"id": "new", "text": "a new text", "value": 1.0, "payload": {"g": 1}}
    assert client.post(DOCUMENTS, json=[document]).status_code == 200
    first = _traced(lambda: client.post(SEARCH, json=PLAIN))
    assert first.calls <= 1.3 * warm.calls
