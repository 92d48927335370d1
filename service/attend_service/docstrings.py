"""The docstrings of the installed Python standard library, as documents: the demo's data.

Python sources are parsed and never imported, since importing some modules does things. Modules
written in C have no source here; those that are safe to import are imported and asked.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from attend.source import FieldMap, Row, Source

NOT_LIBRARY = {"__main__", "antigravity", "idlelib", "lib2to3", "test", "tests", "this"}
NOT_FOR_MOST = {"distutils", "encodings", "msilib", "tkinter", "turtle", "turtledemo"}
"""A fifth of all names, which few would miss: left out so that the first run is shorter."""

SAFE = frozenset(
    {"array", "atexit", "binascii", "builtins", "cmath", "errno", "faulthandler", "fcntl", "gc"}
    | {"grp", "itertools", "marshal", "math", "mmap", "pwd", "resource", "select", "sys", "syslog"}
    | {"termios", "time", "unicodedata", "zlib"}
)
"""Named one by one: which modules are built into Python, deprecated ones too, differs by build."""

IN_C = {
    **{name: name for name in SAFE},
    "_csv": "csv",
    "_io": "io",
    "_struct": "struct",
    "posix": "os",
}
"""Modules written in C that are safe to import, and under which name people know them."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Docstring(NamedTuple):
    """One documented name. `line` is None for modules without source."""

    name: str
    module: str
    kind: str
    text: str
    line: int | None
    signature: str | None

    @property
    def summary(self) -> str:
        """The first line that says something: C functions often begin with their signature."""
        first, *rest = [line for line in self.text.splitlines() if line.strip()]
        is_signature = re.match(rf"[\w =]*\b{re.escape(self.name.split('.')[-1])}\(", first)
        prose = [line for line in rest if not line.startswith((" ", "\t"))]
        return prose[0] if is_signature and prose else first

    def row(self) -> Row:
        """Return it as a row: found by name, summary or text."""
        names = {"name": self.name, "module": self.module, "kind": self.kind}
        details = {"line": self.line, "signature": self.signature}
        return Row(
            self.name,
            {
                **names,
                "summary": self.summary,
                # A text of one line is its own summary, and needs no second key.
                "text": self.text if "\n" in self.text else None,
                "value": names,
                **{name: detail for name, detail in details.items() if detail is not None},
            },
        )


class StandardLibrary(Source):
    """Docstrings as a source."""

    name = "the standard library"
    fields = FieldMap("name", ("name", "summary", "text"), None, ("value",))

    def __init__(self, docstrings: Sequence[Docstring]) -> None:
        self._docstrings = docstrings

    def rows(self) -> Iterator[Row]:
        return (docstring.row() for docstring in self._docstrings)


def standard_library() -> list[Docstring]:
    """Every public documented module, class, function and method, once each, by name."""
    by_name: dict[str, Docstring] = {}
    for path in _sources():
        for docstring in _parsed(path):
            by_name.setdefault(docstring.name, docstring)
    for name, shown in IN_C.items():
        for docstring in _imported(name, shown):
            by_name.setdefault(docstring.name, docstring)
    return [by_name[name] for name in sorted(by_name)]


def _sources() -> Iterator[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for name in sorted(sys.stdlib_module_names):
        if not _is_public(name):
            continue
        if (root / f"{name}.py").is_file():
            yield root / f"{name}.py"
        package = sorted((root / name).rglob("*.py"))
        yield from (path for path in package if _is_shown(path.relative_to(root)))


def _is_public(name: str) -> bool:
    return not name.startswith("_") and name not in NOT_LIBRARY | NOT_FOR_MOST


def _is_shown(path: Path) -> bool:
    *folders, _ = path.parts
    return all(map(_is_public, folders)) and (path.stem == "__init__" or _is_public(path.stem))


def _parsed(path: Path) -> Iterator[Docstring]:
    parts = path.relative_to(sysconfig.get_paths()["stdlib"]).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    tree = _tree(path)
    if text := ast.get_docstring(tree):
        yield Docstring(name, parts[0], "module", text, 1, None)
    yield from _members(tree.body, name, parts[0], "function")


def _tree(path: Path) -> ast.Module:
    """The parsed source; an empty one if it is meant to be wrong, or for another Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            return ast.Module([], [])


def _members(body: Sequence[ast.stmt], prefix: str, module: str, kind: str) -> Iterator[Docstring]:
    for node in body:
        if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
            continue
        name = f"{prefix}.{node.name}"
        text = (ast.get_docstring(node) or "").strip()
        if isinstance(node, ast.ClassDef):
            if text:
                yield Docstring(name, module, "class", text, node.lineno, None)
            yield from _members(node.body, name, module, "method")
        elif text:
            signature = f"({ast.unparse(node.args)})"
            yield Docstring(name, module, kind, text, node.lineno, signature)


def _imported(name: str, shown: str) -> Iterator[Docstring]:
    try:
        module = importlib.import_module(name)
    # Which of them are built depends on the platform.
    except ImportError:
        return
    if name == shown and (text := inspect.getdoc(module)):
        yield Docstring(shown, shown, "module", text, None, None)
    yield from _attributes(module, shown, shown)


def _attributes(owner: ModuleType | type, prefix: str, module: str) -> Iterator[Docstring]:
    inside = "method" if isinstance(owner, type) else "function"
    for attribute, value in sorted(vars(owner).items()):
        text = getattr(value, "__doc__", None)
        is_class = inspect.isclass(value)
        if attribute.startswith("_") or not (is_class or inspect.isroutine(value)):
            continue
        name = f"{prefix}.{attribute}"
        if isinstance(text, str) and text.strip():
            kind = "class" if is_class else inside
            yield Docstring(name, module, kind, inspect.cleandoc(text), None, _signature(value))
        if is_class and not isinstance(owner, type):
            yield from _attributes(value, name, module)


def _signature(value: Any) -> str | None:
    try:
        return None if inspect.isclass(value) else str(inspect.signature(value))
    except (TypeError, ValueError):
        return None
