"""The worker processes of a server that runs."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any


def workers_of(server: Any) -> list[int]:
    """Process ids; empty once the process that started the workers is gone."""
    listed = subprocess.run(
        ["pgrep", "-P", str(server.pid)], capture_output=True, text=True, check=False
    )
    return [pid for pid in map(int, listed.stdout.split()) if not _is_tracker(pid)]


def _is_tracker(pid: int) -> bool:
    """Whether a process is the one in which multiprocessing tracks what its processes share."""
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True  # it has ended


def kill_all(server: Any) -> None:
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
