"""The worker processes of a server that runs."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import Any


def workers_of(server: subprocess.Popen[Any]) -> list[int]:
    """Process ids; empty once the process that started the workers is gone."""
    listed = subprocess.run(
        ["pgrep", "-f", "-P", str(server.pid), "multiprocessing.spawn"],
        capture_output=True,
        text=True,
        check=False,
    )
    return [int(line) for line in listed.stdout.split()]


def kill_all(server: subprocess.Popen[Any]) -> None:
    """SIGKILL the server and its workers, before one of them can react to another's end."""
    workers = workers_of(server)
    for pid in workers:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    server.kill()
    server.wait()
    for pid in workers:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
