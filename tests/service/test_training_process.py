"""Trainings in a process of their own: what it tells, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from attend import Collection, Data
from attend.core.errors import InvalidRequest
from attend.learning import Cancelled, train
from attend.write.feedback import add_feedback
from attend_service import jobs as training
from attend_service.jobs import TrainingFailed, train_in_process
from tests import warm
from tests.service.conftest import LIMIT


def ignore(_stage: str, _fraction: float) -> None:
    return


def never() -> bool:
    return False


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    """Documents that are found by a query turned a little, as each other one is."""
    rng = np.random.default_rng(5)
    keys = rng.normal(size=(60, 8))
    data = Data(tmp_path)
    made = data.create("turned", dimension=8, normalize=True)
    made.upsert([{"id": str(at), "vector": key.tolist()} for at, key in enumerate(keys)])
    turn, _ = np.linalg.qr(rng.normal(size=(8, 8)))
    add_feedback(made, [{"query": (keys[at] @ turn).tolist(), "id": str(at)} for at in range(50)])
    yield made
    data.close()


def children(pid: int) -> list[int]:
    listed = subprocess.run(
        ["pgrep", "-f", "-P", str(pid), "multiprocessing.spawn"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return [int(line) for line in listed.stdout.split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_its_report_and_its_version_are_here(collection: Collection) -> None:
    stages: list[tuple[str, float]] = []
    report = train_in_process(
        collection,
        progress=lambda stage, fraction: stages.append((stage, fraction)),
        cancelled=never,
        seed=1,
    )
    assert {"promoted", "reason", "before", "after", "seconds"} <= report.keys()
    active = collection.views.current().version.number
    assert (active != 1) == report["promoted"]
    assert stages == sorted(stages, key=lambda each: each[1])
    assert len(stages) > 3


def test_what_it_refuses_is_told_as_here(tmp_path: Path) -> None:
    data = Data(tmp_path)
    empty = data.create("empty", dimension=2)
    with pytest.raises(InvalidRequest) as here:
        train(empty)
    with pytest.raises(InvalidRequest) as there:
        train_in_process(empty, progress=ignore, cancelled=never)
    assert str(there.value) == str(here.value)
    with pytest.raises(InvalidRequest, match="share_seen") as field:
        train_in_process(empty, progress=ignore, cancelled=never, share_seen=7)
    assert field.value.details[0]["field"] == "share_seen"
    data.close()


def test_one_that_is_cancelled_changes_nothing(collection: Collection) -> None:
    begun = threading.Event()
    before = collection.projections()
    with pytest.raises(Cancelled):
        train_in_process(collection, progress=lambda *_: begun.set(), cancelled=begun.is_set)
    assert collection.projections() == before


def test_a_training_that_ignores_its_cancellation_is_killed(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "CANCEL_SECONDS", 0.0)
    others = children(os.getpid())
    # Nothing is noticed while the libraries are loaded.
    with pytest.raises(Cancelled):
        train_in_process(collection, progress=ignore, cancelled=lambda: True)
    assert not [each for each in children(os.getpid()) if each not in others and is_running(each)]


def test_a_training_that_stands_still_is_killed_after_its_time_and_no_later(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "CANCEL_SECONDS", 4.0)
    others, stopped = children(os.getpid()), threading.Event()

    def stop(_stage: str, _fraction: float) -> None:
        for each in set(children(os.getpid())).difference(others):
            if b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes():
                os.kill(each, signal.SIGSTOP)
        begun.append(time.monotonic())
        stopped.set()

    begun: list[float] = []
    with pytest.raises(Cancelled):
        train_in_process(collection, progress=stop, cancelled=stopped.is_set)
    assert 4 <= time.monotonic() - begun[-1] < 7.5, "it is waited for twice"


def test_one_that_the_system_ends_is_a_failure(collection: Collection) -> None:
    others = children(os.getpid())

    def kill(_stage: str, _fraction: float) -> None:
        for each in set(children(os.getpid())).difference(others):
            os.kill(each, signal.SIGKILL)

    with pytest.raises(TrainingFailed, match="ended with status -9"):
        train_in_process(collection, progress=kill, cancelled=never)


WITHOUT_END = """
import sys, time
from attend import Data
from attend_service.jobs import train_in_process

collection = Data(sys.argv[1]).collection("turned")
begin = lambda *_: print("begun", flush=True)
train_in_process(collection, progress=begin, cancelled=lambda: False)
"""


def test_it_ends_with_a_server_that_is_killed(collection: Collection) -> None:
    folder = str(collection.folder.parent.parent)
    server = warm.start("-c", WITHOUT_END, folder)
    try:
        until(lambda: bool(children(server.pid)))
        (child,) = children(server.pid)
    finally:
        server.kill()
        server.communicate()
    until(lambda: not is_running(child))
