"""Several serving processes on one port: real processes, one of which is killed."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from attend import Data
from tests.places import ROOT
from tests.service.test_server import LIMIT, Server, running, wait_until_ready
from tests.workers import kill_all, workers_of

COUNT = 2
SEARCH = "/v1/collections/books/search"


@contextmanager
def several(folder: Path) -> Iterator[Server]:
    with running(folder, "--processes", str(COUNT)) as server:
        try:
            wait_until_ready(server)
            until(lambda: metric(server, "attend_processes") == COUNT)
            until(lambda: listening(server) == COUNT)  # a worker is counted before it listens
            yield server
        finally:
            server.stop()


@pytest.fixture
def books(tmp_path: Path) -> Path:
    data = Data(tmp_path)
    documents = [{"id": "a", "vector": [1, 0, 0]}, {"id": "b", "vector": [0, 1, 0]}]
    data.create("books", dimension=3).upsert(documents)
    data.close()
    return tmp_path


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def pids(server: Server) -> list[int]:
    return workers_of(server.process)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def listening(server: Server) -> int:
    """Return the number of sockets that take the server's connections: one for each worker."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{server.port:04X}") and row[3] == "0A" for row in rows)


def metric(server: Server, name: str) -> float:
    _, text = server.get_text("/metrics")
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else math.nan  # until a worker has written its own


def test_they_answer_as_one_and_their_figures_are_added_up(books: Path) -> None:
    route = "/v1/collections/{collection}/search"
    answered = f'attend_requests_total{{method="POST",route="{route}",status="200"}}'
    with several(books) as server:
        for _ in range(40):  # each on a connection of its own
            status, answer = server.request("POST", SEARCH, {"query": [0, 1, 0]})
            assert (status, answer["hits"][0]["id"]) == (200, "b")
        assert metric(server, answered) == 40
        assert metric(server, "process_resident_memory_bytes") > 1e8
        # What one of them writes, whichever it is, all of them find.
        for at in range(20):
            document = {"id": str(at), "vector": [0, 0, 1 + at]}
            server.request("POST", "/v1/collections/books/documents", [document])
            answer = server.request("POST", SEARCH, {"query": [0, 0, 1]})[1]
            assert answer["hits"][0]["id"] == str(at)
        assert server.stop() == 0
    assert not pids(server)


@pytest.mark.parametrize(("given", "expected"), [
    ({}, str(len(os.sched_getaffinity(0)))),
    ({"OMP_NUM_THREADS": "1"}, "1"),
    ({"OMP_NUM_THREADS": "2", "OMP_THREAD_LIMIT": "3"}, "3"),
])  # fmt: skip
def test_a_lone_text_may_have_all_cores_unless_fewer_were_named(
    given: dict[str, str], expected: str, books: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with running(books, "--processes", str(COUNT)) as server:
        # Before, it is a copy of the one that starts it.
        until(lambda: any(b"spawn_main" in command_line(each) for each in pids(server)))
        started = next(each for each in pids(server) if b"spawn_main" in command_line(each))
        told = Path(f"/proc/{started}/environ").read_text().split("\0")
        kill_all(server.process)
    assert f"OMP_THREAD_LIMIT={expected}" in told
    assert f"OMP_NUM_THREADS={max(1, len(os.sched_getaffinity(0)) // COUNT)}" in told


def test_one_that_is_killed_is_replaced(books: Path) -> None:
    with several(books) as server:
        before = pids(server)
        os.kill(before[0], signal.SIGKILL)
        until(lambda: len(set(pids(server)) - {before[0]}) == COUNT)
        until(lambda: metric(server, "attend_processes") == COUNT)
        for _ in range(10):
            assert server.request("POST", SEARCH, {"query": [0, 1, 0]})[0] == 200


def test_a_signal_to_all_of_them_stops_each_once(books: Path) -> None:
    with several(books) as server:
        serving = pids(server)
        for each in [*serving, *serving, server.process.pid]:
            os.kill(each, signal.SIGTERM)
        assert server.process.wait(LIMIT) == 0
        assert not any(map(is_alive, serving))
        assert server.process.stderr is not None
        assert "Fatal Python error" not in server.process.stderr.read()


def test_they_end_where_their_supervisor_is_killed(books: Path) -> None:
    with several(books) as server:
        before = pids(server)
        server.process.kill()
        until(lambda: not any(map(is_alive, before)))


BROKEN = """
from pathlib import Path
import sys
from attend_service.server import run
from attend_service.settings import ServerSettings

def train():  # which no worker can import: this text is no module
    pass

run(Path(sys.argv[1]), ServerSettings(port=0, processes=2), print, train)
"""


def test_workers_that_cannot_live_are_given_up(books: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, str(books)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode != 0
    assert "end as soon as they are started" in done.stderr.splitlines()[-1]
