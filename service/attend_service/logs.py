"""Logs: a line for each event, as text for people or as JSON for programs.

A request is told by its route and never by what was sent with it, unless texts are asked for.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from datetime import UTC, datetime
from typing import Any

import orjson
from flask import Flask, Response, g, request

from attend_service.context import context, requested_operation
from attend_service.metrics import Metrics

MAX_TEXT = 2000
"""Characters of a body that are logged, where texts are asked for."""

REQUEST_ID = "X-Request-Id"

NO_ROUTE = "(none)"
"""Stands for a path at which there is nothing: what was sent may be anything."""

requests = logging.getLogger("attend.requests")


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


def observe(app: Flask, metrics: Metrics) -> None:
    """Have an application's requests named, timed, logged and counted."""

    def begin() -> None:
        g.began = time.perf_counter()
        # A client's own request id is kept if it is fit for a log.
        sent = request.headers.get(REQUEST_ID, "")
        g.id = sent if re.fullmatch(r"[\w.-]{1,64}", sent, re.ASCII) else secrets.token_hex(8)
        if context().settings.log_texts and request.is_json:
            g.body = request.get_data(cache=True, as_text=True)[:MAX_TEXT]

    def end(response: Response) -> Response:
        response.headers[REQUEST_ID] = g.id
        seconds = time.perf_counter() - g.began
        operation = requested_operation()
        route = operation.path if operation is not None else str(request.url_rule or NO_ROUTE)
        metrics.request(request.method, route, response.status_code, seconds)
        fields: dict[str, Any] = {
            "request": g.id,
            "method": request.method[:20],
            "route": route,  # as it is written in the API
            "status": response.status_code,
            "ms": round(seconds * 1000, 3),
        }
        if context().settings.log_texts:
            fields["path"] = request.full_path.rstrip("?")
            fields["body"] = g.get("body", "")
        requests.info("request", extra={"fields": fields})
        return response

    app.before_request(begin)
    app.after_request(end)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


def _plain(value: object) -> str:
    """Return a value as text that ends where it ends: quoted unless it is one plain word."""
    text = str(value)
    is_word = text.isprintable() and text and not set(text) & set(' "=')
    return text if is_word else orjson.dumps(text, default=str).decode()
