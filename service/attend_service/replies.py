"""JSON out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from flask import Response, request

JSON = "application/json"
PROBLEM = "application/problem+json"
HTML = "text/html"


def reply(content: Mapping[str, Any], status: int = 200, media_type: str = JSON) -> Response:
    return Response(to_json(content), status, content_type=media_type)


def to_json(content: Mapping[str, Any] | Sequence[Any]) -> bytes:
    try:
        return orjson.dumps(content)
    except TypeError:
        # Values that came in from Python may hold integers beyond 64 bits or half a surrogate
        # pair, which orjson refuses and JSON text can say.
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def wants_page() -> bool:
    """Whether the client would rather read HTML: a browser would, curl takes anything."""
    return request.accept_mimetypes.best_match([JSON, HTML]) == HTML


def base_url() -> str:
    """The address under which the client knows this server."""
    return request.host_url.rstrip("/")
