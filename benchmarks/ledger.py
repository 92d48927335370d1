"""The ledger: every reading of a test split, and the table of the last readings.

The benchmarks append to it themselves, so a figure that was read often, or that changed, shows
here. Rows that another product wins stay in.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from common import ROOT, Row, number

LEDGER = ROOT / "benchmarks" / "ledger.jsonl"

EPILOG = """examples:
  python benchmarks/ledger.py
  python benchmarks/ledger.py --row scifact.trained --every
  python benchmarks/ledger.py --row goodbooks --markdown
"""


class Reading(NamedTuple):
    """One reading of one row.

    Attributes:
        when: in UTC, ISO 8601.
        revision: the commit that was measured, with "+" where files differed from it.
        setting: how the script ran, such as "full" or "quick".
        low, high: the 95 % interval; None where the row has none.
    """

    when: str
    revision: str
    setting: str
    row: str
    what: str
    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""


def append(row: Row, setting: str, path: Path = LEDGER) -> None:
    """Append one reading, in one write: scripts that run at once do not mix their lines."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    reading = Reading(
        when, revision(), setting, row.name, row.what.strip(), row.measured, row.low, row.high,
        row.note,
    )  # fmt: skip
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(reading._asdict(), ensure_ascii=False) + "\n")


def readings(path: Path = LEDGER) -> Iterator[Reading]:
    """Return all readings in their order; a line that a killed run left half is passed over."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        yield Reading(**fields)


def revision() -> str:
    """Return the checkout's commit, or "unknown" outside of one."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        changes = _git(
            "status", "--porcelain", "--untracked-files=no", "--", ":!benchmarks/*.jsonl"
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+" if changes else "")


def _git(*command: str) -> str:
    done = subprocess.run(
        ["git", *command], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout.strip()


def table(path: Path = LEDGER, prefix: str = "", setting: str = "full") -> list[list[str]]:
    """Return the last reading of each row: what, value, interval, readings, when, revision."""
    last, counts = dict[str, Reading](), dict[str, int]()
    for reading in readings(path):
        counts[reading.row] = counts.get(reading.row, 0) + 1
        if reading.row.startswith(prefix) and reading.setting == setting:
            last[reading.row] = reading
    return [[row, *_cells(reading), str(counts[row])] for row, reading in last.items()]


def _cells(reading: Reading) -> list[str]:
    span = "" if reading.low is None else f"{number(reading.low)} to {number(reading.high)}"
    return [reading.what, number(reading.value), span, reading.when[:10], reading.revision]


HEADER = ["row", "what", "value", "95 % interval", "day", "revision", "readings"]


def main() -> None:
    options = arguments()
    if options.every:
        for reading in readings(options.ledger):
            if reading.row.startswith(options.row):
                print(json.dumps(reading._asdict(), ensure_ascii=False))
        return
    rows = table(options.ledger, options.row, options.setting)
    if options.markdown:
        for cells in (HEADER, ["---"] * len(HEADER), *rows):
            print("| " + " | ".join(cells) + " |")
        return
    widths = [max(len(cells[place]) for cells in (HEADER, *rows)) for place in range(len(HEADER))]
    for cells in (HEADER, *rows):
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)))


def arguments() -> argparse.Namespace:
    made = argparse.ArgumentParser(
        description="Print the table of the last readings of the test splits.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--row", default="", help="only rows whose names begin so")
    made.add_argument("--setting", default="full", help="full (the default) or quick")
    made.add_argument("--every", action="store_true", help="all readings, one JSON object a line")
    made.add_argument("--markdown", action="store_true", help="as a table for the documentation")
    made.add_argument("--ledger", type=Path, default=LEDGER, help="another file")
    return made.parse_args()


if __name__ == "__main__":
    main()
