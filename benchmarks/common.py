"""What the benchmarks share: their data, their options, and how a ratio is told."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"

sys.path[:0] = [str(ROOT), str(ROOT / "index"), str(ROOT / "service")]


def parser(description: str, **options: Any) -> argparse.ArgumentParser:
    """A parser with --quick and --json, which every benchmark has."""
    made = argparse.ArgumentParser(description=description, **options)
    made.add_argument("--quick", action="store_true", help="within two minutes")
    made.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return made


def arguments(description: str) -> argparse.Namespace:
    """--quick, --json, and the folder of the data sets as --folder (or --sets)."""
    made = parser(description)
    made.add_argument(
        "--folder", "--sets", dest="sets", type=Path, default=DATA, help="folder of the data sets"
    )
    return made.parse_args()


def data_set(folder: Path, name: str) -> Path:
    """The folder of a data set; ends the program with a sentence where it is absent."""
    path = folder / name
    if not path.is_dir():
        sys.exit(f"The data set {name} is not in {folder}; name its folder with --folder.")
    return path


def progress(said: str) -> None:
    """On stderr: a benchmark's stdout is its result."""
    print(said, file=sys.stderr, flush=True)


def tell(ratios: dict[str, float], figures: dict[str, Any], as_json: bool) -> None:
    """Ratios first: seconds of one run on one machine say little."""
    if as_json:
        print(json.dumps({"ratios": ratios, "figures": figures}))
        return
    for name, value in ratios.items():
        print(f"{name:<40} {value:.3f}")
    for name, value in figures.items():
        print(f"  {name:<38} {value}")
