"""The Flask application: routes, problems, and the checks before and after each request."""

from __future__ import annotations

import logging
from typing import Any

from flask import Flask, Response, current_app, request
from werkzeug.exceptions import NotFound, SecurityError

from attend import Data
from attend.core.errors import (
    CannotWrite,
    OutOfFiles,
    OutOfMemory,
    ReadOnly,
    is_out_of_files,
    out_of_files,
)
from attend.learning import train
from attend.store.connections import database_error
from attend_service.context import EXTENSION, Context, Files, context, requested_operation
from attend_service.jobs import Jobs
from attend_service.logs import observe
from attend_service.metrics import EXTENSION as METRICS
from attend_service.metrics import Metrics
from attend_service.pages import VIEWS
from attend_service.problems import is_disk_full, respond
from attend_service.readiness import Readiness
from attend_service.routes import SUBJECTS, all_operations
from attend_service.security import access, browsers, limits
from attend_service.security.keys import KeyRing
from attend_service.settings import ServerSettings
from attend_service.static_files import PREFIX, static_files

log = logging.getLogger("attend")


def create_app(
    data: Data,
    settings: ServerSettings | None = None,
    readiness: Readiness | None = None,
    jobs: Jobs | None = None,
) -> Flask:
    """Return the service over a data folder, as a WSGI application.

    Args:
        readiness: reported by `/readyz`; ready from the start if absent.
        jobs: they run the trainings; if absent, a queue that starts with the first of them.
    """
    settings = settings or ServerSettings()
    app = Flask("attend_service", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.config["TRUSTED_HOSTS"] = settings.trusted_host or None
    # Ids may be addresses, https://…: two slashes are not to be made one.
    app.url_map.merge_slashes = False
    readiness = readiness or Readiness(warm=True)
    jobs = jobs or Jobs(data, train)
    keys = KeyRing(data.folder, always=settings.require_keys)
    operations = {operation.name: operation for operation in all_operations()}
    app.extensions[EXTENSION] = Context(
        data, settings, readiness, jobs, keys, operations, Files(data)
    )
    app.extensions[f"{EXTENSION}-operations"] = all_operations()
    app.jinja_env.globals["views"] = VIEWS
    metrics = app.extensions[METRICS] = Metrics(data, readiness, jobs)
    observe(app, metrics)
    app.before_request(_check_request)
    app.after_request(_add_headers)
    app.register_error_handler(Exception, _respond)
    app.add_url_rule(f"{PREFIX}<path:filename>", "static", _static_file)
    for subject in SUBJECTS:
        subject.register(app)
    return app


def _static_file(filename: str) -> Response:
    """Answer without a gateway, which does this before a request comes here."""
    file = static_files().get(PREFIX + filename)
    if file is None:
        raise NotFound
    return Response(file.content, headers=dict(file.headers))


def _check_request() -> Response | None:
    """Check a request before its body is read; answer a preflight at once."""
    if isinstance(request.routing_exception, SecurityError):
        return None  # the request is for another server
    limits.check_address()
    request.max_content_length = _body_limit()
    answer = browsers.preflight()
    if answer is None:
        browsers.check_write()
        access.check_access()
        _check_read_only()
    return answer


def _body_limit() -> int:
    operation, most = requested_operation(), int(current_app.config["MAX_CONTENT_LENGTH"])
    if operation is not None and operation.upload is not None:
        return context().settings.max_snapshot_bytes
    if operation is None or operation.body_limit is None:
        return most
    return min(operation.body_limit, most)


def body_limit(app: Flask, environ: dict[str, Any]) -> int:
    """Return how many bytes of a long body are worth keeping; 0 where its key is refused anyway."""
    with app.request_context(environ):
        if request.routing_exception is not None or not access.may_send():
            return 0
        return _body_limit()


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
    return respond(error, names_all=access.sees_all())


def _check_read_only() -> None:
    """Raise ReadOnly for an operation that writes, on a server that only reads."""
    operation = requested_operation()
    if context().settings.read_only and operation is not None and operation.writes:
        raise ReadOnly("This server is read-only: it was started with --read-only.")


def _add_headers(response: Response) -> Response:
    if response.status_code == 204:
        response.headers.pop("Content-Type", None)
    browsers.harden(response)
    browsers.add_cors(response)
    return response
