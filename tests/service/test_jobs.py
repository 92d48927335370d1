"""Jobs: one at a time, told about, cancelled, and gone on with after a restart."""

from __future__ import annotations

import json
import resource
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from attend import Data
from attend.core.errors import Conflict, Damaged, InvalidRequest, UnknownCollection
from attend_service.jobs import FINISHED_LIMIT, Job, Jobs, JobStore, QueueFull, State, UnknownJob
from tests import warm
from tests.service.conftest import LIMIT, SlowTrainer
from tests.service.test_server import Server
from tests.workers import kill_all

NAMES = ("a", "b", "c", "d")


@pytest.fixture
def data(data: Data) -> Data:
    for name in NAMES:
        data.create(name, dimension=2)
    return data


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LIMIT
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def reached(jobs: Jobs, id: int, *states: State) -> Job:
    def look() -> Job | None:
        job = jobs.find(id)
        return job if job.state in states else None

    found: Job = until(look)
    return found


def test_from_the_queue_to_the_report(jobs: Jobs, trainer: SlowTrainer) -> None:
    job = jobs.submit("a", {"seed": 3})
    assert (job.state, job.progress.message) == ("queued", "Waits for its turn.")
    running = until(lambda: jobs.find(job.id) if jobs.find(job.id).progress.stage else None)
    assert running.state == "running"
    assert (running.progress.stage, running.progress.fraction) == ("fit", 0.25)
    assert running.progress.message == "Fit: 25% of the training is done."
    assert running.created <= (running.started or "")
    trainer.may_finish.set()
    done = reached(jobs, job.id, "done")
    assert trainer.fields == [{"seed": 3}] == [done.request]
    assert (done.progress.fraction, done.progress.message) == (1.0, "Nothing was learned.")
    assert done.result == {"promoted": False, "reason": "Nothing was learned.", "before": None}
    assert (done.started or "") <= (done.finished or "")
    assert done.problem is None


def test_one_runs_at_a_time_in_the_order_of_asking(jobs: Jobs, trainer: SlowTrainer) -> None:
    ids = []
    for name in "cab":
        ids.append(jobs.submit(name, {}).id)
        reached(jobs, ids[0], "running")
    assert [jobs.find(id).state for id in ids] == ["running", "queued", "queued"]
    assert trainer.begun == ["c"]
    trainer.may_finish.set()
    reached(jobs, ids[-1], "done")
    assert trainer.begun == ["c", "a", "b"]
    assert [job.id for job in jobs.all()] == ids[::-1]


def test_a_collection_has_one_job_at_a_time(jobs: Jobs, trainer: SlowTrainer) -> None:
    first = reached(jobs, jobs.submit("a", {}).id, "running")
    waiting = jobs.submit("b", {})
    for job in (first, waiting):
        with pytest.raises(
            Conflict, match=f"Job {job.id} trains .* {job.state}.*/v1/jobs/{job.id}"
        ):
            jobs.submit(job.collection, {})
    trainer.may_finish.set()
    reached(jobs, waiting.id, "done")
    assert jobs.submit("a", {}).id > waiting.id


def test_the_queue_has_an_end(jobs: Jobs) -> None:
    reached(jobs, jobs.submit("a", {}).id, "running")
    last = [jobs.submit(name, {}).id for name in "bc"][-1]
    with pytest.raises(QueueFull, match=f"2 jobs wait already.*/v1/jobs/{last}"):
        jobs.submit("d", {})


def test_many_ask_at_once_and_one_is_taken(jobs: Jobs) -> None:
    taken: list[int] = []
    refused: list[str] = []

    def ask() -> None:
        try:
            taken.append(jobs.submit("a", {}).id)
        except Conflict as error:
            refused.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 1
    assert len(refused) == 7


def test_what_waits_is_cancelled_at_once_and_never_begins(jobs: Jobs, trainer: SlowTrainer) -> None:
    first = reached(jobs, jobs.submit("a", {}).id, "running")
    waiting = jobs.submit("b", {})
    cancelled = jobs.cancel(waiting.id)
    assert cancelled is not None
    assert (cancelled.state, cancelled.started) == ("cancelled", None)
    assert cancelled.progress.message == "Cancelled; nothing was changed."
    trainer.may_finish.set()
    reached(jobs, first.id, "done")
    reached(jobs, jobs.submit("c", {}).id, "done")
    assert trainer.begun == ["a", "c"]


def test_what_runs_is_asked_to_stop_and_what_ended_is_forgotten(jobs: Jobs) -> None:
    job = reached(jobs, jobs.submit("a", {}).id, "running")
    asked = jobs.cancel(job.id)
    assert asked is not None
    assert asked.state == "running"
    assert asked.progress.message == "Stops at its next step."
    stopped = reached(jobs, job.id, "cancelled")
    assert (stopped.result, stopped.problem) == (None, None)
    assert jobs.cancel(job.id) is None
    for call in (jobs.find, jobs.cancel):
        with pytest.raises(UnknownJob, match=f"no job {job.id}"):
            call(job.id)
    with pytest.raises(UnknownJob):
        jobs.find(10**30)


@pytest.mark.parametrize(("promoted", "state"), [(False, "cancelled"), (True, "done")])
def test_a_report_that_comes_in_spite_of_a_cancellation(
    data: Data, promoted: bool, state: State
) -> None:
    """What was promoted was promoted, whoever wanted it stopped."""

    def trainer(collection: Any, *, progress: Any, cancelled: Any) -> dict[str, Any]:
        until(cancelled)
        return {"promoted": promoted}

    jobs = Jobs(data, trainer)
    job = reached(jobs, jobs.submit("a", {}).id, "running")
    jobs.cancel(job.id)
    assert reached(jobs, job.id, "done", "cancelled").state == state
    assert jobs.find(job.id).result == {"promoted": promoted}
    jobs.stop()


def test_a_failure_is_a_problem_and_the_next_job_runs(
    jobs: Jobs, trainer: SlowTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    trainer.may_finish.set()
    trainer.error = InvalidRequest("There are no examples; give some.", field="examples")
    told = reached(jobs, jobs.submit("a", {}).id, "failed")
    assert told.problem is not None
    assert (told.problem["status"], told.problem["detail"]) == (422, str(trainer.error))
    assert told.progress.message == str(trainer.error)
    trainer.error = RuntimeError("/secret/path")
    hidden = reached(jobs, jobs.submit("a", {}).id, "failed")
    assert hidden.problem is not None
    assert hidden.problem["status"] == 500
    assert "secret" not in hidden.problem["detail"]
    assert f"job {hidden.id}" in hidden.problem["detail"]
    assert "/secret/path" in caplog.text
    trainer.error = None
    reached(jobs, jobs.submit("a", {}).id, "done")


def test_a_collection_that_is_not_there(jobs: Jobs, data: Data, trainer: SlowTrainer) -> None:
    with pytest.raises(UnknownCollection):
        jobs.submit("films", {})
    first = reached(jobs, jobs.submit("a", {}).id, "running")
    waiting = jobs.submit("b", {})
    data.drop("b")
    trainer.may_finish.set()
    problem = reached(jobs, waiting.id, "failed").problem
    assert problem is not None
    assert problem["status"] == 404
    assert jobs.find(first.id).state == "done"


def test_an_alias_in_the_place_of_a_collection_is_not_trained(
    jobs: Jobs, data: Data, trainer: SlowTrainer
) -> None:
    first = reached(jobs, jobs.submit("a", {}).id, "running")
    waiting = jobs.submit("b", {})
    data.drop("b")
    data.set_alias("b", "c")
    with pytest.raises(UnknownCollection, match="alias"):
        jobs.submit("b", {})
    trainer.may_finish.set()
    problem = reached(jobs, waiting.id, "failed").problem
    assert problem is not None
    assert problem["status"] == 404
    assert trainer.begun == ["a"]
    assert jobs.find(first.id).state == "done"


def test_progress_is_told_often_enough_and_kept_within_its_bounds(data: Data) -> None:
    """Told a thousand times in a stage, it costs a handful of writes; each stage is seen."""
    seen: list[tuple[str, float]] = []

    def trainer(collection: Any, *, progress: Any, cancelled: Any) -> dict[str, Any]:
        for stage, fraction in (("read", -1.0), ("fit", 0.5), ("gate", 7.0)):
            for _ in range(1000):
                progress(stage, fraction)
            job = jobs.all()[0]
            seen.append((job.progress.stage, job.progress.fraction))
        return {}

    jobs = Jobs(data, trainer)
    begun = time.monotonic()
    reached(jobs, jobs.submit("a", {}).id, "done")
    assert seen == [("read", 0.0), ("fit", 0.5), ("gate", 1.0)]
    assert time.monotonic() - begun < 3
    jobs.stop()


def test_what_is_done_stays_done_where_a_stage_counts_anew(data: Data) -> None:
    seen: list[float] = []

    def trainer(collection: Any, *, progress: Any, cancelled: Any) -> dict[str, Any]:
        for stage, fraction in (("try", 0.2), ("try", 0.7), ("fit", 0.0), ("fit", 0.9), ("end", 0)):
            progress(stage, fraction)
            seen.append(jobs.all()[0].progress.fraction)
        return {}

    jobs = Jobs(data, trainer)
    reached(jobs, jobs.submit("a", {}).id, "done")
    # Of one stage not every step is told; the next one tells what has been done by then.
    assert seen == [0.2, 0.2, 0.7, 0.7, 0.9]
    jobs.stop()


def test_old_jobs_are_forgotten(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs.db")
    for _ in range(FINISHED_LIMIT + 20):
        store.add("a", {}, 1)
        job = store.take()
        assert job is not None
        store.finish(job.id, "done", result={})
    ids = [job.id for job in store.all()]
    assert ids == list(range(FINISHED_LIMIT + 20, 20, -1))
    store.close()


def test_the_schema_itself_refuses_two_jobs_of_a_collection(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs.db")
    store.add("a", {}, 9)
    with sqlite3.connect(tmp_path / "jobs.db") as other, pytest.raises(sqlite3.IntegrityError):
        other.execute("INSERT INTO jobs (collection, request, created) VALUES ('a', '{}', '')")
    other.close()
    store.close()


def test_a_damaged_book_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"no database" * 100)
    with pytest.raises(Damaged, match="move it away"):
        JobStore(tmp_path / "jobs.db")


def test_nothing_is_opened_before_it_is_asked_for(data: Data, trainer: SlowTrainer) -> None:
    """A server may fork first."""
    threads = threading.active_count()
    jobs = Jobs(data, trainer)
    assert threading.active_count() == threads
    assert not (data.folder / "jobs.db").exists()
    jobs.stop()
    with pytest.raises(Conflict, match="stopping"):
        jobs.all()


# -- stops and restarts -------------------------------------------------------------------------


def test_a_stop_cancels_what_runs_and_keeps_what_waits(data: Data, trainer: SlowTrainer) -> None:
    first = Jobs(data, trainer)
    running = reached(first, first.submit("a", {}).id, "running")
    waiting = first.submit("b", {"seed": 5})
    first.stop(LIMIT)
    trainer.may_finish.set()
    second = Jobs(data, trainer)
    second.start()
    assert reached(second, waiting.id, "done").request == {"seed": 5}
    stopped = second.find(running.id)
    assert stopped.state == "cancelled"
    assert "POST /v1/collections/a/train" in stopped.progress.message
    assert trainer.fields == [{}, {"seed": 5}]
    second.stop(LIMIT)


def test_a_training_that_ignores_its_cancellation_holds_up_nobody(
    data: Data, caplog: pytest.LogCaptureFixture
) -> None:
    may_end = threading.Event()

    def deaf(collection: Any, *, progress: Any, cancelled: Any) -> dict[str, Any]:
        may_end.wait(LIMIT)
        return {"promoted": True}

    jobs = Jobs(data, deaf)
    job = reached(jobs, jobs.submit("a", {}).id, "running")
    begun = time.monotonic()
    jobs.stop(0.1)
    assert time.monotonic() - begun < 3
    assert "did not stop" in caplog.text
    may_end.set()
    store = JobStore(data.folder / "jobs.db")
    until(lambda: (found := store.find(job.id)) and found.state == "done")
    store.close()


def test_two_runners_take_turns(data: Data, trainer: SlowTrainer) -> None:
    """As two servers on one folder would: neither takes the other's job for a dead one's."""
    one, two = Jobs(data, trainer), Jobs(data, trainer)
    running = reached(one, one.submit("a", {}).id, "running")
    two.start()
    waiting = two.submit("b", {})
    time.sleep(1.5)  # long enough for the second to look at the store
    assert two.find(running.id).state == "running"
    assert two.find(waiting.id).state == "queued"
    two.cancel(running.id)
    reached(one, running.id, "cancelled")
    reached(two, waiting.id, "running")
    trainer.may_finish.set()
    reached(two, waiting.id, "done")
    assert trainer.begun == ["a", "b"]
    for jobs in (one, two):
        jobs.stop(LIMIT)


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server in a process of its own, whose trainings end when a file appears."""
    process = warm.start("-m", "tests.service.patient_server", folder)
    try:
        line = process.stdout.readline().strip()
        assert line, process.stderr and process.stderr.read()
        yield Server(process, "127.0.0.1", int(line.rsplit(":", 1)[1]))
    finally:
        process.kill()
        process.communicate()


def shown(server: Server, id: int, *states: str) -> Any:
    def look() -> Any:
        job = server.request("GET", f"/v1/jobs/{id}")[1]
        return job if job["state"] in states else None

    return until(look)


def start(server: Server, name: str) -> Any:
    """Start a training, which the server's stand-in does not look at."""
    asked = {"objective": "answers"}
    status, job = server.request("POST", f"/v1/collections/{name}/train", asked)
    assert status == 202, job
    return job


def test_a_killed_server_s_jobs_are_told_and_gone_on_with(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        for name in "ab":
            server.request("PUT", f"/v1/collections/{name}", {"dimension": 2})
            vector = [{"id": "x", "vector": [1, 0]}]
            server.request("POST", f"/v1/collections/{name}/documents", vector)
        ids = [start(server, name)["id"] for name in "ab"]
        shown(server, ids[0], "running")
        # Searches go on meanwhile.
        answer = server.request("POST", "/v1/collections/a/search", {"query": [1, 0]})
        assert answer[1]["hits"][0]["id"] == "x"
        kill_all(server.process)
    (tmp_path / "may-finish").touch()
    with serving(tmp_path) as server:
        lost = shown(server, ids[0], "failed")
        assert lost["problem"]["type"] == "/docs#interrupted"
        assert "POST /v1/collections/a/train" in lost["problem"]["detail"]
        assert shown(server, ids[1], "done")["result"]["reason"] == "It was let go."
        again = start(server, "a")
        shown(server, again["id"], "done")
        assert server.stop() == 0


def test_a_server_that_is_told_to_stop_does_not_wait_for_a_training(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.request("PUT", "/v1/collections/a", {"dimension": 2})
        vector = [{"id": "x", "vector": [1, 0]}]
        server.request("POST", "/v1/collections/a/documents", vector)
        id = start(server, "a")["id"]
        shown(server, id, "running")
        assert server.stop() == 0
        assert server.process.stderr is not None
        assert server.process.stderr.read() == ""
    store = JobStore(tmp_path / "jobs.db")
    found = store.find(id)
    assert found is not None
    assert found.state == "cancelled"
    assert json.dumps(found.problem).count("POST /v1/collections/a/train") == 1
    store.close()


def test_a_commit_that_the_disk_does_not_take_leaves_the_store_in_use(tmp_path: Path) -> None:
    store, path = JobStore(tmp_path / "jobs.db"), tmp_path / "jobs.db-wal"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, before[1]))
    try:
        with pytest.raises(sqlite3.OperationalError):
            store.add("books", {}, 9)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert store.all() == []
    assert store.add("books", {}, 9).state == "queued"
    store.close()
