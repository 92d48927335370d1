"""A server in a process of its own, requests to it, and what it takes of the machine."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from common import ROOT
from heaviest_requests import Sent

MEBIBYTE = 2**20


class Server(NamedTuple):
    """A running server, and the process that works."""

    address: str
    worker: int
    starter: int

    def send(self, request: Sent, timeout: float = 600) -> tuple[int, float, int]:
        """Send a request on a connection of its own, and read its answer to the end.

        Returns: the status, the seconds from the last byte of the request to the first of the
            answer, and the bytes of the answer.
        """
        place = urlsplit(self.address)
        body = request.body or b""
        head = (
            f"{request.method} {request.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n"
            + (f"Content-Type: {request.media}\r\n" if request.body is not None else "")
            + "\r\n"
        )
        with socket.create_connection((place.hostname, place.port), timeout=timeout) as client:
            with suppress(BrokenPipeError, ConnectionResetError):  # refused before its end
                client.sendall(head.encode() + body)
            begun = time.perf_counter()
            status, size, seconds = 0, 0, 0.0
            while part := client.recv(MEBIBYTE):
                if not size:
                    seconds, status = time.perf_counter() - begun, int(part[9:12])
                size += len(part)
        return status, seconds or time.perf_counter() - begun, size


@contextmanager
def running(folder: Path, deadline: float) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "service", "--data", str(folder), "--port", str(port)]
    more = ["--deadline", str(deadline), "--log-level", "error"]
    path = os.pathsep.join([str(ROOT / "index"), str(ROOT / "service")])
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen([*command, *more], cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    try:
        address = f"http://127.0.0.1:{port}"
        while not answers(f"{address}/readyz"):
            time.sleep(0.1)
        (worker,) = [
            child
            for child in children(process.pid)
            if b"multiprocessing.spawn" in Path(f"/proc/{child}/cmdline").read_bytes()
        ]
        yield Server(address, worker, process.pid)
    finally:
        process.terminate()
        process.wait()


def answers(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(url, timeout=10).status == 200)
    except OSError:
        return False


def children(process: int) -> list[int]:
    try:
        tasks = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []
    direct = [int(task) for task in tasks]
    return direct + [other for child in direct for other in children(child)]


def resident(processes: Sequence[int]) -> float:
    """Return the memory of processes together, in MiB."""
    total = 0
    for process in processes:
        try:
            pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        except OSError:
            continue
        total += pages * resource.getpagesize()
    return total / MEBIBYTE


def peak(process: int) -> float:
    """Return the most memory of a process since `forget_peak`, in MiB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def forget_peak(process: int) -> None:
    Path(f"/proc/{process}/clear_refs").write_text("5")


def busy_seconds(processes: Sequence[int]) -> float:
    """Return the time of the processor that processes took together."""
    ticks = 0
    for process in processes:
        try:
            values = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += int(values[11]) + int(values[12])
    return ticks / os.sysconf("SC_CLK_TCK")
