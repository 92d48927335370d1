"""`/metrics`: the work and the state of the server, as Prometheus reads them.

No label has values without end: routes and statuses are few, and only the first collections have
figures of their own.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from attend import Collection, Data
from attend.collection.drift import KINDS, noticed
from attend.core.errors import AttendError, Unavailable, is_out_of_files
from attend_service.jobs import Jobs, State
from attend_service.readiness import Readiness

log = logging.getLogger("attend")

MEDIA_TYPE = CONTENT_TYPE_LATEST

SEVERAL = "PROMETHEUS_MULTIPROC_DIR"
"""The variable by which prometheus_client has the figures of several processes added up."""

IS_ONE_OF_SEVERAL = SEVERAL in os.environ

ADDED = ("process_resident_memory_bytes", "process_cpu_seconds", "process_open_fds")

MAX_COLLECTIONS = 100
"""Collections with figures of their own, the first by name; `attend_collections` counts all."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""A client may make up others, and each would be a line for ever."""

JOB_STATES: tuple[State, ...] = ("queued", "running", "done", "failed", "cancelled")

REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
STAGE_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5)

BY_COLLECTION: Mapping[str, str] = {
    "attend_documents": "Documents stored.",
    "attend_keys": "Keys stored, without those of examples.",
    "attend_generation": "Changes committed: `generation` of a response.",
    "attend_projection": "The projection version that answers.",
    "attend_index_generation": "Merges into the published index; 0 where none was.",
    "attend_index_keys": "Keys in the published index.",
    "attend_index_fresh_keys": "Keys that wait for the next merge.",
    "attend_index_bytes": "The published indexes on disk, in bytes.",
    "attend_database_bytes": "The database on disk with its log, in bytes.",
    "attend_last_merge_timestamp_seconds": "When the index was last published; 0 where never.",
    "attend_index_exact": "Whether search is exact (1), or estimated (0).",
    "attend_learned_promotions": "Versions that use has promoted.",
    "attend_learned_rollbacks": "Versions that use has sent back.",
    "attend_recall_estimate": "The share of the true nearest keys that a search finds.",
}

BY_KIND: Mapping[str, str] = {
    "attend_drift_alarm": "Whether something is not what it was at the last training.",
    "attend_drift_p": "The p-value of this comparison, valid whenever one looks.",
}


class Metrics(Collector):
    """The figures of one application: some are counted, some looked up at each reading.

    Attributes:
        queue: returns how many requests wait for a thread, and how many were refused so far.
    """

    def __init__(self, data: Data, readiness: Readiness, jobs: Jobs) -> None:
        self._registry = CollectorRegistry()
        requests = Counter(
            "attend_requests",
            "Requests answered.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        seconds = Histogram(
            "attend_request_seconds",
            "From the first look at a request to its answer, without the wait for a thread.",
            ["route"],
            buckets=REQUEST_SECONDS,
            registry=self._registry,
        )
        stages = Histogram(
            "attend_stage_seconds",
            "Of a search, by its stages.",
            ["stage"],
            buckets=STAGE_SECONDS,
            registry=self._registry,
        )
        # Looked up once: there are few of each, and every search asks for several.
        self._by_request = cache(requests.labels)
        self._by_route = cache(seconds.labels)
        self._by_stage = cache(stages.labels)
        self.queue: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._data = data
        self._waiting = self._gauge("attend_queue_length", "Requests without a thread.")
        self._entries = self._gauge("attend_cache_entries", "Embeddings kept.")
        self._bytes = self._gauge("attend_cache_bytes", "What they take.")
        self._refused = self._risen("attend_queue_refused", "Requests refused: 429.")
        self._hits = self._risen("attend_cache_hits", "Texts found embedded.")
        self._misses = self._risen("attend_cache_misses", "Texts to be embedded.")
        self._readiness = readiness
        self._jobs = jobs
        # By collection: the change, and the documents and keys that were counted then.
        self._counted: dict[Path, tuple[int, tuple[int, int, int, int]]] = {}

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered.

        Args:
            route: the path as it is written in the API, never the one that was sent.
        """
        self._by_request(method if method in METHODS else "other", route, status).inc()
        self._by_route(route).observe(seconds)

    def stages(self, spent: Mapping[str, float]) -> None:
        """Count a search's seconds by stage."""
        for stage, seconds in spent.items():
            self._by_stage(stage).observe(seconds)

    def report(self) -> None:
        """Write down this process's queue and cache, which other processes add to theirs."""
        waiting, refused = self.queue()
        cache = self._data.embeddings.usage()
        self._waiting.set(waiting)
        self._entries.set(cache.entries)
        self._bytes.set(cache.size)
        self._refused(refused)
        self._hits(cache.hits)
        self._misses(cache.misses)

    def text(self) -> bytes:
        """Return all figures: of this process now, of others as they reported them last."""
        self.report()
        answering = CollectorRegistry()
        if IS_ONE_OF_SEVERAL:
            _living()
            MultiProcessCollector(answering)  # type: ignore[no-untyped-call]
        else:
            answering.register(self._registry)
            ProcessCollector(registry=answering)
        answering.register(self)
        return generate_latest(answering)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self._registry, multiprocess_mode="livesum")

    def _risen(self, name: str, text: str) -> Callable[[int], None]:
        """Make a counter; return a function that raises it to a count."""
        counter = Counter(name, text, registry=self._registry)
        lock, seen = threading.Lock(), 0

        def rise(count: int) -> None:
            nonlocal seen
            with lock:
                counter.inc(max(0, count - seen))
                seen = count

        return rise

    def collect(self) -> Iterator[Metric]:
        """Yield the figures that are looked up at each reading, the same for every process."""
        if IS_ONE_OF_SEVERAL:
            yield from _processes()
        ready = float(self._readiness.state == "ready")
        yield GaugeMetricFamily("attend_ready", "Whether requests should be sent here.", ready)
        with suppress(AttendError):  # a server that stops, or only reads, has none to tell of
            states = Tally(job.state for job in self._jobs.all())
            family = GaugeMetricFamily("attend_jobs", "Jobs remembered.", labels=["state"])
            for state in JOB_STATES:
                family.add_metric([state], states[state])
            yield family
        yield from self._collections()

    def _collections(self) -> Iterator[Metric]:
        try:
            names = self._data.names()
        except Unavailable as error:
            log.warning("There are no figures of collections: %s", error)
            return
        yield GaugeMetricFamily("attend_collections", "Collections there are.", len(names))
        families = {
            name: GaugeMetricFamily(name, text, labels=["collection"])
            for name, text in BY_COLLECTION.items()
        }
        kinds = {
            name: GaugeMetricFamily(name, text, labels=["collection", "kind"])
            for name, text in BY_KIND.items()
        }
        failed = 0
        for name in names[:MAX_COLLECTIONS]:
            try:
                collection = self._data.collection(name)
                figures, drift = self._figures(collection), noticed(collection)
            # One that cannot be opened must not hide the others.
            except Exception as error:
                # Requests say once that files are short; a line for each collection says no more.
                if not is_out_of_files(error):
                    log.warning("The collection %r has no figures: %s", name, error)
                failed += 1
                continue
            for metric, figure in figures.items():
                families[metric].add_metric([name], figure)
            for kind in KINDS:
                if kind in drift:
                    kinds["attend_drift_alarm"].add_metric([name, kind], drift[kind]["alarm"])
                    if drift[kind]["p"] is not None:
                        kinds["attend_drift_p"].add_metric([name, kind], drift[kind]["p"])
        yield GaugeMetricFamily("attend_collections_failed", "Those that do not open.", failed)
        yield from families.values()
        yield from kinds.values()

    def _figures(self, collection: Collection) -> dict[str, float]:
        view = collection.views.current()
        stats = view.index_stats
        folder = collection.folder
        change, counts = self._counted.get(folder, (None, (0, 0, 0, 0)))
        if change != view.change:
            learned = collection.learned()  # it reads the reports of all versions
            counts = *collection.store.counts(), learned.promotions, learned.rollbacks
            self._counted[folder] = view.change, counts
        published = [_stat(path) for path in folder.glob("keys/*/current")]
        return {
            "attend_documents": counts[0],
            "attend_keys": counts[1],
            "attend_generation": view.change,
            "attend_projection": view.version.number,
            "attend_index_generation": view.keys.generation,
            "attend_index_keys": float(str(stats["keys"])),
            "attend_index_fresh_keys": float(str(stats["fresh"])),
            "attend_index_bytes": sum(_stat(path)[0] for path in (folder / "keys").rglob("*")),
            "attend_database_bytes": sum(_stat(path)[0] for path in folder.glob("documents.db*")),
            "attend_last_merge_timestamp_seconds": max((time for _, time in published), default=0),
            "attend_index_exact": int(view.keys.promises() == 1),
            "attend_learned_promotions": counts[2],
            "attend_learned_rollbacks": counts[3],
            "attend_recall_estimate": view.keys.promises(),
        }


def _processes() -> Iterator[Metric]:
    """Yield the system's figures of the worker processes, added up, and their number."""
    alive = _living()
    yield GaugeMetricFamily("attend_processes", "That serve side by side.", len(alive))
    collectors = [ProcessCollector(pid=partial(int, pid), registry=None) for pid in alive]
    collected = (family for collector in collectors for family in collector.collect())
    families = [family for family in collected if family.name in ADDED]
    for name, group in groupby(sorted(families, key=attrgetter("name")), attrgetter("name")):
        same = list(group)
        total = sum(sample.value for metric in same for sample in metric.samples)
        kind = CounterMetricFamily if same[0].type == "counter" else GaugeMetricFamily
        yield kind(name, same[0].documentation, total)


def _living() -> list[int]:
    """Return the ids of the worker processes; remove the gauges of those that ended."""
    alive = []
    for path in Path(os.environ[SEVERAL]).glob("gauge_livesum_*.db"):
        pid = int(path.stem.split("_")[-1])
        try:
            os.kill(pid, 0)
            alive.append(pid)
        except ProcessLookupError:
            path.unlink(missing_ok=True)
    return alive


def _stat(path: Path) -> tuple[int, float]:
    """Return the size of a file and when it was written; 0 for folders and what is swept away."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0.0
    return (status.st_size, status.st_mtime) if stat.S_ISREG(status.st_mode) else (0, 0.0)
