"""How texts are put into calls of the model, and how many cores a call may use.

Each text is encoded once, with texts of like length, some thousand tokens at a time. Crowded calls
go one on each core: within a call that has several, they wait for each other at every operator,
and where anything else runs on the machine the call then goes at the pace of the core disturbed
most (measured beside two busy processes: 5 documents a second instead of 27). A lone call on an
idle machine loses nothing by taking all, and a text is there sooner.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np

from attend.core.types import Int64

TOKENS_PER_BATCH = 2048
"""On one core: eight texts of 256 tokens fill the matrix product; more only take memory."""

CHARACTERS_PER_TOKEN = 4
"""English in WordPiece. Only the size of a batch depends on it, never the result."""

SPECIAL_TOKENS = 2


class Distinct(NamedTuple):
    """`texts[places[i]]` is the i-th text given."""

    texts: list[str]
    places: Int64


def distinct(texts: Sequence[str]) -> Distinct:
    """Return each different text once, in order of first appearance.

    >>> distinct(["a", "b", "a"])
    Distinct(texts=['a', 'b'], places=array([0, 1, 0]))
    """
    place: dict[str, int] = {}
    places = [place.setdefault(text, len(place)) for text in texts]
    return Distinct(list(place), np.array(places, dtype=np.int64))


def batches(texts: Sequence[str], window: int, cores: int = 1) -> Iterator[list[int]]:
    """Return the positions in `texts` grouped by length; every position comes exactly once.

    Longest first, so that a model too large for the memory fails at once and not after an hour.
    A batch holds about `TOKENS_PER_BATCH` tokens, fewer where some of the `cores` would have none,
    and never less than one text.
    """
    costs = [cost(text, window) for text in texts]
    budget = min(TOKENS_PER_BATCH, -(-sum(costs) // cores))
    batch: list[int] = []
    spent = 0
    for place in sorted(range(len(texts)), key=lambda position: len(texts[position]), reverse=True):
        if batch and spent + costs[place] > budget:
            yield batch
            batch, spent = [], 0
        batch.append(place)
        spent += costs[place]
    if batch:
        yield batch


def cost(text: str, window: int) -> int:
    """Guess the tokens of a text from its characters, as counting costs what the tokenizer does."""
    return min(window, len(text) // CHARACTERS_PER_TOKEN + SPECIAL_TOKENS)


LIMIT = "OMP_THREAD_LIMIT"
"""The environment variable that limits the threads of a program under OpenMP. A server
of several processes sets it to all cores, and `OMP_NUM_THREADS` to the share of each process."""

MOST = 4
"""Cores for one call: the products of a short text are too small to be divided further."""

MOMENT = 1e-4
"""Seconds in which a thread that has nothing more to do comes to rest."""

LOAD = "/proc/loadavg"
"""The file in which Linux counts the threads that run, among other things; proc_loadavg(5)."""


@contextmanager
def using_cores(cores: int) -> Iterator[None]:
    """Let torch compute on this number of cores in the block, for this thread."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def core_limit(default: int) -> int:
    """Return the most cores for one call.

    Args:
        default: where the environment names no limit.
    """
    named = os.environ.get(LIMIT, "")
    return min(MOST, int(named) if named.isdecimal() and int(named) else default)


class IdleCores:
    """Counts the cores that have nothing to do, in two microseconds."""

    def __init__(self) -> None:
        self._file = -1
        with suppress(OSError):  # without Linux no core counts as idle
            self._file = os.open(LOAD, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._file)

    def count(self) -> int:
        """Count the idle cores that this process may run on, without the caller's.

        Where none is idle, look again a little later: who handed over the work may not
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
        # Some sandboxes only fill the file in, and count no thread at all.
        return max(0, len(os.sched_getaffinity(0)) - running) if running else 0
