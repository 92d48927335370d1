"""One Milvus server for all tests of a session, started by the first that asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.milvus.server import MilvusServer, Unavailable, running

REQUIRED = "ATTEND_REQUIRE_MILVUS"
"""Where this is set, a machine without Milvus fails these tests; elsewhere it skips them."""


@pytest.fixture(scope="session")
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
