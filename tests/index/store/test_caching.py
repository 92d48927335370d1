"""A cache keeps the values used last, and no more than its limit."""

from __future__ import annotations

import threading

import pytest

from attend.store.words import LimitedCache


@pytest.fixture
def cache() -> LimitedCache[str, int]:
    return LimitedCache(10, lambda size: size)


def test_the_values_used_last_stay(cache):
    cache.put("a", 4)
    cache.put("b", 4)
    assert cache.get("a") == 4  # used again
    assert cache.put("c", 4) == 4
    assert [cache.get(key) for key in "abc"] == [4, None, 4]


def test_a_value_that_is_there_stays_as_it_is(cache):
    cache.put("a", 4)
    cache.put("a", 9)
    assert cache.get("a") == 4
    cache.put("b", 6)
    assert [cache.get(key) for key in "ab"] == [4, 6]


def test_one_value_of_any_size_is_kept(cache):
    cache.put("a", 1)
    cache.put("large", 100)
    assert [cache.get("a"), cache.get("large")] == [None, 100]
    cache.put("b", 1)
    assert [cache.get("large"), cache.get("b")] == [None, 1]


def test_threads_share_one_and_it_keeps_its_limit():
    sizes = {key: key % 7 for key in range(200)}
    cache = LimitedCache[int, int](50, lambda size: size)

    def use() -> None:
        for key, size in sizes.items():
            cache.put(key, size)
            assert cache.get(key) in (size, None)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(cache.get(key) or 0 for key in sizes) <= 50
