"""What a browser says of where a request comes from; no page can change what it says."""

from __future__ import annotations

from flask import request


def is_own_page() -> bool:
    """Whether a page of this server sent the request, by the word of the browser.

    False where nothing is said: a program that is no browser, or an old one.
    """
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    # Browsers say less to servers without TLS that are not on loopback.
    return is_own_origin()


def is_own_origin() -> bool:
    """Whether the request names this server as its origin."""
    # The scheme may be a proxy's, and is not ours to compare.
    return request.headers.get("Origin", "").partition("://")[2] == request.host.lower()
