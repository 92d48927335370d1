"""A connection as waitress serves it, in our loop and with our words."""

from __future__ import annotations

from typing import Any

from waitress.channel import HTTPChannel
from waitress.task import WSGITask

from attend_service.loop import serving
from attend_service.security.refusals import ProblemTask


class Answer(WSGITask):  # type: ignore[misc]
    """An answer whose headers leave together with the beginning of its body.

    Waitress sends them by themselves, which is a system call and a packet more for each answer,
    and wakes the client twice.
    """

    wrote_header: bool

    def write(self, data: bytes) -> None:
        if self.complete and data and not self.wrote_header:
            self.channel.head = self.build_response_header()
            self.wrote_header = True
        super().write(data)
        if self.channel.head:  # there was no body to go with it
            self.channel.write_soon(b"")


class Channel(HTTPChannel):  # type: ignore[misc]
    """A connection whose refusals are problems.

    Attributes:
        head: headers that wait for the body that is written next.
    """

    task_class = Answer
    error_task_class = ProblemTask
    head = b""

    def service(self) -> None:
        with serving(self):
            super().service()

    def write_soon(self, data: Any) -> int:
        if self.head:
            data, self.head = self.head + data, b""
        return int(super().write_soon(data))
