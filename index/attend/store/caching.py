"""A cache of the values used last, up to a total size."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LimitedCache(Generic[Key, Value]):
    """Keeps the values used last. Threads may share one.

    Args:
        limit: the total size of the values.
        size: returns the size of a value.
    """

    def __init__(self, limit: int, size: Callable[[Value], int]) -> None:
        self._limit = limit
        self._size_of = size
        self._size = 0
        self._values: dict[Key, Value] = {}
        self._lock = Lock()

    def get(self, key: Key) -> Value | None:
        with self._lock:
            value = self._values.pop(key, None)
            if value is not None:
                self._values[key] = value  # last again: the first ones go first
            return value

    def put(self, key: Key, value: Value) -> Value:
        """Keep a value, and drop those that were used longest ago. Return the value."""
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self._size += self._size_of(value)
                while self._size > self._limit and len(self._values) > 1:
                    first = next(iter(self._values))
                    self._size -= self._size_of(self._values.pop(first))
        return value
