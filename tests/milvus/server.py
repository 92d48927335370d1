"""A real Milvus standalone for tests, which can be killed and started again.

The pip package `milvus==2.3.5` (Linux on x86-64) holds the server. It runs in a network namespace
of its own, see `alone`; its folder is the one given.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ALONE = Path(__file__).with_name("alone.py")
INSIDE = 19530
READY_SECONDS = 180.0
SESSION_SECONDS = 10
"""After which the server's own registry forgets a killed server; until then it cannot start
again. Its default of 30 s is what a restart would take."""


TICK_MILLISECONDS = 20
"""Interval of the server's clock marks, for which every strong read and every write waits several
times. With the default of 200 ms ten strong searches take 11 s on a busy machine, and 1.7 s so."""

SETTINGS = {"common.session.ttl": SESSION_SECONDS, "proxy.timeTickInterval": TICK_MILLISECONDS}

AT_ONCE = {"grpc.max_reconnect_backoff_ms": 500, "grpc.use_local_subchannel_pool": 1}
"""A channel waits twice as long after every failure, up to two minutes, and all channels of a
process to one address wait together, unless they are told otherwise."""


class Unavailable(Exception):
    """The server cannot be had on this machine; the sentence says why."""


class Alone:
    """A network namespace with processes in it. `port` of 127.0.0.1 leads to `inside` in there.

    Raises:
        Unavailable: this machine cannot make one.
    """

    def __init__(self, inside: int) -> None:
        if sys.platform != "linux":
            raise Unavailable("Milvus is tested in a network namespace, which only Linux has.")
        self._process = subprocess.Popen(
            [sys.executable, str(ALONE), str(inside)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            self.port = int(self._hear()["port"])
        except Unavailable:
            self.close()
            raise

    def run(self, argv: Sequence[str | Path], log: Path, **env: str) -> int:
        """Start a command inside, in its log's folder. Returns its process id."""
        assert self._process.stdin is not None
        argv = [str(each) for each in argv]
        order = {"run": argv, "log": str(log), "env": env, "cwd": str(log.parent)}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._hear()["pid"])

    def close(self) -> None:
        """Kill all that runs inside."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._process.stderr.read().strip()
            raise Unavailable(said.splitlines()[-1] if said else "The namespace has gone.")
        heard: dict[str, Any] = json.loads(line)
        return heard


class MilvusServer:
    """One standalone server. Process ids are those of this machine, so it is killed as any other.

    Raises:
        Unavailable: the package is not installed, or the machine has no namespaces.
    """

    def __init__(self, folder: Path) -> None:
        beside = Path(sys.executable).parent
        command = shutil.which("milvus-server", path=f"{beside}{os.pathsep}{os.defpath}")
        if command is None:
            raise Unavailable(
                "The package milvus is not installed (it is, by `make test`, on Linux on x86-64)."
            )
        self.command = command
        self.folder = folder
        self.log = folder / "server.log"
        self._alone = Alone(INSIDE)
        self.pid: int | None = None

    @property
    def address(self) -> str:
        """As pymilvus takes it."""
        return f"http://127.0.0.1:{self._alone.port}"

    @property
    def engine(self) -> str:
        """As `--engine` takes it."""
        return f"milvus://127.0.0.1:{self._alone.port}"

    def start(self) -> None:
        """Start it, and return at once."""
        binaries = self.folder / "data" / "bin"
        self.pid = self._first() if not binaries.exists() else self._again(binaries)

    def _first(self) -> int:
        """The package's command unpacks the binaries and writes the configuration."""
        argv = [self.command, "--data", self.folder / "data", "--proxy-port", str(INSIDE)]
        for name, value in SETTINGS.items():
            argv += ["--extra-config", f"{name}={value}"]
        return self._alone.run(argv, self.log)

    def _again(self, binaries: Path) -> int:
        """As that command does, which itself would take the next port: that of the killed server
        is still held by its last connections, for a minute."""
        return self._alone.run(
            [binaries / "milvus", "run", "standalone"],
            self.folder / "data" / "again.log",
            DEPLOY_MODE="STANDALONE",
            METRICS_PORT="9091",
            MILVUS_RUN_DIR=str(self.folder / "data" / "run"),
            LD_LIBRARY_PATH=str(binaries),
        )

    def kill(self) -> None:
        """As `kill -9`: the server, and at first the script that waits for it."""
        assert self.pid is not None, "it was not started"
        os.killpg(self.pid, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{self.pid}").exists(), 10)
        self.pid = None

    def wait_until_ready(self, seconds: float = READY_SECONDS) -> None:
        """Raises Unavailable with the last lines of its log where it does not answer in time."""
        if not wait_until(lambda: answers(self.address), seconds):
            raise Unavailable(f"Milvus did not answer within {seconds:.0f} s: {self.last_lines()}")

    def last_lines(self, lines: int = 5) -> str:
        data = self.folder / "data"
        logs = [self.log, *sorted(data.glob("logs/milvus-std*.log")), data / "again.log"]
        texts = [path.read_text(errors="replace") for path in logs if path.exists()]
        return "\n".join([line[:400] for text in texts for line in text.splitlines()][-lines:])

    def close(self) -> None:
        self._alone.close()
        shutil.rmtree(self.folder, ignore_errors=True)  # 450 MB, most of them its binaries


@contextlib.contextmanager
def running(folder: Path) -> Iterator[MilvusServer]:
    """A server that answers.

    Raises:
        Unavailable: it cannot be had here.
    """
    server = MilvusServer(folder)
    try:
        server.start()
        server.wait_until_ready()
        yield server
    finally:
        server.close()


def answers(address: str) -> bool:
    """Whether a server speaks there, through a client of its own."""
    from pymilvus import MilvusClient
    from pymilvus.exceptions import MilvusException

    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # attempts before it is up
    try:
        client = MilvusClient(address, timeout=3, grpc_options=AT_ONCE)
    except MilvusException:
        return False
    try:
        client.list_collections(timeout=3)
    except MilvusException:
        return False
    finally:
        client.close()
    return True


def wait_until(ready: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not (done := bool(ready())) and time.monotonic() < end:
        time.sleep(0.2)
    return done
