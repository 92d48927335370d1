"""How many cores a model call may use, and how many of them nobody uses at this moment.

Crowded calls go one on each core: within a call that has several, they wait for each other at
every operator, and where anything else runs on the machine the whole call then goes at the pace
of the core disturbed most (measured beside two busy processes: 5 documents a second instead of
27). A lone call on an idle machine loses nothing by taking all, and a text is there sooner.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LIMIT = "OMP_THREAD_LIMIT"
"""The environment variable with which OpenMP is told the most threads a program may use. A server
of several processes sets it to all cores, and `OMP_NUM_THREADS` to the share of each process."""

MOST = 4
"""Cores for one call: the products of a short text are too small to be divided further."""

MOMENT = 1e-4
"""Seconds in which a thread that has nothing more to do comes to rest."""

LOAD = "/proc/loadavg"
"""Where Linux tells how many threads run or could, among other things; proc_loadavg(5)."""


@contextmanager
def using(cores: int) -> Iterator[None]:
    """As far as this thread goes, torch computes on so many cores in the block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def limit(default: int) -> int:
    """The most cores for one call.

    Args:
        default: where the environment names no limit.
    """
    named = os.environ.get(LIMIT, "")
    return min(MOST, int(named) if named.isdecimal() and int(named) else default)


class IdleCores:
    """Tells how many cores have nothing to do, in two microseconds."""

    def __init__(self) -> None:
        self._file = -1
        with suppress(OSError):  # no Linux: nobody knows, so none is idle
            self._file = os.open(LOAD, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._file)

    def count(self) -> int:
        """Of the cores that this process may run on; the caller's own is not among them.

        Where it would be none, it looks again a little later: who handed over the work may not
        have come to rest yet.
        """
        idle = self._now()
        if not idle and self._file >= 0:
            time.sleep(MOMENT)
            idle = self._now()
        return idle

    def _now(self) -> int:
        if self._file < 0:
            return 0
        # "0.20 0.18 0.12 1/80 11206": of 80 threads one runs, and that is the one that asks.
        running = int(os.pread(self._file, 128, 0).split()[3].split(b"/")[0])
        # None at all, and the file is not to be believed: some sandboxes only fill it in.
        return max(0, len(os.sched_getaffinity(0)) - running) if running else 0
