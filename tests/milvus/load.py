"""Writes and searches through service replicas while something is killed, each answer checked.

Every document's vector follows from its id and its version, and its value is that version. So any
hit of any search can be checked by itself: its score is that of the version that its value names,
or keys of one write were read with the document of another. A searcher that asks for strong
consistency must see every version that was acknowledged before it asked. Beside them lie documents
that never change, whose search has one right answer.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import softmax

from attend.core.types import Float64
from tests.soak.client import Client

WIDTH = 8
STILL = 200
"""Documents that never change."""

OWNED = 30
"""Documents that a writer changes, again and again."""

BATCH = 5
BOUND_SECONDS = 6.0
"""Bounded reads of Milvus are 5 s behind at most (its `gracefulTime`)."""

SCALE = WIDTH**-0.5
PATH = "/v1/collections/load"


def vector(id: str, version: int) -> Float64:
    seed = zlib.crc32(f"{id} {version}".encode())
    return np.random.default_rng(seed).normal(size=WIDTH).astype(np.float32).astype(np.float64)


def document(id: str, version: int, kind: str) -> dict[str, Any]:
    made = vector(id, version).tolist()
    return {"id": id, "vector": made, "value": version, "payload": {"kind": kind}}


STILL_IDS = [f"still{at}" for at in range(STILL)]


@dataclass
class Told:
    """What came of it.

    Attributes:
        wrong: answers that cannot be, in words.
        refused: answers other than 200, in words.
        seconds: of each search.
        acknowledged, attempted: versions by id.
    """

    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    acknowledged: dict[str, int] = field(default_factory=dict)
    attempted: dict[str, int] = field(default_factory=dict)
    lost_connections: int = 0
    writes: int = 0


class Asker:
    """Asks one replica, and another when that one is gone."""

    def __init__(self, addresses: Sequence[tuple[str, int]], told: Told, first: int) -> None:
        self._addresses = addresses
        self._at = first % len(addresses)
        self._told = told
        self._client: Client | None = None

    def ask(self, path: str, body: Any) -> tuple[int, Any]:
        """The status and the answer; (0, None) where the connection was lost on the way."""
        try:
            if self._client is None:
                self._client = Client(self._addresses[self._at])
            return self._client.request("POST", PATH + path, body)
        except (OSError, http.client.HTTPException):
            self._told.lost_connections += 1
            self.close()
            self._at = (self._at + 1) % len(self._addresses)
            return 0, None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class Load:
    """Writers and searchers, from entering until leaving a `with`; what fails in a thread is told
    as wrong."""

    def __init__(
        self, addresses: Sequence[tuple[str, int]], *, writers: int = 2, searchers: int = 2
    ) -> None:
        self.told = Told()
        self._addresses = addresses
        self._stop = threading.Event()
        jobs = [(self._write, at) for at in range(writers)]
        jobs += [(self._search, at) for at in range(searchers)]
        self._threads = [threading.Thread(target=self._run, args=job) for job in jobs]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, job: Callable[[Asker, int], None], at: int) -> None:
        with closing(Asker(self._addresses, self.told, at)) as asker:
            while not self._stop.is_set():
                try:
                    job(asker, at)
                except Exception as error:
                    self.told.wrong.append(repr(error))
                    raise

    # -- writing ----------------------------------------------------------------------------

    def _write(self, asker: Asker, at: int) -> None:
        """The next version of some of a writer's own documents, until it is acknowledged."""
        told = self.told
        ids = random.sample([f"w{at}-{number}" for number in range(OWNED)], BATCH)
        wanted = {id: told.attempted.get(id, 0) + 1 for id in ids}
        told.attempted |= wanted
        batch = [document(id, version, "live") for id, version in wanted.items()]
        while not self._stop.is_set():
            status, answer = asker.ask("/documents", batch)
            if status == 200:
                told.acknowledged |= wanted
                told.writes += 1
                return
            if status:
                told.refused.append(f"a write: {status} {answer}")
            time.sleep(0.1)

    # -- searching --------------------------------------------------------------------------

    def _search(self, asker: Asker, at: int) -> None:
        asked = np.random.default_rng(random.getrandbits(32)).normal(size=WIDTH)
        if at % 2:
            self._search_still(asker, asked)
        else:
            self._search_live(asker, asked)

    def _ask(self, asker: Asker, body: dict[str, Any]) -> Any:
        began = time.monotonic()
        status, answer = asker.ask("/search", body)
        self.told.seconds.append(time.monotonic() - began)
        if status == 200:
            return answer
        if status:
            self.told.refused.append(f"a search: {status} {answer}")
        time.sleep(0.05)
        return None

    def _search_still(self, asker: Asker, asked: Float64) -> None:
        """All of them are attended to: the list and its weights are known."""
        body = {"query": asked.tolist(), "k": 10, "attend": STILL, "filter": {"kind": "still"}}
        answer = self._ask(asker, body)
        if answer is None:
            return
        logits = still_vectors() @ asked.astype(np.float32) * SCALE
        weights, best = softmax(logits), np.argsort(-logits)[:10]
        found = [(hit["id"], hit["weight"]) for hit in answer["hits"]]
        if [id for id, _ in found] != [STILL_IDS[row] for row in best] or not np.allclose(
            [weight for _, weight in found], weights[best], atol=1e-6
        ):
            self.told.wrong.append(
                f"{answer['attended']} of {STILL} that never change were attended to, and the "
                f"nearest are {found}"
            )

    def _search_live(self, asker: Asker, asked: Float64) -> None:
        """What was acknowledged before is seen, as itself."""
        before = dict(self.told.acknowledged)
        body = {"query": asked.tolist(), "k": 100, "filter": {"kind": "live"}}
        answer = self._ask(asker, {**body, "consistency": "strong"})
        if answer is None:
            return
        attempted = dict(self.told.attempted)
        found = {hit["id"]: hit for hit in answer["hits"]}
        for id, version in before.items():
            if id not in found:
                self.told.wrong.append(f"{id} was acknowledged, and is not found")
            elif not version <= found[id]["value"] <= attempted[id]:
                self.told.wrong.append(
                    f"{id} was acknowledged as {version}, and is found as {found[id]['value']}"
                )
        for id, hit in found.items():
            score = float(vector(id, hit["value"]) @ asked.astype(np.float32)) * SCALE
            if abs(score - hit["score"]) > 1e-4:
                self.told.wrong.append(f"{id} has the key of another version than {hit['value']}")


_STILL: list[Float64] = []


def still_vectors() -> Float64:
    if not _STILL:
        _STILL.append(np.stack([vector(id, 1) for id in STILL_IDS]))
    return _STILL[0]


def prepare(address: tuple[str, int]) -> None:
    """The collection, with what never changes, and long enough ago for bounded reads."""
    with closing(Client(address)) as client:
        client.ask("PUT", PATH, {"dimension": WIDTH})
        client.ask("POST", f"{PATH}/documents", [document(id, 1, "still") for id in STILL_IDS])
    time.sleep(BOUND_SECONDS)


def check_all(address: tuple[str, int], told: Told) -> None:
    """Every acknowledged write is there, or a later one that was attempted."""
    with closing(Client(address)) as client:
        for id, version in told.acknowledged.items():
            stored = client.ask("GET", f"{PATH}/documents/{id}?consistency=strong")
            assert version <= stored["value"] <= told.attempted[id], (id, version, stored)
