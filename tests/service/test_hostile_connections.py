"""Clients that send and do not read, read and do not send, or come in crowds."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from attend import Data
from attend_service import wsgi
from attend_service.wsgi import HEALTH_CONNECTIONS
from tests import warm
from tests.service.test_gateway import post, started, until
from tests.service.test_server import LIMIT, Server, running, wait_until_ready
from tests.workers import workers_of

SEARCH = "/v1/collections/books/search"
STATIC = b"GET /static/js/search.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
DESCRIPTORS = 256
CROWD = 40
THREADS = 32

STARTED_WITH_FEW_FILES = (
    "import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, ({n}, {n})); "
    "runpy.run_module('service', run_name='__main__')"
)


@contextmanager
def with_few_files(folder: Path, log: Path, *more: str) -> Iterator[Server]:
    """Run a server that may open few files, and whose log is a file."""
    code = STARTED_WITH_FEW_FILES.format(n=DESCRIPTORS)
    arguments = ("--data", folder, "--port", "0", "--json", *more)
    with log.open("w") as errors:
        process = warm.start("-c", code, *arguments, stderr=errors)
    try:
        address = urlsplit(json.loads(process.stdout.readline())["address"])
        yield Server(process, str(address.hostname), int(address.port or 0))
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    folder = tmp_path / "library"
    with closing(Data(folder)) as data:
        data.create("books", dimension=3).upsert(
            [
                {"id": str(number), "vector": [1, number, 0], "payload": {"text": "x" * 20_000}}
                for number in range(1000)
            ]
        )
    return folder


def connect(server: Server) -> socket.socket:
    """Connect with a small window, so that little is taken for the client by its system."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(LIMIT)
    client.connect((server.host, server.port))
    return client


def send_what_goes(client: socket.socket, content: bytes) -> None:
    client.setblocking(False)
    try:
        while True:
            client.send(content)
    except BlockingIOError:
        pass


def test_a_crowd_that_pipelines_and_never_reads_takes_neither_files_nor_turns(
    library: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with with_few_files(library, log, "--log-level", "warning") as server, ExitStack() as crowd:
        wait_until_ready(server)
        worker = workers_of(server.process)[0]
        before = open_files(worker)
        for _ in range(CROWD):
            client = crowd.enter_context(connect(server))
            send_what_goes(client, STATIC * 1200)
        for _ in range(20):
            assert server.request("POST", SEARCH, {"query": [1, 0, 0]})[0] == 200
            assert server.request("GET", "/healthz")[0] == 200
        assert open_files(worker) < before + CROWD + 2 * THREADS + 20
    assert len(log.read_text().splitlines()) < 100


def test_more_connections_than_files_wait_outside_and_are_told_once(
    library: Path, tmp_path: Path
) -> None:
    log, port = tmp_path / "log", str(free_port())
    arguments = ("--health-port", port, "--log-level", "warning")
    with with_few_files(library, log, *arguments) as server, ExitStack() as crowd:
        wait_until_ready(server)
        for _ in range(2 * DESCRIPTORS):
            crowd.enter_context(connect(server))
        healthy = Server(server.process, server.host, int(port))
        assert healthy.request("GET", "/healthz") == (200, {"status": "alive"})
        assert healthy.request("GET", "/readyz")[0] == 200
        assert open_files(workers_of(server.process)[0]) < DESCRIPTORS
        crowd.close()
        assert server.request("POST", SEARCH, {"query": [1, 0, 0]})[0] == 200
    (line,) = log.read_text().splitlines()
    assert f"The system allows {DESCRIPTORS} open files" in line


def test_more_collections_than_files_are_answered_again_and_told_once(tmp_path: Path) -> None:
    """No request is answered 500, whichever file it is that cannot be opened."""
    folder, log = tmp_path / "library", tmp_path / "log"
    with closing(Data(folder)) as data:
        for number in range(CROWD):
            collection = data.create(f"c{number}", dimension=3)
            collection.upsert([{"id": "a", "vector": [1, 0, 0]}])
            collection.publish()
    one: dict[str, object] = {"query": [1, 0, 0]}
    requests: list[tuple[str, str, object]] = [
        ("POST", "/search", one),
        ("POST", "/documents", [{"id": "b", "vector": [0, 1, 0]}]),
        ("POST", "/feedback", [{"query": {"vector": [1, 0, 0]}, "id": "a", "label": 1}]),
        ("GET", "/documents", None),
        ("POST", "/train", {"objective": "answers"}),
    ]
    with (
        with_few_files(folder, log, "--log-level", "warning") as server,
        ThreadPoolExecutor(8) as clients,
    ):
        wait_until_ready(server)

        def ask(number: int) -> int:
            method, path, body = requests[number % len(requests)]
            collection = f"/v1/collections/c{number % CROWD}"
            return server.request(method, collection + path, body)[0]

        statuses = set(clients.map(ask, range(1, 8 * CROWD, 3)))
        assert {200, 503} <= statuses <= {200, 202, 409, 429, 503}
        assert server.request("GET", "/healthz")[0] == 200
        assert server.request("GET", "/v1/collections")[0] in (200, 503)
        until(lambda: ask(0) == 200)
    lines = log.read_text()
    assert lines.count("All collections are closed") in (1, 2)
    assert "Traceback" not in lines
    assert len(lines.splitlines()) < 100


def test_the_health_port_answers_health_checks_and_nothing_else(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, "--health-port", str(port)) as server:
        wait_until_ready(server)
        health = Server(server.process, server.host, port)
        assert health.request("GET", "/healthz") == (200, {"status": "alive"})
        assert health.request("GET", "/v1/collections")[0] == 404
        assert health.request("POST", "/healthz", {})[0] == 405
        idle = [connect(health) for _ in range(HEALTH_CONNECTIONS)]
        with connect(health) as late:
            assert late.recv(1) == b"", "more connections than the limit are closed"
        for client in idle:
            client.close()
        until(lambda: answers(health))


def answers(server: Server) -> bool:
    try:
        return server.request("GET", "/healthz")[0] == 200
    except OSError:
        return False


def test_readers_that_stop_hold_no_thread_and_no_place_in_the_queue(library: Path) -> None:
    body = json.dumps({"query": [1, 0, 0], "k": 1000, "attend": 1000}).encode()
    head = f"POST {SEARCH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    asked = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    with running(library, "--threads", "2", "--queue", "16") as server, ExitStack() as crowd:
        wait_until_ready(server)
        for _ in range(12):
            client = crowd.enter_context(connect(server))
            client.sendall(asked * 2)  # the second is not begun before the first is taken
            assert client.recv(12) == b"HTTP/1.1 200"
        begun = time.monotonic()
        for _ in range(5):
            assert server.request("POST", SEARCH, {"query": [1, 0, 0], "k": 1})[0] == 200
        assert time.monotonic() - begun < LIMIT


def test_a_client_that_stops_reading_is_left_behind() -> None:
    with started() as server, server.connect() as client:
        client.sendall(post(30_000_000))
        assert client.recv(12) == b"HTTP/1.1 200"
        time.sleep(4)  # several times the limit
        assert all_of(client) < 30_000_000
        assert server.get("/healthz").status == 200


def test_a_client_that_reads_a_little_now_and_then_is_left_behind() -> None:
    with started() as server, server.connect() as client:
        client.sendall(post(30_000_000))
        deadline = time.monotonic() + LIMIT
        try:
            while client.recv(1000):
                time.sleep(0.2)
                assert time.monotonic() < deadline
        except ConnectionResetError:
            pass
        assert server.get("/healthz").status == 200


def all_of(client: socket.socket) -> int:
    """Return the number of bytes that come before the end of a connection."""
    received = 0
    try:
        while part := client.recv(1_000_000):
            received += len(part)
    except ConnectionResetError:
        pass
    return received


def test_answers_that_nobody_takes_share_a_limit(library: Path) -> None:
    """Each answer is 20 MB; without a limit on their sum the worker would hold them all."""
    body = json.dumps({"query": [1, 0, 0], "k": 1000, "attend": 1000}).encode()
    head = f"POST {SEARCH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    asked = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    with running(library, "--threads", "2") as server, ExitStack() as crowd:
        wait_until_ready(server)
        worker = workers_of(server.process)[0]
        before = memory(worker)
        for _ in range(40):  # of 20 MB each
            client = crowd.enter_context(connect(server))
            client.sendall(asked)
            assert client.recv(12) == b"HTTP/1.1 200"
        assert memory(worker) < before + 600
        assert server.request("POST", SEARCH, {"query": [1, 0, 0], "k": 1})[0] == 200


def test_a_length_beside_a_transfer_encoding_ends_the_connection(tmp_path: Path) -> None:
    chunked, sized = "Transfer-Encoding: chunked\r\n", "Content-Length: 4\r\n"
    follow = "GET /v1/collections HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with running(tmp_path) as server:
        for first, second in ((chunked, sized), (sized, chunked), (chunked, "")):
            head = f"POST /v1/search HTTP/1.1\r\nHost: localhost\r\n{first}{second}\r\n"
            with connect(server) as client:
                client.sendall(f"{head}0\r\n\r\n{follow}".encode())
                answer = client.makefile("rb").read()
            assert answer.count(b"HTTP/1.1") == 1, "what follows is another request to a proxy"
            assert answer.startswith(b"HTTP/1.1 4")


def test_hosts_compare_without_case(tmp_path: Path) -> None:
    with running(tmp_path) as server, connect(server) as client:
        client.sendall(
            f"GET /v1/collections HTTP/1.1\r\nHost: LOCALHOST:{server.port}\r\n"
            f"Connection: close\r\n\r\n".encode()
        )
        assert client.makefile("rb").read().startswith(b"HTTP/1.1 200")


def test_static_files_come_with_a_tag_and_are_answered_without_it_again(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with connect(server) as client, client.makefile("rb") as answers:
            client.sendall(STATIC)
            assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
            headers = dict(line.lower().split(b": ", 1) for line in iter(answers.readline, b"\r\n"))
            answers.read(int(headers[b"content-length"]))
            tag = headers[b"etag"].strip()
            client.sendall(STATIC[:-2] + b"If-None-Match: " + tag + b"\r\n\r\n")
            assert answers.readline() == b"HTTP/1.1 304 Not Modified\r\n"
        assert server.request("GET", "/static/../api-keys.json")[0] == 404
        assert server.request("GET", "/static/js")[0] == 404


def test_static_files_that_name_the_revision_are_kept_and_come_compressed(tmp_path: Path) -> None:
    address = f"{wsgi.PREFIX}{wsgi.revision()}/js/search.js"
    with running(tmp_path) as server:
        plain, packed = (
            httpx2.get(
                f"http://{server.host}:{server.port}{address}",
                headers={"Accept-Encoding": coding},
            )
            for coding in ("identity", "gzip")
        )
        stale = server.request("GET", f"{wsgi.PREFIX}{'0' * 16}/js/search.js")[0]
    assert plain.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content == (wsgi.FOLDER / "js/search.js").read_bytes()
    assert int(packed.headers["content-length"]) < len(plain.content) / 2
    assert stale == 404


def test_libraries_of_others_are_as_they_were_published() -> None:
    folder = wsgi.FOLDER / "vendor"
    rows = [line.split("\t") for line in (folder / "vendored.tsv").read_text().splitlines()[1:]]
    assert {row[0] for row in rows} == {each.name for each in folder.glob("*.js")}
    for name, _, _, _, digest in rows:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
        assert (folder / f"{Path(name).stem}.LICENSE.txt").is_file()


def open_files(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


def memory(process: int) -> float:
    """Return the memory of a process in MiB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
