"""What the benchmarks share: their data, their options, and how a ratio is told."""

from __future__ import annotations

import argparse
import json
import math
import operator
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import ArrayLike

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"

sys.path[:0] = [str(ROOT), str(ROOT / "index"), str(ROOT / "service")]

from attend import Collection  # noqa: E402  # found by the path above
from attend.measure.statistics import (  # noqa: E402  # found by the path above
    LEVEL,
    Interval,
    difference_intervals,
    paired_randomisation,
)


def parser(
    description: str, folder: Sequence[str] = ("--folder", "--sets"), **options: Any
) -> argparse.ArgumentParser:
    """A parser with --quick, --json and the folder of the data sets, which every benchmark has."""
    made = argparse.ArgumentParser(description=description, **options)
    made.add_argument("--quick", action="store_true", help="within two minutes")
    made.add_argument("--json", action="store_true", help="one JSON object on stdout")
    named = {"dest": "folder", "type": Path, "default": DATA, "help": "folder of the data sets"}
    made.add_argument(*folder, **named)
    return made


def data_set(folder: Path, name: str) -> Path:
    """The folder of a data set; ends the program with a sentence where it is absent."""
    path = folder / name
    if not path.is_dir():
        sys.exit(f"The data set {name} is not in {folder}; name its folder with --folder.")
    return path


def json_lines(path: Path, *, whole: bool = True) -> list[dict[str, Any]]:
    """The rows of a file; one that need not be `whole` may have lines that a killed run broke."""
    rows = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            with nullcontext() if whole else suppress(ValueError):
                rows.append(json.loads(line))
    return rows


def pairs(path: Path) -> list[tuple[str, str]]:
    """Users and items: the first two columns of a file with tabs, under its header."""
    with path.open(encoding="utf-8") as lines:
        next(lines)
        return [(user, item) for user, item, *_ in map(str.split, lines)]


def upsert(collection: Collection, documents: Iterable[dict[str, Any]], size: int = 1000) -> None:
    """Upsert any number of documents, `size` at a time."""
    rows = iter(documents)
    while block := list(islice(rows, size)):
        collection.upsert(block)


def timed(
    call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter, repeats: int = 1
) -> tuple[Any, float]:
    """What a call returns, and the fewest seconds that it took by this clock."""
    seconds = []
    for _ in range(repeats):
        started = clock()
        found = call()
        seconds.append(clock() - started)
    return found, min(seconds)


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


SIGNS = {">=": operator.ge, "<=": operator.le, ">": operator.gt}


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        name: how programs call it, such as `scifact.trained`.
        low, high: the 95 % interval; None where there is none.
        asked: what was asked of it, and `holds` whether it does; empty where it is reported only.
        values: what `measured` is the mean of, one for each query, for paired comparisons.
    """

    name: str
    what: str
    measured: float | None
    low: float | None = None
    high: float | None = None
    asked: str = ""
    holds: bool | None = None
    note: str = ""
    values: tuple[float, ...] = ()

    def wanted(self, sign: str, bound: float) -> Row:
        """With what was asked of the measured number."""
        holds = self.measured is not None and bool(SIGNS[sign](self.measured, bound))
        return self._replace(asked=f"{sign} {bound:g}", holds=holds)

    def told(self) -> dict[str, Any]:
        """For programs: without the values of single queries."""
        fields = self._asdict().items()
        return {name: each for name, each in fields if name != "values" and each != ""}

    def line(self) -> str:
        """For people."""
        span = "" if self.low is None else f"[{number(self.low)}, {number(self.high)}]"
        verdict = {None: "", True: "yes", False: "NO"}[self.holds]
        return (
            f"{self.what:<66} {number(self.measured):>8}  {span:<18} {self.asked:<10} "
            f"{verdict:<4} {self.note}"
        ).rstrip()


def number(given: float | None) -> str:
    """Four decimals for shares, fewer for what is larger.

    >>> number(0.64512), number(73.25), number(14), number(None)
    ('0.6451', '73.2', '14', '-')
    """
    if given is None or math.isnan(given):
        return "-"
    if float(given).is_integer():
        return str(int(given))
    return f"{given:.4f}" if abs(given) < 10 else f"{given:.1f}"


def row_of(name: str, what: str, interval: Interval, values: Iterable[float] = ()) -> Row:
    """A mean with its interval; an interval of one value is none."""
    mean, low, high = (None if math.isnan(each) else float(each) for each in interval)
    return Row(name, what, mean, low, high, values=tuple(float(each) for each in values))


class Difference(NamedTuple):
    """A mean difference with its 95 % interval, and the p-value of one as large by chance."""

    mean: float
    low: float
    high: float
    p: float


def difference(after: ArrayLike, before: ArrayLike) -> Difference:
    """The mean of after - before over pairs (n)."""
    (interval,) = difference_intervals(after, before, [LEVEL])
    return Difference(*interval, paired_randomisation(after, before))


def difference_row(name: str, what: str, found: Difference) -> Row:
    """A paired difference, with its p in the note."""
    row = row_of(name, what, Interval(found.mean, found.low, found.high))
    return row._replace(note=f"p = {found.p:.4f}")


def ahead(row: Row, p: float) -> Row:
    """A difference of which it was asked to be significantly above 0."""
    return row._replace(asked="> 0, p<.05", holds=(row.measured or 0) > 0 and p < 0.05)


def not_behind(row: Row, p: float) -> Row:
    """A difference of which it was asked not to be significantly below 0."""
    return row._replace(asked="not below", holds=(row.measured or 0) >= 0 or p >= 0.05)


@dataclass
class Results:
    """The rows of a run, saved as they come: what an earlier run saved is not measured again.

    Attributes:
        path: where; None keeps them in memory only.
        setting: what rows depend on: those of another setting are refused.
    """

    path: Path | None
    setting: Mapping[str, Any]
    rows: dict[str, Row] = field(default_factory=dict)
    finished: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is None:
            return
        if self.path.exists() and self.path.stat().st_size:
            self._read(self.path)
        else:
            self._append({"setting": dict(self.setting)})

    def add(self, section: str, row: Row) -> None:
        self.rows[row.name] = row
        self._append({"section": section, "row": row._asdict()})

    def finish(self, section: str, rows: Sequence[str]) -> None:
        """All rows of a section are there: the next run leaves it out."""
        self.finished[section] = list(rows)
        self._append({"section": section, "finished": list(rows)})

    def measured(self, name: str) -> float | None:
        return self.rows[name].measured if name in self.rows else None

    def _append(self, line: Mapping[str, Any]) -> None:
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _read(self, path: Path) -> None:
        lines = json_lines(path, whole=False)
        found = lines[0].get("setting") if lines else None
        if found != self.setting:
            sys.exit(
                f"{path} holds rows measured with {found}, but this run has {dict(self.setting)}; "
                f"name another file with --out."
            )
        # What comes next must not stand behind half a line.
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        for line in lines[1:]:
            if "row" in line:
                row = Row(**line["row"])
                self.rows[row.name] = row._replace(values=tuple(row.values))
            else:
                self.finished[line["section"]] = line["finished"]
