"""Where a Milvus server is, and which library on it is meant."""

from __future__ import annotations

import re
from typing import NamedTuple, get_args
from urllib.parse import parse_qs, unquote, urlsplit

from attend.errors import InvalidRequest
from attend.types import Consistency

DEFAULT_PORT = 19530
DEFAULT_LIBRARY = "attend"
PATIENCE = 30.0
"""A node that was lost is replaced in less, as measured."""

EXAMPLE = "milvus://127.0.0.1:19530/library"


class Address(NamedTuple):
    """`milvus://USER:PASSWORD@HOST:PORT/LIBRARY?consistency=strong&replicas=2`; only the host is
    needed.

    Attributes:
        library: begins the names of everything that is kept on the server.
        consistency: of reads that do not say.
        patience: for how many seconds a call is tried again before it fails.
        replicas: in memory, of each table that is made, on as many query nodes: while one is lost
            another answers.
    """

    host: str
    port: int = DEFAULT_PORT
    library: str = DEFAULT_LIBRARY
    consistency: Consistency = "bounded"
    patience: float = PATIENCE
    replicas: int = 1
    token: str = ""

    @property
    def uri(self) -> str:
        return f"http://{self.host}:{self.port}"

    def __str__(self) -> str:
        """Without the password."""
        return f"milvus://{self.host}:{self.port}/{self.library}"

    @classmethod
    def of(cls, written: str) -> Address:
        """Raises InvalidRequest for what is no such address."""
        try:
            parts = urlsplit(written)
            port = parts.port or DEFAULT_PORT
            requested = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        except ValueError as error:
            raise _refused(written, str(error)) from None
        library = parts.path.strip("/") or DEFAULT_LIBRARY
        if not parts.hostname:
            raise _refused(written, "it names no host")
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]{0,31}", library):
            raise _refused(written, "a library's name is up to 32 letters and digits")
        if unknown := requested.keys() - {"consistency", "patience", "replicas"}:
            raise _refused(written, f"{', '.join(sorted(unknown))} is not known")
        level = requested.get("consistency", "bounded")
        consistency: Consistency | None = next(
            (name for name in get_args(Consistency) if name == level), None
        )
        if consistency is None:
            raise _refused(written, "consistency is bounded or strong")
        patience = requested.get("patience", str(PATIENCE))
        if not re.fullmatch(r"\d{1,3}(\.\d+)?", patience):
            raise _refused(written, "patience is a number of seconds below 1000")
        replicas = requested.get("replicas", "1")
        if not re.fullmatch(r"[1-9]\d?", replicas):
            raise _refused(written, "replicas is a number from 1 to 99")
        names = [unquote(item) for item in (parts.username, parts.password) if item]
        return cls(
            parts.hostname,
            port,
            library,
            consistency,
            float(patience),
            int(replicas),
            ":".join(names),
        )


def _refused(written: str, reason: str) -> InvalidRequest:
    shown = re.sub(r"//[^@/]*@", "//", written)[:200]
    return InvalidRequest(
        f"{shown!r} is no address of a Milvus server: {reason}. Write it as {EXAMPLE}.",
        field="engine",
    )
