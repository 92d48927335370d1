"""Readers and writers of one collection, each a thread with a connection of its own."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tests.soak.client import Client, Refusal
from tests.soak.oracle import ATTEND, SHELVES, Asked, Oracle, State, shelf_of

GONE = (ConnectionError, http.client.HTTPException, TimeoutError)
"""What a client of a killed server sees."""

BULK = 5500
"""Documents of one large write, at least; two of these are enough for a merge."""

SIZE = 40
"""Documents of a small write, at most."""

SEARCH, SMALL, LARGE = KINDS = "search", "small write", "large write"
"""The requests that are timed; small writes have up to `SIZE` documents, or delete by filter."""

Embed = Callable[[Sequence[str]], np.ndarray]


class World:
    """One collection under load, and all that is known of it.

    Attributes:
        embed: texts to unit vectors (n, width), for a collection with an encoder.
    """

    def __init__(self, name: str, width: int, writers: int, embed: Embed | None = None) -> None:
        self.name = name
        self.path = f"/v1/collections/{name}"
        self.embed = embed
        self.oracle = Oracle(width, writers)

    def make(self, client: Client, settings: Mapping[str, Any]) -> None:
        client.ask("PUT", self.path, {"scale": 20, "values": "number", **settings})

    def documents(
        self, ids: Sequence[str], tag: int, stamp: Callable[[], int], rng: np.random.Generator
    ) -> tuple[list[dict[str, Any]], dict[str, State | None]]:
        """New contents for documents: as they are sent, and as the oracle has them."""
        vectors, keys = self._contents(len(ids), rng)
        states = {id: State(vector, stamp(), tag) for id, vector in zip(ids, vectors, strict=True)}
        sent = [
            {
                "id": id,
                **key,
                "value": states[id].stamp,
                "payload": {"tag": tag, "shelf": shelf_of(id)},
            }
            for id, key in zip(ids, keys, strict=True)
        ]
        return sent, dict(states)

    def query(self, rng: np.random.Generator) -> tuple[np.ndarray, Any]:
        """A query as the oracle has it, and as it is sent."""
        vectors, keys = self._contents(1, rng)
        return vectors[0], keys[0].get("text", keys[0].get("vector"))

    def _contents(
        self, count: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, list[dict[str, Any]]]:
        if self.embed is not None:
            texts = [" ".join(map(str, rng.choice(WORDS, 6))) for _ in range(count)]
            return self.embed(texts), [{"text": text} for text in texts]
        vectors = rng.standard_normal((count, self.oracle.width)).astype(np.float32)
        # Few digits: a bulk write is JSON, too.
        vectors = np.round(vectors, 3).astype(np.float64)
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit, [{"vector": vector.tolist()} for vector in vectors]


_WORDS = (
    "anchor bread cellar dune ember ferry garden harbour island jacket kettle lantern",
    "meadow needle orchard pepper quarry river saddle timber umbrella valley willow yarn",
)
WORDS = " ".join(_WORDS).split()


class Worker(threading.Thread):
    """Does `step` again and again, until it is told to stop or the server is gone."""

    def __init__(self, address: tuple[str, int], stop: threading.Event) -> None:
        super().__init__()
        self.address = address
        self.client = Client(address)
        self.stop = stop
        self.steps = 0
        self.error: BaseException | None = None
        self.seconds: dict[str, list[float]] = defaultdict(list)  # of each kind of request

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self.step()
                self.steps += 1
        except GONE as error:
            # While nobody stops it, a server that does not answer is an error as any other.
            self.error = None if self.stop.is_set() else error
        except BaseException as error:
            self.error = error
        finally:
            self.client.close()

    def step(self) -> None:
        raise NotImplementedError

    def ask(self, kind: str, method: str, path: str, body: Any) -> Any:
        """Send a request, and note under its kind how long its answer took."""
        began = time.monotonic()
        answer = self.client.ask(method, path, body)
        self.seconds[kind].append(time.monotonic() - began)
        return answer


class Reader(Worker):
    """Searches, and checks every answer."""

    def __init__(
        self, worlds: Sequence[World], address: tuple[str, int], stop: threading.Event, seed: int
    ) -> None:
        super().__init__(address, stop)
        self.worlds = worlds
        self.random = random.Random(seed)
        self.rng = np.random.default_rng(seed)

    def step(self) -> None:
        world = self.random.choice(self.worlds)
        vector, query = world.query(self.rng)
        shelf = self.random.choice([None, None, self.random.randrange(SHELVES)])
        asked = Asked(vector, self.random.choice([1, 10, ATTEND]), shelf)
        # The oracle has no model of the move by feedback, of which trainings need some.
        body = {"query": query, "k": asked.k, "attend": ATTEND, "memory": 0, "lexical": False}
        if shelf is not None:
            body["filter"] = {"shelf": shelf}
        world.oracle.look(self)
        try:
            answer = self.ask(SEARCH, "POST", f"{world.path}/search", body)
            world.oracle.check(self, asked, answer)
        finally:
            world.oracle.look_away(self)


class Writer(Worker):
    """Writes one change after another to documents that are its own, and knows what each does."""

    def __init__(
        self,
        worlds: Sequence[World],
        number: int,
        address: tuple[str, int],
        stop: threading.Event,
        seed: int,
        bulk: int = BULK,
    ) -> None:
        super().__init__(address, stop)
        self.worlds = worlds
        self.number = number
        self.random = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        self.bulk = threading.Event()
        self._bulk = max(bulk, BULK)

    def step(self) -> None:
        if self.bulk.is_set():
            self.bulk.clear()
            for first in (0, self._bulk):
                ids = [f"{self.number}-bulk-{at}" for at in range(first, first + self._bulk)]
                self.upsert(self.worlds[0], ids)
            return
        world = self.random.choice(self.worlds)
        act = self.random.choice(
            [self.some, self.some, self.again, self.patch, self.delete, self.clear]
        )
        act(world)

    def some(self, world: World) -> None:
        count = self.random.randint(1, SIZE)
        self.upsert(world, [self._id(n) for n in self.random.sample(range(10 * SIZE), count)])

    def upsert(self, world: World, ids: Sequence[str]) -> Any:
        sent, states = world.documents(ids, self.random.randrange(50), self._stamp, self.rng)
        before = [world.oracle.state(id) is not None for id in ids]
        answer = self._write(world, states, "POST", "/documents", sent)
        expected = (before.count(False), before.count(True))
        assert (answer["added"], answer["updated"]) == expected, (answer, expected)
        return sent

    def again(self, world: World) -> None:
        """The same write twice is one."""
        sent = self.upsert(world, [self._id(self.random.randrange(10 * SIZE))])
        answer = self.client.ask("POST", f"{world.path}/documents", sent)
        assert answer["unchanged"] == 1, answer

    def patch(self, world: World) -> None:
        id = self._id(self.random.randrange(10 * SIZE))
        state = world.oracle.state(id)
        if state is None:
            status, _ = self.client.request("GET", f"{world.path}/documents/{id}")
            assert status == 404, f"{id} was deleted, and is there"
            return
        changed = state._replace(stamp=self._stamp(), tag=self.random.randrange(50))
        body = {"value": changed.stamp, "payload": {"tag": changed.tag}}
        answer = self._write(world, {id: changed}, "PATCH", f"/documents/{id}", body)
        assert answer["payload"] == {"tag": changed.tag, "shelf": shelf_of(id)}, answer

    def delete(self, world: World) -> None:
        count = self.random.randint(1, SIZE)
        ids = [self._id(n) for n in self.random.sample(range(10 * SIZE), count)]
        there = [id for id in ids if world.oracle.state(id) is not None]
        answer = self._write(world, dict.fromkeys(there), "POST", "/documents/delete", {"ids": ids})
        assert answer["deleted"] == len(there), (answer, len(there))

    def clear(self, world: World) -> None:
        """Delete by filter: what has one tag, of this writer's."""
        tag = self.random.randrange(50)
        ids = [self._id(n) for n in range(10 * SIZE)]
        states = {id: world.oracle.state(id) for id in ids}
        there = [id for id, state in states.items() if state is not None and state.tag == tag]
        filter = {"tag": tag, "@id": {"prefix": f"{self.number}-live-"}}
        answer = self._write(
            world, dict.fromkeys(there), "POST", "/documents/delete", {"filter": filter}
        )
        assert answer["deleted"] == len(there), (answer, there)

    def _write(
        self,
        world: World,
        changes: Mapping[str, State | None],
        method: str,
        path: str,
        body: Any,
    ) -> Any:
        world.oracle.begin(self.number, changes)
        try:
            kind = LARGE if len(changes) >= BULK else SMALL
            answer = self.ask(kind, method, f"{world.path}{path}", body)
        except Refusal:
            world.oracle.forget(self.number)
            raise
        world.oracle.acknowledge(self.number)
        return answer

    def _id(self, n: int) -> str:
        return f"{self.number}-live-{n}"

    def _stamp(self) -> int:
        """A value that no other write gave."""
        return self.random.getrandbits(52)
