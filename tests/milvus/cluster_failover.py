"""`kill -9` of a query node and of a service replica, on a cluster (`make test-cluster`).

Two shards, two replicas of each table in memory, two service processes; not part of `make test`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.milvus.cluster import Cluster, running
from tests.milvus.load import Load, Told, check_all, prepare
from tests.milvus.server import wait_until
from tests.soak.client import Server

STALL_SECONDS = 15.0
"""The one figure here that is about time: it is what is promised."""

SETTLED_SECONDS = 20.0
"""Of load before and after the kill."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="module")
def replicas(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    folder = tmp_path_factory.mktemp("replicas")
    engine = f"{cluster.engine}/cluster?replicas=2"
    with ExitStack() as stack:
        started = []
        for name in ("one", "two"):
            home = folder / name
            home.mkdir()
            more = ("--engine", engine, "--log-level", "warning")
            started.append(Server(home, folder / f"{name}.log", "service", *more))
            stack.callback(started[-1].kill)
        prepare(started[0].address)
        yield started


def figures(name: str, told: Told) -> None:
    """Measured, for whoever reads the output (-s)."""
    made = {
        "searches": len(told.seconds),
        "writes": told.writes,
        "wrong": len(told.wrong),
        "errors": len(told.refused),
        "lost_connections": told.lost_connections,
        "longest_seconds": round(max(told.seconds), 2),
        "stalls_over_a_second": sum(each > 1 for each in told.seconds),
    }
    print(f"{name}: {json.dumps(made)}")


def test_a_lost_query_node_is_one_stall(cluster: Cluster, replicas: list[Server]) -> None:
    with Load([each.address for each in replicas]) as load:
        assert wait_until(lambda: load.told.writes > 5 and len(load.told.seconds) > 20, 120)
        time.sleep(SETTLED_SECONDS)
        cluster.kill("querynode2")
        time.sleep(2 * SETTLED_SECONDS)
    figures("a query node was killed", load.told)
    assert load.told.wrong == []
    assert load.told.refused == []
    assert max(load.told.seconds) < STALL_SECONDS
    check_all(replicas[0].address, load.told)


def test_a_lost_service_replica_loses_nothing(replicas: list[Server]) -> None:
    with Load([each.address for each in replicas]) as load:
        assert wait_until(lambda: load.told.writes > 5 and len(load.told.seconds) > 20, 120)
        replicas[1].kill()
        time.sleep(SETTLED_SECONDS)
    figures("a service replica was killed", load.told)
    assert load.told.lost_connections > 0
    assert load.told.wrong == []
    assert load.told.refused == []
    check_all(replicas[0].address, load.told)
