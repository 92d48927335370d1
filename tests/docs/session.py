"""A page's session: one shell and one Python, in one folder, as a reader has them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO

from tests.docs.blocks import PYTHON, SHELL, Block
from tests.places import PACKAGES, ROOT
from tests.warm import write_programs

CONSOLE = Path(__file__).parent / "console.py"
LIMIT = 900
"""Seconds that a block may take on a busy machine."""


class Session:
    """Runs blocks one after the other; a failure ends it with everything that was printed."""

    def __init__(self, folder: Path, warm: Path) -> None:
        self.folder = folder
        self._mark = uuid.uuid4().hex
        self._port = _free_port()
        self._errors = folder.parent / f"{folder.name}-errors.txt"
        self._scripts = folder.parent / f"{folder.name}-scripts"
        programs = self._scripts / "bin"
        write_programs(programs, warm)
        path = os.pathsep.join(
            [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
        )
        self._environment = os.environ | {
            "PATH": path,
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *PACKAGES))),
            "ATTEND_PORT": str(self._port),
            "ATTEND_PRECISION": "float32",  # the same figures on every processor
            "EXAMPLES": str(ROOT / "examples"),
        }
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def run(self, block: Block) -> str:
        """Run a block and return what it prints to stdout.

        Raises:
            AssertionError: it fails; the message has its output and its errors.
        """
        code = block.code
        for host in ("localhost", "127.0.0.1"):
            code = code.replace(f"{host}:8000", f"{host}:{self._port}")
        process = self._process(block.language)
        name = self._scripts / f"line-{block.line}"
        name.write_text(code)
        if block.language == SHELL:
            # A command that fails ends the shell, whose last words have the status.
            request = f"trap 'printf \"\\n{self._mark} $?\\n\"' EXIT; set -eu\n"
            request += f". {name} </dev/null; set +eu\nprintf '\\n{self._mark} 0\\n'\n"
        else:
            request = json.dumps({"code": code, "name": str(name), "mark": self._mark}) + "\n"
        with suppress(BrokenPipeError):
            _file(process.stdin).write(request)
            _file(process.stdin).flush()
        watchdog = threading.Timer(LIMIT, os.killpg, (process.pid, signal.SIGKILL))
        watchdog.start()
        lines = []
        for line in _file(process.stdout):
            if line.startswith(self._mark):
                break
            lines.append(line)
        else:
            line = "ended"
        watchdog.cancel()
        printed = "".join(lines)
        errors = self._errors.read_text(errors="replace")[-4000:]
        assert line.split()[-1] == "0", f"line {block.line}:\n{code}\n{printed}\n{errors}"
        return printed.replace(str(self._port), "8000")

    def close(self) -> None:
        """End the shell and the Python with all that they started."""
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            _file(process.stdin).close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            _file(process.stdout).close()

    def _process(self, language: str) -> subprocess.Popen[str]:
        if language not in self._processes:
            command = {SHELL: ["bash"], PYTHON: ["python", str(CONSOLE)]}[language]
            with self._errors.open("a") as errors:
                self._processes[language] = subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    start_new_session=True,
                )
        return self._processes[language]


def _file(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
