"""The Flask application: routes, problems, and the checks before and after each request."""

from __future__ import annotations

import logging
import re
import secrets
import time
from functools import partial
from typing import Any

from flask import Flask, Response, current_app, g, request
from werkzeug.exceptions import RequestURITooLarge, SecurityError
from werkzeug.routing import BaseConverter

from attend import Data
from attend.core.errors import (
    CannotWrite,
    OutOfFiles,
    OutOfMemory,
    ReadOnly,
    UnknownCollection,
    is_out_of_files,
    out_of_files,
)
from attend.learning import train
from attend.store.connections import database_error
from attend_service import security, wsgi
from attend_service.context import (
    EXTENSION,
    Context,
    Files,
    Operation,
    context,
    requested_operation,
)
from attend_service.jobs import Jobs
from attend_service.keys import KeyRing
from attend_service.maps import Maps
from attend_service.metrics import Metrics
from attend_service.operations import call
from attend_service.pages import VIEWS, evidence, roles_of
from attend_service.readiness import Readiness
from attend_service.replies import TAR, is_disk_full, respond
from attend_service.routes import all_operations
from attend_service.settings import ServerSettings

log = logging.getLogger("attend")
requests = logging.getLogger("attend.requests")

MAX_TEXT = 2000
"""Characters of a body that are logged, where texts are asked for."""

REQUEST_ID = "X-Request-Id"

NO_ROUTE = "(none)"
"""Stands for a path at which there is nothing: what was sent may be anything."""


class IdConverter(BaseConverter):
    """The rest of the path, as it is.

    Werkzeug's own `path` refuses a slash at the beginning, and a file's path as an id has one.
    """

    regex = "(?s:.+)"
    part_isolating = False
    weight = 200  # as `path`: only where nothing more exact matches


def create_app(
    data: Data,
    settings: ServerSettings | None = None,
    readiness: Readiness | None = None,
    jobs: Jobs | None = None,
    maps: Maps | None = None,
) -> Flask:
    """Return the service over a data folder, as a WSGI application.

    Args:
        readiness: reported by `/readyz`; ready from the start if absent.
        jobs: they run the trainings; if absent, a queue that starts with the first of them.
        maps: they fit the layouts of maps; if absent, as they are asked for.
    """
    settings = settings or ServerSettings()
    # The gateway answers requests of static files, by this address and without the revision.
    app = Flask("attend_service", static_url_path=f"{wsgi.PREFIX}{wsgi.revision()}")
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.config["TRUSTED_HOSTS"] = settings.trusted_host or None
    # Ids may be addresses, https://…: two slashes are not to be made one.
    app.url_map.merge_slashes = False
    app.url_map.converters["id"] = IdConverter
    readiness = readiness or Readiness(warm=True)
    jobs = jobs or Jobs(data, train)
    keys = KeyRing(data.folder, always=settings.require_keys)
    metrics = Metrics(data, readiness, jobs)
    operations = {operation.name: operation for operation in all_operations()}
    app.extensions[EXTENSION] = Context(
        data,
        settings,
        readiness,
        jobs,
        maps or Maps(data),
        keys,
        metrics,
        operations,
        Files(data),
    )
    app.jinja_env.globals |= {"views": VIEWS, "evidence": evidence, "roles_of": roles_of}
    app.before_request(_begin)
    app.after_request(_end)
    app.register_error_handler(Exception, _respond)
    for name, operation in operations.items():
        app.add_url_rule(operation.rule, name, partial(call, operation), methods=[operation.method])
    return app


def _begin() -> Response | None:
    """Name a request, and check it before its body is read; answer a preflight at once."""
    g.began = time.perf_counter()
    # A client's own request id is kept if it is fit for a log.
    sent = request.headers.get(REQUEST_ID, "")
    g.id = sent if re.fullmatch(r"[\w.-]{1,64}", sent, re.ASCII) else secrets.token_hex(8)
    current, operation = context(), requested_operation()
    if current.settings.log_texts and request.is_json:
        g.body = request.get_data(cache=True, as_text=True)[:MAX_TEXT]
    if isinstance(request.routing_exception, SecurityError):
        return None  # the request is for another server
    length, limit = len(request.query_string), security.MAX_QUERY_STRING
    if length > limit:
        raise RequestURITooLarge(
            f"The address has {length:,} bytes of parameters, but at most {limit:,} are read; send "
            f"them as the body of a POST."
        )
    request.max_content_length = _body_limit(operation, current.settings)
    answer = security.check_origin(current.settings.cors_origin)
    if answer is not None:
        return answer
    security.check_access(operation, current.keys)
    if current.settings.read_only and operation is not None and operation.writes:
        raise ReadOnly("This server is read-only: it was started with --read-only.")
    return None


def _body_limit(operation: Operation | None, settings: ServerSettings) -> int:
    most = int(current_app.config["MAX_CONTENT_LENGTH"])
    if operation is not None and operation.upload == TAR:
        return settings.max_snapshot_bytes
    if operation is None or operation.body_limit is None:
        return most
    return min(operation.body_limit, most)


def body_limit(app: Flask, environ: dict[str, Any]) -> int:
    """Return how many bytes of a long body are worth keeping; 0 where its key is refused anyway."""
    with app.request_context(environ):
        if request.routing_exception is not None or not security.may_send():
            return 0
        return _body_limit(requested_operation(), context().settings)


def _respond(error: Exception) -> Response:
    if is_out_of_files(error):
        error = out_of_files(request.path)
    error = database_error(error, request.path) or error
    if is_disk_full(error):
        error = CannotWrite(str(error))
    if isinstance(error, MemoryError):
        log.warning("There is no memory left for a request: %s %r", request.method, request.path)
        error = OutOfMemory("There is no memory left for the request.")
    if isinstance(error, OutOfFiles):
        context().files.free(error)
    unknown = isinstance(error, UnknownCollection)
    names = security.visible(context().data.names()) if unknown else ()
    return respond(error, names_all=security.sees_all(), names=names)


def _end(response: Response) -> Response:
    """Add the headers of every response; log and count the request.

    It is told by its route and never by what was sent with it, unless texts are asked for.
    """
    current, operation = context(), requested_operation()
    if response.status_code == 204:
        response.headers.pop("Content-Type", None)
    security.add_headers(response, current.settings)
    response.headers[REQUEST_ID] = g.id
    seconds = time.perf_counter() - g.began
    route = operation.path if operation is not None else str(request.url_rule or NO_ROUTE)
    current.metrics.request(request.method, route, response.status_code, seconds)
    fields: dict[str, Any] = {
        "request": g.id,
        "method": request.method[:20],
        "route": route,  # as it is written in the API
        "status": response.status_code,
        "ms": round(seconds * 1000, 3),
    }
    if current.settings.log_texts:
        fields["path"] = request.full_path.rstrip("?")
        fields["body"] = g.get("body", "")
    requests.info("request", extra={"fields": fields})
    return response
