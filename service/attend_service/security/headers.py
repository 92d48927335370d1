"""What every response tells browsers: take it for what it is, keep nothing, and run nothing but
the pages' own scripts, which talk to nobody but this server.

`Strict-Transport-Security` is for the proxy that speaks TLS: said over plain HTTP it means nothing.
"""

from __future__ import annotations

from flask import Response

from attend_service.context import context
from attend_service.replies import HTML

NOTHING = "default-src 'none'; frame-ancestors 'none'"
PAGE = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; img-src 'self' data:"
)
ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


_OTHERS = [*ALWAYS.items(), ("Content-Security-Policy", NOTHING)]


def _page() -> list[tuple[str, str]]:
    policy = " ".join([PAGE, *context().settings.picture_origins])
    return [*ALWAYS.items(), ("Content-Security-Policy", policy)]


def harden(response: Response) -> None:
    sent = response.headers
    sent.extend(_page() if response.mimetype == HTML else _OTHERS)
    # A write that was answered is seen by the next search: no answer may be an older one's.
    if "Cache-Control" not in sent:
        sent.add("Cache-Control", "no-store")
    sent.add("Vary", "Accept")
