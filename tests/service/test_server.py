"""The command `python -m service`: a real process, over real sockets."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from attend import Data
from tests import warm
from tests.places import ROOT
from tests.workers import workers_of

LIMIT = 120.0
"""Seconds that anything here may take on a busy machine."""


class Server(NamedTuple):
    process: Any
    host: str
    port: int

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=LIMIT)
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, json.loads(content) if content else None

    def get_text(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=LIMIT)
        connection.request("GET", path)
        response = connection.getresponse()
        content = response.read().decode()
        connection.close()
        return response.status, content

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(LIMIT)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "service", *arguments]


def finished(*arguments: str) -> subprocess.CompletedProcess[str]:
    return warm.run("-m", "service", *arguments)


@contextmanager
def running(
    folder: Path, *more: str, python: Sequence[str] = ("-m", "service"), cold: bool = False
) -> Iterator[Server]:
    """A server, forked from the warm process but for one that is `cold` or has several workers."""
    # Nobody reads stderr meanwhile: a line for each request would fill the pipe.
    quiet = ("--log-level", "warning")
    arguments = ["--data", str(folder), "--port", "0", "--json", *quiet, *more]
    if cold or "--processes" in more:
        process: Any = subprocess.Popen(
            [sys.executable, *python, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    else:
        process = warm.start(*python, *arguments)
    try:
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        address = urlsplit(json.loads(line)["address"])
        yield Server(process, str(address.hostname), int(address.port or 0))
    finally:
        process.kill()
        process.communicate()


def wait_until_ready(server: Server) -> None:
    deadline = time.monotonic() + LIMIT
    while server.request("GET", "/readyz")[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_from_start_to_stop(tmp_path: Path) -> None:
    with running(tmp_path, cold=True) as server:
        wait_until_ready(server)
        path = "/v1/collections/books"
        assert server.request("PUT", path, {"dimension": 3})[0] == 201
        documents = [{"id": "a", "vector": [1, 0, 0]}, {"id": "b", "vector": [0, 1, 0]}]
        assert server.request("POST", f"{path}/documents", documents)[1]["added"] == 2
        status, answer = server.request("POST", f"{path}/search", {"query": [0, 1, 0]})
        assert (status, answer["hits"][0]["id"]) == (200, "b")
        searches = {"searches": [{"query": [1, 0, 0]}] * 3}
        batch = server.request("POST", f"{path}/search/batch", searches)[1]
        assert [each["hits"][0]["id"] for each in batch["answers"]] == ["a", "a", "a"]
        assert server.stop() == 0
    with running(tmp_path) as server:
        assert server.request("GET", f"{path}/documents?limit=0")[1]["total"] == 2
        check_settings_follow_the_command_line(server, tmp_path, path)


def check_settings_follow_the_command_line(server: Server, folder: Path, path: str) -> None:
    """A server that runs has settings and the index of another process at the next request."""
    weight = server.request("POST", f"{path}/search", {"query": [0, 1, 0]})[1]["hits"][0]["weight"]
    options = ["--recall", "0.8", "--exact-below", "5000", "--scale", "30"]
    on = ["--data", str(folder), "--collection", "books"]
    ran = warm.run("-m", "index", "configure", *on, *options)
    assert ran.returncode == 0, ran.stderr
    searched = server.request("POST", f"{path}/search", {"query": [0, 1, 0]})[1]
    assert searched["hits"][0]["weight"] > weight
    info = server.request("GET", path)[1]
    settings = info["settings"]
    assert (settings["recall"], settings["exact_below"], settings["scale"]) == (0.8, 5000, 30)
    assert info["index"]["why"] == "fewer than 5000 keys"
    # A repeated request without these settings is no conflict with them.
    assert server.request("PUT", path, {"dimension": 3, "scale": 30})[0] == 200


def test_many_clients_at_once(tmp_path: Path) -> None:
    data = Data(tmp_path)
    data.create("books", dimension=3).upsert([{"id": "a", "vector": [1, 0, 0]}])
    data.close()
    statuses: list[int] = []
    with running(tmp_path) as server:

        def client() -> None:
            for _ in range(10):
                body = {"query": [1, 0, 0]}
                statuses.append(server.request("POST", "/v1/collections/books/search", body)[0])

        threads = [threading.Thread(target=client) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert statuses == [200] * 160


def test_a_request_under_way_is_answered_before_it_stops(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        wait_until_ready(server)
        body = json.dumps({"dimension": 3}).encode()
        client = socket.create_connection((server.host, server.port), timeout=LIMIT)
        head = f"PUT /v1/collections/c HTTP/1.1\r\nHost: {server.host}\r\nConnection: close\r\n"
        kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall((head + kind).encode() + body[:4])
        time.sleep(0.3)  # until the server has seen the half of it
        server.process.send_signal(signal.SIGTERM)
        wait_until_refused(server)
        client.sendall(body[4:])
        assert client.makefile("rb").readline() == b"HTTP/1.1 201 Created\r\n"
        client.close()
        assert server.process.wait(LIMIT) == 0


def wait_until_refused(server: Server) -> None:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        try:
            socket.create_connection((server.host, server.port), timeout=1).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.05)
    pytest.fail("the server still takes connections")


def test_ctrl_c_stops_it_cleanly(tmp_path: Path) -> None:
    with closing(Data(tmp_path)) as data:
        collection = data.create("default")
        collection.upsert([{"id": "a", "text": "a white whale"}])
    with running(tmp_path, cold=True) as server:
        wait_until_ready(server)  # which loads the encoder
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(LIMIT) == 0
        assert server.process.stderr is not None
        assert server.process.stderr.read() == ""


def test_a_worker_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    impatient = (
        "import runpy; import attend_service.server as server; server.STOP_SECONDS = 0.5; "
        "runpy.run_module('service', run_name='__main__')"
    )
    with running(tmp_path, python=("-c", impatient)) as server:
        wait_until_ready(server)
        (worker,) = workers_of(server.process)
        os.kill(worker, signal.SIGSTOP)
        assert server.stop() == 0
        assert server.process.stderr is not None
        assert server.process.stderr.read().count("did not stop within 0.5 s") == 1


def test_a_page_of_another_name_is_not_served(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=LIMIT)
        connection.request("GET", "/v1/collections", headers={"Host": "evil.example"})
        assert connection.getresponse().status == 400
        connection.close()


def test_a_taken_port_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = finished("--data", str(tmp_path), "--port", port)
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: Port {port} of 127.0.0.1 is not free")
    assert done.stderr.count("\n") == 1


def test_a_missing_folder_is_one_sentence(tmp_path: Path) -> None:
    done = finished("--data", str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert "nowhere" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [["--host", "0.0.0.0"], ["--port", "70000"], ["--threads", "0"], ["--colour", "red"]],
    ids=" ".join,
)
def test_wrong_usage(tmp_path: Path, arguments: list[str]) -> None:
    done = finished("--data", str(tmp_path), *arguments)
    assert done.returncode == 2
    assert arguments[0] in done.stderr or arguments[1] in done.stderr


def test_help_has_an_example() -> None:
    done = finished("--help")
    assert done.returncode == 0
    assert "Example: attend serve --data" in done.stdout
    assert "ATTEND_PORT" in done.stdout
