"""No riddles: phrases that a reader has to read twice stand nowhere that a user reads."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from attend_service import openapi
from attend_service.cli import main
from attend_service.routes import all_operations
from tests.docs.blocks import PAGES, read
from tests.index.helpers import commands_of
from tests.places import PACKAGES, ROOT

FORBIDDEN = re.compile(
    "|".join(
        (
            # Inversions and old-fashioned turns.
            r"\bthere is none\b|\bthere are none\b|(?-i:\b[Ii]s none\b)|\bto be had\b",
            r"\bcan(?:not)? be had\b|\bso many\b|\bas much\b|\banew\b|\bwhence\b|\bheeds?\b",
            r"\bin force\b|\bit never was\b|\bwhat it says\b|\bspeaks? to a\b|\bor is over\b",
            r"\bthere yet or not\b|\bis no (?:cursor|origin|address|name|number)\b",
            r"\bmeets? what\b|\bwho met\b|\bthat it met\b|\bmust name it\b|\bcalled wrongly\b",
            r"\bnothing needs? (?!the network)|\bleaves? no doubt\b|\bbeyond doubt\b",
            r"\bgone back to\b|\bas it is[.,;]|\bwas said of\b|\bwhat was said\b",
            # Names that the field does not use.
            r"\bnull key\b|\battended set\b|\bpromotion gate\b|\bthe gate\b|\bshared words\b",
            r"\bunlike ones\b|\bto mend\b|\ba mend\b|\bmended\b|\brefused rows\b",
            r"\bfresh keys\b|\bforget what\b",
        )
    ),
    re.IGNORECASE,
)


def passages() -> Iterator[tuple[str, str]]:
    """Yield what a user reads: the documentation, help, errors, the API and the pages."""
    for name, path in PAGES.items():
        yield name, read(path)
    yield "SECURITY.md", read(ROOT / "SECURITY.md")
    yield from help_texts()
    yield "openapi.json", json.dumps(openapi.document(all_operations()))
    service = ROOT / "service" / "attend_service"
    for path in sorted(service.rglob("*.html")):
        template = re.sub(r"{[%#{].*?[%#}]}", " ", read(path), flags=re.DOTALL)
        yield path.relative_to(ROOT).as_posix(), template
    for path in sorted((service / "static").rglob("*.js")):
        code = re.sub(r"/\*.*?\*/|^\s*//.*?$", "", read(path), flags=re.DOTALL | re.MULTILINE)
        yield path.relative_to(ROOT).as_posix(), code
    for folder in PACKAGES:
        for path in sorted(folder.rglob("*.py")):
            for line, text in strings(path):
                yield f"{path.relative_to(ROOT).as_posix()}:{line}", text


def help_texts() -> Iterator[tuple[str, str]]:
    for path, command in commands_of(main):
        with click.Context(command, info_name=path[-1]) as context:
            yield " ".join(["attend", *path]), " ".join(command.get_help(context).split())


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module with their lines, without those that only describe it."""
    tree = ast.parse(read(path))
    describing = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in describing:
            yield node.lineno, node.value


def test_no_forbidden_phrase_is_left() -> None:
    found = [
        f"{place}: {' '.join(text[max(0, match.start() - 30) : match.end() + 30].split())}"
        for place, text in passages()
        for match in FORBIDDEN.finditer(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("phrase", ["There is none here.", "The null key has it.", "It heeds this"])
def test_a_phrase_is_recognised(phrase: str) -> None:
    assert FORBIDDEN.search(phrase)


def test_help_says_what_it_does_with_an_example() -> None:
    for name, text in help_texts():
        assert "Example" in text or "[ARGS]" in text, name
