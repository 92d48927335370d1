"""How many cores a call of the model takes: all idle ones for a lone text, one in a crowd."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from attend.core.types import Float32
from attend.encoder import SentenceEncoder, load, passages
from attend.encoder.loading import Part
from attend.encoder.passages import LIMIT, MOST, IdleCores, core_limit

MINE = len(os.sched_getaffinity(0))

SECONDS = 30.0
"""That programs may take to start on a busy machine."""


@pytest.mark.parametrize(
    ("running", "expected"), [(1, MINE - 1), (0, 0), (2, max(0, MINE - 2)), (500, 0)]
)
def test_idle_are_those_that_nothing_runs_on(
    running: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "loadavg"
    told.write_text(f"0.20 0.18 0.12 {running}/80 11206\n")
    monkeypatch.setattr(passages, "LOAD", str(told))
    assert IdleCores().count() == expected


def test_where_the_system_does_not_tell_none_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passages, "LOAD", str(tmp_path / "absent"))
    assert IdleCores().count() == 0


def test_a_busy_machine_has_fewer_idle_cores() -> None:
    """By the system's own file: as many programs that never rest as there are cores."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(MINE)]
    deadline = time.monotonic() + SECONDS
    try:
        while IdleCores().count() > 0:
            assert time.monotonic() < deadline
    finally:
        for each in busy:
            each.kill()
            each.wait()


@pytest.mark.parametrize(
    ("named", "expected"), [("", 3), ("1", 1), ("2", 2), ("64", MOST), ("0", 3), ("many", 3)]
)
def test_the_environment_may_name_a_limit(
    named: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIMIT, named)
    assert core_limit(3) == expected


class Watched:
    """An encoder on a machine of so many cores; tells on how many each call was."""

    def __init__(self, folder: Path, idle: int) -> None:
        self.calls: list[tuple[int, int]] = []
        self.encoder = load(str(folder))
        self._run = self.encoder.run
        self.encoder.run = self._noted  # type: ignore[method-assign]
        self.encoder._most_cores = 3
        self.encoder._idle.count = lambda: idle  # type: ignore[method-assign]

    def _noted(self, texts: list[str], task: str) -> Float32:
        self.calls.append((len(texts), torch.get_num_threads()))
        return self._run(texts, task)


@pytest.mark.parametrize(("idle", "expected"), [(0, 1), (1, 2), (2, 3), (7, 3)])
def test_a_lone_text_has_the_idle_cores(
    idle: int, expected: int, tiny_encoder_folder: Path
) -> None:
    watched = Watched(tiny_encoder_folder, idle)
    watched.encoder.encode_queries(["ice"])
    watched.encoder.encode_documents(["ferry"])
    assert watched.calls == [(1, expected), (1, expected)]


def test_parts_of_one_caller_have_a_core_each(tiny_encoder_folder: Path) -> None:
    watched = Watched(tiny_encoder_folder, idle=2)
    texts = [f"{at} " * 400 for at in range(40)]
    watched.encoder.encode_documents(texts)
    assert len(watched.calls) > 1
    assert {threads for _, threads in watched.calls} == {1}


def test_callers_that_share_a_call_have_one_core(tiny_encoder_folder: Path) -> None:
    watched = Watched(tiny_encoder_folder, idle=2)
    watched.encoder._run_together([Part([text], "query", is_all=True) for text in ("ice", "bell")])
    assert watched.calls == [(2, 1)]


def test_several_cores_give_the_same_embedding() -> None:
    encoder: SentenceEncoder = load()
    text = ["A harbour under ice, and a ferry that waits for the spring."]
    rows = []
    for idle in (0, 1, 3):
        encoder._most_cores = MOST
        encoder._idle.count = lambda idle=idle: idle  # type: ignore[method-assign,misc]
        rows.append(encoder.encode_queries(text))
    np.testing.assert_allclose(rows[1:], [rows[0]] * 2, atol=1e-3)
