"""The server that the tests start is a real one: it stores and finds; nobody else meets it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.milvus import cluster
from tests.milvus.server import Alone, MilvusServer, Unavailable, wait_until

DIMENSION = 8


@pytest.fixture
def alone() -> Iterator[Alone]:
    try:
        made = Alone(inside=1)
    except Unavailable as error:
        pytest.skip(str(error))
    yield made
    made.close()


def test_a_bare_client_finds_what_it_stored(milvus_server: MilvusServer) -> None:
    from pymilvus import MilvusClient

    vectors = np.random.default_rng(1).standard_normal((50, DIMENSION)).astype(np.float32)
    client = MilvusClient(milvus_server.address)
    client.create_collection("smoke", dimension=DIMENSION, metric_type="IP")
    rows = [{"id": at, "vector": each} for at, each in enumerate(vectors)]
    assert client.insert("smoke", rows)["insert_count"] == 50

    found = client.search("smoke", list(vectors[:3]), limit=10, consistency_level="Strong")
    wanted = np.argsort(-(vectors[:3] @ vectors.T), axis=1)[:, :10]
    assert [[hit["id"] for hit in each] for each in found] == wanted.tolist()
    client.drop_collection("smoke")
    client.close()


def test_a_port_where_nobody_listens_inside_is_closed_outside(alone: Alone) -> None:
    with socket.create_connection(("127.0.0.1", alone.port), timeout=10) as client:
        assert not heard(client)


def test_what_runs_there_meets_nobody_outside(alone: Alone, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with socket.create_server(("127.0.0.1", 0)) as outside:
        dial = f"import socket; socket.create_connection({outside.getsockname()})"
        alone.run([sys.executable, "-c", dial], log)
        assert wait_until(lambda: log.exists() and "Error" in log.read_text(), 30)
    assert "ConnectionRefusedError" in log.read_text()


def test_what_runs_there_ends_with_it(alone: Alone, tmp_path: Path) -> None:
    pid = alone.run(["sh", "-c", "setsid sleep 1000 & echo $!; sleep 1000"], tmp_path / "log")
    assert wait_until(lambda: (tmp_path / "log").read_text(), 30)
    apart = int((tmp_path / "log").read_text())
    assert Path(f"/proc/{pid}").exists()
    alone.close()
    assert not Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{apart}").exists()


def heard(client: socket.socket) -> bytes:
    try:
        return client.recv(1)
    except ConnectionError:
        return b""


def test_a_cluster_that_cannot_be_had_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "RUNNER", tmp_path / "cluster.py")
    with pytest.raises(Unavailable, match=r"runner is not at .*; name it in ATTEND_MILVUS_CLUSTER"):
        cluster.Cluster(tmp_path)
    (tmp_path / "cluster.py").touch()
    monkeypatch.setattr(cluster, "PYTHON", tmp_path / "python")
    with pytest.raises(Unavailable, match=r"Python is not at .*; run 'make test-cluster'"):
        cluster.Cluster(tmp_path)
