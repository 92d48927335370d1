"""Progress of long work: a bar in a terminal or a notebook, or a function of the caller."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from tqdm import tqdm

from attend.core.types import OnStage

Progress: TypeAlias = bool | Callable[[str, float], None] | None
"""True: show a bar; False: show nothing; None: show a bar where a person may see it. Or a function
that receives the stage and the fraction done, 0 to 1."""


LINE_SECONDS = 10.0
"""Seconds between two lines of progress in a file."""


class Bar:
    """A progress bar on stderr, called with the stage and the fraction done, 0 to 1.

    In a file, such as a log, each stage is one line instead.
    """

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None  # before the first stage nothing is shown
        self._last: tuple[str, int] | None = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, stage: str, fraction: float) -> None:
        done = min(max(fraction, 0.0), 1.0)
        state = stage, int(100 * done)
        if state == self._last:  # a training reports thousands of steps, and a log has every line
            return
        is_new, self._last = self._last is None or stage != self._last[0], state
        if not has_viewer():
            if is_new:
                print(stage, file=sys.stderr, flush=True)
            return
        if self._bar is None:
            # Stages have no common unit: a share is all there is to count.
            shape = "{desc}{percentage:3.0f}%|{bar}| {elapsed}"
            self._bar = tqdm(total=1.0, bar_format=shape, file=sys.stderr)
        self._bar.set_description(stage, refresh=False)
        self._bar.n = done
        self._bar.refresh()


class Counter:
    """A bar of what was counted, on stderr; in a file, a line every ten seconds and at the end."""

    def __init__(self, name: str, unit: str) -> None:
        self._bar = tqdm(desc=name, unit=unit, file=sys.stderr, disable=None)
        self._text = name + ": {}" + unit
        self._count, self._next = 0, time.monotonic() + LINE_SECONDS

    def __call__(self, count: int) -> None:
        self._bar.update(count)
        self._count += count
        if self._bar.disable and time.monotonic() > self._next:
            print(self._text.format(self._count), file=sys.stderr, flush=True)
            self._next = time.monotonic() + LINE_SECONDS

    def close(self) -> None:
        """Remove the bar, or write the last line; a second time does nothing."""
        self._bar.close()
        if self._bar.disable and self._next < math.inf:
            print(self._text.format(self._count), file=sys.stderr, flush=True)
        self._next = math.inf


@contextmanager
def reported(progress: Progress) -> Iterator[OnStage | None]:
    """Open a bar, or pass on the caller's function, for some long work; None: nobody follows."""
    if callable(progress):
        yield progress
    elif progress or (progress is None and has_viewer()):
        with Bar() as bar:
            yield bar
    else:
        yield None


def has_viewer() -> bool:
    """Return true in a terminal and in a notebook, whose output is no terminal."""
    ipython: Any = sys.modules.get("IPython")
    in_notebook = ipython is not None and ipython.get_ipython() is not None
    return in_notebook or sys.stderr.isatty()
