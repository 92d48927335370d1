"""A server process, and one connection to it."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests import warm
from tests.places import ROOT
from tests.workers import kill_all, workers_of

LOADED = "The encoder was loaded in seconds:"
LIMIT = 60.0
"""Seconds that an answer, a start or a stop may take on a busy machine."""


class Refusal(Exception):
    """An answer other than 2xx: nothing was done."""


class Client:
    """One connection that stays open; of one thread."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=LIMIT)

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        sent = None if body is None else json.dumps(body)
        self._connection.request(method, path, sent, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        content = response.read()
        return response.status, json.loads(content) if content else None

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """What a request is answered; raises Refusal where it is not done.

        Where a collection or its encoder is being opened, nothing is done, and it is sent again.
        """
        deadline = time.monotonic() + LIMIT
        while (sent := self.request(method, path, body))[0] == 503 and time.monotonic() < deadline:
            time.sleep(0.1)
        status, answer = sent
        if not 200 <= status < 300:
            raise Refusal(f"{method} {path} was answered {status}: {answer}")
        return answer

    def close(self) -> None:
        self._connection.close()


class Start(NamedTuple):
    """How a process began, in seconds: until it listened; then until it was ready, of which so
    many to load encoders."""

    listening: float
    warming: float
    loading: float

    @property
    def opening(self) -> float:
        """What the collections themselves took."""
        return self.warming - self.loading


class Server:
    """`python -m service`, or with `module` what stands in for it, on a free port."""

    def __init__(self, folder: Path, log: Path, module: str = "service", *more: str) -> None:
        arguments = ["-m", module, "--data", str(folder), "--port", "0", "--json", *more]
        began = time.monotonic()
        with log.open("ab") as errors:
            if warm.ADDRESS in os.environ:  # in the tests, which do not measure starts
                self.process: Any = warm.start(*arguments, stderr=errors)
            else:
                self.process = subprocess.Popen(
                    [sys.executable, *arguments],
                    cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True,
                )  # fmt: skip
        try:
            self.start = self._started(log, began)
        except BaseException:
            self.kill()
            raise

    def _started(self, log: Path, began: float) -> Start:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"The server did not start: {log.read_text()[-2000:]}")
        listening = time.monotonic() - began
        parts = urlsplit(json.loads(line)["address"])
        self.address = str(parts.hostname), int(parts.port or 0)
        told = log.stat().st_size
        self._wait_until_ready()
        warming = time.monotonic() - began - listening
        return Start(listening, warming, _loading(log, told))

    def _wait_until_ready(self) -> None:
        client = Client(self.address)
        deadline = time.monotonic() + LIMIT
        while client.request("GET", "/readyz")[0] != 200:
            if time.monotonic() > deadline:
                raise RuntimeError("The server did not become ready.")
            time.sleep(0.01)
        client.close()

    def memory(self) -> int:
        """Resident bytes of the worker."""
        status = Path(f"/proc/{workers_of(self.process)[0]}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        self.process.terminate()
        try:
            return self.process.wait(LIMIT)
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL; the processes are gone when this returns."""
        kill_all(self.process)
        if self.process.stdout is not None:
            self.process.stdout.close()


def _loading(log: Path, after: int) -> float:
    """Seconds in which encoders were loaded, as `serve` tells them."""
    lines = log.read_bytes()[after:].decode().splitlines()
    return sum(float(line.rsplit(maxsplit=1)[1]) for line in lines if line.startswith(LOADED))
