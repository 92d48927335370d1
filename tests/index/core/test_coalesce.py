"""Calls of many threads as few: who is answered with whom, and by what."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attend import Data
from attend.api.base import parse
from attend.api.search import SearchRequest
from attend.core.coalesce import Coalescer, collecting

WAIT = 30.0


class Gate:
    """A function of many that stands still until it is let go on, and notes its calls."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.entered = threading.Semaphore(0)
        self.open = threading.Semaphore(0)

    def __call__(self, given: Sequence[int]) -> list[int]:
        self.calls.append(list(given))
        self.entered.release()
        assert self.open.acquire(timeout=WAIT)
        if 13 in given:
            raise ValueError("13 is refused")
        return [10 * each for each in given]

    def enter(self) -> None:
        assert self.entered.acquire(timeout=WAIT)


def sent(
    pool: ThreadPoolExecutor, coalescer: Coalescer[int, int], key: str, *given: int
) -> list[Future[int]]:
    """Joins in this order: each waits in line before the next one comes."""
    found = []
    for each in given:
        before = waiting(coalescer, key)
        found.append(pool.submit(coalescer.join, key, each))
        until(lambda before=before: waiting(coalescer, key) > before)  # type: ignore[misc]
    return found


def waiting(coalescer: Coalescer[int, int], key: str) -> int:
    return coalescer.waiting(key)


def until(true: Callable[[], bool]) -> None:
    turn = threading.Event()
    for _ in range(int(WAIT * 1000)):
        if true():
            return
        turn.wait(0.001)
    raise AssertionError("it did not come to that")


class Clock:
    """A clock that goes on only where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1.0
        self.slept = 0.0
        self.meanwhile: Callable[[], object] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds
        self.meanwhile()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("attend.core.coalesce.time.perf_counter", lambda: clock.now)
    monkeypatch.setattr("attend.core.coalesce.time.sleep", clock.sleep)
    return clock


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def after_two(
    gate: Gate, clock: Clock, pool: ThreadPoolExecutor
) -> Callable[[float], Coalescer[int, int]]:
    """Makes a coalescer that answered 1 alone and then 2 and 3 together, in so many seconds."""

    def make(seconds: float) -> Coalescer[int, int]:
        coalescer = Coalescer(gate, lambda item: 1, 8)
        results = sent(pool, coalescer, "a", 1)
        gate.enter()
        results += sent(pool, coalescer, "a", 2, 3)
        gate.open.release()
        gate.enter()
        clock.now += seconds
        gate.open.release()
        assert [result.result(WAIT) for result in results] == [10, 20, 30]
        until(lambda: waiting(coalescer, "a") == -1)
        return coalescer

    return make


def test_after_a_call_of_two_the_next_waits_for_another(
    after_two: Callable[[float], Coalescer[int, int]],
    gate: Gate,
    clock: Clock,
    pool: ThreadPoolExecutor,
) -> None:
    coalescer, results = after_two(0.04), list[Future[int]]()
    clock.meanwhile = lambda: results.extend(sent(pool, coalescer, "a", 5))
    gate.open.release()
    assert coalescer.join("a", 4) == 40
    assert [result.result(WAIT) for result in results] == [50]
    assert gate.calls == [[1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("others", "took", "waited"),
    [(0.0, 0.04, 0.0008), (0.0018, 0.04, 0.04), (0.0018, 0.01, 0.01), (0.0018, 3.0, 0.05)],
)
def test_it_waits_while_others_work_but_for_no_more_than_the_call_before_took(
    after_two: Callable[[float], Coalescer[int, int]],
    gate: Gate,
    clock: Clock,
    others: float,
    took: float,
    waited: float,
) -> None:
    """`others` is the time that they have the interpreter for, each time that it is free."""
    coalescer = after_two(took)

    def work() -> None:
        clock.now += others

    began, clock.meanwhile = clock.now, work
    gate.open.release(2)
    assert coalescer.join("a", 4) == 40
    turn = 0.0002 + others  # until it looks again
    assert waited - 1e-9 <= clock.now - began <= waited + turn
    began = clock.now
    assert (coalescer.join("a", 5), clock.now) == (50, began)


@pytest.mark.parametrize(("key", "later"), [("b", 0.0), ("a", 0.05)])
def test_another_key_and_who_comes_later_wait_for_nobody(
    after_two: Callable[[float], Coalescer[int, int]],
    gate: Gate,
    clock: Clock,
    key: str,
    later: float,
) -> None:
    coalescer = after_two(0.04)
    clock.now += later
    gate.open.release()
    assert (coalescer.join(key, 4), clock.slept) == (40, 0.0)


def test_who_comes_while_one_works_is_answered_together_first_in_first_out() -> None:
    gate = Gate()
    coalescer = Coalescer(gate, lambda each: 1, 3)
    with ThreadPoolExecutor(8) as pool:
        found = sent(pool, coalescer, "a", 1)
        gate.enter()
        found += sent(pool, coalescer, "a", 2, 3, 4, 5)
        for _ in range(3):
            gate.open.release()
        assert [each.result(WAIT) for each in found] == [10, 20, 30, 40, 50]
    assert gate.calls == [[1], [2, 3, 4], [5]]
    assert coalescer.waiting("a") == -1


def test_so_many_work_at_once_and_the_others_wait() -> None:
    gate = Gate()
    coalescer = Coalescer(gate, lambda each: 1, 8, leaders=2)
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(coalescer.join, "a", each) for each in (1, 2)]
        gate.enter()
        gate.enter()
        found += sent(pool, coalescer, "a", 3, 4)
        gate.open.release()  # one of the two goes on with both
        gate.enter()
        assert gate.calls[2:] == [[3, 4]]
        gate.open.release(2)
        assert [each.result(WAIT) for each in found] == [10, 20, 30, 40]
    assert sorted(gate.calls[:2]) == [[1], [2]]
    assert coalescer.waiting("a") == -1


@given(
    lots=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=12),
    most=st.integers(1, 12),
    at_once=st.integers(1, 3),
)
def test_everyone_gets_its_own(lots: list[list[int]], most: int, at_once: int) -> None:
    def run(parts: Sequence[list[int]]) -> list[list[int]]:
        assert len(parts) == 1 or sum(map(len, parts)) <= most
        return [[10 * each for each in part] for part in parts]

    coalescer: Coalescer[list[int], list[int]] = Coalescer(run, len, most, at_once)
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda at: coalescer.join(at % 2, lots[at]), range(len(lots)))
        assert list(found) == [[10 * each for each in part] for part in lots]
    assert coalescer.waiting("a") == -1


def test_a_part_larger_than_the_limit_goes_alone() -> None:
    gate = Gate()
    coalescer = Coalescer(gate, lambda each: each, 5)
    with ThreadPoolExecutor(8) as pool:
        found = sent(pool, coalescer, "a", 1)
        gate.enter()
        found += sent(pool, coalescer, "a", 9, 2, 3)
        for _ in range(3):
            gate.open.release()
        assert [each.result(WAIT) for each in found] == [10, 90, 20, 30]
    assert gate.calls == [[1], [9], [2, 3]]


def test_other_keys_do_not_wait() -> None:
    gate = Gate()
    coalescer = Coalescer(gate, lambda each: 1, 8)
    with ThreadPoolExecutor(8) as pool:
        found = sent(pool, coalescer, "a", 1) + sent(pool, coalescer, "b", 2)
        gate.enter()
        gate.enter()  # both work at once
        gate.open.release(2)
        assert [each.result(WAIT) for each in found] == [10, 20]
    assert sorted(gate.calls) == [[1], [2]]


def test_an_error_is_of_the_one_whose_it_is() -> None:
    gate = Gate()
    coalescer = Coalescer(gate, lambda each: 1, 8)
    with ThreadPoolExecutor(8) as pool:
        found = sent(pool, coalescer, "a", 1)
        gate.enter()
        found += sent(pool, coalescer, "a", 2, 13, 4)
        gate.open.release(5)
        assert [found[at].result(WAIT) for at in (0, 1, 3)] == [10, 20, 40]
        with pytest.raises(ValueError, match="13 is refused"):
            found[2].result(WAIT)
    assert gate.calls == [[1], [2, 13, 4], [2], [13], [4]]
    assert coalescer.waiting("a") == -1


def interrupt_when(true: Callable[[], bool]) -> threading.Thread:
    """Press Ctrl-C, which comes to the main thread, once something is true."""
    main = threading.main_thread().ident
    assert main is not None
    # A library that another test used may have had signals go on with the wait that they meet.
    signal.siginterrupt(signal.SIGINT, True)

    def press(to: int = main) -> None:
        until(true)
        time.sleep(0.5)  # a signal that comes just before a lock is waited for ends no wait
        signal.pthread_kill(to, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


def test_ctrl_c_in_a_caller_that_waits_leaves_the_others_alone() -> None:
    gate = Gate()
    coalescer = Coalescer(gate, lambda each: 1, 8)
    with ThreadPoolExecutor(8) as pool:
        found = sent(pool, coalescer, "a", 1)
        gate.enter()
        pressed = interrupt_when(lambda: waiting(coalescer, "a") == 1)
        with pytest.raises(KeyboardInterrupt):
            coalescer.join("a", 2)
        pressed.join()
        assert waiting(coalescer, "a") == 0
        found += sent(pool, coalescer, "a", 3)
        gate.open.release(2)
        assert [each.result(WAIT) for each in found] == [10, 30]
        assert coalescer.waiting("a") == -1


def test_ctrl_c_in_the_caller_that_works_leaves_the_others_alone() -> None:
    gate = Gate()
    coalescer = Coalescer(gate, lambda each: 1, 8)

    def others(pool: ThreadPoolExecutor) -> list[int]:
        until(lambda: waiting(coalescer, "a") == 1)  # the main thread
        found = sent(pool, coalescer, "a", 2, 3)
        gate.open.release()
        gate.enter()  # the main thread works, for all three
        interrupt_when(lambda: True)
        gate.enter()
        gate.open.release()
        return [each.result(WAIT) for each in found]

    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(coalescer.join, "a", 1)
        gate.enter()
        answered = pool.submit(others, pool)
        with pytest.raises(KeyboardInterrupt):
            coalescer.join("a", 0)
        assert (first.result(WAIT), answered.result(WAIT)) == (10, [20, 30])
    assert gate.calls == [[1], [0, 2, 3], [2, 3]]
    assert coalescer.waiting("a") == -1


def test_everyone_learns_where_the_time_went() -> None:
    gate = Gate()
    coalescer = Coalescer(gate, lambda each: 1, 8)

    def joined(given: int) -> dict[str, float]:
        with collecting() as spent:
            coalescer.join("a", given)
        return spent

    with ThreadPoolExecutor(4) as pool:
        began = time.perf_counter()
        first = pool.submit(joined, 1)
        gate.enter()
        entered = time.perf_counter()
        second = pool.submit(joined, 2)
        until(lambda: waiting(coalescer, "a") == 1)
        seen = time.perf_counter()
        time.sleep(0.02)  # the first works, and the second waits for it
        held = time.perf_counter() - seen
        gate.open.release(2)
        alone, waited = first.result(WAIT)["queue"], second.result(WAIT)["queue"]
    assert 0 <= alone <= entered - began
    assert held <= waited


def test_searches_of_many_threads_are_those_of_one_and_see_what_is_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(300, 16))
    collection = Data(tmp_path).create("many", dimension=16)
    collection.upsert([{"id": str(at), "vector": each} for at, each in enumerate(vectors)])
    requests = [
        parse(SearchRequest, {"query": each, "k": 5, "mode": mode, "value": "@id"})
        for each in rng.normal(size=(40, 16))
        for mode in ("hard", "soft")
    ]
    alone = [collection.search_many([each])[0] for each in requests]

    def asked(at: int) -> None:
        answer = collection.search_many([requests[at]])[0]
        assert [hit.id for hit in answer.hits] == [hit.id for hit in alone[at].hits]
        weights = [[hit.weight for hit in each.hits] for each in (answer, alone[at])]
        np.testing.assert_allclose(*weights, rtol=1e-9)
        assert answer.answer["value"] == alone[at].answer["value"]
        following = [
            collection.search_many([requests[at].model_copy(update={"cursor": each.next})])[0]
            for each in (answer, alone[at])
        ]
        pages = [[hit.id for hit in page.hits] for page in following]
        assert pages[0] == pages[1]

    def written(at: int) -> None:
        own = (50 + at) * np.eye(16)[at % 16]
        collection.upsert([{"id": f"new {at}", "vector": own}])
        best = collection.search(own, k=1).hits[0].id
        assert best.startswith("new")
        assert int(best.split()[1]) >= at

    with ThreadPoolExecutor(16) as pool:
        for each in [pool.submit(asked, at % len(requests)) for at in range(400)]:
            each.result(WAIT)
        for each in [pool.submit(written, at) for at in range(40)]:
            each.result(WAIT)
