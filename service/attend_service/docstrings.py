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
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

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

IN_C = {name: name for name in SAFE}
IN_C |= {"_csv": "csv", "_io": "io", "_struct": "struct", "posix": "os"}
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
        details = {name: detail for name, detail in details.items() if detail is not None}
        # A text of one line is its own summary, and needs no second key.
        text = self.text if "\n" in self.text else None
        fields = {**names, "summary": self.summary, "text": text, "value": names, **details}
        return Row(self.name, fields)


class StandardLibrary(Source):
    """Docstrings as a source."""

    name = "the standard library"
    fields = FieldMap("name", ("name", "summary", "text"), None, ("value",))

    def __init__(self, docstrings: Sequence[Docstring]) -> None:
        self._docstrings = docstrings

    def rows(self) -> Iterator[Row]:
        return (docstring.row() for docstring in self._docstrings)


def standard_library() -> list[Docstring]:
    """Return every public documented module, class, function and method, once each, by name."""
    by_name: dict[str, Docstring] = {}
    in_c = (docstring for name, shown in IN_C.items() for docstring in _imported(name, shown))
    for docstring in chain(_sources(), in_c):
        by_name.setdefault(docstring.name, docstring)
    return [by_name[name] for name in sorted(by_name)]


def _sources() -> Iterator[Docstring]:
    root, left_out = Path(sysconfig.get_paths()["stdlib"]), NOT_LIBRARY | NOT_FOR_MOST
    for library in sorted(sys.stdlib_module_names):
        for path in (root / f"{library}.py", *sorted((root / library).rglob("*.py"))):
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            is_public = not any(part.startswith("_") or part in left_out for part in parts)
            if is_public and path.is_file():
                yield from _parsed(path, ".".join(parts), parts[0])


def _parsed(path: Path, name: str, module: str) -> Iterator[Docstring]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # meant to be wrong, or for another Python
            return
    if text := ast.get_docstring(tree):
        yield Docstring(name, module, "module", text, 1, None)
    yield from _members(tree.body, name, module, "function")


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
            signature = None
            if not is_class:
                with suppress(TypeError, ValueError):
                    signature = str(inspect.signature(value))
            kind = "class" if is_class else inside
            yield Docstring(name, module, kind, inspect.cleandoc(text), None, signature)
        if is_class and not isinstance(owner, type):
            yield from _attributes(value, name, module)
