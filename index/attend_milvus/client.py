"""Calls to a Milvus server: with a consistency, tried again where that may help.

The consistency of reads is a context variable, since the stations between a request and its reads
do not know it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from attend.api.base import Consistency
from attend.core.errors import InvalidRequest, Unavailable, UnknownCollection
from attend_milvus.server import Address

try:
    import grpc
    from pymilvus import DataType, MilvusClient
    from pymilvus.exceptions import MilvusException
except ImportError as error:
    raise InvalidRequest(
        f"The engine milvus needs packages that are not installed ({error}); run 'pip install "
        f"attend-retrieval[milvus]'.",
        field="engine",
    ) from None

__all__ = ["TRY_SECONDS", "Client", "DataType", "Gone", "MilvusClient", "reading"]

log = logging.getLogger("attend")
logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # what it tells is raised, too

Result = TypeVar("Result")

TRY_SECONDS = 10.0
"""How long one attempt may take, and once more what pymilvus began before."""

MOMENT_SECONDS = 10.0
"""For so long the reads of a request share the moment that they wait for. A search that began
with it is over within twice `TRY_SECONDS` (see `attend_milvus.writing`)."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0

OWN_SECONDS = MOMENT_SECONDS
"""For so long after a write of this process its reads wait for that write. Bounded reads are some
seconds behind at most, so that later ones see it anyway."""

SOON = {"grpc.max_reconnect_backoff_ms": 500, "grpc.use_local_subchannel_pool": 1}
"""A channel waits twice as long after every failure, up to two minutes, unless it is told to."""

NO_COLLECTION = 100
"""Milvus's code for a collection that is not there."""

DROPPED = "The collection was dropped meanwhile; list those there are."

HOPELESS = ("cannot parse expression", "exceeds max length", "invalid parameter")
"""In the messages of errors that another attempt only repeats."""


class Gone(UnknownCollection):
    """A table that is not there: most often because its collection was dropped meanwhile."""


class Moment(NamedTuple):
    """The server's timestamp of a moment.

    Attributes:
        began: by `time.monotonic`, before the call.
    """

    mark: int
    began: float


@dataclass(eq=False)
class ReadBlock:
    """A block of reads.

    Attributes:
        consistency: None for that of the address.
        moments: the moments that strong reads of the block wait for, by engine: all reads see that
            moment or a later one, and only the first of them waits long.
        documents: those that its search has read, by row: what is returned is what was found.
    """

    consistency: Consistency | None
    moments: dict[object, Moment] = field(default_factory=dict)
    documents: Mapping[int, Any] | None = None


_block: ContextVar[ReadBlock | None] = ContextVar("consistency", default=None)


def read_block() -> ReadBlock | None:
    """Return the innermost block that this thread is in."""
    return _block.get()


@contextmanager
def reading(consistency: Consistency | None) -> Iterator[None]:
    """Let reads of this thread within the block have a consistency; None leaves it as it is."""
    if consistency is None and _block.get() is not None:
        yield
        return
    token = _block.set(ReadBlock(consistency))
    try:
        yield
    finally:
        _block.reset(token)


class Client:
    """One server. Any number of threads may use it; it is connected to at the first call."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._client: MilvusClient | None = None
        self._connecting = threading.Lock()
        self._wrote: dict[str, float] = {}  # when, by collection

    def call(self, action: Callable[[MilvusClient], Result]) -> Result:
        """Call an action and return its result; retry with growing pauses while that may help.

        Raises:
            Unavailable: it did not succeed in time.
            Gone: it names a collection that is not there.
        """
        started, pause = time.monotonic(), FIRST_PAUSE
        while True:
            try:
                return action(self._connected())
            except (MilvusException, grpc.RpcError, grpc.FutureTimeoutError) as error:
                if getattr(error, "code", None) == NO_COLLECTION:
                    raise Gone(DROPPED) from error
                if any(item in str(error) for item in HOPELESS):
                    raise
                if time.monotonic() - started + pause > self.address.patience:
                    raise self._unavailable(error) from error
                log.info("Milvus is asked again: %s", _short(error))
            time.sleep(pause * random.uniform(0.5, 1.0))  # not all replicas at once
            pause = min(LONGEST_PAUSE, pause * 2)

    def close(self) -> None:
        with self._connecting:
            if self._client is not None:
                self._client.close()
                self._client = None

    def write(self, collection: str, action: Callable[[MilvusClient], object]) -> None:
        """Call an action that writes; later reads of this process wait for it."""
        self.call(action)
        self._wrote[collection] = time.monotonic()

    def level(
        self, client: MilvusClient, collection: str, consistency: Consistency | None
    ) -> dict[str, Any]:
        """Return Milvus's words for a consistency. A process always sees its own writes."""
        block = None if consistency else _block.get()
        own = block.consistency if block else None
        level = consistency or own or self.address.consistency
        if level == "strong":
            if block is None or own is None:
                return {"consistency_level": "Strong"}
            moment = self._moment(client, block)
            return {"consistency_level": "Customized", "guarantee_timestamp": moment.mark}
        wrote = self._wrote.get(collection)
        recent = wrote is not None and time.monotonic() - wrote < OWN_SECONDS
        return {"consistency_level": "Session" if recent else "Bounded"}

    def _moment(self, client: MilvusClient, block: ReadBlock) -> Moment:
        """Return the moment of a block of reads, or a new one if it is too long ago."""
        moment, began = block.moments.get(self), time.monotonic()
        if moment is None or began - moment.began > MOMENT_SECONDS:
            block.moments[self] = moment = Moment(now(client), began)
        return moment

    def _connected(self) -> MilvusClient:
        client = self._client
        if client is None:
            with self._connecting:
                if self._client is None:
                    self._client = MilvusClient(
                        self.address.uri,
                        token=self.address.token,
                        timeout=TRY_SECONDS,
                        grpc_options=SOON,
                    )
                client = self._client
        return client

    def _unavailable(self, error: Exception) -> Unavailable:
        seconds = self.address.patience
        return Unavailable(
            f"Milvus at {self.address} does not answer ({_short(error)}), though it was asked for "
            f"{seconds:g} seconds. Nothing is lost that was acknowledged; ask again later."
        )


def now(client: MilvusClient) -> int:
    """Return the server's clock: what is read as of it has all that was acknowledged before."""
    return int(client._get_connection().alloc_timestamp(timeout=TRY_SECONDS))


def _short(error: Exception) -> str:
    details = getattr(error, "message", None) or str(error) or type(error).__name__
    return str(details).splitlines()[0][:200]
