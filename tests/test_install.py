"""The distribution: built as a wheel, installed into an environment, used from another folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import attend
from tests.places import ROOT

NAMES = ("attend", "attend_milvus", "attend_service")
LIMIT = 900
"""Seconds that a command may take on a busy machine."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # Without isolation nothing is downloaded: hatchling is one of the tests' requirements.
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder]
    run(sys.executable, "-m", "pip", "wheel", *options, ROOT, folder=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel alone; its dependencies are those of this one."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, folder=folder)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install"]
    run(*pip, "--quiet", "--no-deps", "--no-index", wheel, folder=folder)
    (packages(folder) / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder


@pytest.fixture(scope="module")
def library(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder that the installed command built, in a folder of the user's."""
    home = tmp_path_factory.mktemp("home")
    (home / "books.csv").write_text("id,title,price\n1,a whale,4.5\n2,bread,3\n")
    command = [environment / "bin" / "attend", "build", "books.csv", "--data", "library"]
    run(*command, "--value", "price", folder=home)
    return home / "library"


def packages(environment: Path) -> Path:
    (found,) = environment.glob("lib/python*/site-packages")
    return found


def outside() -> dict[str, str]:
    """This process's variables, but for the path to the checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(*command: object, folder: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=outside(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_the_packages_and_all_their_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    folders = {name.split("/")[0] for name in names}
    described = f"attend_retrieval-{attend.__version__}.dist-info"
    assert folders == {*NAMES, described}
    files = [
        path.relative_to(top).as_posix()
        for top in (ROOT / "index", ROOT / "service")
        for package in NAMES
        for path in (top / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert {name for name in names if not name.startswith(described)} == set(files)
    kinds = {Path(name).suffix for name in files}
    assert {".py", ".html", ".css", ".js", ".typed"} <= kinds
    assert {"attend/py.typed", "attend_service/py.typed"} <= names


def test_nothing_else_is_installed(environment: Path) -> None:
    names = {path.name for path in packages(environment).iterdir()}
    assert names == {
        *NAMES,
        f"attend_retrieval-{attend.__version__}.dist-info",
        "dependencies.pth",
    }


def test_the_command_and_the_package_work_in_another_folder(
    environment: Path, library: Path
) -> None:
    command, python = environment / "bin" / "attend", environment / "bin" / "python"
    shown = run(command, "--help", folder=library.parent)
    assert "Usage: attend [" in shown
    assert {"build", "search", "serve", "keys", "config"} <= set(shown.split())
    version = run(command, "--version", folder=library.parent)
    assert version.strip() == f"attend, version {attend.__version__}"
    searched = run(
        *(command, "search", "a whale", "--data", "library", "--json"), folder=library.parent
    )
    assert json.loads(searched)["hits"][0]["id"] == "1"
    script = (
        "import attend, attend_service; library = attend.open('library'); "
        "print(attend.__file__, library.collection().search('bread').hits[0].value)"
    )
    file, value = run(python, "-c", script, folder=library.parent).split()
    assert Path(file).is_relative_to(packages(environment))
    assert value == "3"


@pytest.fixture
def address(environment: Path, library: Path) -> Iterator[str]:
    arguments = ["serve", "--data", "library", "--port", "0", "--json", "--log-level", "warning"]
    server = subprocess.Popen(
        [str(environment / "bin" / "attend"), *arguments],
        cwd=library.parent,
        env=outside(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line, server.stderr and server.stderr.read()
        yield json.loads(line)["address"]
        server.terminate()
        assert server.wait(LIMIT) == 0
    finally:
        server.kill()
        server.communicate()


def test_the_server_answers_with_its_pages(address: str) -> None:
    def get(path: str) -> str:
        with urllib.request.urlopen(address + path, timeout=LIMIT) as response:
            return str(response.read().decode())

    assert "<title>" in get("/")
    assert get("/static/css/base.css")
    assert json.loads(get("/search?q=whale"))["hits"][0]["id"] == "1"
