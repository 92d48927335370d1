"""Measures of the code's shape, from syntax trees alone: `python -m tests.house` prints them."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.places import ROOT

VAGUE = frozenset(
    re.findall(
        r"\w+",
        "found each at given asked known made kept chosen held own whole told met of said drawn "
        "some wanted",
    )
)
"""Words that say nothing about the thing that a variable holds."""

POOR_START = re.compile(r"(What|How|Whether|Of|Who|Whose|One of)\b")

PATTERNS = {
    "top-k": r"np\.(arg)?partition\(",
    "best key": r"maximum\.reduceat|scatter_reduce",
    "unit length": r"linalg\.norm\([^)]*keepdims",
    "training loop": r"torch\.optim|LambdaLR",
    "optimiser": r"scipy\.optimize",
    "softmax": r"softmax\(|logsumexp\(",
    "cast": r"\bcast\(|def __getattr__",
}
"""What each mechanism is recognised by, so that a second version of it is seen."""

IGNORED = frozenset(
    {
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
        tokenize.COMMENT,
    }
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


PUBLIC_OF_TUPLES = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}
"""Names of named tuples that begin with an underscore so that no field is called so."""


@dataclass
class Shape:
    """Measures of one folder of packages, `index` or `service`.

    Attributes:
        rooms: code lines by folder, such as `attend/store`.
        carriers: named tuples and data classes.
        private: names with an underscore that a module uses and another one defines.
        helpers: functions that one place uses.
    """

    files: int = 0
    code_lines: int = 0
    rooms: Counter[str] = field(default_factory=Counter)
    carriers: list[str] = field(default_factory=list)
    private: list[str] = field(default_factory=list)
    helpers: list[str] = field(default_factory=list)
    classes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    long_modules: list[str] = field(default_factory=list)
    long_functions: list[str] = field(default_factory=list)
    poor_docstrings: list[str] = field(default_factory=list)
    vague: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


@cache
def shape(top: str) -> Shape:
    """Return the measures of all modules below a folder of the project."""
    measures = Shape()
    foreign: list[tuple[str, str]] = []
    defined: set[str] = set()
    functions, uses = Counter[str](), Counter[str]()
    for path in sorted((ROOT / top).rglob("*.py")):
        tree = _measure(measures, path, top)
        own = _defined_names(tree)
        defined |= own
        foreign += [(where, name) for where, name in _private_names(tree, path) if name not in own]
        for node in ast.walk(tree):
            if isinstance(node, Function):
                functions[node.name] += 2 if node.decorator_list else 1
            elif isinstance(node, ast.Name):
                uses[node.id] += 1
            elif isinstance(node, ast.Attribute):
                uses[node.attr] += 1
    measures.private = [f"{where} {name}" for where, name in foreign if name in defined]
    once = {name for name, count in functions.items() if count == uses[name] == 1}
    measures.helpers = sorted(name for name in once if not name.startswith("__"))
    return measures


def _measure(measures: Shape, path: Path, top: str) -> ast.AST:
    source, name = path.read_text(), str(path.relative_to(ROOT))
    tree = ast.parse(source)
    measures.files += 1
    lines = len(_code_lines(source, tree))
    measures.code_lines += lines
    package, *inner = path.relative_to(ROOT / top).parts[:-1] or [""]
    measures.rooms["/".join([package, *inner[:1]])] += lines
    if source.count("\n") > 700:
        measures.long_modules.append(name)
    for mechanism, pattern in PATTERNS.items():
        if re.search(pattern, source):
            measures.places[mechanism].append(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            measures.classes[node.name].append(name)
            if any("NamedTuple" in ast.unparse(base) for base in node.bases) or any(
                "dataclass" in ast.unparse(decorator) for decorator in node.decorator_list
            ):
                measures.carriers.append(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            measures.vague[node.id] += node.id in VAGUE
        elif isinstance(node, Function):
            _measure_function(measures, node, f"{name}:{node.name}")
    return tree


def _measure_function(measures: Shape, node: Function, name: str) -> None:
    docstring = ast.get_docstring(node)
    lines = _length(node) - (_length(node.body[0]) if docstring else 0)
    if lines > 60:
        measures.long_functions.append(name)
    if docstring and POOR_START.match(docstring):
        measures.poor_docstrings.append(name)


def _defined_names(tree: ast.AST) -> set[str]:
    """Return the names that a module, or a class or function in it, defines or sets."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names


def _private_names(tree: ast.AST, path: Path) -> Iterator[tuple[str, str]]:
    """Yield where a module reads or imports a name with one underscore before it, and the name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if re.match("_[^_]", name) and name not in PUBLIC_OF_TUPLES:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", name


def _length(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def _code_lines(source: str, tree: ast.AST) -> set[int]:
    """Return the numbers of lines with code: no blank lines, comments or docstrings."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in IGNORED:
            code.update(range(token.start[0], token.end[0] + 1))
    return code - set(_docstring_lines(tree))


def _docstring_lines(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield from range(node.lineno, node.lineno + _length(node))


if __name__ == "__main__":
    for folder in ("index", "service"):
        result = shape(folder)
        print(f"{folder}: {result.files} files, {result.code_lines} lines of code")
        print(f"  modules over 700 lines: {result.long_modules}")
        print(f"  functions over 60 lines: {result.long_functions}")
        print(f"  carriers: {len(result.carriers)}")
        print(f"  functions that one place uses: {len(result.helpers)}")
        print(f"  names with an underscore of other modules: {len(result.private)}")
        print(f"  docstrings with a poor start: {len(result.poor_docstrings)}")
        print(f"  assignments to vague names: {result.vague.total()}")
        for room, lines in sorted(result.rooms.items()):
            print(f"    {room:<28} {lines:>6}")
        print(f"  places: { {name: len(where) for name, where in result.places.items()} }")
