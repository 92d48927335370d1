"""CONTRIBUTING.md: what its diffs add works, and is as little as it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MOST_FILES, MOST_LINES = 5, 60


def diff_below(title: str) -> str:
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    return str(diff)


def applied(folder: Path, diff: str) -> list[Path]:
    """Apply a diff in a folder, and return the tests that it touches."""
    paths = re.findall(r"^\+\+\+ b/(.*)$", diff, re.MULTILINE)
    added = re.findall(r"^\+(?!\+\+ b/)", diff, re.MULTILINE)
    assert len(paths) <= MOST_FILES
    assert len(added) <= MOST_LINES
    command = ["git", "apply", "--unsafe-paths", "--verbose", "-"]
    done = subprocess.run(command, cwd=folder, input=diff, capture_output=True, text=True)
    assert done.returncode == 0, f"Take the diff anew: {done.stderr}"
    return [folder / path for path in paths if Path(path).name.startswith("test_")]


def passes(folder: Path, tests: list[Path], *paths: Path) -> None:
    """Run tests in a folder, whose packages come first."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, tests)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The packages and their tests, with what Python has compiled of them."""
    for name in ("index", "service", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize("title", ["Add a scorer", "Add a source"])
def test_what_is_added_to_the_package_passes_its_tests(title: str, checkout: Path) -> None:
    tests = applied(checkout, diff_below(title))
    passes(checkout, tests, checkout, checkout / "index", checkout / "service")


def test_what_editors_complete_knows_the_scorer(checkout: Path) -> None:
    applied(checkout, diff_below("Add a scorer"))
    stub = checkout / "index" / "attend" / "api" / "keywords.pyi"
    written = stub.read_text()
    paths = os.pathsep.join(map(str, (checkout, checkout / "index", checkout / "service")))
    subprocess.run(
        [sys.executable, "-m", "tests.keywords"],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": paths},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    assert stub.read_text() == written


def test_an_engine_is_installed_and_found(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    tests = applied(project, diff_below("Add an engine"))
    installed = tmp_path / "installed"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--target", str(installed), str(project)]
    subprocess.run(command, check=True, capture_output=True)
    passes(project, tests, installed, ROOT / "index", ROOT / "service")
