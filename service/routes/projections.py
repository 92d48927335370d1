"""Projections: the versions of W_Q and W_K, and which of them answers."""

from __future__ import annotations

from flask import Response

from index.errors import UnknownProjection
from service.context import context
from service.operations import Operations
from service.replies import reply
from service.schemas import ActivatedReply, ProjectionsReply

operations = Operations("Projections")

ALL = "/v1/collections/{collection}/projections"


@operations.add("GET", ALL, returns={200: ProjectionsReply})
def list_projections(collection: str) -> Response:
    """List the projections, and say which one answers."""
    found = context().data.collection(collection)
    versions = [each._asdict() for each in found.projections()]
    return reply({"active": found.info().projection, "projections": versions})


@operations.add("POST", f"{ALL}/{{version}}/activate", returns={200: ActivatedReply})
def activate_projection(collection: str, version: int) -> Response:
    """Answer with this projection from now on; an earlier one rolls back."""
    found = context().data.collection(collection)
    known = [each.version for each in found.projections()]
    # Checked here as well: 0 means "the active one" further in.
    if version not in known:
        raise UnknownProjection(
            f"There is no projection {version} here; there are {', '.join(map(str, known))}.",
            field="version",
        )
    found.activate(version)
    return reply({"active": version})
