"""Calls by many threads at once, as few calls with much in each; the callers do the work.

Whoever comes while nobody works begins at once, and alone. Who comes meanwhile waits, and the
first of them then takes along all that wait with the same key: first in, first out, without a
timer. A search costs little more for many queries than for one, so that a crowd is answered in
the time of a few (flat combining: Hendler, Incze, Shavit and Tzafrir 2010).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from attend.timings import collecting, record

Given = TypeVar("Given")
Result = TypeVar("Result")


class _Place(Generic[Given, Result]):
    """One caller in the line."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.since = time.perf_counter()
        self.leads = False
        self.result: Result | None = None
        self.error: BaseException | None = None
        self.spent: dict[str, float] = {}
        self._called = threading.Lock()  # one lock costs a third of what an Event does
        self._called.acquire()

    def wait(self) -> None:
        self._called.acquire()

    def call(self) -> None:
        self._called.release()


class _Line(Generic[Given, Result]):
    """Those with one key: how many lead a call, and who waits for one of these to end."""

    def __init__(self) -> None:
        self.leaders = 0
        self.waiting: deque[_Place[Given, Result]] = deque()


class Company(Generic[Given, Result]):
    """Answers many callers by one function of many; any thread may join.

    Of one key there are so many calls at a time. Those of other keys go on beside them.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Given]], Sequence[Result]],
        size: Callable[[Given], int],
        most: int,
        at_once: int = 1,
    ) -> None:
        """
        Args:
            run: what is given by callers with the same key, to a result for each.
            size: how much of a call one caller's part is.
            most: of one call, except for a part that alone is more.
            at_once: calls of one key.
        """
        self._run = run
        self._size = size
        self._most = most
        self._at_once = at_once
        # By the keys for which somebody works.
        self._lines: dict[Hashable, _Line[Given, Result]] = {}
        self._lock = threading.Lock()

    def join(self, key: Hashable, given: Given) -> Result:
        """One caller's result, which is as if it had called alone; so is what is raised."""
        place: _Place[Given, Result] = _Place(given)
        with self._lock:
            line = self._lines.setdefault(key, _Line())
            place.leads = line.leaders < self._at_once
            if place.leads:
                line.leaders += 1
            else:
                line.waiting.append(place)
        if not place.leads:
            place.wait()
        if place.leads:
            self._lead(key, place)
        record(place.spent)
        if place.error is not None:
            raise place.error
        return place.result  # type: ignore[return-value]  # there is one, where nothing is raised

    def _lead(self, key: Hashable, first: _Place[Given, Result]) -> None:
        """Answer one caller and those who wait behind it, and let the next one go on."""
        with self._lock:
            taken = self._taken(first, self._lines[key].waiting)
        try:
            self._answer(taken)
        finally:
            self._hand_over(key)
            for place in taken[1:]:
                place.call()

    def _taken(
        self, first: _Place[Given, Result], waiting: deque[_Place[Given, Result]]
    ) -> list[_Place[Given, Result]]:
        taken, spent = [first], self._size(first.given)
        while waiting and spent + self._size(waiting[0].given) <= self._most:
            taken.append(waiting.popleft())
            spent += self._size(taken[-1].given)
        return taken

    def _hand_over(self, key: Hashable) -> None:
        with self._lock:
            line = self._lines[key]
            if not line.waiting:
                line.leaders -= 1
                if not line.leaders:
                    del self._lines[key]
                return
            following = line.waiting.popleft()
        following.leads = True
        following.call()

    def _answer(self, places: Sequence[_Place[Given, Result]]) -> None:
        began = time.perf_counter()
        try:
            with collecting() as spent:
                results = self._run([place.given for place in places])
            for place, result in zip(places, results, strict=True):
                place.result = result
                place.spent = {**spent, "queue": began - place.since}
        except BaseException as error:
            if len(places) == 1 or not isinstance(error, Exception):
                for place in places:
                    place.error = error
                return
            # One of them is at fault, and alone each tells whether it was that one.
            for place in places:
                self._answer([place])
