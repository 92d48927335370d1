"""Calls to a Milvus server: with a consistency, tried again where that may help."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from attend.engines.milvus.address import Address
from attend.engines.milvus.capabilities import MESSAGE_BYTES
from attend.engines.milvus.consistency import Moment, ReadBlock, read_block
from attend.errors import InvalidRequest, Unavailable, UnknownCollection
from attend.types import Consistency

try:
    import grpc
    from pymilvus import DataType, MilvusClient
    from pymilvus.client import ts_utils
    from pymilvus.exceptions import MilvusException
except ImportError as error:
    raise InvalidRequest(
        f"The engine milvus needs packages that are not installed ({error}); run 'pip install -r "
        f"requirements-milvus.txt'.",
        field="engine",
    ) from None

__all__ = ["Client", "DataType", "Gone", "Row"]

log = logging.getLogger("attend")
logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # what it tells is raised, too

Row = Mapping[str, Any]
Result = TypeVar("Result")

TRY_SECONDS = 10.0
"""How long one attempt may take, and once more what pymilvus began before."""

MOMENT_SECONDS = 10.0
"""For so long the reads of a request share the moment that they wait for. A search that began
with it is over within twice `TRY_SECONDS` (see `attend.engines.milvus.writing`)."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0

OWN_SECONDS = MOMENT_SECONDS
"""For so long after a write of this process its reads wait for that write. Bounded reads are some
seconds behind at most, so that later ones see it anyway."""

SOON = {"grpc.max_reconnect_backoff_ms": 500, "grpc.use_local_subchannel_pool": 1}
"""A channel waits twice as long after every failure, up to two minutes, unless it is told to."""

LOOKED_AGAIN = (0.002, 0.02)
"""Seconds after which a row that was not there is looked for again. Milvus 2.3 replaces a row by a
deletion and an insertion that take effect one after the other: for a moment there is neither."""

NO_COLLECTION = 100
"""Milvus's code for a collection that is not there."""

DROPPED = "The collection was dropped meanwhile; ask which there are."

HOPELESS = ("cannot parse expression", "exceeds max length", "invalid parameter")
"""In the messages of errors that another attempt only repeats."""


class Gone(UnknownCollection):
    """A table that is not there: most often because its collection was dropped meanwhile."""


class Client:
    """One server. Any number of threads may use it; it is connected to at the first call."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._client: MilvusClient | None = None
        self._connecting = threading.Lock()
        self._wrote: dict[str, float] = {}  # when, by collection

    # -- rows -------------------------------------------------------------------------------

    def insert(self, collection: str, rows: Sequence[Row]) -> None:
        """Rows whose keys nothing has; where an attempt may have been stored, they replace it."""
        for batch in batches(rows):
            self._write(collection, _Insertion(collection, [dict(row) for row in batch]))

    def upsert(self, collection: str, rows: Sequence[Row]) -> None:
        for batch in batches(rows):
            value = [dict(row) for row in batch]
            self._write(collection, partial(_upsert, collection=collection, rows=value))

    def delete(self, collection: str, keys: Sequence[int | str]) -> None:
        """Delete rows by their primary keys."""
        for place in range(0, len(keys), 10_000):
            ids = list(keys[place : place + 10_000])
            self._write(collection, partial(_delete, collection=collection, ids=ids))

    def query(
        self,
        collection: str,
        filter: str,
        fields: Sequence[str],
        limit: int | None = None,
        consistency: Consistency | None = None,
    ) -> list[dict[str, Any]]:
        """Rows that pass; with a limit, those of the smallest primary keys."""
        bound = {} if limit is None else {"limit": limit}
        results = self.call(
            lambda client: client.query(
                collection,
                filter=filter,
                output_fields=list(fields),
                timeout=TRY_SECONDS,
                **self._level(client, collection, consistency),
                **bound,
            )
        )
        return list(results)

    def by_keys(
        self,
        collection: str,
        field: str,
        keys: Sequence[int],
        fields: Sequence[str],
        also: str = "",
        row_bytes: int = 4096,
        consistency: Consistency | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Rows by their primary keys, and by what else they must pass.

        Args:
            row_bytes: the most that one may take in a message.
        """
        step = max(1, min(10_000, MESSAGE_BYTES // row_bytes))
        for place in range(0, len(keys), step):
            listed = ", ".join(map(str, keys[place : place + step]))
            passing = f"{field} in [{listed}]" + (f" and ({also})" if also else "")
            yield from self.query(collection, passing, fields, None, consistency)

    def count(self, collection: str, filter: str = "") -> int:
        return int(self.query(collection, filter, ["count(*)"])[0]["count(*)"])

    def search(
        self,
        collection: str,
        vectors: Sequence[Any],
        limit: int,
        filter: str,
        fields: Sequence[str],
        params: Mapping[str, Any],
    ) -> list[list[Any]]:
        """For each vector the rows of the largest inner products, best first."""
        results = self.call(
            lambda client: client.search(
                collection,
                data=list(vectors),
                filter=filter,
                limit=limit,
                output_fields=list(fields),
                search_params={"metric_type": "IP", "params": dict(params)},
                timeout=TRY_SECONDS,
                **self._level(client, collection, None),
            )
        )
        return [list(item) for item in results]

    # -- the server -------------------------------------------------------------------------

    def flush(self, collection: str) -> None:
        """Write what is in memory to the server's storage."""
        self.call(lambda client: client.flush(collection, timeout=6 * TRY_SECONDS))

    def indexed(self, collection: str) -> float:
        """The share of its rows that searches find by an index, and not by a scan."""
        loaded = self.call(
            lambda client: client.list_loaded_segments(collection, timeout=TRY_SECONDS)
        )
        # By their ids: each replica loads them all.
        rows = {
            item.segment_id: item.num_rows
            for item in loaded
            if item.state_name == "Sealed" and item.index_name
        }
        return min(1.0, float(sum(rows.values())) / max(1, self.count(collection)))

    def drop(self, collection: str) -> None:
        self.call(lambda client: client.drop_collection(collection, timeout=TRY_SECONDS))

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
                    raise Gone(
                        "The collection was dropped meanwhile; list those there are."
                    ) from error
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

    def _write(self, collection: str, action: Callable[[MilvusClient], object]) -> None:
        self.call(action)
        self._wrote[collection] = time.monotonic()

    def _level(
        self, client: MilvusClient, collection: str, consistency: Consistency | None
    ) -> dict[str, Any]:
        """Milvus's names for a consistency. A process always sees its own writes."""
        block = None if consistency else read_block()
        level = consistency or (block.consistency if block else self.address.consistency)
        if level == "strong":
            if block is None:
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
            block.moments[self] = moment = Moment(_now(client), began)
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


def _upsert(client: MilvusClient, collection: str, rows: list[dict[str, Any]]) -> None:
    client.upsert(collection, rows, timeout=TRY_SECONDS)


def _now(client: MilvusClient) -> int:
    """The server's clock: what is read as of it has all that was acknowledged before."""
    return int(client._get_connection().alloc_timestamp(timeout=TRY_SECONDS))


def _delete(client: MilvusClient, collection: str, ids: list[int | str]) -> None:
    client.delete(collection, ids=ids, timeout=TRY_SECONDS)
    # Milvus 2.3 tells of no deletion when it was (its answer's time is 0), so that reads of this
    # process would not wait for it. Any time after it will do.
    address = client._get_connection().server_address
    ts_utils.update_collection_ts(collection, _now(client), address)


class _Insertion:
    """Inserts at the first attempt, and replaces at each other."""

    def __init__(self, collection: str, rows: list[dict[str, Any]]) -> None:
        self._collection = collection
        self._rows = rows
        self._tried = False

    def __call__(self, client: MilvusClient) -> None:
        write = client.upsert if self._tried else client.insert
        self._tried = True
        write(self._collection, self._rows, timeout=TRY_SECONDS)


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


def _short(error: Exception) -> str:
    details = getattr(error, "message", None) or str(error) or type(error).__name__
    return str(details).splitlines()[0][:200]
