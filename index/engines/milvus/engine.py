"""A library on a Milvus server."""

from __future__ import annotations

from index.engines import Names, Parts
from index.engines.milvus.address import Address
from index.engines.milvus.capabilities import CAPABILITIES
from index.errors import Unavailable
from index.settings import Settings


class Milvus:
    """Collections on a Milvus server; any number of processes may use them at once."""

    capabilities = CAPABILITIES
    aliases: Names

    def __init__(self, address: Address, *, read_only: bool = False) -> None:
        self.address = address

    @classmethod
    def at(cls, written: str, *, read_only: bool = False) -> Milvus:
        raise Unavailable(f"The engine at {Address.of(written)} is not finished yet.")

    def names(self) -> list[str]:
        return []

    def identity(self, name: str) -> object | None:
        return None

    def open(self, name: str) -> Parts:
        raise NotImplementedError

    def make(self, name: str, settings: Settings) -> None: ...
    def drop(self, name: str) -> None: ...
    def close(self) -> None: ...
