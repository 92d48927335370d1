"""The TypeScript client: what compiles, what must not, and what node runs against a server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from attend_service.keys import KeyFile
from tests.places import ROOT
from tests.service.test_server import Server, running, wait_until_ready

CLIENT = ROOT / "service" / "clients" / "typescript"
LIMIT = 300.0
"""Seconds that npm, the compiler or node may take on a busy machine."""

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None,
    reason="The TypeScript client is checked with node and npm, which are not installed here.",
)


def run(
    project: Path, *command: str, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=project,
        env={**os.environ, **(more or {})},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the client with what it needs, as its lock file says."""
    folder = tmp_path_factory.mktemp("client") / "typescript"
    shutil.copytree(CLIENT, folder, ignore=shutil.ignore_patterns("node_modules", "build"))
    page = (ROOT / "docs" / "how-to" / "typescript.md").read_text()
    (folder / "page.ts").write_text("".join(re.findall(r"^```ts\n(.*?)^```$", page, re.M | re.S)))
    installed = run(folder, "npm", "ci", "--no-audit", "--no-fund")
    assert installed.returncode == 0, installed.stderr
    return folder


@pytest.fixture(scope="module")
def key_and_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Server]]:
    folder = tmp_path_factory.mktemp("library")
    key = KeyFile(folder).add(scope="admin")[1]
    with running(folder, "--require-keys") as server:
        wait_until_ready(server)
        yield key, server


def test_the_client_and_its_examples_compile(project: Path) -> None:
    """So does the page of the documentation; an error of `wrong.ts` that is none is one, too."""
    checked = run(project, "npm", "run", "check")
    assert checked.returncode == 0, checked.stdout


def test_the_compiler_refuses_each_wrong_line_for_its_reason(project: Path) -> None:
    source = project / "wrong.ts"
    text = source.read_text()
    lines = enumerate(text.splitlines(), start=1)
    expected = {
        (number + 1, code.group(1))
        for number, line in lines
        if (code := re.search(r"@ts-expect-error (TS\d+)", line))
    }
    assert len(expected) == text.count("@ts-expect-error") > 8
    source.write_text(text.replace("@ts-expect-error", "the error"))
    try:
        checked = run(project, "npm", "run", "check")
    finally:
        source.write_text(text)
    reported = re.findall(r"^wrong\.ts\((\d+),\d+\): error (TS\d+)", checked.stdout, re.M)
    assert {(int(number), code) for number, code in reported} == expected
    assert checked.stdout.count(": error TS") == len(expected), checked.stdout


def test_the_committed_types_are_those_of_the_server(
    project: Path, key_and_server: tuple[str, Server], tmp_path: Path
) -> None:
    key, server = key_and_server
    request = Request(
        f"http://{server.host}:{server.port}/openapi.json", headers={"X-Api-Key": key}
    )
    document = tmp_path / "openapi.json"
    with urlopen(request, timeout=LIMIT) as response:
        document.write_bytes(response.read())
    committed = (project / "schema.d.ts").read_text()
    written = run(project, "npm", "run", "schema", more={"OPENAPI": str(document)})
    assert written.returncode == 0, written.stderr
    remedy = "schema.d.ts is old: run `npm run schema` in service/clients/typescript, and commit it"
    assert (project / "schema.d.ts").read_text() == committed, remedy


def test_node_runs_the_client_against_a_server(
    project: Path, key_and_server: tuple[str, Server]
) -> None:
    key, server = key_and_server
    address = {"ATTEND_URL": f"http://{server.host}:{server.port}", "ATTEND_KEY": key}
    tested = run(project, "npm", "test", more=address)
    assert tested.returncode == 0, tested.stdout
    written = (CLIENT / "attend.test.ts").read_text().count("\ntest(")
    assert re.search(rf"^# pass {written}$", tested.stdout, re.M), tested.stdout
