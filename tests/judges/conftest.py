"""What the judges' tests may ask for; they run in an environment of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from attend import Data
from attend.encoder import SentenceEncoder


def pytest_configure(config: pytest.Config) -> None:
    """Run asynchronous tests of other projects, which have no marks."""
    config.option.asyncio_mode = "auto"


@pytest.fixture
def library(tmp_path: Path, tiny_encoder: SentenceEncoder) -> Iterator[Data]:
    """A local library whose encoder is the tiny one."""
    data = Data(tmp_path / "library", load_encoder=lambda name: tiny_encoder)
    yield data
    data.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_encoder_folder: Path) -> Iterator[str]:
    """The address of a server over a folder of its own, which may load the tiny encoder."""
    from tests.service.test_server import running, wait_until_ready

    folder = tmp_path_factory.mktemp("served")
    with running(folder, "--allow-encoder", str(tiny_encoder_folder), cold=True) as started:
        wait_until_ready(started)
        yield f"http://{started.host}:{started.port}"
