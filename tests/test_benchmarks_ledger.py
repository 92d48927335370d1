"""The ledger of the benchmarks: each reading of a test split stays, and tables show the last."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import common
import learning
import learning_sets
import ledger
from common import Row


def test_the_table_has_the_last_reading_and_counts_all(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger.append(Row("a.one", "  one", 0.5, 0.4, 0.6), "full", path)
    ledger.append(Row("a.two", "two", 3.0), "full", path)
    ledger.append(Row("a.one", "one", 0.25, 0.2, 0.3, note="again"), "full", path)
    ledger.append(Row("a.one", "one", 0.1), "quick", path)
    table = {cells[0]: cells for cells in ledger.table(path)}
    assert table["a.one"][1:4] == ["one", "0.2500", "0.2000 to 0.3000"]
    assert table["a.one"][-1] == "3"
    assert table["a.two"][1:4] == ["two", "3", ""]
    assert [cells[0] for cells in ledger.table(path, "a.t")] == ["a.two"]
    assert [reading.value for reading in ledger.readings(path)] == [0.5, 3.0, 0.25, 0.1]


def test_a_half_written_line_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger.append(Row("a", "a", 1.0), "full", path)
    with path.open("a") as file:
        file.write('{"row": "b", "va\n')
    ledger.append(Row("c", "c", 2.0), "full", path)
    assert [reading.row for reading in ledger.readings(path)] == ["a", "c"]


def test_only_a_commit_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "revision", lambda: "abc1234")
    ledger.require_commit()
    monkeypatch.setattr(ledger, "revision", lambda: "abc1234+")
    with pytest.raises(SystemExit, match="differ from the commit abc1234, "):
        ledger.require_commit()


def test_a_reading_names_the_commit_that_was_measured() -> None:
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ledger.ROOT, capture_output=True, text=True
    )
    if head.returncode:
        pytest.skip("the tests run outside of a checkout")
    assert ledger.revision().rstrip("+") == head.stdout.strip()


@pytest.mark.parametrize("rehearse", [False, True])
def test_only_readings_of_the_test_split_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rehearse: bool
) -> None:
    path = tmp_path / "ledger.jsonl"
    monkeypatch.setattr(ledger.append, "__defaults__", (path,))

    def section(bench: learning_sets.Bench) -> Iterator[Row]:
        yield Row("a.one", "one", 0.5)

    monkeypatch.setattr(learning, "SECTIONS", {"a": section})
    options = learning_sets.Options(True, rehearse, True, 1.0, range(1), 10, tmp_path)
    results = common.Results(None, options.setting())
    bench = learning_sets.Bench(options, learning_sets.Workshop(tmp_path), results)
    learning.measured(bench, "a", quiet=True)
    recorded = [(reading.row, reading.setting) for reading in ledger.readings(path)]
    assert recorded == ([] if rehearse else [("a.one", "quick")])
