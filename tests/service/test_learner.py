"""Learning while nobody searches: when a training begins, what it tells, what sends it back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from attend import Collection, Data
from attend.projection import Projection
from attend_service.app import create_app
from attend_service.jobs import Jobs
from attend_service.learner import LEARNED, Learner
from attend_service.readiness import Readiness
from attend_service.settings import ServerSettings
from tests.service.conftest import LIMIT


@pytest.fixture
def data(tmp_path: Path, tiny_encoder: Any) -> Iterator[Data]:
    data = Data(tmp_path, load_encoder=lambda name: tiny_encoder)
    made = data.create("default")
    made.upsert([{"id": str(n), "text": f"w{n} w{n + 1} w{n + 2}"} for n in range(60)])
    made.configure(log=True)
    yield data
    data.close()


@pytest.fixture
def hook() -> Iterator[tuple[str, list[Any]]]:
    """The address of a server, and the events that it was told."""
    events: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", events
    server.shutdown()
    server.server_close()


def use(collection: Collection, searches: int) -> None:
    """Ask for documents by their words, and use the one that was meant, wherever it is shown."""
    for number in range(searches):
        answer = collection.search(f"w{number % 60} w{number % 60 + 1}", lexical=False)
        assert answer.search is not None
        meant = str(number % 60)
        collection.used(answer.search, [meant] if meant in [hit.id for hit in answer.hits] else [])


def version(collection: Collection, noise: float) -> int:
    width = collection.settings.dimension
    turn = np.eye(width) + noise * np.random.default_rng(1).normal(size=(width, width))
    return collection.add_projection(
        Projection("learned", width, np.ones(1), w_q=turn[None].astype(np.float32))
    )


def promoting(collection: Collection, **fields: Any) -> Mapping[str, Any]:
    """A training that promotes a version."""
    before, number = collection.info().projection, version(collection, 0.5)
    report = {
        "promoted": True, "reason": "Because.", "used": {"relevant": 1}, "previous": before,
    }  # fmt: skip
    collection.activate(number, force=True, report=report)
    return {**report, "version": number, "objective": fields["objective"]}


def until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_trains_when_idle_tells_and_sends_back_what_use_says_is_worse(
    data: Data, hook: tuple[str, list[Any]]
) -> None:
    collection, (address, events) = data.collection("default"), hook
    before = collection.info().projection
    jobs = Jobs(data, promoting)
    settings = ServerSettings(learn="idle", learn_pause=1, webhook=address)
    learner = Learner(data, jobs, settings, look=0.02, idle=0.0)
    learner.start()
    try:
        use(collection, 19)
        time.sleep(0.3)
        assert jobs.all() == []  # too little was used to prove anything
        use(collection, 1)
        until(lambda: events)
        assert events[0]["event"] == "promoted"
        assert events[0]["reason"] == "Because."
        assert events[0]["learned"] == "Learned from use: 1 promotion, 0 rollbacks, +0.0 points"
        assert collection.info().projection == events[0]["version"] != before
        until(lambda: collection.settings.interleave == [before, events[0]["version"]])
        use(collection, 200)
        until(lambda: len(events) > 1)
        assert (events[1]["event"], events[1]["version"]) == ("rolled_back", events[0]["version"])
        assert collection.info().projection == before
        assert collection.settings.interleave is None
        assert len(jobs.all()) == 1  # an hour is to pass before the next
    finally:
        learner.stop()
        jobs.stop()


@pytest.mark.parametrize("most", [0, 2000])
def test_use_promotes_what_proved_nothing_on_held_out_questions(
    data: Data, hook: tuple[str, list[Any]], most: int
) -> None:
    collection, (address, events) = data.collection("default"), hook
    good, bad = collection.info().projection, version(collection, 0.5)
    collection.activate(bad, force=True)

    def unproved(collection: Collection, **fields: Any) -> Mapping[str, Any]:
        number, mix = version(collection, 0.0), {"before": 0.5, "after": 0.51}
        return {"reason": "Because.", "previous": bad, "version": number, "views": {"mix": mix}}

    jobs = Jobs(data, unproved)
    settings = ServerSettings(learn="idle", learn_interleaved=most, webhook=address)
    learner = Learner(data, jobs, settings, look=0.02, idle=0.0)
    learner.start()
    try:
        use(collection, 20)
        until(lambda: [job.state for job in jobs.all()] == ["done"])
        if most:
            until(lambda: collection.settings.interleave)
            use(collection, 200)
            until(lambda: events)
            assert events[0]["event"] == "promoted"
            assert events[0]["version"] == collection.info().projection > bad
            assert events[0]["reason"].startswith(f"Version {events[0]['version']} is better, by ")
        else:
            time.sleep(0.3)
            assert collection.settings.interleave is None
            collection.configure(interleave=[good, bad])
            use(collection, 200)
            time.sleep(0.3)  # what somebody interleaves is left alone
            assert collection.settings.interleave == [good, bad]
            assert (collection.info().projection, events) == (bad, [])
        assert good != collection.info().projection
    finally:
        learner.stop()
        jobs.stop()


def test_off_is_off_and_a_pause_is_kept_over_a_restart(data: Data) -> None:
    collection, jobs = data.collection("default"), Jobs(data, promoting)
    use(collection, 30)
    for settings in (ServerSettings(), ServerSettings(learn="idle")):
        collection.store.put_settings({LEARNED: {"time": time.time(), "used": 20, "job": None}})
        learner = Learner(data, jobs, settings, look=0.02, idle=0.0)
        learner.start()
        time.sleep(0.3)
        learner.stop()
    assert jobs.all() == []
    jobs.stop()


def test_a_training_that_takes_too_long_is_cancelled(data: Data) -> None:
    def endless(
        collection: Collection, *, cancelled: Callable[[], bool], **fields: Any
    ) -> Mapping[str, Any]:
        while not cancelled():
            time.sleep(0.01)
        return {"promoted": False, "reason": "It was stopped."}

    use(data.collection("default"), 20)
    jobs = Jobs(data, endless)
    settings = ServerSettings(learn="idle", learn_minutes=0.01)
    learner = Learner(data, jobs, settings, look=0.02, idle=0.0)
    learner.start()
    try:
        until(lambda: any(job.state == "cancelled" for job in jobs.all()))
    finally:
        learner.stop()
        jobs.stop()


def figures(data: Data, jobs: Jobs) -> dict[tuple[str, str], float]:
    """The figures of drift as `/metrics` has them, by name and kind."""
    text = create_app(data, None, Readiness(), jobs).test_client().get("/metrics").text
    return {
        (sample.name, sample.labels["kind"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("attend_drift")
    }


def test_a_new_topic_is_told_where_nothing_is_learned(
    data: Data, hook: tuple[str, list[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    collection, jobs, (address, events) = data.collection("default"), Jobs(data, promoting), hook
    learner = Learner(data, jobs, ServerSettings(webhook=address), look=0.02, idle=0.0)
    learner.start()
    try:
        rng = np.random.default_rng(6)
        for number in rng.integers(0, 60, 500).tolist():
            collection.search(f"w{number} w{number + 1}")
        until(lambda: ("attend_drift_p", "queries") in figures(data, jobs))
        assert figures(data, jobs)["attend_drift_alarm", "queries"] == 0
        assert events == []
        for number in rng.integers(0, 60, 200).tolist():
            is_new = rng.random() < 0.3
            collection.search("quaint zebra fjord" if is_new else f"w{number} w{number + 1}")
        until(lambda: events)
    finally:
        learner.stop()
        jobs.stop()
    assert [event["event"] for event in events] == ["drift"]
    assert figures(data, jobs)["attend_drift_alarm", "queries"] == 1
    assert figures(data, jobs)["attend_drift_p", "queries"] <= 0.001
    assert events[0]["reason"] in (collection.info().hints or ())
    assert any(events[0]["reason"] in record.getMessage() for record in caplog.records)


def test_an_encoder_with_other_numbers_is_told_at_start(
    tmp_path: Path, tiny_encoder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Noisy:
        """The encoder, off by 1 %."""

        def __getattr__(self, name: str) -> Any:
            return getattr(tiny_encoder, name)

        def encode_documents(self, texts: list[str]) -> Any:
            rows = tiny_encoder.encode_documents(texts)
            noise = np.random.default_rng(0).normal(size=rows.shape)
            return (rows + 0.01 * noise / np.sqrt(rows.shape[1])).astype(np.float32)

    with Data(tmp_path, load_encoder=lambda name: tiny_encoder) as data:
        made = data.create("default", encoder="no-such-model")
        made.upsert([{"id": str(n), "text": f"w{n} w{n + 1}"} for n in range(60)])
    for encoder, alarm in ((tiny_encoder, 0), (Noisy(), 1), (Noisy(), 1), (tiny_encoder, 0)):
        with Data(tmp_path, load_encoder=lambda name, loaded=encoder: loaded) as data:
            caplog.clear()
            readiness = Readiness()
            readiness.warm(data)
            assert readiness.state == "ready"
            told = [record for record in caplog.records if "other numbers" in record.getMessage()]
            assert len(told) == alarm
            assert figures(data, Jobs(data, promoting)) == {
                ("attend_drift_alarm", "encoder"): alarm
            }
