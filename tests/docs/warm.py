"""A process that has loaded the libraries and the encoder once, and forks for each command.

`python -m tests.docs.warm SOCKET` listens; the programs in `PROGRAMS` connect to it and hand over
their arguments, folder, environment and standard files. A command of a page then takes as long as
its work and not the seconds of its imports. The process itself never computes, so that torch and
FAISS are unused, and have no threads, where it forks.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

PROGRAM = """\
#!{python} -SE
import json, os, socket, sys
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
if name == "attend" and arguments[:1] == ["serve"]:
    code = "from attend_service.cli import main; main(prog_name='attend')"
    os.execv({python!r}, [{python!r}, "-c", code, *arguments])
with socket.socket(socket.AF_UNIX) as warm:
    warm.connect({path!r})
    request = dict(name=name, arguments=arguments, folder=os.getcwd(), environment=dict(os.environ))
    socket.send_fds(warm, [b"1"], [0, 1, 2])
    warm.sendall(json.dumps(request).encode() + b"\\n")
    status = warm.recv(1)
sys.exit(status[0] if status else 70)
"""
"""What stands for `attend` and `python` in the folder that comes first in the path."""

PROGRAMS = ("attend", "python")


def write_programs(folder: Path, path: Path) -> None:
    """Write the programs that hand their work to the process that listens at `path`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        (folder / name).write_text(PROGRAM.format(python=sys.executable, path=str(path)))
        (folder / name).chmod(0o755)


def main(path: str) -> None:
    """Load everything once; then fork for each request, until the process is ended."""
    import attend.encoder
    import attend.learning
    import attend_service.cli  # noqa: F401

    attend.encoder.load = functools.cache(attend.encoder.load)  # type: ignore[assignment]
    attend.encoder.load(attend.encoder.DEFAULT)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(64)
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _run(connection)
            connection.close()


def _run(connection: socket.socket) -> NoReturn:
    """Do in this process what a program asks for, send its exit status, and end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile() as lines:
        request = json.loads(lines.readline())
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    status = 70
    try:
        {"attend": _attend, "python": _python}[request["name"]](request["arguments"])
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(bytes([status]))
        os._exit(status)


def _attend(arguments: list[str]) -> None:
    from attend_service.cli import main as attend_main

    attend_main(arguments, prog_name="attend")


def _python(arguments: list[str]) -> None:
    """Run `python FILE …`, `python -m MODULE …`, `python -c CODE …` or a program on stdin."""
    sys.path.insert(0, os.getcwd())
    if arguments[:1] in (["-m"], ["-c"]):
        sys.argv = arguments[1:]
        if arguments[0] == "-m":
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
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
