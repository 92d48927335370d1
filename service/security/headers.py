"""What every response tells browsers: take it for what it is, run nothing, keep nothing.

`Strict-Transport-Security` is for the proxy that speaks TLS: said over plain HTTP it means nothing.
"""

from __future__ import annotations

from flask import Response

from service.replies import HTML

NOTHING = "default-src 'none'; frame-ancestors 'none'"
PAGE = (
    "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def harden(response: Response) -> None:
    is_page = response.mimetype == HTML
    response.headers.update(ALWAYS)
    response.headers["Content-Security-Policy"] = PAGE if is_page else NOTHING
    # A write that was answered is seen by the next search: no answer may be an older one's.
    response.headers.setdefault("Cache-Control", "no-store")
    response.vary.add("Accept")
