"""Calls to a Milvus server: with a consistency, tried again where that may help; and the rows of
one table there: written, read by their keys, searched.

The consistency of reads is a context variable, since the stations between a request and its reads
do not know it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

from attend.api.base import Consistency
from attend.core.errors import InvalidRequest, Unavailable, UnknownCollection
from attend_milvus.server import MESSAGE_BYTES, Address

try:
    import grpc
    from pymilvus import DataType as DataType
    from pymilvus import MilvusClient
    from pymilvus.client import ts_utils
    from pymilvus.client.types import LoadState
    from pymilvus.exceptions import MilvusException
except ImportError as error:
    raise InvalidRequest(
        f"The engine milvus needs packages that are not installed ({error}); run 'pip install "
        f"attend-retrieval[milvus]'.",
        field="engine",
    ) from None

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


@dataclass(eq=False)
class ReadBlock:
    """A block of reads.

    Attributes:
        consistency: None for that of the address.
        moments: the moments that strong reads of the block wait for, by engine: all reads see that
            moment or a later one, and only the first of them waits long. A moment is the server's
            timestamp, and when it was asked for, by `time.monotonic`.
        documents: those that its search has read, by row: what is returned is what was found.
    """

    consistency: Consistency | None
    moments: dict[object, tuple[int, float]] = field(default_factory=dict)
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
        self._breaks = 0
        self._loaded: dict[str, int] = {}  # after which break, by collection

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
                self._breaks += 1
                if time.monotonic() - started + pause > self.address.patience:
                    raise Unavailable(
                        f"Milvus at {self.address} does not answer ({_short(error)}), though it "
                        f"was asked for {self.address.patience:g} seconds. Nothing is lost that "
                        f"was acknowledged; ask again later."
                    ) from error
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
        """Return Milvus's words for a consistency. A process always sees its own writes.

        Raises:
            MilvusException: the collection is being loaded. What is read of it first, and first
                after a failure, waits: no server promises to answer from all of it before.
        """
        if self._loaded.get(collection) != self._breaks:
            breaks, state = self._breaks, client.get_load_state(collection, timeout=TRY_SECONDS)
            if state["state"] in (LoadState.Loading, LoadState.NotLoad):
                raise MilvusException(message=f"{collection} is being loaded: {state}")
            self._loaded[collection] = breaks
        block = None if consistency else _block.get()
        own = block.consistency if block else None
        level = consistency or own or self.address.consistency
        if level == "strong":
            if block is None or own is None:
                return {"consistency_level": "Strong"}
            moment, began = block.moments.get(self), time.monotonic()
            if moment is None or began - moment[1] > MOMENT_SECONDS:
                block.moments[self] = moment = now(client), began
            return {"consistency_level": "Customized", "guarantee_timestamp": moment[0]}
        wrote = self._wrote.get(collection)
        recent = wrote is not None and time.monotonic() - wrote < OWN_SECONDS
        return {"consistency_level": "Session" if recent else "Bounded"}

    def _connected(self) -> MilvusClient:
        with self._connecting:
            if self._client is None:
                self._client = MilvusClient(
                    self.address.uri,
                    token=self.address.token,
                    timeout=TRY_SECONDS,
                    grpc_options=SOON,
                )
            return self._client


def now(client: MilvusClient) -> int:
    """Return the server's clock: what is read as of it has all that was acknowledged before."""
    return int(client._get_connection().alloc_timestamp(timeout=TRY_SECONDS))


def _short(error: Exception) -> str:
    details = getattr(error, "message", None) or str(error) or type(error).__name__
    return str(details).splitlines()[0][:200]


Row = Mapping[str, Any]

BLOCK = 10_000
"""Rows that one call names by their keys."""

FIELD_BYTES = {"texts": 100_000, "content": 100_000, "vector": 36_000, "place": 36_000}
"""The most that the long fields take in a message."""

LOOKED_AGAIN = (0.002, 0.02)
"""Seconds after which a row that was not there is looked for again. Milvus 2.3 replaces a row by a
deletion and an insertion that take effect one after the other: for a moment there is neither."""


@dataclass(frozen=True)
class Table:
    """Rows on a server, by a primary key.

    Attributes:
        primary: the name of the primary key.
    """

    client: Client
    name: str
    primary: str

    def upsert(self, rows: Sequence[Row], *, new: bool = False) -> None:
        """Store rows.

        Args:
            new: they have new keys; where an attempt may have been stored, they replace it.
        """
        for batch in batches(rows):
            self._store(batch, new=new)

    def _store(self, batch: Sequence[Row], *, new: bool) -> None:
        def attempt(client: MilvusClient) -> None:
            nonlocal new
            write = client.insert if new else client.upsert
            new = False
            write(self.name, [dict(row) for row in batch], timeout=TRY_SECONDS)

        self.client.write(self.name, attempt)

    def delete(self, keys: Sequence[int | str]) -> None:
        """Delete rows by their primary keys."""
        for place in range(0, len(keys), BLOCK):
            ids = list(keys[place : place + BLOCK])
            self.client.write(self.name, partial(_delete, collection=self.name, ids=ids))

    def query(
        self,
        filter: str,
        fields: Sequence[str],
        limit: int | None = None,
        consistency: Consistency | None = None,
    ) -> list[dict[str, Any]]:
        """Return rows that pass; with a limit, those of the smallest primary keys."""
        bound = {} if limit is None else {"limit": limit}
        rows = self.client.call(
            lambda client: client.query(
                self.name,
                filter=filter,
                output_fields=list(dict.fromkeys(fields)),
                timeout=TRY_SECONDS,
                **self.client.level(client, self.name, consistency),
                **bound,
            )
        )
        return list(rows)

    def pages(
        self,
        fields: Sequence[str],
        size: int,
        passing: str = "",
        consistency: Consistency | None = None,
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield all rows that pass, `size` at a time, in the order of their primary keys."""
        after = 0
        while rows := self.query(
            both(f"{self.primary} > {after}", passing), [self.primary, *fields], size, consistency
        ):
            rows.sort(key=itemgetter(self.primary))
            after = rows[-1][self.primary]
            yield rows

    def by_keys(
        self,
        keys: Sequence[int],
        fields: Sequence[str],
        passing: str = "",
        consistency: Consistency | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows of primary keys that pass."""
        row_bytes = 4096 + sum(FIELD_BYTES.get(field, 0) for field in fields)
        step = min(BLOCK, MESSAGE_BYTES // row_bytes)
        for place in range(0, len(keys), step):
            yield from self.query(
                both(among(self.primary, keys[place : place + step]), passing),
                [self.primary, *fields],
                None,
                consistency,
            )

    def count(self, filter: str = "") -> int:
        return int(self.query(filter, ["count(*)"])[0]["count(*)"])

    def search(
        self,
        vectors: Sequence[Any],
        limit: int,
        filter: str,
        fields: Sequence[str],
        params: Mapping[str, Any],
    ) -> list[list[Any]]:
        """Return for each vector the rows of the largest inner products, best first."""
        hits = self.client.call(
            lambda client: client.search(
                self.name,
                data=list(vectors),
                filter=filter,
                limit=limit,
                output_fields=list(fields),
                search_params={"metric_type": "IP", "params": dict(params)},
                timeout=TRY_SECONDS,
                **self.client.level(client, self.name, None),
            )
        )
        return [list(item) for item in hits]

    def flush(self) -> None:
        """Write what is in memory to the server's storage."""
        self.client.call(lambda client: client.flush(self.name, timeout=6 * TRY_SECONDS))

    def indexed(self) -> float:
        """Return the share of its rows that searches find by an index, and not by a scan."""
        loaded = self.client.call(
            lambda client: client.list_loaded_segments(self.name, timeout=TRY_SECONDS)
        )
        # By their ids: each replica loads them all.
        rows = {
            item.segment_id: item.num_rows
            for item in loaded
            if item.state_name == "Sealed" and item.index_name
        }
        return min(1.0, float(sum(rows.values())) / max(1, self.count()))

    def drop(self) -> None:
        self.client.call(lambda client: client.drop_collection(self.name, timeout=TRY_SECONDS))


def both(*expressions: str) -> str:
    """Join expressions that must all hold; empty ones let everything pass."""
    return " and ".join(f"({item})" for item in expressions if item)


def among(field: str, numbers: Sequence[int]) -> str:
    """Return the expression that a field is one of some numbers."""
    return f"{field} in [{', '.join(map(str, numbers))}]"


def _delete(client: MilvusClient, collection: str, ids: list[int | str]) -> None:
    client.delete(collection, ids=ids, timeout=TRY_SECONDS)
    # Milvus 2.3 tells of no deletion when it was (its answer's time is 0), so that reads of this
    # process would not wait for it. Any time after it will do.
    address = client._get_connection().server_address
    ts_utils.update_collection_ts(collection, now(client), address)


def batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Rows in parts that fit into a message."""
    first, size = 0, 0
    for place, row in enumerate(rows):
        key_ids = sum(_bytes(value) for value in row.values())
        if size and size + key_ids > MESSAGE_BYTES:
            yield rows[first:place]
            first, size = place, 0
        size += key_ids
    if first < len(rows):
        yield rows[first:]


def _bytes(value: Any) -> int:
    """About what a field takes in a message."""
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if isinstance(value, str):
        return 3 * len(value)
    return len(str(value)) if isinstance(value, Mapping) else 8
