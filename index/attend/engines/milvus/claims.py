"""Work that one process of many is to do: what it does twice is wasted, and not wrong."""

from __future__ import annotations

import secrets
import time
from types import TracebackType

from attend.engines.milvus.registry import Registry

CLAIM_SECONDS = 120.0
"""After which the work of a process that says nothing of it is anybody's; by their clocks."""

SETTLED_SECONDS = 0.5
"""Two that claim at the same moment have both written by then, and read who was last."""


class Claim:
    """A claim to a piece of work, held from `take` until the `with` is left."""

    def __init__(self, registry: Registry, name: str) -> None:
        self._registry = registry
        self._name = name
        self._holder = secrets.token_hex(8)
        self._told = 0.0

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._told:
            self._registry.disclaim(self._name)

    def take(self) -> bool:
        """Whether the work is this holder's."""
        holder, until = self._registry.claim(self._name)
        if holder not in ("", self._holder) and until > time.time():
            return False
        self._tell()
        time.sleep(SETTLED_SECONDS)
        mine = self._registry.claim(self._name)[0] == self._holder
        self._told = self._told if mine else 0.0
        return mine

    def keep(self) -> None:
        """To be called again and again by who holds it."""
        if time.monotonic() - self._told > CLAIM_SECONDS / 4:
            self._tell()

    def _tell(self) -> None:
        self._registry.put_claim(self._name, self._holder, time.time() + CLAIM_SECONDS)
        self._told = time.monotonic()
