"""Keys that no document names any more, kept for as long as a search may need them.

The shards of a table are read at moments of their own, each between the moment that the search
asked for and its end. Were the keys of a document's old version deleted as soon as the new one is
written, a search could meet the shard of the new key before it came and that of the old key after
it went: a document that was there all the time would be missed. So old keys go `GRACE_SECONDS`
after the document names others, which is longer than any search lasts (`client.MOMENT_SECONDS`
and twice `client.TRY_SECONDS`). Then, if a search saw an old key's shard without it, each of its
moments lies after the new version, and it saw the new key. Only spans of time are compared, each
on one machine's monotonic clock, and no two clocks.

A reader that meets an old key reads the document, which says which keys are its own, and asks for
those by their ids (`keys.RemoteKeys`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from attend.errors import AttendError

log = logging.getLogger("attend")

GRACE_SECONDS = 35.0

TOGETHER_SECONDS = 1.0
"""What falls due within it is deleted at once."""


class Retired:
    """Deletes keys some time after it was given them, in a thread of its own.

    What it still holds when its process is killed stays: readers pass over it, and a sweep finds
    it (`attend.engines.milvus.sweeping`).

    Args:
        delete: deletes keys by their ids.
    """

    def __init__(self, delete: Callable[[Sequence[int]], None]) -> None:
        self._delete = delete
        self._waiting: deque[tuple[float, Sequence[int]]] = deque()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._closed = False

    def add(self, keys: Sequence[int]) -> None:
        """Keys whose documents name others by now."""
        if keys:
            with self._lock:
                self._waiting.append((time.monotonic() + GRACE_SECONDS, keys))
                if self._timer is None:
                    self._wait()

    @property
    def waits(self) -> bool:
        """Whether something is still to be deleted."""
        return self._timer is not None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            timer.join()

    def _wait(self) -> None:
        """Until the first of what waits is due; within the lock."""
        if self._waiting and not self._closed:
            seconds = max(0.0, self._waiting[0][0] - time.monotonic()) + TOGETHER_SECONDS
            self._timer = threading.Timer(seconds, self._delete_due)
            self._timer.daemon = True
            self._timer.start()
        else:
            self._timer = None

    def _delete_due(self) -> None:
        with self._lock:
            due: list[int] = []
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                due += self._waiting.popleft()[1]
        try:
            self._delete(due)
        except AttendError as error:  # the collection was dropped, or the server is away
            log.info("%d keys that no document names were left: %s", len(due), error)
        with self._lock:
            self._wait()
