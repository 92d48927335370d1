"""Progress of long work: a bar in a terminal or a notebook, or a function of the caller."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from tqdm import tqdm

from attend.types import OnStage

Progress: TypeAlias = bool | Callable[[str, float], None] | None
"""True: show a bar; False: show nothing; None: show a bar where a person may see it. Or a function
that receives the stage and the fraction done, 0 to 1."""


class Bar:
    """A progress bar on stderr, called with the stage and the fraction done, 0 to 1."""

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
        self._last = state
        if self._bar is None:
            # Stages have no common unit: a share is all there is to count.
            shape = "{desc}{percentage:3.0f}%|{bar}| {elapsed}"
            self._bar = tqdm(total=1.0, bar_format=shape, file=sys.stderr)
        self._bar.set_description(stage, refresh=False)
        self._bar.n = done
        self._bar.refresh()


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
