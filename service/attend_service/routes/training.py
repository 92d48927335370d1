"""Learning: feedback in, trainings as jobs."""

from __future__ import annotations

from typing import Any

from flask import Response, url_for
from werkzeug.exceptions import TooManyRequests

from attend import Collection
from attend.api.learning import FeedbackDeletion, FeedbackListing, FeedbackRequest, TrainRequest
from attend.feedback import add_feedback
from attend_service.context import context
from attend_service.jobs import Job, QueueFull, UnknownJob
from attend_service.learned import FeedbackReply, ForgottenReply, JobReply, JobsReply, TaughtReply
from attend_service.operations import Operations
from attend_service.replies import reply
from attend_service.security.access import is_allowed

operations = Operations("Learning")

FEEDBACK = "/v1/collections/{collection}/feedback"
TRAIN = "/v1/collections/{collection}/train"
JOBS = "/v1/jobs"
JOB = "/v1/jobs/{job}"

RETRY_SECONDS = 60
"""After which a full queue is worth another try: about what one training takes."""

EXAMPLE: dict[str, Any] = {
    "items": [
        {"query": {"vector": [1.0, 0.2, 0.0]}, "id": "moby-dick", "label": 1, "position": 2},
        {"query": {"vector": [1.0, 0.2, 0.0]}, "id": "emma", "label": 0},
    ]
}


@operations.add(
    "POST",
    FEEDBACK,
    body=FeedbackRequest,
    bare="items",
    single=True,
    returns={200: TaughtReply},
    example=EXAMPLE,
    scope="write",
)
def give_feedback(collection: str, body: FeedbackRequest) -> Response:
    """Say how well documents answer queries: all of it is taken, or none.

    `label` is 1 for relevant (or more, by degree), 0 for not, below 0 for worse than not;
    `position` is the rank at which the document was shown, from 1. The same query and document
    again replaces what was said. A bare list is taken too, and so is a single judgement.
    """
    taught = add_feedback(_collection(collection), body.items)
    counts = {"added": taught.added, "replaced": taught.replaced, "examples": taught.examples}
    return reply(counts)


@operations.add("GET", FEEDBACK, query=FeedbackListing, returns={200: FeedbackReply})
def show_feedback(collection: str, query: FeedbackListing) -> Response:
    """Count the feedback there is to learn from, and list the newest of it."""
    store = _collection(collection).store
    counts = {"examples": store.example_count(), "questions": store.question_count()}
    if not query.limit:
        return reply(counts)
    found = store.latest_examples(query.limit + 1, query.before)
    listed = found[: query.limit]
    end = listed[-1].id if len(found) > len(listed) else None
    return reply({**counts, "items": [each._asdict() for each in listed], "next": end})


@operations.add(
    "DELETE",
    FEEDBACK,
    body=FeedbackDeletion,
    returns={200: ForgottenReply},
    example={"documents": ["moby-dick"]},
    scope="write",
)
def delete_feedback(collection: str, body: FeedbackDeletion) -> Response:
    """Delete feedback, by its ids or all about some documents; unknown ids are passed over.

    All of it goes with `{"all": true}`, and never for want of a word.
    """
    store = _collection(collection).store
    if body.all:
        return reply({"deleted": store.delete_examples()})
    return reply({"deleted": store.delete_examples(ids=body.ids, documents=body.documents)})


@operations.add(
    "POST",
    TRAIN,
    body=TrainRequest,
    returns={202: JobReply},
    example={},
    also=(429,),
)
def start_training(collection: str, body: TrainRequest) -> Response:
    """Train on the feedback, as a job; `Location` is its address.

    Searches go on meanwhile. A version that is better beyond doubt on held-out data answers once
    the job is done; otherwise nothing changes, and the job's result says why.
    """
    jobs = context().jobs
    context().data.capabilities.check("jobs")
    try:
        job = jobs.submit(collection, body.model_dump(mode="json", exclude_unset=True))
    except QueueFull as error:
        raise TooManyRequests(str(error), retry_after=RETRY_SECONDS) from None
    accepted = reply(_job(job), 202)
    accepted.headers["Location"] = url_for("show_job", job=job.id)
    return accepted


@operations.add("GET", JOBS, returns={200: JobsReply}, own=True)
def list_jobs() -> Response:
    """List the jobs, the newest first, without their results."""
    jobs = [each for each in context().jobs.all() if is_allowed(each.collection)]
    return reply({"jobs": [_summary(each) for each in jobs]})


@operations.add("GET", JOB, returns={200: JobReply}, also=(404,), own=True)
def show_job(job: int) -> Response:
    """Show a job: how far it is, and what came of it."""
    return reply(_job(_own(job)))


@operations.add(
    "DELETE", JOB, returns={200: JobReply, 202: JobReply, 204: None}, also=(404,), own=True
)
def cancel_job(job: int) -> Response:
    """Cancel a job, or forget a finished one.

    200 for one that waited and is cancelled, 202 for one that runs and stops at its next step,
    204 for a finished one, which is removed. What a training learned stays.
    """
    _own(job)
    cancelled = context().jobs.cancel(job)
    if cancelled is None:
        return Response(status=204)
    return reply(_job(cancelled), 202 if cancelled.state == "running" else 200)


def _own(id: int) -> Job:
    """A job of a collection that the request's key opens; of another it is as if it were not."""
    job = context().jobs.find(id)
    if not is_allowed(job.collection):
        raise UnknownJob(id)
    return job


def _collection(name: str) -> Collection:
    return context().data.collection(name)


def _summary(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "collection": job.collection,
        "state": job.state,
        "progress": job.progress._asdict(),
        "created": job.created,
        "started": job.started,
        "finished": job.finished,
    }


def _job(job: Job) -> dict[str, Any]:
    more = {"request": job.request, "result": job.result, "problem": job.problem}
    return _summary(job) | more
