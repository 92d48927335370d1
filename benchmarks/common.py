"""What the benchmarks share: their data, their options, and how a ratio is told."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"

sys.path.insert(0, str(ROOT))


def arguments(description: str) -> argparse.Namespace:
    """--quick, --json and --sets, which every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="within two minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--sets", type=Path, default=DATA, help="folder of the data sets")
    return parser.parse_args()


def data_set(folder: Path, name: str) -> Path:
    """The folder of a data set; ends the program with a sentence where it is absent."""
    path = folder / name
    if not path.is_dir():
        sys.exit(f"The data set {name} is not in {folder}; name its folder with --sets.")
    return path


def tell(ratios: dict[str, float], figures: dict[str, Any], as_json: bool) -> None:
    """Ratios first: seconds of one run on one machine say little."""
    if as_json:
        print(json.dumps({"ratios": ratios, "figures": figures}))
        return
    for name, value in ratios.items():
        print(f"{name:<40} {value:.3f}")
    for name, value in figures.items():
        print(f"  {name:<38} {value}")
