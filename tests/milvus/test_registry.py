"""Processes that change the registry of a library at the same moment lose nothing."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
import pytest

from attend import Collection, Data
from attend.core.errors import AttendError
from attend.projection import Projection
from attend_milvus.tables import Lease, Tables
from tests.milvus.server import MilvusServer

PROCESSES, ROUNDS, DIMENSION = 4, 3, 4
PROJECTION = Projection(
    kind="given", d_in=DIMENSION, gates=np.ones(1), w_q=np.eye(4)[None], w_k=np.eye(4)[None]
)

Work = Callable[[Data, int], object]
"""What each process does in each round, by its number."""


@pytest.fixture(scope="module")
def library(milvus_server: MilvusServer) -> Iterator[Data]:
    data = Data(f"{milvus_server.engine}/registry?consistency=strong")
    data.create("shared", dimension=DIMENSION)
    yield data
    for alias in data.aliases():
        data.drop_alias(alias)
    for name in data.names():
        data.drop(name)
    data.close()


def tables(collection: Collection) -> Tables:
    return collection.store._tables  # type: ignore[attr-defined,no-any-return]


def run(engine: str, work: Work, number: int, meet: Barrier, answers: Any) -> None:
    data = Data(engine)
    for turn in range(ROUNDS):
        meet.wait()
        try:
            answers.put((turn, number, work(data, turn)))
        except AttendError as error:
            answers.put((turn, number, type(error).__name__))
    data.close()


def at_once(server: MilvusServer, work: Work) -> list[list[Any]]:
    """What several processes got, by round."""
    context = multiprocessing.get_context("spawn")
    meet, answers = context.Barrier(PROCESSES), context.Queue()
    engine = f"{server.engine}/registry?consistency=strong"
    started = [
        context.Process(target=run, args=(engine, work, number, meet, answers))
        for number in range(PROCESSES)
    ]
    for process in started:
        process.start()
    told = sorted(answers.get(timeout=120) for _ in range(PROCESSES * ROUNDS))
    for process in started:
        process.join()
    return [[got for turn, _, got in told if turn == wanted] for wanted in range(ROUNDS)]


def change(data: Data, turn: int) -> int:
    """A graph, a layout and a version, each of this process and round alone."""
    store: Any = data.collection("shared").store
    name = f"{os.getpid()}_{turn}"
    store._tables.change(lambda known: replace(known, graphs={**known.graphs, name: {}}))
    store._tables.change(lambda known: replace(known, layouts={**known.layouts, name: (1, True)}))
    made = store.add_projection("given", PROJECTION.to_bytes(), PROJECTION.fingerprint, {})
    store._tables.registry.put_report(store._tables.uuid, made, {"of": name})
    return int(made)


def test_changes_at_the_same_moment_are_all_there(
    milvus_server: MilvusServer, library: Data
) -> None:
    made = sorted(number for turn in at_once(milvus_server, change) for number in turn)
    count = PROCESSES * ROUNDS
    assert made == list(range(2, count + 2))
    shared = tables(library.collection("shared"))
    known = shared.known(fresh=True)
    assert len(known.graphs) == len(known.layouts) == count
    assert set(known.graphs) == set(known.layouts)
    reports = [item["report"] for item in shared.registry.versions(shared.uuid).values()]
    assert {report["of"] for report in reports if report} == set(known.graphs)
    shared.change(lambda known: replace(known, graphs={}, layouts={}))


def activate(data: Data, turn: int) -> int:
    shared = data.collection("shared")
    version = shared.add_projection(PROJECTION)
    shared.activate(version, expected=tables(shared).known(fresh=True).active[turn])
    return version


def test_of_those_who_expect_the_same_version_one_activates(
    milvus_server: MilvusServer, library: Data
) -> None:
    shared = tables(library.collection("shared"))
    before = shared.known(fresh=True).active
    for turn in at_once(milvus_server, activate):
        assert sorted(map(str, turn))[1:] == ["Conflict"] * (PROCESSES - 1)
    assert len(shared.known(fresh=True).active) == len(before) + ROUNDS


def make(data: Data, turn: int) -> str:
    id = f"d{os.getpid()}"
    data.create(f"made{turn}", dimension=DIMENSION).upsert([{"id": id, "vector": [1, 0, 0, 0]}])
    return id


def test_a_collection_made_by_several_has_the_documents_of_all(
    milvus_server: MilvusServer, library: Data
) -> None:
    for turn, ids in enumerate(at_once(milvus_server, make)):
        assert sorted(library.collection(f"made{turn}").ids()) == sorted(ids)
    listed = tables(library.collection("shared")).client.call(
        lambda client: client.list_collections()
    )
    known = [tables(library.collection(name)).uuid for name in library.names()]
    of_keys = [name for name in listed if name.startswith("registry_") and "keys_raw" in name]
    assert len(of_keys) == len(known)  # whoever came second left no table


def name(data: Data, turn: int) -> str:
    if os.getpid() % 2:
        data.create(f"named{turn}", dimension=DIMENSION)
        return "collection"
    data.set_alias(f"named{turn}", "shared")
    return "alias"


def test_a_name_is_of_a_collection_or_of_an_alias(
    milvus_server: MilvusServer, library: Data
) -> None:
    at_once(milvus_server, name)
    assert not set(library.names()) & set(library.aliases())


def test_a_claim_of_a_process_that_is_gone_expires(
    library: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = tables(library.collection("shared")).registry
    gone, next_one = Lease(registry, "work"), Lease(registry, "work")
    monkeypatch.setattr("attend_milvus.tables.LEASE_SECONDS", -1e3)
    assert gone.take()  # and is never given back
    monkeypatch.undo()
    with next_one:
        assert next_one.take()
        assert not Lease(registry, "work").take()
        next_one._renewed -= 1e3
        next_one.keep()
        assert not Lease(registry, "work").take()
    assert Lease(registry, "work").take()
