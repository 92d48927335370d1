"""The soak for a moment: load, a merge, a training, and three `kill -9`; see `tests.soak`."""

from __future__ import annotations

from pathlib import Path

from tests.soak.soak import run

SECONDS = 8.0
KILLS = 3
KEYS = 2000
STEPS = 101


def test_a_server_under_load_and_killed_three_times(tmp_path: Path) -> None:
    report = run(
        tmp_path,
        minutes=SECONDS / 60,
        kills=KILLS,
        keys=KEYS,
        readers=2,
        steps=STEPS,
        longest=1.0,
        seed=3,
    )
    assert report.searches > 100, report.told()
    assert report.writes > 50, report.told()
    assert report.merges >= 1, report.told()
    assert report.kills == KILLS
    assert [each.split(":")[0] for each in report.trainings] == ["vectors", "texts"]
