"""The loop that receives and sends for all connections, around waitress's own channels.

Waitress's loop asks every connection for its state at each event, and tells the kernel of all of
them anew. With many connections that took a quarter of a server's time. This one asks again only
those to which something happened.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from waitress import wasyncore
from waitress.server import TcpWSGIServer

READ = select.POLLIN | select.POLLPRI

ALL_SECONDS = 0.5
"""How often all are asked all the same: what closes idle connections wakes nobody."""

_thread = threading.local()


class serving:
    """Says, while a thread works for a connection, for which: whoever wakes the loop has one."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def __enter__(self) -> None:
        _thread.channel = self._channel

    def __exit__(self, *_error: object) -> None:
        _thread.channel = None


class Loop:
    """Polls what a server listens to and talks with, and takes the place of its trigger."""

    def __init__(self, server: TcpWSGIServer) -> None:
        self._channels: dict[int, Any] = server._map
        self._pull = server.trigger.pull_trigger
        self._poll = select.poll()
        self._told: dict[int, int] = {}
        self._woken: deque[Any] = deque()
        self._is_pulled = False
        self._ask_all_at = 0.0
        server.pull_trigger = self.wake

    def wake(self) -> None:
        """Have the loop ask the connection that this thread works for; from any thread."""
        self._woken.append(getattr(_thread, "channel", None))
        # Once is enough until the loop has come round: each time is a system call.
        if not self._is_pulled:
            self._is_pulled = True
            self._pull()

    def turn(self, seconds: float) -> None:
        """Wait for something to happen, at most so long, and handle it."""
        self._ask_woken()
        happened = self._poll.poll(int(min(seconds, ALL_SECONDS) * 1000))
        for fd, flags in happened:
            channel = self._channels.get(fd)
            if channel is not None:  # else one before it closed it
                known = len(self._channels)
                wasyncore.readwrite(channel, flags)
                if len(self._channels) > known:
                    self._ask_all_at = 0.0
        self._ask(fd for fd, _ in happened)

    def _ask_woken(self) -> None:
        self._is_pulled = False  # before looking: who comes now pulls again
        woken = [self._woken.popleft() for _ in range(len(self._woken))]
        now = time.monotonic()
        if now >= self._ask_all_at or None in woken:
            self._ask_all_at = now + ALL_SECONDS
            self._ask({*self._channels, *self._told})
        else:
            self._ask(channel._fileno for channel in woken)

    def _ask(self, fds: Iterable[int]) -> None:
        """Tell the kernel what connections wait for, where that has changed."""
        for fd in fds:
            flags = _flags(self._channels.get(fd))
            if flags == self._told.get(fd, 0):
                continue
            if flags:
                self._poll.register(fd, flags)
                self._told[fd] = flags
            else:
                self._poll.unregister(fd)
                del self._told[fd]


def _flags(channel: Any) -> int:
    if channel is None:
        return 0
    flags = READ if channel.readable() else 0
    writes = channel.writable() and not channel.accepting
    return flags | select.POLLOUT if writes else flags
