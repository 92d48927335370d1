"""Lines of the code are broken by chance, one at a time, and the tests have to notice.

`python -m tests.mutation --count 200 --seed 1` draws conditions to negate and statements to leave
out, runs for each the tests that reach its line, the shortest first, and prints what no test
noticed. At first it notes which test reaches which line, which takes minutes. All that is known is
kept in `--folder`, so that an interrupted run goes on where it stopped.

Each test runs in a process that was forked from this one, which has imported the libraries, and
nothing of Attend; in a copy of the project, so that it can be worked on meanwhile.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import difflib
import hashlib
import importlib
import json
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from tests.places import ROOT

ROOMS = ("search", "attention", "values", "store")
LIBRARY = Path("index/attend")
TESTS = ("tests/index", "tests/test_attention_public.py", "tests/test_tutorial_examples.py")
LEFT_OUT = ("source", "encoder", "test_operations")
"""Of the tests: what is long, and reaches the rooms only on its way."""

LIBRARIES = (
    *("numpy", "scipy.optimize", "scipy.special", "faiss", "torch", "sklearn.metrics", "pyarrow"),
    *("sentence_transformers", "hypothesis", "pytest", "flask", "pydantic", "sqlite3", "orjson"),
)
"""What this process imports for the others."""

SILENT = ("log", "logger", "logging", "warnings")
"""What is told to nobody's program: calls of these are not left out."""

LIMIT = 300.0
"""Seconds after which a broken line has made the tests go on for ever."""

Task = TypeVar("Task")


class Mutation(NamedTuple):
    """A piece of a file, from one byte to another, and what comes into its place."""

    file: str
    line: int
    function: tuple[int, int]
    start: int
    end: int
    replacement: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.start}:{self.replacement[:4]}"

    @property
    def room(self) -> str:
        return self.file.split("/")[2].removesuffix(".py")

    def applied(self, content: bytes) -> bytes:
        return content[: self.start] + self.replacement.encode() + content[self.end :]

    def diff(self) -> str:
        before = (ROOT / self.file).read_bytes()
        lines = [each.decode().splitlines() for each in (before, self.applied(before))]
        found = difflib.unified_diff(*lines, lineterm="", n=2)
        return "\n".join(line for line in list(found)[3:])


def mutations(file: Path) -> Iterator[Mutation]:
    """Yield every condition of a module that can be negated and statement that can be left out."""
    content = (ROOT / file).read_bytes()
    starts = [0]
    for each in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(each))

    def piece(node: Any) -> tuple[int, int]:
        first = starts[node.lineno - 1] + node.col_offset
        return first, starts[node.end_lineno - 1] + node.end_col_offset

    for function in ast.walk(ast.parse(content)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (function.lineno, function.end_lineno or function.lineno)
        for node in own_nodes(function):
            for test in conditions(node):
                start, end = piece(test)
                text = f"not ({content[start:end].decode()})"
                yield Mutation(str(file), test.lineno, lines, start, end, text)
            if (instead := without(node)) is not None:
                yield Mutation(str(file), node.lineno, lines, *piece(node), instead)


def own_nodes(function: ast.AST) -> Iterator[Any]:
    """Yield the nodes of a function's body, but for those of functions within it."""
    for child in getattr(function, "body", []):
        waiting = [child]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            yield node
            waiting += ast.iter_child_nodes(node)


def conditions(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        return [node.test]
    return node.ifs if isinstance(node, ast.comprehension) else []


def without(node: ast.AST) -> str | None:
    """Return what stands for a statement that is left out; None for what is no such statement."""
    if isinstance(node, ast.Return):
        nothing = node.value is None or isinstance(node.value, ast.Constant)
        return None if nothing else "return None"
    if isinstance(node, ast.Expr):
        if not isinstance(node.value, ast.Call):
            return None
        called: ast.expr = node.value.func
        while isinstance(called, ast.Attribute):
            called = called.value
        return None if isinstance(called, ast.Name) and called.id in SILENT else "pass"
    if isinstance(node, ast.AnnAssign):
        return None if node.value is None else "pass"
    kinds = ast.Assign | ast.AugAssign | ast.Delete | ast.Raise | ast.Continue | ast.Break
    return "pass" if isinstance(node, kinds) else None


def modules_of(room: str) -> list[Path]:
    """Return the modules of a room, which may be a single one."""
    single = ROOT / LIBRARY / f"{room}.py"
    return [single] if single.exists() else sorted((ROOT / LIBRARY / room).glob("*.py"))


def drawn(count: int, seed: int) -> list[Mutation]:
    found = [
        each
        for room in ROOMS
        for path in modules_of(room)
        for each in mutations(path.relative_to(ROOT))
    ]
    return random.Random(seed).sample(found, min(count, len(found)))


# -- processes --------------------------------------------------------------------------------


def forked(
    tasks: Sequence[Task], work: Callable[[Task, int], int], jobs: int
) -> Iterator[tuple[Task, int | None]]:
    """Do each task in a process of its own, some at a time, which are told their number.

    Yields each task with the exit status of its process; None where it took too long.
    """
    waiting, running = collections.deque(tasks), dict[int, tuple[Task, int, float]]()
    while waiting or running:
        free = set(range(jobs)) - {slot for _, slot, _ in running.values()}
        for slot in sorted(free)[: len(waiting)]:
            task = waiting.popleft()
            if (pid := os.fork()) == 0:
                os.setpgid(0, 0)
                status = 70
                try:
                    status = work(task, slot)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            running[pid] = (task, slot, time.monotonic() + LIMIT)
        time.sleep(0.05)
        for pid, (task, _, end) in list(running.items()):
            late = time.monotonic() > end
            if late:
                os.kill(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if ended:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # what it left behind
                del running[pid]
                yield task, None if late else os.waitstatus_to_exitcode(status)


def copy(folder: Path) -> None:
    """Copy the project, with the data sets beside it."""
    shutil.rmtree(folder, ignore_errors=True)
    tree = folder / "project"
    tree.mkdir(parents=True)
    for name in ("index", "service", "tests", "examples", "docs", "benchmarks"):
        ignore = shutil.ignore_patterns("__pycache__", "_build")
        shutil.copytree(ROOT / name, tree / name, ignore=ignore)
    for path in ROOT.glob("*.*"):
        if path.is_file():
            shutil.copy(path, tree)
    with contextlib.suppress(OSError):
        (folder / "shared").symlink_to(ROOT.parent / "shared")


def run_tests(tree: Path, arguments: Sequence[str], *plugins: object) -> int:
    """Run pytest in a copy of the project, in this process."""
    import pytest

    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    sys.path[:0] = [str(tree / "index"), str(tree / "service"), str(tree)]
    os.chdir(tree)
    output = os.open(tree.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(output, number)
    quick = ["-q", "-n0", "-p", "no:cacheprovider", "--timeout", "120"]
    quick += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is imported already
    with tempfile.TemporaryDirectory(dir=tree.parent) as folder:
        given = [*quick, f"--basetemp={folder}/tests", *arguments]
        return int(pytest.main(given, plugins=list(plugins)))


# -- which test reaches which line ------------------------------------------------------------


class Reached:
    """Notes the lines of the rooms that each test runs, and its seconds."""

    def __init__(self, tree: Path) -> None:
        self._tops = tuple(
            f"{tree / LIBRARY / room}{end}" for room in ROOMS for end in (os.sep, ".py")
        )
        self._tree = f"{tree}{os.sep}"
        self._lines: set[tuple[str, int]] = set()
        self.tests: dict[str, tuple[float, set[tuple[str, int]]]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        seconds = report.duration + self.tests.get(report.nodeid, (0.0, set()))[0]
        self.tests[report.nodeid] = (seconds, self.tests.get(report.nodeid, (0.0, set()))[1])
        if report.when == "teardown":
            lines = {(file.removeprefix(self._tree), line) for file, line in self._lines}
            self.tests[report.nodeid] = (seconds, lines)
            self._lines.clear()

    def _call(self, frame: Any, event: str, _: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(self._tops) else None

    def _line(self, frame: Any, event: str, _: object) -> Any:
        self._lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def begin(self) -> None:
        threading.settrace(self._call)
        sys.settrace(self._call)


def reaching(folder: Path, jobs: int) -> tuple[dict[tuple[str, int], list[str]], dict[str, float]]:
    """Return the tests by the line that they reach, and the seconds of each test."""
    maps = folder / f"reached-{fingerprint()}"
    maps.mkdir(parents=True, exist_ok=True)
    names = [
        path.relative_to(ROOT).as_posix()
        for top in TESTS
        for path in sorted((ROOT / top).rglob("test_*.py") if "." not in top else [ROOT / top])
    ]
    names = [name for name in names if not any(f"index/{each}" in name for each in LEFT_OUT)]
    missing = [name for name in names if not place(maps, name).exists()]

    def trace(name: str, slot: int) -> int:
        tree = folder / f"copy-{slot}" / "project"
        reached = Reached(tree)
        reached.begin()
        run_tests(tree, [name], reached)
        sys.settrace(None)
        place(maps, name).with_suffix(".part").write_bytes(pickle.dumps(reached.tests))
        place(maps, name).with_suffix(".part").rename(place(maps, name))
        return 0

    for done, (name, status) in enumerate(forked(missing, trace, jobs), 1):
        click.echo(f"{done} of {len(missing)}: {name}" + ("" if status == 0 else f" ({status})"))
    lines, seconds = collections.defaultdict(list), {}
    for name in names:
        if place(maps, name).exists():
            for test, (spent, reached) in pickle.loads(place(maps, name).read_bytes()).items():
                seconds[test] = spent
                for line in reached:
                    lines[line].append(test)
    return lines, seconds


def place(maps: Path, name: str) -> Path:
    return maps / (name.replace("/", "--") + ".pickle")


def fingerprint() -> str:
    """Of the code of the rooms: other code has other lines."""
    sums = hashlib.sha256()
    for room in ROOMS:
        for path in modules_of(room):
            sums.update(path.name.encode() + path.read_bytes())
    return sums.hexdigest()[:12]


# -- the run ----------------------------------------------------------------------------------


class Trial:
    """Breaks a line in a copy of the project, and runs the tests that reach it."""

    def __init__(self, folder: Path, jobs: int, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._lines, self._spent = reaching(folder, jobs)

    def tests_of(self, mutation: Mutation) -> list[str]:
        """The tests that reach the line, the shortest first, for as many seconds as they may take;
        where none does, those that reach its function."""
        found = set(self._lines.get((mutation.file, mutation.line), ()))
        if not found:
            first, last = mutation.function
            around = range(first + 1, last + 1)
            found = {test for at in around for test in self._lines.get((mutation.file, at), ())}
        chosen, left = [], self._seconds
        for test in sorted(found, key=lambda test: (self._spent[test], test)):
            left -= self._spent[test]
            if left < 0:
                break
            chosen.append(test)
        return chosen

    def __call__(self, mutation: Mutation, slot: int) -> int:
        tests = self.tests_of(mutation)
        if not tests:
            return 5
        tree = self._folder / f"copy-{slot}" / "project"
        path = tree / mutation.file
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()
        shutil.copy(ROOT / mutation.file, path)
        path.write_bytes(mutation.applied(path.read_bytes()))
        try:
            return run_tests(tree, ["-x", *tests])
        finally:
            shutil.copy(ROOT / mutation.file, path)
            for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
                compiled.unlink()


@click.command()
@click.option("--count", type=int, default=200, show_default=True, help="Lines to break.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the draw.")
@click.option("--jobs", type=int, default=os.cpu_count(), show_default=True, help="At a time.")
@click.option("--seconds", type=float, default=60.0, show_default=True, help="Of tests for each.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(tempfile.gettempdir(), "attend-mutation"),
    show_default=True,
    help="Where copies and results are kept.",
)
def main(count: int, seed: int, jobs: int, seconds: float, folder: Path) -> None:
    """Break lines of the code by chance, and print which of them no test notices."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in LIBRARIES:
        importlib.import_module(name)
    for slot in range(jobs):
        copy(folder / f"copy-{slot}")
    trial = Trial(folder, jobs, seconds)
    results = folder / f"results-{fingerprint()}-{seed}.jsonl"
    known = {}
    if results.exists():
        known = dict(map(json.loads, results.read_text().splitlines()))
    chosen = drawn(count, seed)
    waiting = [each for each in chosen if known.get(each.name, "unreached") == "unreached"]
    with results.open("a") as file:
        for mutation, status in forked(waiting, trial, jobs):
            known[mutation.name] = outcome(status)
            print(json.dumps([mutation.name, known[mutation.name]]), file=file, flush=True)
            click.echo(f"{len(known)}: {known[mutation.name]:9} {mutation.file}:{mutation.line}")
    report(chosen, known)


def outcome(status: int | None) -> str:
    """What the exit status of pytest says: no test failed, or none reaches the line."""
    return {0: "survived", 5: "unreached"}.get(-1 if status is None else status, "killed")


def report(chosen: Sequence[Mutation], known: dict[str, str]) -> None:
    for kind in ("unreached", "survived"):
        for mutation in chosen:
            if known[mutation.name] == kind:
                click.echo(f"\n{kind}: {mutation.file}:{mutation.line}\n{mutation.diff()}")
    click.echo(f"\n{'room':10} {'drawn':>6} {'killed':>7} {'survived':>9} {'unreached':>10}")
    for room in (*ROOMS, "all"):
        here = [each for each in chosen if room in ("all", each.room)]
        counts = collections.Counter(known[each.name] for each in here)
        told = (counts["killed"], counts["survived"], counts["unreached"])
        click.echo(f"{room:10} {len(here):6} {told[0]:7} {told[1]:9} {told[2]:10}")


if __name__ == "__main__":
    main()
