"""Learning while nobody searches: trainings by what was used, versions of which use tells the
better one, and an alarm where queries or documents are not what they were.

One process on a data folder does it, by the jobs that are there. A version that passes the
promotion test answers at once, and is interleaved with the one before, which answers again if use
says that it is better. So is one that did no worse in the test and proved nothing: use decides.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.request import Request, urlopen

import orjson
from filelock import FileLock, Timeout

from attend import Collection, Data
from attend.collection.drift import Drift
from attend.core.errors import AttendError, Conflict
from attend.learning import FEWEST_QUESTIONS
from attend.learning.evidence import sent_back
from attend.learning.task import GROWTH
from attend.store.searches import FILE, SearchLog
from attend_service.jobs import Job, Jobs, QueueFull, UnknownJob
from attend_service.settings import ServerSettings

log = logging.getLogger("attend")

LOOK_SECONDS = 10.0
"""How often collections are looked at."""

IDLE_SECONDS = 60.0
"""How long nobody must have searched before a training begins."""

NIGHT = range(2, 5)
"""The hours of local time in which nightly trainings begin."""

DOUBTED = 2.0
"""How many times as many searches must have a report as at the last training, while a version is
interleaved: use shall have time to tell."""

WORSE = 0.01

REVIEW_EACH = 20
"""Searches with a report between two reviews of a version."""

WEBHOOK_SECONDS = 10.0

LEARNED = "learned"
"""The setting of a collection with its last training by use: when, after how many searches with a
report, the job while it runs, and the pair of versions that was interleaved last."""


def is_promising(report: Mapping[str, Any]) -> bool:
    """Return whether use shall tell what the version of a training is worth: it did not lose by
    more than WORSE on held-out questions, which stood on a page already and can gain little."""
    mix = (report.get("views") or {}).get("mix") or {"before": 1.0, "after": 0.0}
    return bool(report.get("promoted")) or mix["after"] >= mix["before"] - WORSE


class Learner:
    """Watches the collections of a folder that log their searches.

    Args:
        jobs: they run the trainings.
        look: seconds between two looks at the collections.
        idle: seconds without a search after which a training may begin.
    """

    def __init__(
        self,
        data: Data,
        jobs: Jobs,
        settings: ServerSettings,
        *,
        look: float = LOOK_SECONDS,
        idle: float = IDLE_SECONDS,
    ) -> None:
        self._data, self._jobs, self._settings = data, jobs, settings
        self._look_seconds, self._idle_seconds = look, idle
        self._stopping = threading.Event()
        self._reviewed: dict[str, int] = {}
        self._drifts: dict[str, Drift] = {}
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch; nothing is trained and nothing sent back if the settings say off."""
        if not self._stopping.is_set():
            self._thread = threading.Thread(target=self._watch, name="learner", daemon=True)
            self._thread.start()

    def stop(self, seconds: float = 10.0) -> None:
        """Watch no longer; a training that runs is a job, and stops with these."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _watch(self) -> None:
        # The system takes the lock back from a process that is killed.
        turn = FileLock(self._data.folder / "learner.lock", blocking=False, thread_local=False)
        while not self._stopping.wait(self._look_seconds):
            try:
                turn.acquire()
            except Timeout:
                continue  # another process watches
            for path in sorted((self._data.folder / "collections").glob(f"*/{FILE}")):
                if self._stopping.is_set():
                    break
                name = path.parent.name  # others keep no log, and need not be opened for this
                try:
                    self._look(self._data.collection(name))
                # Whatever happens to one collection, the others are looked at.
                except Exception as error:
                    expected = isinstance(error, AttendError | QueueFull | OSError | sqlite3.Error)
                    trace = None if expected else error
                    log.warning(
                        "The use of %r is not looked at now: %s", name, error, exc_info=trace
                    )
        turn.release(force=True)

    def _look(self, collection: Collection) -> None:
        searches = collection.log
        if searches is None or not collection.settings.log:
            return
        drift = self._drifts.get(collection.name)
        if drift is None or drift.collection is not collection:  # opened again meanwhile
            drift = self._drifts[collection.name] = Drift(collection)
        alarms = drift.look()
        for sentence in alarms:
            log.warning("%r: %s", collection.name, sentence)
            self._send(collection, "drift", collection.views.current().version.number, sentence)
        if self._settings.learn == "off":
            return
        active = collection.store.active("search")
        if alarms and active is not None and active.report.get("promoted"):
            self._interleave(collection, active.parent, active.version)
        used = searches.counts()[1]
        state = dict(collection.store.settings().get(LEARNED) or {})
        is_own = list(collection.settings.interleave or ()) == state.get("pair")
        if is_own and used >= self._reviewed.get(collection.name, 0) + REVIEW_EACH:
            self._reviewed[collection.name] = used
            result = collection.review(self._settings.learn_interleaved)
            if result is not None and result.event is not None:
                newer, why = result.comparison.after.projection, result.comparison.sentence
                self._tell(collection, result.event, newer, why)
        if state.get("job") is not None:
            self._follow(collection, state)
        elif self._is_due(collection, searches, state, used):
            try:
                job = self._jobs.submit(collection.name, {"objective": "ranking"})
            except Conflict:  # somebody trains it by hand
                return
            state |= {"time": time.time(), "used": used, "job": job.id}
            collection.store.put_settings({LEARNED: state})

    def _is_due(
        self, collection: Collection, searches: SearchLog, state: Mapping[str, Any], used: int
    ) -> bool:
        """Tell whether enough was used since the last training, and nobody is kept waiting."""
        now, growth = time.time(), DOUBTED if collection.settings.interleave else GROWTH
        if used < max(FEWEST_QUESTIONS, growth * state.get("used", 0)):
            return False
        if now - state.get("time", 0.0) < 3600 * self._settings.learn_pause:
            return False
        if self._settings.learn == "nightly":
            return time.localtime(now).tm_hour in NIGHT
        return now - searches.last() > self._idle_seconds

    def _follow(self, collection: Collection, state: dict[str, Any]) -> None:
        """Cancel a training that takes too long, and tell what came of one that ended."""
        try:
            job: Job | None = self._jobs.find(state["job"])
        except UnknownJob:  # deleted meanwhile
            job = None
        if job is not None and job.state in ("queued", "running"):
            if time.time() - state["time"] > 60 * self._settings.learn_minutes:
                log.warning("The training of %r took too long and is cancelled", collection.name)
                self._jobs.cancel(job.id)
            return
        collection.store.put_settings({LEARNED: state | {"job": None}})
        report = (job.result if job is not None else None) or {}
        if report.get("promoted"):
            self._tell(collection, "promoted", report["version"], report["reason"])
        elif report:
            log.info("Use of %r proves nothing yet: %s", collection.name, report["reason"])
        if is_promising(report):
            self._interleave(collection, report["previous"], report["version"])

    def _interleave(self, collection: Collection, before: int | None, after: int | None) -> None:
        """Draft the lists of two versions into one page from now on, until use tells which of them
        is better; not again those of which it has told, and not in place of somebody's choice."""
        stored, pair = collection.store.settings(), [before, after]
        state, others = dict(stored.get(LEARNED) or {}), collection.settings.interleave
        if not (before and after and self._settings.learn_interleaved):
            return
        if (others and list(others) != state.get("pair")) or str(after) in sent_back(stored):
            return
        collection.configure(interleave=pair)
        collection.store.put_settings({LEARNED: state | {"pair": pair}})
        log.info("%r interleaves versions %d and %d", collection.name, before, after)

    def _tell(self, collection: Collection, event: str, version: int, reason: str) -> None:
        """Write an event to the log, and send it to the webhook."""
        log.info(
            "%r: version %d was %s. %s", collection.name, version, event.replace("_", " "), reason
        )
        log.info("%r. %s.", collection.name, collection.learned().sentence)
        self._send(collection, event, version, reason)

    def _send(self, collection: Collection, event: str, version: int, reason: str) -> None:
        """Send an event to the webhook, where there is one."""
        if self._settings.webhook is None:
            return
        body = {
            "event": event,
            "collection": collection.name,
            "version": version,
            "reason": reason,
            "learned": collection.learned().sentence,
        }
        headers = {"Content-Type": "application/json"}
        request = Request(self._settings.webhook, orjson.dumps(body), headers, method="POST")
        try:
            urlopen(request, timeout=WEBHOOK_SECONDS).close()  # http or https: settings
        except (OSError, HTTPException) as error:
            log.warning("The webhook could not be told of the event %s: %s", event, error)
