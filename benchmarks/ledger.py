"""The ledger: every reading of a test split, and the table of the last readings.

The benchmarks append to it themselves, so a figure that was read often, or that changed, shows
here. Rows that another product wins stay in.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from common import ROOT, Row, json_lines, number

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

    def cells(self) -> list[str]:
        """As the table has them, between the row's name and the number of its readings."""
        span = "" if self.low is None else f"{number(self.low)} to {number(self.high)}"
        return [self.what, number(self.value), span, self.when[:10], self.revision]


HEADER = ["row", "what", "value", "95 % interval", "day", "revision", "readings"]


def require_commit() -> None:
    """End the program where what would be measured is no commit: nobody could measure it again."""
    if (commit := revision()).endswith("+"):
        sys.exit(
            f"Files differ from the commit {commit[:-1]}, and a reading of a test split names the "
            f"commit that was measured. Commit them first, or rehearse (--rehearse)."
        )


def append(row: Row, setting: str, path: Path = LEDGER) -> None:
    """Append one reading, in one write: scripts that run at once do not mix their lines."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    measured = (row.name, row.what.strip(), row.measured, row.low, row.high, row.note)
    reading = Reading(when, revision(), setting, *measured)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(reading._asdict(), ensure_ascii=False) + "\n")


def readings(path: Path = LEDGER, prefix: str = "") -> Iterator[Reading]:
    """Yield the readings of the rows whose names begin so, in their order."""
    for fields in json_lines(path, whole=False) if path.exists() else ():
        if fields["row"].startswith(prefix):
            yield Reading(**fields)


def table(path: Path = LEDGER, prefix: str = "", setting: str = "full") -> list[list[str]]:
    """Return the last reading of each row: the cells of HEADER."""
    every = list(readings(path, prefix))
    counts = Counter(reading.row for reading in every)
    last = {reading.row: reading for reading in every if reading.setting == setting}
    return [[row, *reading.cells(), str(counts[row])] for row, reading in last.items()]


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
    said = subprocess.check_output(
        ["git", *command], cwd=ROOT, stderr=subprocess.DEVNULL, timeout=30
    )
    return said.decode().strip()


def main() -> None:
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
    options = made.parse_args()
    if options.every:
        for reading in readings(options.ledger, options.row):
            print(json.dumps(reading._asdict(), ensure_ascii=False))
        return
    rows = [HEADER, *table(options.ledger, options.row, options.setting)]
    if options.markdown:
        rows.insert(1, ["---"] * len(HEADER))
        print("\n".join(f"| {' | '.join(cells)} |" for cells in rows))
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)))


if __name__ == "__main__":
    main()
