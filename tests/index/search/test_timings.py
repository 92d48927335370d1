"""Seconds by stage: each without the others, from whatever thread, told once a search."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from attend import Data
from attend.core.coalesce import STAGES, collecting, listen, record, timed


def test_a_stage_within_another_is_not_counted_twice() -> None:
    with collecting() as spent, timed("attend"):
        with timed("search"):
            time.sleep(0.03)
        time.sleep(0.01)
    assert spent["search"] >= 0.03
    assert 0.01 <= spent["attend"] < spent["search"]


def test_a_collection_is_one_threads_and_the_innermost_takes_it() -> None:
    with collecting() as outer:
        other = threading.Thread(target=record, args=[{"encode": 1.0}])
        other.start()
        other.join()
        with collecting() as inner:
            record({"encode": 2.0})
        record({"encode": 3.0})
        record({"encode": 4.0})
    assert (outer, inner) == ({"encode": 7.0}, {"encode": 2.0})


def test_a_failing_stage_is_counted_too() -> None:
    with collecting() as spent, pytest.raises(ValueError, match="no"), timed("fetch"):
        raise ValueError("no")
    assert spent["fetch"] >= 0


def test_a_search_tells_its_stages_once_and_explains_them(
    tmp_path: Path, tiny_encoder_folder: Path
) -> None:
    data = Data(tmp_path)
    collection = data.create("books", encoder=str(tiny_encoder_folder))
    collection.upsert([{"id": "1", "text": "A whale, hunted."}])
    told: list[Mapping[str, float]] = []
    stop = listen(lambda spent: told.append(dict(spent)))
    try:
        answer = collection.search("whale", explain=True)
        assert collection.search("whale").timings is None
    finally:
        stop()
    collection.search("whale")
    data.close()
    assert len(told) == 2
    assert set(told[0]) <= set(STAGES)
    assert {"queue", "encode", "search", "attend", "fetch"} <= set(told[0])
    assert answer.timings == {stage: round(took * 1000, 3) for stage, took in told[0].items()}
    assert sum(answer.timings.values()) <= answer.took_ms * 1.5 + 1
