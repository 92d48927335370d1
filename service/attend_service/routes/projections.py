"""Projections: the versions of W_Q and W_K, and which of them answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flask import Response

from attend import Collection
from attend.api.learning import CompareRequest, RollbackRequest
from attend.errors import UnknownProjection
from attend.measure.compare import VersionName, compare_judged
from attend.measure.report import as_json
from attend.store import StoredProjection
from attend_service.context import context
from attend_service.learned import (
    ActivatedReply,
    ComparisonReply,
    ProjectionReply,
    ProjectionsReply,
    RolledBackReply,
)
from attend_service.operations import Operations
from attend_service.replies import reply

operations = Operations("Projections")

ALL = "/v1/collections/{collection}/projections"
ONE = "/v1/collections/{collection}/projections/{version}"

HEAD = ("promoted", "reason", "before", "after", "seconds")
"""What a list shows of a report; the whole may be long."""


@operations.add("GET", ALL, returns={200: ProjectionsReply})
def list_projections(collection: str) -> Response:
    """List the projections, and say which one answers."""
    found = _collection(collection).projections()
    active = {each.role: each.version for each in found if each.active}
    projections = [_summary(each) for each in found]
    return reply({"active": active["search"], "roles": active, "projections": projections})


@operations.add("GET", ONE, returns={200: ProjectionReply})
def show_projection(collection: str, version: int) -> Response:
    """Show a projection, with the whole report of the training that made it."""
    return reply(_known(_collection(collection).projections(), version)._asdict())


@operations.add("POST", f"{ONE}/activate", returns={200: ActivatedReply})
def activate_projection(collection: str, version: int) -> Response:
    """Answer with this projection from now on; an earlier one rolls back."""
    found = _collection(collection)
    # Checked here as well: 0 means "the active one" further in.
    _known(found.projections(), version)
    found.activate(version)
    return reply({"active": version})


@operations.add("POST", f"{ALL}/rollback", query=RollbackRequest, returns={200: RolledBackReply})
def roll_back_projection(collection: str, query: RollbackRequest) -> Response:
    """Answer again with the projection that was active before this one, in its role."""
    return reply({"projection": _collection(collection).rollback(query.role)})


@operations.add(
    "POST",
    "/v1/collections/{collection}/compare",
    body=CompareRequest,
    returns={200: ComparisonReply},
    example={
        "before": 1,
        "items": [{"query": {"vector": [1.0, 0.2, 0.0]}, "id": "moby-dick", "label": 1}],
    },
    scope="read",
)
def compare_projections(collection: str, body: CompareRequest) -> Response:
    """Measure two versions on judged queries, and tell which of these gained and lost.

    Without `items` these are the newest examples, which versions may have learned from: then a gain
    says less than the report of the training, whose questions were held out.
    """
    versions: tuple[VersionName, VersionName] = (body.before, body.after or "active")
    found = compare_judged(_collection(collection), versions, body.items, by=body.by)
    told = as_json(found)
    del told["plots"]
    return reply(told)


def _collection(name: str) -> Collection:
    return context().data.collection(name)


def _known(projections: Sequence[StoredProjection], version: int) -> StoredProjection:
    for each in projections:
        if each.version == version:
            return each
    known = ", ".join(str(each.version) for each in projections)
    raise UnknownProjection(
        f"There is no projection {version} here; there are {known}.", field="version"
    )


def _summary(projection: StoredProjection) -> dict[str, Any]:
    report = {name: projection.report[name] for name in HEAD if name in projection.report}
    return projection._asdict() | {"report": report}
