"""What a collection must answer: every write in order, and a matrix product over what they leave.

Each document belongs to one writer, who waits for the answer to one write before it sends the
next. So each search has, for every writer, a few writes of which it may have seen the last or
not: those under way while it ran. It is right if its answer is the exact one of *some* such
state, the same for all of its hits: a search that saw half a batch has none.
"""

from __future__ import annotations

import itertools
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax

SCALE = 20.0
ATTEND = 100
SHELVES = 5
TOLERANCE = 2e-3
"""Of a logit: 20 times what float32 loses of a cosine, and what a rotation adds to that."""


class State(NamedTuple):
    """A document as one write left it; `stamp` is its value, which no other write gave it."""

    vector: np.ndarray
    stamp: int
    tag: int


class Write(NamedTuple):
    """One write of one writer: each document before and after it, by slot; None where absent."""

    number: int
    changes: Mapping[int, tuple[State | None, State | None]]


class Asked(NamedTuple):
    """A search: a unit vector (width,), how many hits, and the one shelf to look at, if any."""

    vector: np.ndarray
    k: int
    shelf: int | None


class Wrong(AssertionError):
    """An answer that no state of the collection has."""


class Oracle:
    """One collection, by exact arithmetic in float64."""

    def __init__(self, width: int, writers: int) -> None:
        self.width = width
        self._lock = threading.Lock()
        self._ids: list[str] = []
        self._slots: dict[str, int] = {}
        self._vectors = np.zeros((1024, width))
        self._there = np.zeros(1024, dtype=bool)
        self._shelves = np.zeros(1024, dtype=int)
        self._states: list[State | None] = []
        self._log: list[list[Write]] = [[] for _ in range(writers)]
        self._done = [0] * writers
        self._begun = [0] * writers
        self._looking: dict[object, tuple[int, ...]] = {}

    # -- writing ----------------------------------------------------------------------------

    def begin(self, writer: int, changes: Mapping[str, State | None]) -> None:
        """A write is sent: from now on a search may have seen it."""
        with self._lock:
            slots = {self._slot(id): state for id, state in changes.items()}
            pairs = {slot: (self._states[slot], state) for slot, state in slots.items()}
            self._begun[writer] += 1
            self._log[writer].append(Write(self._begun[writer], pairs))

    def acknowledge(self, writer: int) -> None:
        """It was answered: from now on every search has seen it."""
        with self._lock:
            write = self._log[writer][-1]
            for slot, (_, state) in write.changes.items():
                self._put(slot, state)
            self._done[writer] = write.number
            self._trim(writer)

    def forget(self, writer: int) -> None:
        """It was refused, or is not there after a crash: it never happened."""
        with self._lock:
            self._log[writer].pop()
            self._begun[writer] -= 1

    def pending(self, writer: int) -> bool:
        """Whether a write was sent and not answered."""
        return self._begun[writer] > self._done[writer]

    # -- reading ----------------------------------------------------------------------------

    def state(self, id: str) -> State | None:
        with self._lock:
            slot = self._slots.get(id)
            return None if slot is None else self._states[slot]

    def present(self) -> dict[str, int]:
        """The stamp of every document there, by id, without what is under way."""
        with self._lock:
            pairs = zip(self._ids, self._states, strict=True)
            return {id: state.stamp for id, state in pairs if state is not None}

    def under_way(self, writer: int) -> dict[str, int | None]:
        """The stamp that each document of an unanswered write would have; None where it goes."""
        with self._lock:
            write = self._log[writer][-1]
            after = {self._ids[slot]: state for slot, (_, state) in write.changes.items()}
        return {id: None if state is None else state.stamp for id, state in after.items()}

    def look(self, reader: object) -> None:
        """A reader asks now: writes answered before must be in what it gets."""
        with self._lock:
            self._looking[reader] = tuple(self._done)

    def look_away(self, reader: object) -> None:
        """It got no answer."""
        with self._lock:
            self._looking.pop(reader, None)

    def check(self, reader: object, asked: Asked, answer: Mapping[str, Any]) -> None:
        """Raise Wrong unless the answer is that of a state that the search may have seen."""
        with self._lock:
            before, after = self._looking.pop(reader), tuple(self._begun)
            recent = [
                [write for write in log if write.number > least]
                for log, least in zip(self._log, before, strict=True)
            ]
            unsettled = {slot for log in recent for write in log for slot in write.changes}
            self._check_values(answer["hits"], recent)
            if asked.shelf is not None and unsettled:
                faults = [self._loose_fault(asked, answer, unsettled, recent)]
            else:
                states = _possible(recent, after)
                faults = [self._fault(asked, answer, changed) for changed in states]
        if all(faults):
            raise Wrong(f"{asked}: {len(faults)} states were possible, and of each: {faults}")

    def _fault(
        self, asked: Asked, answer: Mapping[str, Any], changed: Mapping[int, State | None]
    ) -> str:
        """Why this is not the answer of a state; nothing if it is."""
        logits = self._logits(asked, changed)
        best = np.sort(logits[np.isfinite(logits)])[::-1][:ATTEND]
        weights = softmax(best) if len(best) else best
        hits = answer["hits"]
        if (len(hits), answer["attended"]) != (min(asked.k, len(best)), len(best)):
            return f"{len(hits)} hits of {answer['attended']}, for {len(best)} in truth"
        if len({hit["id"] for hit in hits}) < len(hits):
            return "a document came twice"
        for hit, logit, weight in zip(hits, best, weights, strict=False):
            own = logits[self._slots[hit["id"]]]
            if max(abs(hit["score"] - logit), abs(hit["score"] - own)) > TOLERANCE:
                return f"{hit['id']} has {hit['score']}, own {own}, and that rank has {logit}"
            if abs(hit["weight"] - weight) > TOLERANCE:
                return f"{hit['id']} weighs {hit['weight']}, not {weight}"
        return ""

    def _loose_fault(
        self,
        asked: Asked,
        answer: Mapping[str, Any],
        unsettled: Set[int],
        recent: Sequence[Sequence[Write]],
    ) -> str:
        """The same where a filter was evaluated amid writes: of each document either state."""
        logits = self._logits(asked, {})
        hits = {self._slots[hit["id"]]: hit["score"] for hit in answer["hits"]}
        for slot, score in hits.items():
            own = {self._logit(asked, state) for state in _states_of(slot, recent)}
            own |= set() if slot in unsettled else {logits[slot]}
            if not any(abs(score - each) <= TOLERANCE for each in own):
                return f"{self._ids[slot]} has {score}, but one of {own} was possible"
        last = min(hits.values()) if len(hits) == asked.k else -np.inf
        passed = np.flatnonzero(np.isfinite(logits) & (logits > last + TOLERANCE)).tolist()
        missed = set(passed) - hits.keys() - unsettled
        return f"{[self._ids[slot] for slot in missed]} are better, and absent" if missed else ""

    def _check_values(
        self, hits: Sequence[Mapping[str, Any]], recent: Sequence[Sequence[Write]]
    ) -> None:
        """Values are read after the ranking: each is one that the document had meanwhile."""
        for hit in hits:
            slot = self._slots.get(hit["id"])
            states = [] if slot is None else [self._states[slot], *_states_of(slot, recent)]
            known = {state.stamp for state in states if state is not None}
            if hit["value"] not in known:
                raise Wrong(f"{hit['id']} has the value {hit['value']}, but {known} were possible")

    def _logits(self, asked: Asked, changed: Mapping[int, State | None]) -> np.ndarray:
        """Of every slot (n,); -inf where there is nothing."""
        count = len(self._ids)
        logits = SCALE * (self._vectors[:count] @ asked.vector)  # (n, d) @ (d,) -> (n,)
        logits[~self._there[:count]] = -np.inf
        for slot, state in changed.items():
            logits[slot] = self._logit(asked, state)
        if asked.shelf is not None:
            logits[self._shelves[:count] != asked.shelf] = -np.inf
        return logits

    @staticmethod
    def _logit(asked: Asked, state: State | None) -> float:
        return -np.inf if state is None else SCALE * float(state.vector @ asked.vector)

    def _slot(self, id: str) -> int:
        if id not in self._slots:
            self._slots[id] = len(self._ids)
            self._ids.append(id)
            self._states.append(None)
            if len(self._ids) > len(self._there):
                self._vectors = _doubled(self._vectors)
                self._there, self._shelves = _doubled(self._there), _doubled(self._shelves)
            self._shelves[self._slots[id]] = shelf_of(id)
        return self._slots[id]

    def _put(self, slot: int, state: State | None) -> None:
        self._states[slot] = state
        self._there[slot] = state is not None
        if state is not None:
            self._vectors[slot] = state.vector

    def _trim(self, writer: int) -> None:
        """Forget writes that no search under way could have missed."""
        least = min((seen[writer] for seen in self._looking.values()), default=self._done[writer])
        self._log[writer] = [write for write in self._log[writer] if write.number > least]


def shelf_of(id: str) -> int:
    """What filters ask for: it never changes, so that only documents come and go."""
    return zlib.crc32(id.encode()) % SHELVES


def _possible(
    recent: Sequence[Sequence[Write]], after: Sequence[int]
) -> Iterator[dict[int, State | None]]:
    """What differs from the acknowledged state in each state that may have been seen."""
    by_writer = []
    for log, most in zip(recent, after, strict=True):
        # What the first of them found is what was there before all of them.
        states: list[dict[int, State | None]] = [{}]
        for write in reversed(log):
            states[0] |= {slot: was for slot, (was, _) in write.changes.items()}
        for write in log[: len([each for each in log if each.number <= most])]:
            states.append(states[-1] | {slot: now for slot, (_, now) in write.changes.items()})
        by_writer.append(states)
    for combination in itertools.product(*by_writer):
        yield {slot: state for each in combination for slot, state in each.items()}


def _states_of(slot: int, recent: Sequence[Sequence[Write]]) -> list[State | None]:
    return [
        state
        for log in recent
        for write in log
        if slot in write.changes
        for state in write.changes[slot]
    ]


def _doubled(array: np.ndarray) -> np.ndarray:
    return np.concatenate([array, np.zeros_like(array)])
