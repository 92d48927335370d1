"""One of several serving processes: `python -m attend_service.processes.child`.

It reads what to do from stdin, one line of JSON. Where stdin ends, the supervisor has ended, and
so does it: at once, where it is stopping already.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path
from typing import IO, Any

import orjson

from attend_service import logs
from attend_service.listening import ServerOptions
from attend_service.server import serve
from attend_service.stopping import stop_signals


def main() -> None:
    given = sys.stdin.buffer
    asked = orjson.loads(given.readline())
    logs.configure(*asked["logs"])
    # A service manager's signal comes to all, and then once more from the supervisor.
    stopping = stop_signals(patient=True)
    with socket.socket(fileno=asked["socket"]) as listener, stopping as stop:
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
    if stop.is_set():
        os._exit(1)
    stop.set()


def _options(plain: dict[str, Any]) -> ServerOptions:
    """JSON has lists for tuples."""
    whole: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in plain.items()
    }
    return ServerOptions(**whole)


if __name__ == "__main__":
    main()
