"""The descriptions of requests' fields, which are read from the source when they are needed."""

from __future__ import annotations

import gc
import threading
import time
from types import ModuleType

import pytest

from attend.api import base, documents, feedback, learning, recommend, search


@pytest.mark.parametrize("attempt", range(5))
def test_threads_that_read_them_at_once_get_them(attempt: int) -> None:
    """Python 3.11 mixes up the depths of trees that two threads build where another one runs in
    between, as after a collection of garbage."""
    modules: list[ModuleType] = [documents, feedback, learning, recommend, search]
    expected = {module.__name__: base._docstrings(module.__name__) for module in modules}
    read = base._docstrings.__wrapped__
    results: list[object] = []

    def reading(module: str) -> None:
        try:
            results.append(read(module) == expected[module])
        except SystemError as error:
            results.append(error)

    def yielding(*_: object) -> None:
        time.sleep(1e-4)

    gc.callbacks.append(yielding)
    threads = [threading.Thread(target=reading, args=[name]) for name in list(expected) * 2]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.callbacks.remove(yielding)
    assert results == [True] * len(threads)
