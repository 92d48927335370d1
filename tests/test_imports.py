"""No module needs one that needs it: what is at the bottom can be read without the top."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.places import PACKAGES


def modules(package: str) -> dict[str, Path]:
    found = {}
    (top,) = [each for each in PACKAGES if (each / package).is_dir()]
    for path in (top / package).rglob("*.py"):
        name = ".".join(path.relative_to(top).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Also where types alone are checked, and within functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            whole = [f"{node.module}.{each.name}" for each in node.names]
            yield from (each if each in known else str(node.module) for each in whole)


@pytest.mark.parametrize("package", ["attend", "attend_milvus", "attend_service"])
def test_no_imports_lead_in_a_circle(package: str) -> None:
    known = modules(package)
    needs = {
        name: {each for each in imported(path, known) if each in known and each != name}
        for name, path in known.items()
    }
    assert sum(map(len, needs.values())) > len(known) / 2
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        raise AssertionError(f"A circle: {' → '.join(error.args[1])}") from None


def test_the_library_needs_neither_the_service_nor_milvus() -> None:
    known = modules("attend") | modules("attend_milvus") | modules("attend_service")
    for path in modules("attend").values():
        assert not any(each.startswith("attend_") for each in imported(path, known)), path
