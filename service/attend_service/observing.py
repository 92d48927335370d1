"""Around every request: its id, its time, its line in the log and its share of the figures."""

from __future__ import annotations

import re
import secrets
import time

from flask import Flask, Response, g, request

from attend_service import logs
from attend_service.context import asked, context
from attend_service.metrics import Metrics

REQUEST_ID = "X-Request-Id"

NO_ROUTE = "(none)"
"""Of a path at which there is nothing: what was sent may be anything."""


def observe(app: Flask, metrics: Metrics) -> None:
    """Have an application's requests named, timed, logged and counted."""

    def begin() -> None:
        g.began = time.perf_counter()
        # A client's own request id is kept if it is fit for a log.
        given = request.headers.get(REQUEST_ID, "")
        g.id = given if re.fullmatch(r"[\w.-]{1,64}", given, re.ASCII) else secrets.token_hex(8)
        if context().settings.log_texts and request.is_json:
            g.body = request.get_data(cache=True, as_text=True)[: logs.MAX_TEXT]

    def end(response: Response) -> Response:
        response.headers[REQUEST_ID] = g.id
        seconds = time.perf_counter() - g.began
        route = _route()
        metrics.request(request.method, route, response.status_code, seconds)
        logs.note_request(route, response.status_code, seconds, texts=context().settings.log_texts)
        return response

    app.before_request(begin)
    app.after_request(end)


def _route() -> str:
    """The path as it is written in the API."""
    operation = asked()
    if operation is not None:
        return operation.path
    return NO_ROUTE if request.url_rule is None else request.url_rule.rule
