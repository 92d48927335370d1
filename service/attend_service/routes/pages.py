"""What tells about the server: its health, its document, and the pages for people."""

from __future__ import annotations

from flask import Response, current_app, render_template

from attend.api.base import parse
from attend.api.search import PlainSearch
from attend_service import openapi
from attend_service.context import EXTENSION, context
from attend_service.operations import Operation, Operations
from attend_service.pages import first_collection, page, search_page
from attend_service.problems import KINDS
from attend_service.replies import HTML, reply
from attend_service.schemas.server import HealthReply, ReadinessReply
from attend_service.security.access import visible

operations = Operations("Server")


@operations.add("GET", "/healthz", returns={200: HealthReply}, scope="open")
def health() -> Response:
    """Say that the process is alive."""
    return reply({"status": "alive"})


@operations.add("GET", "/readyz", returns={200: ReadinessReply, 503: ReadinessReply}, scope="open")
def readiness() -> Response:
    """Say whether to send requests here: 503 while collections are opened, and while stopping."""
    now = context().readiness.now()
    # Names of collections are for those who have a key.
    failed = {} if context().keys.asks() else now.failed
    return reply({"status": now.state, "failed": failed}, 200 if now.state == "ready" else 503)


@operations.add("GET", "/openapi.json", returns={200: None}, own=True)
def openapi_document() -> Response:
    """Give the OpenAPI document of all this."""
    return reply(openapi.document(_operations()))


@operations.add("GET", "/docs", returns={200: None}, html=True, own=True)
def docs() -> Response:
    """Show the OpenAPI document to a reader."""
    known = _operations()
    text = render_template(
        "docs.html", document=openapi.document(known), operations=known, problems=KINDS
    )
    return Response(text, content_type=f"{HTML}; charset=utf-8")


@operations.add("GET", "/", returns={200: None}, html=True, own=True)
def home() -> Response:
    """Show where to begin."""
    names = visible(context().data.names())
    return search_page(parse(PlainSearch, {"collection": first_collection(names)}), None)


@operations.add("GET", "/attention", returns={200: None}, html=True, own=True)
def attention_page() -> Response:
    """Show which documents several queries attend to, and documents each other."""
    return page("/attention")


@operations.add("GET", "/compare", returns={200: None}, html=True, own=True)
def compare_page() -> Response:
    """Show two projections side by side."""
    return page("/compare")


@operations.add("GET", "/recommend", returns={200: None}, html=True, own=True)
def recommend_page() -> Response:
    """Show what follows from documents that are liked, and why."""
    return page("/recommend")


@operations.add("GET", "/teach", returns={200: None}, html=True, own=True)
def teach_page() -> Response:
    """Show what was taught, and take more."""
    return page("/teach")


@operations.add("GET", "/map", returns={200: None}, html=True, own=True)
def map_page() -> Response:
    """Show the keys in two dimensions."""
    return page("/map")


@operations.add("GET", "/add", returns={200: None}, html=True, own=True)
def add_page() -> Response:
    """Take a file, and make a collection of it."""
    return page("/add")


@operations.add("GET", "/operate", returns={200: None}, html=True, own=True)
def operate_page() -> Response:
    """Show what the server does and holds."""
    return page("/operate")


def _operations() -> list[Operation]:
    known: list[Operation] = current_app.extensions[f"{EXTENSION}-operations"]
    return known
