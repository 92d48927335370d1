"""Readiness for requests: not before the server is warm, nor while it stops."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, TypeVar

from attend import Data
from attend.collection.drift import check_encoder
from attend.core.errors import OutOfFiles, Unavailable

log = logging.getLogger("attend")

State = Literal["warming", "ready", "draining"]
Result = TypeVar("Result")

PAUSE_SECONDS = 0.5
"""The wait before an engine that did not answer is called again."""


class Readiness:
    """warming → ready → draining; the last is final.

    Attributes:
        failed: maps a collection that could not be opened to the class of the error.
    """

    def __init__(self, *, warm: bool = False) -> None:
        self.state: State = "ready" if warm else "warming"
        self.failed: Mapping[str, str] = {}
        self._lock = threading.Lock()

    def drain(self) -> None:
        with self._lock:
            self.state = "draining"

    def warm(self, data: Data) -> None:
        """Open every collection and load their encoders, before a request needs them.

        Where they have more files than the process may open, each is opened as it is used.
        """
        for name in self._patiently(data.names) or ():
            if self.state == "draining":
                return
            try:
                self._patiently(partial(_open, data, name))
            except OutOfFiles as error:
                log.warning("Not all collections are opened before they are used: %s", error)
                data.close_collections()
                break
            # Whatever is wrong with one collection, the others can be served.
            except Exception as error:
                log.warning("The collection %r could not be opened: %s", name, error)
                self.failed = {**self.failed, name: type(error).__name__}
        with self._lock:
            if self.state == "warming":
                self.state = "ready"

    def _patiently(self, call: Callable[[], Result]) -> Result | None:
        """Call an engine until it answers; return None where the server stops first."""
        while self.state != "draining":
            try:
                return call()
            except OutOfFiles:
                raise
            except Unavailable as error:
                log.warning("The server is not ready: %s", error)
                time.sleep(PAUSE_SECONDS)
        return None


def _open(data: Data, name: str) -> None:
    collection = data.collection(name)
    collection.info()
    if collection.settings.encoder is not None:
        data.encoder(collection.settings.encoder)
        try:
            if sentence := check_encoder(collection):
                log.warning("%r: %s", name, sentence)
        except Exception as error:  # it is served all the same
            log.warning("The encoder of %r could not be checked: %s", name, error)
