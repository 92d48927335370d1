"""One Milvus server for all tests of this folder, started by the first that asks for it; and both
engines behind one fixture, for what must be the same of each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from attend.collection.collection import Collection
from attend.collection.data import Data
from attend.connect.client import RemoteLibrary
from attend.encoder import SentenceEncoder
from tests.milvus.contract import WIDTH
from tests.milvus.server import MilvusServer, Unavailable, running
from tests.served import served

REQUIRED = "ATTEND_REQUIRE_MILVUS"
"""Where this is set, a machine without Milvus fails these tests; elsewhere it skips them."""


@pytest.fixture(scope="package")
def milvus_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusServer]:
    """A real standalone server, which every test leaves running."""
    try:
        pytest.importorskip("pymilvus", reason="pymilvus is not installed: requirements-milvus.txt")
        with running(tmp_path_factory.mktemp("milvus")) as server:
            yield server
    except Unavailable as error:
        if os.environ.get(REQUIRED):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="package", params=["local", "remote", "milvus"])
def library(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_encoder: SentenceEncoder,
) -> Iterator[Data | RemoteLibrary]:
    """A library of either engine, or on a server; its encoder is the tiny one."""
    if request.param == "milvus":
        where = f"{request.getfixturevalue('milvus_server').engine}/contract"
    else:
        where = str(tmp_path_factory.mktemp("contract"))
    if request.param == "remote":
        with served(Path(where), tiny_encoder) as library:
            yield library
        return
    data = Data(where, load_encoder=lambda name: tiny_encoder)
    yield data
    data.close()


@pytest.fixture(scope="package")
def vectors(library: Data) -> Collection:
    """A collection of vectors; a table of a server takes seconds to make, so that tests share it
    and name their documents apart or leave none behind."""
    return library.create("vectors", dimension=WIDTH)


@pytest.fixture(scope="package")
def texts(library: Data) -> Collection:
    """A collection of texts; shared likewise."""
    return library.create("texts", encoder="tiny")


@pytest.fixture
def empty(vectors: Collection) -> Iterator[Collection]:
    """The collection of vectors without documents."""
    vectors.delete(sorted(vectors.ids()))
    yield vectors
    vectors.delete(sorted(vectors.ids()))
