"""JSON out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from flask import Response, request

from attend.api.base import Reply, json_fields

JSON = "application/json"
PROBLEM = "application/problem+json"
HTML = "text/html"
TAR = "application/x-tar"


def reply(
    content: Reply | Mapping[str, Any], status: int = 200, media_type: str = JSON
) -> Response:
    return Response(to_json(content), status, content_type=media_type)


def to_json(content: Reply | Mapping[str, Any] | Sequence[Any]) -> bytes:
    try:
        return orjson.dumps(content, json_fields, orjson.OPT_PASSTHROUGH_DATACLASS)
    except TypeError:
        # Values that came in from Python may hold integers beyond 64 bits or half a surrogate
        # pair, which orjson refuses and JSON text can say.
        compact = (",", ":")
        return json.dumps(
            content, separators=compact, allow_nan=False, default=json_fields
        ).encode()


def wants_page() -> bool:
    """Return true if the client prefers HTML: a browser does, curl takes anything."""
    return request.accept_mimetypes.best_match([JSON, HTML]) == HTML


def base_url() -> str:
    """Return the address under which the client knows this server."""
    return request.host_url.rstrip("/")
