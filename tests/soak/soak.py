"""Load of two servers on one folder for some minutes, then load and `kill -9` again and again.

Every answer is checked.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tests import warm
from tests.places import ROOT
from tests.soak import sentences, tiny
from tests.soak.client import LIMIT, Client, Server, Start
from tests.soak.load import GONE, KINDS, Reader, Worker, World, Writer
from tests.soak.sentences import SentenceReader
from tests.soak.serve import REAL

SERVERS = 2
"""Processes that serve the one folder."""

VECTORS_WIDTH = 16
WRITERS = 2
PAGE = 1000
BATCH = 5000
QUESTIONS = 60
"""Queries with feedback: enough for a training."""

READY_SECONDS = 5.0
"""After the imports and the encoders, a server answers within this, killed or not."""

GROWTH = 1.10
"""Memory at the end, as a multiple of that at minute 2."""

Say = Callable[[str], None]


@dataclass
class Report:
    """What was done and seen, for whoever ran it."""

    searches: int = 0
    writes: int = 0
    merges: int = 0
    trainings: list[str] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    memory: list[tuple[float, int]] = field(default_factory=list)
    kills: int = 0
    landed: int = 0
    starts: list[Start] = field(default_factory=list)

    def grown(self) -> float:
        """Memory in the last minute over that in the third, as medians."""
        end = self.memory[-1][0]
        early = [size for at, size in self.memory if 120 <= at < 180]
        late = [size for at, size in self.memory if at >= end - 60]
        return median(late) / median(early) if early else 1.0

    def slowest_start(self) -> float:
        """Seconds from listening until ready, without those of loading encoders."""
        return max((start.opening for start in self.starts), default=0.0)

    def told(self) -> str:
        sizes = {int(at // 60): size >> 20 for at, size in self.memory}
        return (
            f"{self.searches} searches and {self.writes} writes, all as they should be; seconds at "
            f"p50, p99 and most: {self._times()}; {self.merges} merges; trainings: "
            f"{self.trainings}; MiB of memory by minute: {list(sizes.values())}, "
            f"at the end {self.grown():.3f} of minute 2; {self.kills} kills, of {self.landed} of "
            f"which an unanswered write had landed; ready {self.slowest_start():.2f} s "
            f"after the encoders' load at the slowest"
        )

    def _times(self) -> str:
        """Say how long the answers of each kind of request took."""
        return "; ".join(
            " ".join([kind, *(f"{each:.3f}" for each in np.quantile(seconds, (0.5, 0.99, 1)))])
            for kind, seconds in self.seconds.items()
            if seconds
        )


class Soak:
    """A data folder with two collections, what is known of them, and the servers on it."""

    def __init__(self, folder: Path, keys: int, seed: int, say: Say) -> None:
        self.data = folder / "data"
        self.servers: list[Server] = []
        self.say = say
        self.report = Report()
        self.worlds = [
            World("vectors", VECTORS_WIDTH, WRITERS),
            World("texts", tiny.WIDTH, WRITERS, tiny.embed),
        ]
        self._keys = keys
        self._random = random.Random(seed)
        self._model = folder / "model"
        self._logs = [folder / f"server-{number}.log" for number in range(SERVERS)]

    def start(self, numbers: Iterable[int] = range(SERVERS)) -> None:
        """Start some servers, at the same time."""

        def started(number: int) -> tuple[int, Server]:
            return number, Server(self.data, self._logs[number], "tests.soak.serve")

        servers = dict(enumerate(self.servers))
        with ThreadPoolExecutor(SERVERS) as pool:
            for number, server in pool.map(started, numbers):
                servers[number] = server
                self.report.starts.append(server.start)
        self.servers = [server for _, server in sorted(servers.items())]

    def logs(self) -> str:
        """The ends of the servers' logs."""
        return "\n".join(log.read_text()[-5000:] for log in self._logs if log.exists())

    def fill(self) -> None:
        """Make the collections, with documents that nobody changes, and feedback on them."""
        (vectors, texts), server = self.worlds, self.servers[0]
        client = Client(server.address)
        vectors.make(client, {"dimension": VECTORS_WIDTH, "normalize": True})
        texts.make(client, {"encoder": str(self._model)})
        writer = Writer(self.worlds, 0, server.address, threading.Event(), seed=0)
        for first in range(0, self._keys, BATCH):
            count = min(BATCH, self._keys - first)
            writer.upsert(vectors, [f"base-{at}" for at in range(first, first + count)])
        items = [
            {"query": vectors.query(writer.rng)[1], "id": f"base-{at}", "label": 1}
            for at in range(min(self._keys, QUESTIONS))
        ]
        client.ask("POST", f"{vectors.path}/feedback", {"items": items})
        writer.upsert(texts, ["base-0"])
        items = [{"query": "words", "id": "base-0"}]  # no training begins without any
        client.ask("POST", f"{texts.path}/feedback", {"items": items})
        writer.client.close()
        client.close()
        # A server loads an encoder when it is first used, for many seconds if all others ask, too.
        for other in self.servers:
            client = Client(other.address)
            client.ask("POST", f"{texts.path}/search", {"query": "words"})
            client.close()

    def save_model(self) -> None:
        self.data.mkdir(parents=True)
        tiny.save(self._model)

    # -- load -------------------------------------------------------------------------------

    def load(self, seconds: float, readers: int, merge_every: float, steps: int = 0) -> None:
        """Readers, writers, merges, and in the middle trainings; raises what went wrong.

        A busy machine gets longer than `seconds`, until readers and writers each took `steps`.
        """
        stop, server = threading.Event(), self.servers[0]
        sentences.make(server.address)
        workers = [
            *self._workers(readers, stop),
            *(
                SentenceReader(number, server.address, stop, self._random.randrange(10**9))
                for number in range(sentences.READERS)
            ),
        ]
        writers = [worker for worker in workers if isinstance(worker, Writer)]
        began, merged = time.monotonic(), 0
        # Early, so that what a training loads is there before memory is first looked at.
        trained = False
        published = self._published(server)
        for worker in workers:
            worker.start()
        while not any(worker.error for worker in workers):
            now = time.monotonic() - began
            fewest = min(sum(w.steps for w in part) for part in (workers[:readers], writers))
            if now >= seconds and (fewest >= steps or now >= LIMIT):
                break
            if now >= merged * merge_every:
                writers[merged % len(writers)].bulk.set()
                merged += 1
            if not trained and now >= min(seconds / 3, 30):
                trained = True
                self._train(server, real=seconds >= 60)
            published = self._note_merges(published, self._published(server))
            self.report.memory.append((now, server.memory()))
            time.sleep(min(1.0, seconds / 20))
        stop.set()
        self._finish(workers)
        self._note_merges(published, self._published(server))
        sentences.drop(server.address)

    def _workers(self, readers: int, stop: threading.Event) -> list[Worker]:
        """Return readers and writers, by turns of one server and of another."""
        seeds = iter(self._random.sample(range(10**9), readers + WRITERS))
        addresses = itertools.cycle(server.address for server in self.servers)
        reading = [Reader(self.worlds, next(addresses), stop, next(seeds)) for _ in range(readers)]
        writing = [
            Writer(self.worlds, number, next(addresses), stop, next(seeds), self._keys // 12)
            for number in range(WRITERS)
        ]
        return [*reading, *writing]

    def _finish(self, workers: Sequence[Worker], killed: Sequence[Server] = ()) -> None:
        gone = {server.address for server in killed}
        for worker in workers:
            worker.join(LIMIT)
            error = worker.error
            lost = worker.address in gone and isinstance(error, GONE)
            if error is not None and not lost:
                raise AssertionError(f"{type(worker).__name__}: {error!r}") from error
            self._note(worker)

    def _note(self, worker: Worker) -> None:
        report = self.report
        if isinstance(worker, Reader | SentenceReader):
            report.searches += worker.steps
        else:
            report.writes += worker.steps
        for kind, seconds in worker.seconds.items():
            report.seconds[kind] += seconds

    def _train(self, server: Server, *, real: bool) -> None:
        """A rotation of each collection, and with `real` a training that promotes nothing."""
        client = Client(server.address)
        asked = [(world, {}) for world in self.worlds]
        asked += [(self.worlds[0], {"seed": REAL, "promote": False})] if real else []
        for world, body in asked:
            job = client.ask("POST", f"{world.path}/train", body)["id"]
            while (found := client.ask("GET", f"/v1/jobs/{job}"))["state"] in ("queued", "running"):
                time.sleep(0.05)
            assert found["state"] == "done", found
            self.report.trainings.append(f"{world.name}: {found['result']['reason'][:60]}")
        client.close()

    def _published(self, server: Server) -> list[int]:
        """The generation of each world's index."""
        client = Client(server.address)
        found = [client.ask("GET", world.path)["index"]["published"] for world in self.worlds]
        client.close()
        return found

    def _note_merges(self, before: Sequence[int], now: list[int]) -> list[int]:
        # Another version's index counts from one again.
        self.report.merges += sum(max(0, new - old) for old, new in zip(before, now, strict=True))
        return now

    # -- kills ------------------------------------------------------------------------------

    def kill_once(self, most: int, readers: int, longest: float) -> None:
        """Load, `kill -9` of one server or of all, at most so many, at a random moment, while the
        others go on; start them again, and see that nothing is lost."""
        stop = threading.Event()
        workers = self._workers(readers, stop)
        writers = [worker for worker in workers if isinstance(worker, Writer)]
        numbers = self._random.sample(range(SERVERS), self._random.randint(1, min(SERVERS, most)))
        killed = [self.servers[number] for number in numbers]
        if self._random.random() < 0.3:  # in the middle of a large write, or of the merge after it
            self._random.choice(writers).bulk.set()
        if self._random.random() < 0.2:
            self._submit(self._random.choice(self.servers))
        for worker in workers:
            worker.start()
        time.sleep(self._random.uniform(0.02, longest))
        for server in killed:
            server.kill()
        time.sleep(self._random.uniform(0, longest / 4))
        stop.set()
        self._finish(workers, killed)
        self.start(numbers)
        self.report.kills += len(killed)
        self.settle()

    def _submit(self, server: Server) -> None:
        client = Client(server.address)
        client.ask("POST", f"{self._random.choice(self.worlds).path}/train", {})
        client.close()

    def settle(self) -> None:
        """Compare all that is stored, as each server has it, with what was acknowledged.

        What was under way for each writer is there whole, or not at all.
        """
        client, *others = [Client(server.address) for server in self.servers]
        for world in self.worlds:
            oracle = world.oracle
            stored = self._stored(client, world)
            for writer in range(WRITERS):
                if not oracle.pending(writer):
                    continue
                under_way = oracle.under_way(writer)
                landed = all(stored.get(id) == stamp for id, stamp in under_way.items())
                self.report.landed += landed
                (oracle.acknowledge if landed else oracle.forget)(writer)
            self._compare(world, stored)
            for other in others:
                self._compare(world, self._stored(other, world))
        for each in (client, *others):
            each.close()

    def _compare(self, world: World, stored: Mapping[str, Any]) -> None:
        known = world.oracle.present()
        if stored != known:
            lost = known.keys() - stored.keys()
            strange = stored.keys() - known.keys()
            other = [id for id in known.keys() & stored.keys() if known[id] != stored[id]]
            raise AssertionError(
                f"{world.name}: {len(lost)} documents are lost {sorted(lost)[:5]}, {len(strange)} "
                f"are there that should not {sorted(strange)[:5]}, {len(other)} have another "
                f"value {other[:5]}"
            )

    def _stored(self, client: Client, world: World) -> dict[str, Any]:
        found, cursor = {}, ""
        while cursor is not None:
            page = client.ask("GET", f"{world.path}/documents?limit={PAGE}&cursor={cursor}")
            found |= {each["id"]: each["value"] for each in page["documents"]}
            cursor = page["next"]
        return found

    def verify(self) -> None:
        """The command that checks every invariant finds nothing."""
        for world in self.worlds:
            command = ["-m", "index", "verify", "--data", str(self.data)]
            command += ["--collection", world.name, "--json"]
            if warm.ADDRESS in os.environ:
                done = warm.run(*command)
            else:
                done = subprocess.run(
                    [sys.executable, *command],
                    cwd=ROOT, capture_output=True, text=True, check=False,
                )  # fmt: skip
            assert done.returncode == 0, f"{world.name}: {done.stdout} {done.stderr}"


def run(
    folder: Path,
    *,
    minutes: float,
    kills: int,
    keys: int,
    readers: int = 8,
    steps: int = 0,
    merge_every: float = 60.0,
    longest: float = 2.0,
    seed: int = 0,
    say: Say = print,
) -> Report:
    """The whole of it; raises AssertionError at the first thing that is not as it should be.

    Args:
        kills: how often a server is killed after the minutes of load.
        keys: vectors that lie there while all else changes.
        steps: searches, and writes, that the load takes at least, however long that takes.
        merge_every: seconds between two writes so large that the index is merged.
        longest: seconds of load before a kill, at most.
    """
    soak = Soak(folder, keys, seed, say)
    soak.save_model()
    try:
        soak.start()
        soak.fill()
        say(f"{keys} keys are there; load for {minutes:g} minutes.")
        soak.load(minutes * 60, readers, merge_every, steps)
        soak.settle()
        say(soak.report.told())
        while (left := kills - soak.report.kills) > 0:
            soak.kill_once(left, readers, longest)
            say(f"{soak.report.kills} kills: {soak.report.told()}")
        assert [server.stop() for server in soak.servers] == [0] * SERVERS
        soak.verify()
    except BaseException:
        say(f"The servers' logs end:\n{soak.logs()}")
        raise
    finally:
        for server in soak.servers:
            server.kill()
    return soak.report
