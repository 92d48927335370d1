"""`/metrics`: the work and the state of the server, as Prometheus reads them.

No label has values without end: routes and statuses are few, and only the first collections have
figures of their own.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from flask import Flask
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from attend import Collection, Data
from attend.core.errors import AttendError, Unavailable, is_out_of_files
from attend_service.jobs import Jobs, State
from attend_service.readiness import Readiness

log = logging.getLogger("attend")

EXTENSION = "attend-metrics"

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
    "attend_recall_estimate": "The share of the true nearest keys that a search finds.",
}


class Metrics:
    """The figures of one application: some are counted, some looked up at each reading."""

    def __init__(self, data: Data, readiness: Readiness, jobs: Jobs) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "attend_requests",
            "Requests answered.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "attend_request_seconds",
            "From the first look at a request to its answer, without the wait for a thread.",
            ["route"],
            buckets=REQUEST_SECONDS,
            registry=self._registry,
        )
        self._stages = Histogram(
            "attend_stage_seconds",
            "Of a search, by its stages.",
            ["stage"],
            buckets=STAGE_SECONDS,
            registry=self._registry,
        )
        # Looked up once: there are few of each, and every search asks for several.
        self._by_request = cache(self._requests.labels)
        self._by_route = cache(self._seconds.labels)
        self._by_stage = cache(self._stages.labels)
        self.queue = QueueState(lambda: 0, lambda: 0)
        self._own = _Own(data, self._registry)
        self._state = _State(data, readiness, jobs)

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
        self._own.look(self.queue)

    def text(self) -> bytes:
        """Return all figures: of this process now, of others as they reported them last."""
        self.report()
        answering = CollectorRegistry()
        if IS_ONE_OF_SEVERAL:
            _living()
            MultiProcessCollector(answering)  # type: ignore[no-untyped-call]
            answering.register(_Processes())
        else:
            answering.register(self._registry)
            ProcessCollector(registry=answering)
        answering.register(self._state)
        return generate_latest(answering)


def metrics_of(app: Flask) -> Metrics:
    """Return the metrics of an application."""
    metrics: Metrics = app.extensions[EXTENSION]
    return metrics


class QueueState(NamedTuple):
    """Functions for the requests that wait for a thread, and those that were refused so far."""

    waiting: Callable[[], int]
    refused: Callable[[], int]


class _Own:
    """A process's queue and cache. Of several processes each has its own: `/metrics` adds up."""

    def __init__(self, data: Data, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, registry=registry, multiprocess_mode="livesum")

        self._data = data
        self._waiting = gauge("attend_queue_length", "Requests without a thread.")
        self._entries = gauge("attend_cache_entries", "Embeddings kept.")
        self._bytes = gauge("attend_cache_bytes", "What they take.")
        self._refused = _Risen("attend_queue_refused", "Requests refused: 429.", registry)
        self._hits = _Risen("attend_cache_hits", "Texts found embedded.", registry)
        self._misses = _Risen("attend_cache_misses", "Texts to be embedded.", registry)

    def look(self, queue: QueueState) -> None:
        self._waiting.set(queue.waiting())
        self._refused.to(queue.refused())
        cache = self._data.embeddings.usage()
        self._entries.set(cache.entries)
        self._bytes.set(cache.size)
        self._hits.to(cache.hits)
        self._misses.to(cache.misses)


class _Risen:
    """A counter that follows another one."""

    def __init__(self, name: str, text: str, registry: CollectorRegistry) -> None:
        self._counter = Counter(name, text, registry=registry)
        self._seen = 0
        self._lock = threading.Lock()

    def to(self, count: int) -> None:
        with self._lock:
            self._counter.inc(max(0, count - self._seen))
            self._seen = count


class _Processes(Collector):
    """The system's figures of the worker processes, added up, and their number."""

    def collect(self) -> Iterator[Metric]:
        alive = [_figures_of(pid) for pid in _living()]
        yield GaugeMetricFamily("attend_processes", "That serve side by side.", len(alive))
        families = [family for figures in alive for family in figures if family.name in ADDED]
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


def _figures_of(pid: int) -> list[Metric]:
    return list(ProcessCollector(pid=lambda: pid, registry=None).collect())


class _State(Collector):
    """The figures that are looked up at each reading, and are the same for every process."""

    def __init__(self, data: Data, readiness: Readiness, jobs: Jobs) -> None:
        self._data = data
        self._readiness = readiness
        self._jobs = jobs
        self._counts = _Counts()

    def collect(self) -> Iterator[Metric]:
        ready = float(self._readiness.now().state == "ready")
        yield GaugeMetricFamily("attend_ready", "Whether requests should be sent here.", ready)
        yield from self._job_states()
        yield from self._collections()

    def _job_states(self) -> Iterator[Metric]:
        family = GaugeMetricFamily("attend_jobs", "Jobs remembered.", labels=["state"])
        try:
            states = Tally(job.state for job in self._jobs.all())
        # A server that stops, or only reads, has none to tell of.
        except AttendError:
            return
        for state in JOB_STATES:
            family.add_metric([state], states.get(state, 0))
        yield family

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
        failed = 0
        for name in names[:MAX_COLLECTIONS]:
            try:
                figures = self._figures(self._data.collection(name))
            # One that cannot be opened must not hide the others.
            except Exception as error:
                # Requests say once that files are short; a line for each collection says no more.
                if not is_out_of_files(error):
                    log.warning("The collection %r has no figures: %s", name, error)
                failed += 1
                continue
            for metric, figure in figures.items():
                families[metric].add_metric([name], figure)
        yield GaugeMetricFamily("attend_collections_failed", "Those that do not open.", failed)
        yield from families.values()

    def _figures(self, collection: Collection) -> dict[str, float]:
        view = collection.views.current()
        stats = view.index_stats
        documents, keys = self._counts.of(collection, view.change)
        folder = collection.folder
        return {
            "attend_documents": documents,
            "attend_keys": keys,
            "attend_generation": view.change,
            "attend_projection": view.version.number,
            "attend_index_generation": view.keys.generation,
            "attend_index_keys": float(str(stats["keys"])),
            "attend_index_fresh_keys": float(str(stats["fresh"])),
            "attend_index_bytes": _bytes(folder / "keys"),
            "attend_database_bytes": sum(map(_size, folder.glob("documents.db*"))),
            "attend_last_merge_timestamp_seconds": _last_merge(folder),
            "attend_index_exact": int(view.keys.promises() == 1),
            "attend_recall_estimate": view.keys.promises(),
        }


class _Counts:
    """Documents and keys of each collection, counted again only after a change."""

    def __init__(self) -> None:
        self._counted: dict[Path, tuple[int, tuple[int, int]]] = {}
        self._lock = threading.Lock()

    def of(self, collection: Collection, change: int) -> tuple[int, int]:
        with self._lock:
            counted = self._counted.get(collection.folder)
        if counted is not None and counted[0] == change:
            return counted[1]
        counts = collection.store.counts()
        with self._lock:
            self._counted[collection.folder] = change, counts
        return counts


def _bytes(folder: Path) -> int:
    return sum(_size(path) for path in folder.rglob("*"))


def _size(path: Path) -> int:
    """0 for what a merge has just swept away, and for folders."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _last_merge(folder: Path) -> float:
    times = []
    for path in folder.glob("keys/*/current"):
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)
