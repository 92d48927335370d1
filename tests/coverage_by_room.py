"""Lines that the tests run, by room: `python -m tests.coverage_by_room coverage.json` prints them.

`make coverage` writes the file. Lines that other processes run (servers, workers, the command line
in a process of its own) are not counted.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path


def main(report: Path) -> None:
    files = json.loads(report.read_text())["files"]
    covered, statements = Counter[str](), Counter[str]()
    for name, figures in files.items():
        room = str(Path(name).parent)
        covered[room] += figures["summary"]["covered_lines"]
        statements[room] += figures["summary"]["num_statements"]
    for room in sorted(statements):
        if statements[room]:
            share = covered[room] / statements[room]
            print(f"{room:<40} {statements[room]:>6} statements {share:>7.1%}")
    share = covered.total() / statements.total()
    print(f"{'all':<40} {statements.total():>6} statements {share:>7.1%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
