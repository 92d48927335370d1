"""Learning: feedback, trainings as jobs, and the versions that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flask import Response, url_for
from werkzeug.exceptions import TooManyRequests

from attend.api import feedback as labels
from attend.api import learning as api
from attend.api.base import Reply
from attend.api.documents import Deleted
from attend.core.errors import InvalidRequest, UnknownProjection
from attend.learning import FEWEST_QUESTIONS
from attend.learning.evidence import changed_questions
from attend.measure.rankings import VersionName, compare_judged
from attend.store import CollectionStore, StoredProjection
from attend.write.feedback import add_feedback
from attend_service.context import collection_of, context
from attend_service.jobs import Job, JobSummary, QueueFull, UnknownJob
from attend_service.operations import Operations
from attend_service.replies import reply
from attend_service.security import MAX_BATCH_BODY, is_allowed

operations = Operations("Learning")
projections = Operations("Projections")

FEEDBACK = "/v1/collections/{collection}/feedback"
USED = "/v1/collections/{collection}/used"
SEARCHES = "/v1/collections/{collection}/searches"
TRAIN = "/v1/collections/{collection}/train"
JOBS = "/v1/jobs"
JOB = "/v1/jobs/{job}"
PROJECTIONS = "/v1/collections/{collection}/projections"
PROJECTION = "/v1/collections/{collection}/projections/{version}"

HEAD = ("promoted", "kept", "reason", "before", "after", "seconds")
"""The fields of a report that a list shows; the whole may be long."""

RETRY_SECONDS = 60
"""After which a full queue is worth another try: about what one training takes."""

EXAMPLE: dict[str, Any] = {
    "items": [
        {"query": {"vector": [1.0, 0.2, 0.0]}, "id": "moby-dick", "label": 1, "position": 2},
        {"query": {"vector": [1.0, 0.2, 0.0]}, "id": "emma", "label": 0},
    ]
}


class JobList(Reply):
    """The jobs, the newest first; the last hundred finished ones stay in the list."""

    jobs: Sequence[JobSummary]


@operations.add(
    "POST",
    FEEDBACK,
    body_limit=None,
    bare="items",
    single=True,
    example=EXAMPLE,
    answer={"added": 2, "replaced": 0, "examples": 2},
    scope="write",
)
def give_feedback(collection: str, body: labels.FeedbackRequest) -> labels.FeedbackAdded:
    """Say how well documents answer queries: all of it is taken, or none.

    `label` is 1 for relevant (or more, by degree), 0 for not, below 0 for worse than not;
    `position` is the rank at which the document was shown, from 1. The same query and document
    again replaces the earlier label. A bare list is taken too, and so is a single judgement.
    """
    opened = collection_of(collection)
    added = add_feedback(opened, body.items, delete_stored=body.delete_stored)
    return replace(added, questions=None)


@operations.add("GET", FEEDBACK)
def show_feedback(collection: str, query: labels.FeedbackListing) -> labels.FeedbackPage:
    """Count the feedback there is to learn from, and list the newest of it."""
    store = collection_of(collection).store
    relevant = store.relevant_question_count()
    page = labels.FeedbackPage(
        store.example_count(), store.question_count(), relevant, FEWEST_QUESTIONS
    )
    if query.limit:
        latest = store.latest_examples(query.limit + 1, query.before, query.document)
        page.items = latest[: query.limit]
        page.next = page.items[-1].id if len(latest) > query.limit else None
    return page


@operations.add(
    "POST",
    USED,
    example={"search": "1a21f92f90028043", "ids": ["moby-dick"]},
    answer={"used": 1, "replaced": 0},
    scope="write",
)
def use_hits(collection: str, body: labels.UsedRequest) -> labels.Used:
    """Say which hits of a logged search served; the others that it listed did not.

    An earlier report about the same search is replaced, so that sending twice counts once.
    """
    return collection_of(collection).used(
        body.search, body.ids, value=body.value, source=body.source
    )


@operations.add("GET", SEARCHES, scope="write")
def show_searches(collection: str, query: labels.SearchesListing) -> labels.SearchesPage:
    """List the searches of the log, the newest first, with what they listed and what served."""
    return collection_of(collection).searches(query.limit, before=query.before)


@operations.add("DELETE", SEARCHES, scope="write")
def delete_searches(collection: str) -> Deleted:
    """Delete the whole log of searches, and the labels that were made of it."""
    return Deleted(collection_of(collection).delete_searches())


@operations.add("DELETE", FEEDBACK, example={"documents": ["moby-dick"]}, scope="write")
def delete_feedback(collection: str, body: labels.FeedbackDeletion) -> Deleted:
    """Delete feedback, by its ids, its documents or its queries; unknown ones are passed over.

    All of it goes with `{"all": true}`, and never for want of a word.
    """
    store = collection_of(collection).store
    if body.all:
        return Deleted(store.delete_examples())
    return Deleted(store.delete_examples(body.ids, body.documents, body.queries))


@operations.add("POST", TRAIN, returns={202: Job}, example={}, also=(429,))
def start_training(collection: str, body: api.TrainRequest) -> Response:
    """Train on the feedback, as a job; `Location` is its address.

    Searches go on meanwhile. A version that is significantly better on held-out data answers once
    the job is done; otherwise nothing changes, and the job's result says why. The answer is 422
    where nothing is stored to learn from.
    """
    jobs = context().jobs
    context().data.capabilities.check("jobs")
    opened = collection_of(collection)
    check_material(opened.store, body)
    try:
        job = jobs.submit(opened.name, body.model_dump(mode="json", exclude_unset=True))
    except QueueFull as error:
        raise TooManyRequests(str(error), retry_after=RETRY_SECONDS) from None
    accepted = reply(job, 202)
    accepted.headers["Location"] = url_for("show_job", job=job.id)
    return accepted


@operations.add("GET", JOBS, checks_collections=True)
def list_jobs() -> JobList:
    """List the jobs, the newest first, without their results."""
    jobs = [job for job in context().jobs.all() if is_allowed(job.collection)]
    return JobList([job.summary() for job in jobs])


@operations.add("GET", JOB, also=(404,), checks_collections=True)
def show_job(job: int) -> Job:
    """Show a job: how far it is, and what came of it."""
    return _own(job)


@operations.add("DELETE", JOB, statuses=(200, 202), also=(404,), checks_collections=True)
def cancel_job(job: int) -> tuple[Job, int] | None:
    """Cancel a job, or forget a finished one.

    200 for one that waited and is cancelled, 202 for one that runs and stops at its next step,
    204 for a finished one, which is removed. What a training learned stays.
    """
    _own(job)
    cancelled = context().jobs.cancel(job)
    if cancelled is None:
        return None
    return cancelled, 202 if cancelled.state == "running" else 200


@projections.add("GET", PROJECTIONS)
def list_projections(collection: str) -> api.ProjectionList:
    """List the projections, and say which one answers."""
    opened = collection_of(collection)
    versions = opened.projections()
    active = {version.role: version.version for version in versions if version.active}
    heads = []
    for version in versions:
        report = {name: version.report[name] for name in HEAD if name in version.report}
        heads.append(replace(version, report=report))
    return api.ProjectionList(active["search"], active, heads, opened.learned())


@projections.add("GET", PROJECTION)
def show_projection(collection: str, version: int) -> StoredProjection:
    """Show a projection, with the whole report of the training that made it."""
    return _version(collection_of(collection).projections(), version)


@projections.add("GET", f"{PROJECTION}/questions", scope="write", reads=True)
def show_changed_questions(collection: str, version: int) -> api.ChangedQuestions:
    """List the held-out questions of a projection's training whose best document changed.

    They are feedback, whose texts only a key that may add feedback shows.
    """
    opened = collection_of(collection)
    return changed_questions(opened.store, _version(opened.projections(), version))


@projections.add("POST", f"{PROJECTION}/activate")
def activate_projection(collection: str, version: int, query: api.ActivateRequest) -> api.Activated:
    """Answer with this projection from now on; an earlier one rolls back."""
    opened = collection_of(collection)
    # Checked here as well: 0 means "the active one" further in.
    _version(opened.projections(), version)
    opened.activate(version, query.expected, force=query.force)
    return api.Activated(version)


@projections.add("POST", f"{PROJECTIONS}/rollback")
def roll_back_projection(collection: str, query: api.RollbackRequest) -> api.RolledBack:
    """Answer again with the projection that was active before this one, in its role."""
    return api.RolledBack(collection_of(collection).rollback(query.role))


@projections.add("POST", f"{PROJECTIONS}/review")
def review_projection(collection: str) -> api.Review | None:
    """Let the better of two interleaved projections answer, if use tells by now which one it is.

    The reply is null if the active projection is interleaved with no other.
    """
    return collection_of(collection).review()


@projections.add(
    "POST",
    "/v1/collections/{collection}/compare",
    body_limit=MAX_BATCH_BODY,
    example={
        "before": 1,
        "items": [{"query": {"vector": [1.0, 0.2, 0.0]}, "id": "moby-dick", "label": 1}],
    },
    scope="read",
)
def compare_projections(
    collection: str, body: api.CompareRequest
) -> api.ComparisonAnswer | api.LogComparison:
    """Measure two versions on judged queries, and tell which of these gained and lost.

    Without `items` these are the newest examples, which versions may have learned from: then a gain
    says less than the report of the training, whose questions were held out. With `from_log` the
    two are compared by what people used of logged searches.
    """
    if body.from_log:
        return collection_of(collection).compare_from_log(body.before, body.after)
    versions: tuple[VersionName, VersionName] = (body.before, body.after or "active")
    return compare_judged(collection_of(collection), versions, body.items, by=body.by)


def check_material(store: CollectionStore, request: api.TrainRequest) -> None:
    """Raise InvalidRequest if nothing at all is stored that the objective learns from."""
    if request.objective == "answers":
        count, material, advice = store.counts()[0], "documents", "POST …/documents"
    elif request.objective == "ranking":
        count, material, advice = store.example_count(), "labels of documents", "POST …/feedback"
    else:
        count, material = store.interaction_counts()[0], "interactions of users"
        advice = "POST …/interactions"
    if count == 0:
        raise InvalidRequest(
            f"The objective {request.objective} learns from {material}, and none are stored. Add "
            f"some with {advice}, then train.",
            field="objective",
        )


def _own(id: int) -> Job:
    """Return a job of a collection that the key opens; another one is as if it did not exist."""
    job = context().jobs.find(id)
    if not is_allowed(job.collection):
        raise UnknownJob(id)
    return job


def _version(projections: Sequence[StoredProjection], version: int) -> StoredProjection:
    for stored in projections:
        if stored.version == version:
            return stored
    versions = ", ".join(str(stored.version) for stored in projections)
    raise UnknownProjection(
        f"There is no projection {version} here; there are {versions}.", field="version"
    )
