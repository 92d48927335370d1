"""Load on a server: so many connections, each asking again as soon as it is answered."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

WRK = shutil.which("wrk")

SCRIPT = """
local requests, at = {}, tonumber(os.getenv("LOAD_START"))
for line in io.lines(os.getenv("LOAD_REQUESTS")) do
  local method, path, body = line:match("^(%S+) (%S+) ?(.*)$")
  local headers = body ~= "" and {["Content-Type"] = "application/json"} or nil
  requests[#requests + 1] = {method, path, headers, body ~= "" and body or nil}
end
function request()
  at = at + 1
  local one = requests[(at - 1) % #requests + 1]
  return wrk.format(one[1], one[2], one[3], one[4])
end
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format('RESULT {"requests": %d, "seconds": %f, "p50_ms": %f, "errors": %d}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"""


class Request(NamedTuple):
    """`body` is JSON without a line break; empty for a GET."""

    method: str
    path: str
    body: str = ""


class Result(NamedTuple):
    requests: int
    seconds: float
    p50_ms: float
    errors: int

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


def load(
    address: str, requests: Sequence[Request], connections: int, seconds: int, start: int = 0
) -> Result:
    """Send the requests in order and around, from number `start` on, for so many seconds.

    By wrk where it is installed; else by a client in Python, which takes a share of the machine
    that is not small.
    """
    if WRK is None:
        return asyncio.run(_by_python(address, requests, connections, seconds, start))
    with tempfile.TemporaryDirectory() as folder:
        script, listed = Path(folder, "load.lua"), Path(folder, "requests")
        script.write_text(SCRIPT)
        listed.write_text("\n".join(" ".join(each) for each in requests))
        command = [WRK, "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s"]
        told = subprocess.run(
            [*command, "-s", str(script), address],
            env=os.environ | {"LOAD_REQUESTS": str(listed), "LOAD_START": str(start)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    result = next(line for line in told.splitlines() if line.startswith("RESULT "))
    return Result(**json.loads(result.removeprefix("RESULT ")))


async def _by_python(
    address: str, requests: Sequence[Request], connections: int, seconds: int, start: int
) -> Result:
    took: list[float] = []
    began = time.perf_counter()
    ends = began + seconds
    asked = iter(range(start, 10**9))

    async def client() -> None:
        url = urlsplit(address)
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        while time.perf_counter() < ends:
            sent = time.perf_counter()
            writer.write(_bytes(requests[next(asked) % len(requests)]))
            await _answer(reader)
            took.append(time.perf_counter() - sent)
        writer.close()

    done = await asyncio.gather(*(client() for _ in range(connections)), return_exceptions=True)
    errors = sum(each is not None for each in done)
    median = statistics.median(took) * 1000 if took else float("inf")
    return Result(len(took), time.perf_counter() - began, median, errors)


def _bytes(request: Request) -> bytes:
    head = f"{request.method} {request.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    body = request.body.encode()
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}\r\n".encode() + body


async def _answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise ConnectionError(head.decode())
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(length.split(b":")[1]))
