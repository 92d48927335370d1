"""Operations × stages × faults: whatever fails, and wherever, a library is as before or as after.

Each cell runs one operation in a copy of a library, and lets it fail at one act. Then the library
is what it was, or what the operation makes of it, or one of the steps that the operation commits
one by one; an operation that ended well has left all of it; the same operation goes on, and ends
with what an undisturbed one leaves; and `verify` finds nothing.
"""

from __future__ import annotations

import functools
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.soak.acts import CROWDED, FAULTS, INTERRUPT, KILL, Act, Ended, Fault, run
from tests.soak.operations import (
    Operation,
    Place,
    Step,
    look,
    nothing,
    operations,
    problems,
    write_shared,
)

STAGES = 4
"""Stages of an operation at which each fault strikes, at most; of the kill twice as many."""

ROOM = 64 << 20

LEFT_BEHIND = (".*", "library/*-*")
"""Names, below the folder, of what is there only while something is under way."""

DISK, SIZE, FILES = Fault("full disk"), Fault("file size"), Fault("open files")
"""Faults of the system itself: a disk of so many bytes, RLIMIT_FSIZE and RLIMIT_NOFILE."""

SHARES = (0.0, 0.5)
"""The part of the room that an operation needs, and which it is left."""

SPARE_FILES = (2, 6)

LOG = 16384
"""Bytes of the smallest limit of a file: what a process writes is in one, too."""

State = Mapping[str, Any]


class Cell(NamedTuple):
    """One operation, one fault, and where it strikes: an act, or a number of the limit."""

    operation: Operation
    fault: Fault
    stage: str
    at: int = -1
    limit: float = 0.0


class Outcome(NamedTuple):
    """What came of a cell.

    Attributes:
        left: old, new, or the number of the step between.
        ended: the exit status of the operation, and the error.
        wrong: what is not as it should be.
    """

    cell: Cell
    left: str
    ended: str
    wrong: Sequence[str]


@dataclass(frozen=True)
class Undisturbed:
    """An operation without a fault: what was before, what is left, and how it went."""

    folder: Path
    old: State
    new: State
    between: Sequence[State]
    acts: Sequence[Act]
    files: int
    room: int


class Bed:
    """All cells, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.shared = folder / "shared"
        self._output = folder / "output.txt"
        self._root = folder / "run" / "root"
        self._known: dict[str, Undisturbed] = {}
        self._prepared: dict[Step, Path] = {}
        write = functools.partial(write_shared, self.shared)
        self._checked(run(write, self._output))

    # -- without a fault --------------------------------------------------------------------

    def undisturbed(self, operation: Operation) -> Undisturbed:
        """Return what an operation does where nothing fails."""
        if operation.name not in self._known:
            folder = self._template(operation.prepare)
            old = self._look(folder)
            self._fresh(folder)
            before = _sizes(self._root)
            ended = self._checked(self._run(operation.run, root=self._root))
            after = _sizes(self._root)
            grown = [size for path, size in after.items() if before.get(path) != size]
            room = sum(after.values()) - sum(before.values())
            new, between = self._look(self._root), []
            for step in operation.between:
                self._fresh(folder)
                self._checked(self._run(step))
                between.append(self._look(self._root))
            self._known[operation.name] = Undisturbed(
                folder, old, new, between, ended.acts, max(grown, default=0), room
            )
        return self._known[operation.name]

    def _template(self, prepare: Step) -> Path:
        if prepare not in self._prepared:
            folder = self._folder / "prepared" / str(len(self._prepared))
            folder.mkdir(parents=True)
            if prepare is not nothing:
                self._checked(run(lambda: prepare(Place(folder, self.shared)), self._output))
            self._prepared[prepare] = folder
        return self._prepared[prepare]

    def cells(self, operation: Operation, most: int) -> Iterator[Cell]:
        """Yield the cells of an operation: at each stage each fault that can meet it."""
        acts = self.undisturbed(operation).acts
        for fault in FAULTS:
            stages: dict[str, int] = {}
            for number, act in enumerate(acts):
                if fault.meets(act):
                    # Once more where the same comes again much later.
                    stages.setdefault(f"{act.call} {act.path}", number)
            count = 2 * most if fault is KILL else most
            for stage, number in _spread(list(stages.items()), count):
                yield Cell(operation, fault, stage, number)
            last = max((n for n, act in enumerate(acts) if fault.meets(act)), default=None)
            if last is not None and last not in stages.values():
                yield Cell(operation, fault, f"last {acts[last].call} {acts[last].path}", last)
        for share in SHARES:
            yield Cell(operation, DISK, f"{share:.0%} of its room", limit=share)
            yield Cell(operation, SIZE, f"{share:.0%} of its largest file", limit=share)
        for spare in SPARE_FILES:
            yield Cell(operation, FILES, f"{spare} more files", limit=spare)

    # -- with one ---------------------------------------------------------------------------

    def outcome(self, cell: Cell) -> Outcome:
        """Let an operation fail, look at what is left, and let it go on."""
        known, operation = self.undisturbed(cell.operation), cell.operation
        with self._disk(cell, known) as enlarge:
            ended = self._struck(cell, known)
            state = self._look(self._root)
            states = {"old": known.old, "new": known.new}
            states |= {f"step {at + 1}": step for at, step in enumerate(known.between)}
            left = next((name for name, each in states.items() if each == state), "a third state")
            wrong = list(_wrong(cell, ended, left if state != known.new else "new"))
            if left == "a third state":
                others = sorted((_difference(state, each) for each in states.values()), key=len)
                wrong.append(f"of the nearest it differs in {others[0]}")
            # What is removed needs to be opened; and an interrupt may come while it is removed.
            if cell.fault not in (KILL, INTERRUPT, CROWDED, FILES):
                wrong += [f"{path} is left" for path in _left_behind(self._root, LEFT_BEHIND)]
            enlarge()
            if left != "new" or operation.repeats:
                again = self._run(operation.run)
                says = operation.says_done
                done = left == "new" and says and says in again.output
                if again.status != 0 and not done:
                    wrong.append(f"it does not go on: {again.output[-600:]}")
                # In a library, what is being made may be another process's: it goes when it is old.
                hidden = [] if done else _left_behind(self._root, LEFT_BEHIND[:1])
                wrong += [f"{path} is left at last" for path in hidden]
            if (state := self._look(self._root)) != known.new:
                wrong.append(f"gone on with, it is another: {_difference(state, known.new)}")
            found = self._answer(problems)
            wrong += [f"verify: {problem}" for problem in found]
        return Outcome(cell, left, f"{ended.status} {ended.error}".strip(), wrong)

    def _struck(self, cell: Cell, known: Undisturbed) -> Ended:
        if cell.at >= 0:
            watched = functools.partial(
                self._run, cell.operation.run, root=self._root, fault=cell.fault
            )
            ended = watched(at=cell.at)
            if len(ended.acts) > cell.at:
                return ended
            self._fresh(known.folder)  # by chance it took fewer acts this time
            return watched(at=len(ended.acts) - 1)
        limits = {
            SIZE: (resource.RLIMIT_FSIZE, max(LOG, int(known.files * cell.limit) // 4096 * 4096)),
            FILES: (resource.RLIMIT_NOFILE, int(cell.limit)),
        }
        if cell.fault not in limits:
            return self._run(cell.operation.run)
        limit, number = limits[cell.fault]

        def limited() -> None:
            open_files = len(os.listdir("/dev/fd")) if limit == resource.RLIMIT_NOFILE else 0
            resource.setrlimit(limit, (number + open_files, resource.getrlimit(limit)[1]))

        return self._run(cell.operation.run, prepare=limited)

    @contextmanager
    def _disk(self, cell: Cell, known: Undisturbed) -> Iterator[Callable[[], object]]:
        """Make the folder of a run, perhaps on a disk of its own; what is yielded enlarges it."""
        if cell.fault is not DISK:
            self._fresh(known.folder)
            yield lambda: None
            return
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir(parents=True)
        root = str(self._root)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", root], check=True)
        try:
            shutil.copytree(known.folder, self._root, symlinks=True, dirs_exist_ok=True)
            disk = os.statvfs(self._root)
            used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
            self._resize(used + int(max(known.room, 0) * cell.limit))
            yield lambda: self._resize(ROOM)
        finally:
            subprocess.run(["umount", "-l", root], check=True)

    def _resize(self, size: int) -> None:
        page = 4096  # a size of zero is no limit
        options = f"remount,size={max(1, -(-size // page)) * page}"
        subprocess.run(["mount", "-o", options, str(self._root)], check=True)

    # -- processes --------------------------------------------------------------------------

    def _run(self, step: Step, **options: Any) -> Ended:
        return run(lambda: step(Place(self._root, self.shared)), self._output, **options)

    def _fresh(self, folder: Path) -> None:
        shutil.rmtree(self._root, ignore_errors=True)
        shutil.copytree(folder, self._root, symlinks=True)

    def _look(self, folder: Path) -> State:
        """Look at a copy: to open a library may change it."""
        copy = self._folder / "look"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy, symlinks=True)
        return self._answer(look, copy)

    def _answer(self, question: Callable[[Place], Any], root: Path | None = None) -> Any:
        """Return what a function says of a library, in a process of its own."""
        answer = self._folder / "answer.json"
        place = Place(root or self._root, self.shared)
        self._checked(run(lambda: answer.write_text(json.dumps(question(place))), self._output))
        return json.loads(answer.read_text())

    @staticmethod
    def _checked(ended: Ended) -> Ended:
        if ended.status != 0:
            raise AssertionError(f"Without a fault it ends with {ended.status}: {ended.output}")
        return ended


def _spread(stages: Sequence[tuple[str, int]], most: int) -> list[tuple[str, int]]:
    """Return some stages, the first and the last among them."""
    if len(stages) <= most:
        return list(stages)
    return [stages[round(at * (len(stages) - 1) / (most - 1))] for at in range(most)]


def _sizes(folder: Path) -> dict[Path, int]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path: path.stat().st_size for path in files}


def _left_behind(root: Path, patterns: Sequence[str]) -> list[str]:
    paths = (path for pattern in patterns for path in root.glob(pattern))
    return sorted(str(path.relative_to(root)) for path in paths)


def _wrong(cell: Cell, ended: Ended, left: str) -> Iterator[str]:
    """Yield what is wrong with the way in which an operation ended."""
    if ended.status == 0 and left != "new":
        yield f"it ended well, and left {left}"
    if cell.fault is KILL and ended.status != -KILL.signal:
        yield f"it was not killed, but ended with {ended.status}"
    if cell.fault is not KILL and ended.status < 0:
        yield f"it died of signal {-ended.status}"
    expected = {"KeyboardInterrupt"} if cell.fault is INTERRUPT else set()
    if "Traceback" in ended.output and ended.error not in EXPECTED | expected:
        yield f"it raised {ended.error}: {ended.output[-1500:]}"


EXPECTED = {"CannotWrite", "OutOfFiles", "Conflict", "OSError", "OperationalError", "Damaged"}
"""What an operation may raise in Python; a command says it in a sentence."""


def _difference(one: Any, other: Any, name: str = "") -> str:
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        one, other = dict(enumerate(one)), dict(enumerate(other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
        return ", ".join(_difference(one.get(key), other.get(key), f"{name}.{key}") for key in keys)
    return f"{name} {str(one)[:200]} <> {str(other)[:200]}"


# -- the table ------------------------------------------------------------------------------


def draw(cells: Sequence[Cell], count: int, seed: int) -> list[Cell]:
    """Draw some cells, of each fault about as many."""
    met: Counter[str] = Counter()
    ranked = []
    for cell in random.Random(seed).sample(cells, len(cells)):
        ranked.append((met[cell.fault.name], cell))
        met[cell.fault.name] += 1
    return [cell for _, cell in sorted(ranked, key=lambda pair: pair[0])[:count]]


def run_cells(
    folder: Path, *, each: int | None = None, only: str = "", seed: int = 0, say: Any = print
) -> list[Outcome]:
    """Run all cells, or of each operation some, and return what came of them.

    Args:
        each: cells of each operation, drawn; all if None.
        only: a pattern of the operations' names.
    """
    _load()
    bed, outcomes = Bed(folder), []
    for number, operation in enumerate(operations()):
        if not re.search(only, operation.name):
            continue
        began = time.monotonic()
        cells = list(bed.cells(operation, STAGES))
        if os.geteuid() != 0:  # nobody else mounts a disk
            cells = [cell for cell in cells if cell.fault is not DISK]
        chosen = cells if each is None else draw(cells, each, seed + number)
        some = [bed.outcome(cell) for cell in chosen]
        outcomes += some
        wrong = [outcome for outcome in some if outcome.wrong]
        say(
            f"{operation.name}: {len(some)} cells, {len(wrong)} wrong "
            f"({time.monotonic() - began:.0f} s)"
        )
        for outcome in wrong:
            cell = outcome.cell
            say(f"  {cell.fault.name} at {cell.stage} ({cell.at}), {outcome.ended}, left "
                f"{outcome.left}: {'; '.join(outcome.wrong)}")  # fmt: skip
    return outcomes


def table(outcomes: Iterable[Outcome]) -> str:
    """Return a row for each operation: its stages, the cells of each fault, and what was left."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.cell.operation.name].append(outcome)
    faults = [fault.name for fault in (*FAULTS, DISK, SIZE, FILES)]
    rows: list[Sequence[object]] = [
        ("operation", "stages", *faults, "cells", "old", "between", "new", "wrong")
    ]
    for operation, group in groups.items():
        met = Counter(outcome.cell.fault.name for outcome in group)
        left = Counter(outcome.left.split()[0] for outcome in group)
        stages = len({outcome.cell.stage for outcome in group})
        wrong = sum(bool(outcome.wrong) for outcome in group)
        figures = (len(group), left["old"], left["step"], left["new"], wrong)
        rows.append((operation, stages, *(met[fault] for fault in faults), *figures))
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _load() -> None:
    """Import what operations use, and use none of it: torch and FAISS survive no fork otherwise."""
    import faiss  # noqa: F401
    import sentence_transformers  # noqa: F401
    import torch  # noqa: F401

    sys.stdout.flush()
