"""Logs: a line for each event, as text for people or as JSON for programs."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import orjson


def configure(form: str, level: str) -> None:
    """Send everything that is logged, and every warning, to stderr in one form."""
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


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


def _plain(value: object) -> str:
    """Return a value as text that ends where it ends: quoted unless it is one plain word."""
    text = str(value)
    is_word = text.isprintable() and text and not set(text) & set(' "=')
    return text if is_word else orjson.dumps(text, default=str).decode()
