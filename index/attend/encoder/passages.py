"""A text longer than the model's window, as overlapping passages that end with a sentence.

What lies beyond the window would never be embedded, and so never be found. The borders come
from semantic-text-splitter: the largest units (paragraphs, sentences, words, characters) that
fit, counted in the model's own tokens.

Texts are put into calls of the model with texts of like length, some thousand tokens at a time.
Crowded calls go one on each core: within a call that has several, they wait for each other at every
operator, and where anything else runs on the machine the call then goes at the pace of the core
disturbed most (measured beside two busy processes: 5 documents a second instead of 27). A lone call
on an idle machine loses nothing by taking all, and a text is there sooner.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attend.core.errors import EncoderError, InvalidRequest
from attend.core.types import Int64

if TYPE_CHECKING:
    from semantic_text_splitter import TextSplitter
    from tokenizers import Tokenizer

OVERLAP_SHARE = 4
"""A quarter of the window is told twice, so that a thought on a border is whole in one passage."""

MOST_CHARACTERS = 16
"""A passage of more characters per token than this is cut again: WordPiece counts a word of
100 kB as one unknown token, and one vector cannot stand for it."""


class Passage(NamedTuple):
    """`text[start:end]`, in characters."""

    start: int
    end: int


class PassageSplitter:
    """Counts and splits in the tokens of one model.

    `window` is the most tokens the model reads, special tokens and `prompt` among them;
    `specials` says whether the model adds any.
    """

    def __init__(self, tokenizer: Tokenizer, window: int, *, prompt: str, specials: bool) -> None:
        # A copy: the model's own tokenizer must go on truncating and padding.
        self._tokenizer = type(tokenizer).from_str(tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._prompt = prompt
        self._specials = specials
        self._splitters: dict[int, TextSplitter] = {}
        self.window = window
        self.room = window - int(self.count([""])[0])
        """The tokens left for a passage's own words."""
        if self.room < 1:
            raise EncoderError(
                f"The encoder's window of {window} tokens is filled by its document prompt "
                f"{prompt!r}, and no text fits. Shorten the prompt or use another encoder."
            )

    def count(self, texts: Sequence[str]) -> Int64:
        """Tokens of each text as the model would see it untruncated, prompt included: (n,)."""
        encoded = self._tokenizer.encode_batch_fast(
            [self._prompt + text for text in texts], add_special_tokens=self._specials
        )
        return np.array([len(one.ids) for one in encoded], dtype=np.int64)

    def split(self, texts: Sequence[str], overlap: int | None = None) -> list[list[Passage]]:
        """Each text's passages, in order; one passage where the text fits, none where it is blank.

        Neighbours share up to `overlap` tokens (default: a quarter of the window), and every
        character other than white space lies in a passage. Raises `InvalidRequest` for an
        overlap that leaves a passage nothing new.
        """
        if overlap is None:
            overlap = min(self.window // OVERLAP_SHARE, self.room - 1)
        splitter = self._splitter(overlap)
        passages = [[Passage(0, len(text))] if text.strip() else [] for text in texts]
        places = self._too_long(texts)
        # All at once: the library shares a batch among the cores.
        chunks = splitter.chunk_all_indices([texts[place] for place in places])
        for place in places:
            passages[place] = []
        pieces = [
            (place, Passage(start, start + len(chunk)))
            for place, parts in zip(places, chunks, strict=True)
            for start, chunk in parts
        ]
        for place, passage in self._fitted(texts, pieces):
            passages[place].append(passage)
        return [sorted(spans) for spans in passages]

    def _too_long(self, texts: Sequence[str]) -> list[int]:
        # An ASCII character is at most one token, so that short texts need no tokenizer at all.
        unsure = [
            place
            for place, text in enumerate(texts)
            if text.strip() and not (text.isascii() and len(text) < self.room)
        ]
        counts = self.count([texts[place] for place in unsure]).tolist()
        return [
            place
            for place, count in zip(unsure, counts, strict=True)
            if not self._fits(Passage(0, len(texts[place])), count)
        ]

    def _fits(self, passage: Passage, count: int) -> bool:
        length = passage.end - passage.start
        return count <= self.window and length <= self.room * MOST_CHARACTERS

    def _fitted(
        self, texts: Sequence[str], pieces: list[tuple[int, Passage]]
    ) -> Iterator[tuple[int, Passage]]:
        """Yield passages, each with the place of its text, halved until each fits.

        The library counts a chunk where it lies; standing alone it can have more tokens, where
        the tokenizer marks how a text begins. A single character is never halved.
        """
        while pieces:
            counts = self.count([texts[place][start:end] for place, (start, end) in pieces])
            halved: list[tuple[int, Passage]] = []
            for (place, passage), count in zip(pieces, counts.tolist(), strict=True):
                halves = _halves(texts[place], passage)
                if self._fits(passage, count) or not halves:
                    yield place, passage
                else:
                    halved += [(place, half) for half in halves]
            pieces = halved

    def _splitter(self, overlap: int) -> TextSplitter:
        if not 0 <= overlap < self.room:
            raise InvalidRequest(
                f"An overlap of {overlap} tokens was asked for, but a passage of this encoder "
                f"holds {self.room}. Give a number from 0 to {self.room - 1}.",
                field="overlap",
            )
        if overlap not in self._splitters:
            from semantic_text_splitter import TextSplitter

            splitter = TextSplitter.from_huggingface_tokenizer
            self._splitters[overlap] = splitter(self._tokenizer, self.room, overlap=overlap)
        return self._splitters[overlap]


def _halves(text: str, passage: Passage) -> list[Passage]:
    """Both halves, at a space where the first has one; none of what has a single character."""
    start, end = passage
    if end - start < 2:
        return []
    middle = (start + end) // 2
    space = text.rfind(" ", start + 1, middle)
    border = middle if space < 0 else space
    halves = (Passage(start, border), Passage(border, end))
    return [half for half in halves if not text[half.start : half.end].isspace()]


TOKENS_PER_BATCH = 2048
"""On one core: eight texts of 256 tokens fill the matrix product; more only take memory."""

CHARACTERS_PER_TOKEN = 4
"""English in WordPiece. Only the size of a batch depends on it, never the result."""

SPECIAL_TOKENS = 2


def distinct(texts: Sequence[str]) -> tuple[list[str], Int64]:
    """Return each different text once, in order of first appearance, and the place of each there.

    >>> distinct(["a", "b", "a"])
    (['a', 'b'], array([0, 1, 0]))
    """
    place: dict[str, int] = {}
    places = [place.setdefault(text, len(place)) for text in texts]
    return list(place), np.array(places, dtype=np.int64)


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
