"""The Flask application: routes, problems, headers."""

from __future__ import annotations

import re
import secrets

from flask import Flask, Response, g, request

from index import Data
from index.training import train
from service.context import EXTENSION, Context
from service.jobs import Jobs
from service.problems import respond
from service.readiness import Readiness
from service.replies import HTML
from service.routes import SUBJECTS, all_operations
from service.settings import ServiceSettings

REQUEST_ID = "X-Request-Id"
NOTHING = "default-src 'none'; frame-ancestors 'none'"
PAGE = (
    "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)


def create_app(
    data: Data,
    settings: ServiceSettings | None = None,
    readiness: Readiness | None = None,
    jobs: Jobs | None = None,
) -> Flask:
    """The service over a data folder, as a WSGI application.

    Args:
        readiness: what `/readyz` reports; ready from the start if absent.
        jobs: what runs the trainings; if absent, its own, which starts with the first of them.
    """
    settings = settings or ServiceSettings()
    app = Flask("service")
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body
    app.config["TRUSTED_HOSTS"] = settings.trusted_hosts
    # Ids may be addresses, https://…: two slashes are not to be made one.
    app.url_map.merge_slashes = False
    readiness = readiness or Readiness(warm=True)
    jobs = jobs or Jobs(data, train, limit=settings.max_jobs)
    app.extensions[EXTENSION] = Context(data, settings, readiness, jobs)
    app.extensions[f"{EXTENSION}-operations"] = all_operations()
    app.before_request(_name_request)
    app.after_request(_add_headers)
    app.register_error_handler(Exception, respond)
    for subject in SUBJECTS:
        subject.register(app)
    return app


def _name_request() -> None:
    """A client's own request id is kept if it is fit for a log."""
    given = request.headers.get(REQUEST_ID, "")
    g.id = given if re.fullmatch(r"[\w.-]{1,64}", given, re.ASCII) else secrets.token_hex(8)


def _add_headers(response: Response) -> Response:
    is_page = response.mimetype == HTML
    response.headers[REQUEST_ID] = g.id
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Content-Security-Policy"] = PAGE if is_page else NOTHING
    # A write that was answered is seen by the next search: no answer may be an older one's.
    response.headers.setdefault("Cache-Control", "no-store")
    response.vary.add("Accept")
    return response
