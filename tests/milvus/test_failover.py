"""`kill -9` of the server under load: nothing acknowledged is lost, and no answer is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from pymilvus import MilvusClient
from pymilvus.client.types import LoadState
from pymilvus.exceptions import MilvusException

from attend import Data
from attend.core.errors import Unavailable
from tests.milvus.load import PATH, WIDTH, Load, check_all, prepare
from tests.milvus.server import MilvusServer, wait_until
from tests.soak.client import Client, Server

RECOVERY_SECONDS = 180.0
"""Not how long it takes, but when to give up on a busy machine."""

FIRST = [1.0] + [0.0] * (WIDTH - 1)
ASKED = {"query": FIRST, "filter": {"kind": "ryw"}, "k": 100}


def replica(server: MilvusServer, folder: Path) -> Server:
    folder.mkdir()
    engine = f"{server.engine}/failover"
    return Server(folder, folder / "log", "service", "--engine", engine, "--log-level", "warning")


@pytest.fixture(scope="module")
def replicas(
    milvus_server: MilvusServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Server]]:
    """Two service processes on one Milvus server, with the collection of the load."""
    folder = tmp_path_factory.mktemp("replicas")
    with ExitStack() as stack:
        started = []
        for name in ("one", "two"):
            started.append(replica(milvus_server, folder / name))
            stack.callback(started[-1].kill)
        prepare(started[0].address)
        yield started


def test_a_replica_reads_what_the_other_wrote(replicas: list[Server]) -> None:
    with ExitStack() as stack:
        one, two = (stack.enter_context(closing(Client(each.address))) for each in replicas)
        for at in range(8):
            writer, reader = (one, two) if at % 2 else (two, one)
            written = {"id": f"ryw{at}", "vector": FIRST, "payload": {"kind": "ryw"}}
            writer.ask("POST", f"{PATH}/documents", [written])
            found = reader.ask("POST", f"{PATH}/search", {**ASKED, "consistency": "strong"})
            assert {hit["id"] for hit in found["hits"]} == {f"ryw{each}" for each in range(at + 1)}
        # The same process needs not ask: it reads its own writes, and deletions, in any case.
        one.ask("POST", f"{PATH}/documents/delete", {"filter": {"kind": "ryw"}})
        assert one.ask("POST", f"{PATH}/search", ASKED)["hits"] == []
        strong = two.ask("POST", f"{PATH}/search", {**ASKED, "consistency": "strong"})
        assert strong["hits"] == []


def test_a_killed_server_loses_nothing_and_answers_nothing_wrong(
    milvus_server: MilvusServer, replicas: list[Server]
) -> None:
    load = Load([each.address for each in replicas])
    with load:
        assert wait_until(lambda: load.told.writes > 5 and len(load.told.seconds) > 10, 60)
        milvus_server.kill()
        time.sleep(1)  # asked meanwhile, they wait
        milvus_server.start()
        milvus_server.wait_until_ready(RECOVERY_SECONDS)
        writes, searches = load.told.writes, len(load.told.seconds) + len(load.told.refused)
        again = wait_until(
            lambda: load.told.writes > writes + 5 and len(load.told.seconds) > searches + 10,
            RECOVERY_SECONDS,
        )
    assert again, f"no answers again; {load.told.refused[-3:]}, {milvus_server.last_lines()}"
    assert load.told.wrong == []
    assert all(": 503 " in each for each in load.told.refused), load.told.refused
    for each in replicas:
        check_all(each.address, load.told)


def test_after_a_failure_nothing_answers_before_all_is_loaded(
    milvus_server: MilvusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for a server that would answer from what it has loaded by then."""
    data = Data(f"{milvus_server.engine}/loading?patience=3")
    collection = data.create("loading", dimension=WIDTH)
    collection.upsert([{"id": "d", "vector": FIRST}])
    assert collection.search(FIRST).hits[0].id == "d"
    events: list[str] = []
    states = [LoadState.Loading, LoadState.NotLoad, LoadState.Loaded]

    def state(client: MilvusClient, name: str, **options: Any) -> dict[str, LoadState]:
        events.append(str(states[0]))
        return {"state": states.pop(0) if len(states) > 1 else states[0]}

    def search(client: MilvusClient, *args: Any, **options: Any) -> Any:
        events.append("search")
        if len(events) == 2:
            raise MilvusException(message="a node is gone")
        return real(client, *args, **options)

    real = MilvusClient.search
    monkeypatch.setattr(MilvusClient, "get_load_state", state)
    monkeypatch.setattr(MilvusClient, "search", search)
    assert collection.search(FIRST).hits[0].id == "d"
    assert events == ["search"]  # nothing failed: nothing more is asked
    assert collection.search(FIRST).hits[0].id == "d"
    assert events[1:6] == ["search", "Loading", "NotLoad", "Loaded", "search"]
    states[0], events[1:] = LoadState.Loading, []
    with pytest.raises(Unavailable, match="is being loaded"):
        collection.search(FIRST)
    # Where another call failed since, which it may on a busy machine, the state is asked for first.
    loading = str(LoadState.Loading)
    assert set(events[events.index(loading) :]) == {loading}
    assert events.count("search") <= 2
    monkeypatch.undo()
    data.drop("loading")
    data.close()
