"""What `tests.mutation` breaks is code that runs, and stays Python."""

from __future__ import annotations

from pathlib import Path

from tests.mutation import ROOMS, drawn, mutations
from tests.places import ROOT


def test_whatever_is_drawn_compiles_and_is_another_program() -> None:
    chosen = drawn(200, 1)
    assert chosen == drawn(200, 1)
    assert {each.room for each in chosen} == set(ROOMS)
    for each in chosen:
        content = (ROOT / each.file).read_bytes()
        assert each.applied(content) != content
        compile(each.applied(content), each.file, "exec")
        # Of a condition over several lines the first and the last are others.
        assert each.diff().count("\n+") <= (2 if "\n" in each.replacement else 1)


def test_docstrings_logs_and_bare_returns_stay(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        'def f(a):\n    """Told."""\n    log.info("%s", a)\n    b: int\n    if a:\n        return\n'
        "    b = [c for c in a if c]\n    return b\n"
    )
    found = sorted((each.line, each.replacement) for each in mutations(path))
    assert found == [(5, "not (a)"), (7, "not (c)"), (7, "pass"), (8, "return None")]
