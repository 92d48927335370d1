"""A Milvus server: its address, and what Milvus 2.3 can hold and do.

The limits are those of https://milvus.io/docs/limitations.md (read for 2.3): 65,535 bytes of a
text field, 65,536 of a JSON field, 16,384 results, 64 MB of a message.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from attend.api.base import Consistency
from attend.core.errors import InvalidRequest
from attend.engines.engine import Capabilities

MAX_TEXT_BYTES = 65_535
MAX_RESULTS = 16_384
MESSAGE_BYTES = 48 << 20
"""Of the 64 MB of a message, what is filled with rows as they are counted here."""

MAX_ATTENDED = 10_000
"""More documents are found than are attended, as some are found by several keys."""

REFUSALS = {
    "lexical": (
        "Words that a query and a document share (lexical)",
        "leave lexical out, or use a data folder",
    ),
    "recency": ("Times that count (recency)", "filter by time, or use a data folder"),
    "match": (
        "Filters for words, parts of texts, dates or empty lists",
        "filter by values, or use a data folder",
    ),
    "attend_all": (
        "Weights over all documents (attend 'all', matrices, mixtures, decoding)",
        "attend to a number of documents, or use a data folder",
    ),
    "facets": ("Facets", "count with a filter and limit 0, or use a data folder"),
    "recommend": (
        "Recommendations and predictions from histories",
        "search by documents ({'ids': […]}), or use a data folder",
    ),
    "examples": ("Examples", "keep them in a data folder"),
    "memory": ("Queries moved by feedback (memory)", "train from it, or use a data folder"),
    "train": (
        "Trainings of anything but matrices for rankings",
        "train with parts ['matrices'], or in a data folder",
    ),
    "jobs": ("Jobs", "train in a data folder, and import its projection"),
    "reindex": ("Changes of the encoder", "build another collection, and point an alias at it"),
    "foreign": ("Foreign queries before a training", "train, or use a data folder"),
    "log": ("Logged searches", "log them in your application, or use a data folder"),
    "snapshots": ("Snapshots and checks of files", "use the server's own backups"),
}

CAPABILITIES = Capabilities(
    "milvus",
    atomic_batches=False,
    lexical=False,
    recency=False,
    match=False,
    attend_all=False,
    attend_most=MAX_ATTENDED,
    any_scorer=False,
    facets=False,
    log=False,
    insertion_order=False,
    recommend=False,
    memory=False,
    train=("matrices",),
    jobs=False,
    snapshots=False,
    reindex=False,
    foreign=False,
    text_bytes=MAX_TEXT_BYTES,
    content_bytes=MAX_TEXT_BYTES,
    consistency=True,
    window=1000,  # a write waits some 200 ms to learn what is stored
    refusals=REFUSALS,
)

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
        """Read an address. Raise InvalidRequest for any other text."""
        try:
            parts = urlsplit(written)
            port = parts.port or DEFAULT_PORT
            options = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        except ValueError as error:
            raise _rejected(written, str(error)) from None
        library = parts.path.strip("/") or DEFAULT_LIBRARY
        if not parts.hostname:
            raise _rejected(written, "it names no host")
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]{0,31}", library):
            raise _rejected(written, "a library's name is up to 32 letters and digits")
        for name, option in options.items():
            if name not in _OPTIONS:
                raise _rejected(written, f"{name} is not known")
            pattern, expected = _OPTIONS[name]
            if not re.fullmatch(pattern, option):
                raise _rejected(written, f"{name} is {expected}")
        names = [unquote(item) for item in (parts.username, parts.password) if item]
        return cls(
            parts.hostname,
            port,
            library,
            "strong" if options.get("consistency") == "strong" else "bounded",
            float(options.get("patience", PATIENCE)),
            int(options.get("replicas", 1)),
            ":".join(names),
        )


_OPTIONS = {
    "consistency": ("bounded|strong", "bounded or strong"),
    "patience": (r"\d{1,3}(\.\d+)?", "a number of seconds below 1000"),
    "replicas": (r"[1-9]\d?", "a number from 1 to 99"),
}
"""By option of an address: the pattern of its values, and the same in words."""


def _rejected(written: str, reason: str) -> InvalidRequest:
    shown = re.sub(r"//[^@/]*@", "//", written)[:200]
    return InvalidRequest(
        f"{shown!r} is not the address of a Milvus server: {reason}. Write it as {EXAMPLE}.",
        field="engine",
    )
