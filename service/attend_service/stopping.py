"""The end of a server: the signals that ask for it, and the requests that are answered first."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer

from attend_service.loop import Loop

DRAIN_SECONDS = 30.0
"""How long running requests may take once the server is told to stop."""


@contextmanager
def stop_signals(*, patient: bool = False) -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set; a second signal ends the process at once.

    Args:
        patient: a second signal changes nothing.
    """
    stop = threading.Event()
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        for each, handler in before.items():
            signal.signal(each, on_signal if patient else handler)

    for each in before:
        signal.signal(each, on_signal)
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def drain(server: TcpWSGIServer, loop: Loop) -> None:
    """Take no more connections, and let the requests that run be answered."""
    # Not server.close(): that would take the threads' means to wake this loop.
    wasyncore.dispatcher.close(server)
    deadline = time.monotonic() + DRAIN_SECONDS
    while is_busy(server) and time.monotonic() < deadline:
        _close_idle(server)
        loop.turn(0.05)
    server.task_dispatcher.shutdown(timeout=1)


def is_busy(server: TcpWSGIServer) -> bool:
    return any(map(_is_used, list(server.active_channels.values())))


def _is_used(channel: HTTPChannel) -> bool:
    """Whether a request is being received, worked on or answered."""
    return bool(channel.requests or channel.request is not None or channel.total_outbufs_len)


def _close_idle(server: TcpWSGIServer) -> None:
    """Otherwise a client that asks again and again on one connection is never done."""
    for channel in list(server.active_channels.values()):
        if not _is_used(channel):
            channel.handle_close()
