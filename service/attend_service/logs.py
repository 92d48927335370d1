"""Logs: a line for each event, as text for people or as JSON for programs.

A request is told by its route and never by what was sent with it, unless texts are asked for.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any, Literal

import orjson
from flask import g, request

Format = Literal["text", "json"]
FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

MAX_TEXT = 2000
"""Characters of a body that are logged, where texts are asked for."""

requests = logging.getLogger("attend.requests")


_configured: tuple[Format, str] = ("text", "warning")


def configured() -> tuple[Format, str]:
    """What `configure` was given last, for another process of the same server."""
    return _configured


def configure(form: Format, level: str) -> None:
    """Send everything that is logged, and every warning, to stderr in one form."""
    global _configured
    _configured = form, level
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("attend").setLevel(level.upper())
    logging.captureWarnings(True)
    # What no line here says is not looked up for each (docs.python.org, howto/logging,
    # "Optimization"); the file a record comes from takes as long as all the rest of it.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the fields of the record."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class TextLines(logging.Formatter):
    """One line: time, level, logger, message, and name=value for the fields of the record."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_plain(value)}" for name, value in _fields(record).items())
        # A message may hold what a client sent: it must not look like a line of its own.
        message = record.getMessage().replace("\r", "\\r").replace("\n", "\\n")
        line = f"{_time(record)} {record.levelname} {record.name}: {message}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def note_request(route: str, status: int, seconds: float, *, texts: bool) -> None:
    """A line for the request that was answered.

    Args:
        route: the path as it is written in the API.
        texts: also what was sent: the path, its parameters, and the beginning of the body.
    """
    fields: dict[str, Any] = {
        "request": g.id,
        "method": request.method[:20],
        "route": route,
        "status": status,
        "ms": round(seconds * 1000, 3),
    }
    if texts:
        fields["path"] = request.full_path.rstrip("?")
        fields["body"] = g.get("body", "")
    requests.info("request", extra={"fields": fields})


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


def _plain(value: object) -> str:
    """A value that ends where it ends: quoted where it is not one plain word."""
    text = str(value)
    is_word = text.isprintable() and text and not set(text) & set(' "=')
    return text if is_word else orjson.dumps(text, default=str).decode()
