"""A process that has loaded the libraries and the encoder once, and forks for each command.

`python -m tests.warm SOCKET` listens. `start` and `run` ask it for a process as `subprocess` does;
the programs that `write_programs` writes stand for `attend` and `python` in a shell. A command then
takes as long as its work and not the seconds of its imports, and so do a server, its worker and its
training. The process itself never computes, so that torch and FAISS are unused, and have no
threads, where it forks. Tests of a start itself, of several workers, of a training process, of
libraries' settings and of an installation start real processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import importlib
import json
import logging
import multiprocessing
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, Self

from tests.places import PACKAGES, ROOT

PROGRAM = """\
#!{python} -SE
import json, os, signal, socket, sys
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
files = [0, 1, 2]
if name == "spawn":
    if "--multiprocessing-fork" not in arguments:
        os.execv(sys.executable, [sys.executable, *arguments])
    arguments = arguments[arguments.index("-c"):]
    inherited = os.listdir("/proc/self/fd")  # and the one that lists them, closed by now
    files += [int(n) for n in inherited if int(n) > 2 and os.path.exists("/proc/self/fd/" + n)]
with socket.socket(socket.AF_UNIX) as warm:
    warm.connect({path!r})
    request = dict(name=name, arguments=arguments, folder=os.getcwd(), files=files)
    request["environment"] = dict(os.environ)
    socket.send_fds(warm, [b"1"], files)
    warm.sendall(json.dumps(request).encode() + b"\\n")
    pid = int.from_bytes(warm.recv(4), sys.byteorder)
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda number, _: os.kill(pid, number))
    status = os.waitstatus_to_exitcode(int.from_bytes(warm.recv(4), sys.byteorder))
sys.exit(status if status >= 0 else 128 - status)
"""
"""What stands for `attend` and `python` in the folder that comes first in the path, and for the
executable of `multiprocessing`, whose processes need the files of their parent."""

PROGRAMS = ("attend", "python", "spawn")
MOST_FILES = 64
ADDRESS = "ATTEND_WARM"
"""The variable that leads the processes of a run of tests to their warm one."""

NUMBER = struct.Struct("i")


def write_programs(folder: Path, path: Path) -> None:
    """Write the programs that hand their work to the process that listens at `path`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        (folder / name).write_text(PROGRAM.format(python=sys.executable, path=str(path)))
        (folder / name).chmod(0o755)


# -- as subprocess ----------------------------------------------------------------------------


class Process:
    """A process that was forked for this one: what `subprocess.Popen` is to one that it started."""

    def __init__(self, arguments: list[str], connection: socket.socket, files: list[Any]) -> None:
        self.args = arguments
        self.stdin, self.stdout, self.stderr = files
        self.returncode: int | None = None
        self._connection = connection
        self.pid: int = NUMBER.unpack(connection.recv(NUMBER.size, socket.MSG_WAITALL))[0]

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                status = self._connection.recv(NUMBER.size)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self.returncode = os.waitstatus_to_exitcode(NUMBER.unpack(status)[0])
            self._connection.close()
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, given: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write all, read both to their ends, and wait; what nobody asked for is None."""
        told: dict[Any, Any] = {}
        outputs = [each for each in (self.stdout, self.stderr) if each and not each.closed]
        readers = [
            threading.Thread(target=lambda each=each: told.update({each: each.read()}), daemon=True)
            for each in outputs
        ]
        for reader in readers:
            reader.start()
        if self.stdin and not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.write(given or "")
                self.stdin.close()
        end = None if timeout is None else time.monotonic() + timeout
        for reader in readers:
            reader.join(None if end is None else max(0.0, end - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        for each in outputs:
            each.close()
        self.wait(None if end is None else max(0.001, end - time.monotonic()))
        return told.get(self.stdout), told.get(self.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self.stdin, self.stdout, self.stderr):
            if each:
                each.close()
        self.wait()


def start(
    *arguments: object,
    name: str = "python",
    folder: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    stdin: Any = None,
    stdout: Any = subprocess.PIPE,
    stderr: Any = subprocess.PIPE,
) -> Process:
    """Start `python ARGUMENTS`, or `attend ARGUMENTS`, in a process that is warm.

    The three files are as those of `subprocess.Popen`: `PIPE`, an open file, or None for nothing.
    """
    words = [str(word) for word in arguments]
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(address()))
    theirs, ours = [], []
    with open(os.devnull, "r+") as nothing:
        for number, file in enumerate((stdin, stdout, stderr)):
            if file == subprocess.PIPE:
                ends = os.pipe()
                theirs.append(ends[number > 0])
                ours.append(os.fdopen(ends[number == 0], "r" if number else "w"))
            else:
                descriptor = (nothing if file is None else file).fileno()
                theirs.append(os.dup(descriptor))
                ours.append(None)
        socket.send_fds(connection, [b"1"], theirs)
    for descriptor in theirs:
        os.close(descriptor)
    request = {
        "name": name,
        "arguments": words,
        "folder": str(folder),
        "files": [0, 1, 2],
        "environment": dict(os.environ if environment is None else environment),
    }
    connection.sendall(json.dumps(request).encode() + b"\n")
    return Process(words, connection, ours)


def run(
    *arguments: object, given: str | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` to its end; `given` is its standard input."""
    process = start(*arguments, stdin=None if given is None else subprocess.PIPE, **options)
    told, errors = process.communicate(given)
    return subprocess.CompletedProcess(process.args, process.wait(), told, errors)


@functools.cache
def _ours() -> tuple[subprocess.Popen[str], tempfile.TemporaryDirectory[str]]:
    # Short: the address of a socket has at most 107 bytes.
    folder = tempfile.TemporaryDirectory(prefix="warm-")
    path = Path(folder.name, "warm")
    path_to_code = os.pathsep.join(map(str, (ROOT, *PACKAGES)))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.warm", str(path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path_to_code, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    os.environ[ADDRESS] = str(path)
    return process, folder


def begin() -> None:
    """Start the warm process of this run of tests, for this process and those that it starts."""
    _ours()


def address() -> Path:
    """The socket of the warm process, once it listens."""
    if ADDRESS not in os.environ:
        begin()
    path = Path(os.environ[ADDRESS])
    end = time.monotonic() + 300
    while not path.exists():
        assert time.monotonic() < end, "The warm process does not listen; its errors are above."
        time.sleep(0.05)
    return path


def end() -> None:
    """End the warm process if this one started it."""
    if _ours.cache_info().currsize:
        process, folder = _ours()
        process.kill()
        process.communicate()
        folder.cleanup()


# -- the warm process -------------------------------------------------------------------------


def main(path: str) -> None:
    """Load everything once; then fork for each request, until the process is ended."""
    gc.disable()
    import sentence_transformers  # noqa: F401

    import attend.encoder
    import attend.learning
    import attend_service

    for module, _ in attend_service.main.later.values():
        importlib.import_module(module)
    write_programs(Path(path).parent, Path(path))
    attend.encoder.load = functools.cache(attend.encoder.load)  # type: ignore[assignment]
    attend.encoder.load(attend.encoder.DEFAULT)
    gc.freeze()  # no process looks through what all of them have
    wakes, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    poll = select.poll()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{path}~")
        server.listen(64)
        os.rename(f"{path}~", path)  # whoever sees it can connect
        poll.register(server, select.POLLIN)
        poll.register(wakes, select.POLLIN)
        parent = os.getppid()
        while os.getppid() == parent:
            for descriptor, _ in poll.poll(1000):
                if descriptor == server.fileno():
                    connection, _ = server.accept()
                    if (pid := os.fork()) == 0:
                        for each in (server, wakes, wake, *running.values()):
                            each.close()
                        _serve(connection, Path(path))
                    running[pid] = connection
                    poll.register(connection, 0)  # tells when whoever asked has gone
                    connection.sendall(NUMBER.pack(pid))
                elif descriptor == wakes.fileno():
                    wakes.recv(1024)
                else:
                    poll.unregister(descriptor)
                    for pid, connection in running.items():
                        if connection.fileno() == descriptor:
                            os.kill(pid, signal.SIGKILL)
            for pid, status in _ended():
                with running.pop(pid) as connection, contextlib.suppress(KeyError, OSError):
                    connection.sendall(NUMBER.pack(status))
                    poll.unregister(connection)


def _ended() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            yield ended


def _serve(connection: socket.socket, path: Path) -> NoReturn:
    """Do in this process what is asked for, and end with its exit status."""
    gc.enable()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _, received, _, _ = socket.recv_fds(connection, 1, MOST_FILES)
    with connection, connection.makefile() as lines:
        request = json.loads(lines.readline())
    files = [fcntl.fcntl(each, fcntl.F_DUPFD, 4 * MOST_FILES) for each in received]
    for each in received:
        os.close(each)
    for number, file in zip(request["files"], files, strict=True):
        os.dup2(file, number)
        os.close(file)
    if request["name"] != "spawn":  # which is given a session by what it runs
        os.setpgid(0, 0)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    # A worker of a server may be forked as well: nothing was computed before.
    method = multiprocessing.set_start_method
    multiprocessing.set_start_method = lambda _, force=False: method("fork", force)
    # A training comes from a server that has computed, and so from here.
    multiprocessing.set_executable(str(path.with_name("spawn")))
    status = 70
    try:
        (_attend if request["name"] == "attend" else _python)(request["arguments"])
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        with contextlib.suppress(BrokenPipeError, ValueError):
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status & 255)


def _attend(arguments: list[str]) -> None:
    from attend_service.cli import main as attend_main

    attend_main(arguments, prog_name="attend")


def _python(arguments: list[str]) -> None:
    """Run `python FILE …`, `python -m MODULE …`, `python -c CODE …` or a program on stdin."""
    sys.path.insert(0, os.getcwd())
    if arguments[:1] == ["-m"]:
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[:1] == ["-c"]:
        sys.argv = ["-c", *arguments[2:]]
        _execute(arguments[1])
    elif arguments and arguments[0] != "-":
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
    else:
        _execute(sys.stdin.read())


def _execute(code: str) -> None:
    main_module: Any = ModuleType("__main__")
    sys.modules["__main__"] = main_module
    exec(compile(code, "<stdin>", "exec"), main_module.__dict__)


if __name__ == "__main__":
    main(sys.argv[1])
