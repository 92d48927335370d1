"""Settings from flags, the environment and a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from attend_service.cli import server as main


def config(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, ["config", *arguments], env=environment)


def told(*arguments: str, **environment: str) -> dict[str, Any]:
    done = config(*arguments, "--json", **environment)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "attend.toml"
    path.write_text(
        'port = 1\nthreads = 2\nmax-body = 3\ntrusted-host = ["a", "b"]\nread-only = true'
    )
    return path


def test_a_flag_comes_before_the_environment_and_that_before_the_file(file: Path) -> None:
    found = told(
        "--config", str(file), "--port", "10", ATTEND_PORT="20", ATTEND_THREADS="30"
    )  # fmt: skip
    assert found["port"] == {"value": 10, "from": "flag"}
    assert found["threads"] == {"value": 30, "from": "environment ATTEND_THREADS"}
    assert found["max-body"] == {"value": 3, "from": f"file {file}"}
    assert found["trusted-host"] == {"value": ["a", "b"], "from": f"file {file}"}
    assert found["read-only"] == {"value": True, "from": f"file {file}"}
    assert found["host"] == {"value": "127.0.0.1", "from": "default"}
    assert found["data"] == {"value": None, "from": "default"}


def test_the_environment_may_name_the_file(file: Path) -> None:
    found = told(ATTEND_CONFIG=str(file), ATTEND_TRUSTED_HOST="c d")
    assert found["config"]["from"] == "environment ATTEND_CONFIG"
    assert found["port"]["value"] == 1
    assert found["trusted-host"]["value"] == ["c", "d"]


def test_as_lines() -> None:
    lines = config("--port", "9").stdout.splitlines()
    assert any(line.split() == ["port", "=", "9", "#", "flag"] for line in lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "unknown setting 'prot'; did you mean 'port'? The settings are data, host"),
        ("[server]\nport = 1", "unknown setting 'server'. The settings are data, host, port"),
        ("config = 'x'", "unknown setting 'config'"),
        ("port = true", "True for 'port', but one value was expected"),
        ("port = [1]", "[1] for 'port', but one value was expected"),
        ("trusted-host = 'a'", "'a' for 'trusted-host', but a list was expected"),
        ("read-only = 'yes'", "'yes' for 'read-only', but true or false was expected"),
        ("port = 70000", "The setting port is 70000 (file "),
        ("cors_origin = ['a']\ncors-origin = []", "has the setting 'cors-origin' twice"),
        ("port =", "cannot be read as TOML"),
    ],
)
def test_what_the_file_says_wrongly_is_told(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "attend.toml"
    path.write_text(text)
    done = config("--config", str(path))
    assert done.exit_code == 2
    assert said in done.stderr.replace("\n", " ")


def test_the_file_may_have_underscores(tmp_path: Path) -> None:
    path = tmp_path / "attend.toml"
    path.write_text('cors_origin = ["https://a.example"]\nmax_body = 3')
    found = told("--config", str(path))
    assert found["cors-origin"] == {"value": ["https://a.example"], "from": f"file {path}"}
    assert found["max-body"]["value"] == 3


def test_a_file_that_is_not_there() -> None:
    done = config("--config", "nowhere.toml")
    assert done.exit_code == 2
    assert "nowhere.toml" in done.stderr


def test_every_setting_says_its_variable() -> None:
    help = CliRunner().invoke(main, ["--help"]).stdout.replace("\n", " ")
    for name in told():
        assert f"--{name}" in help
        assert f"ATTEND_{name.replace('-', '_').upper()}" in help


def test_tracing_says_which_extra_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attend_service.cli.find_spec", lambda name: None)
    done = CliRunner().invoke(main, ["serve", "--data", str(tmp_path), "--otel"])
    assert done.exit_code == 1
    assert "pip install 'attend-retrieval[otel]'" in done.stderr
