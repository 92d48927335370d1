"""One of several serving processes: `python -m service.processes.child`, started by the supervisor.

It reads what to do from stdin, one line of JSON. Where stdin ends, the supervisor has ended, and
so does it.
"""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path
from typing import IO, Any

import orjson

from service import logs
from service.listening import ServerOptions
from service.server import serve
from service.stopping import stop_signals


def main() -> None:
    given = sys.stdin.buffer
    asked = orjson.loads(given.readline())
    logs.configure(*asked["logs"])
    with socket.socket(fileno=asked["socket"]) as listener, stop_signals() as stop:
        threading.Thread(target=_watch, args=[given, stop], daemon=True).start()
        serve(
            Path(asked["folder"]),
            _options(asked["options"]),
            listener,
            stop,
            warm_first=asked["warm_first"],
        )


def _watch(given: IO[bytes], stop: threading.Event) -> None:
    given.read()
    stop.set()


def _options(plain: dict[str, Any]) -> ServerOptions:
    """JSON has lists for tuples."""
    whole: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in plain.items()
    }
    return ServerOptions(**whole)


if __name__ == "__main__":
    main()
