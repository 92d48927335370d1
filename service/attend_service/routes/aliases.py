"""Aliases: other names of collections."""

from __future__ import annotations

from flask import Response

from attend.api.documents import AliasRequest
from attend.errors import UnknownAlias
from attend_service.context import context
from attend_service.operations import Operations
from attend_service.replies import reply
from attend_service.schemas.stored import AliasesReply, AliasReply
from attend_service.security.access import is_allowed
from attend_service.security.limits import check_new_name

operations = Operations("Aliases")

ALL = "/v1/aliases"
ONE = "/v1/aliases/{alias}"


@operations.add("GET", ALL, returns={200: AliasesReply}, own=True)
def list_aliases() -> Response:
    """List the aliases and what they stand for."""
    found = context().data.aliases().items()
    listed = [{"alias": alias, "collection": name} for alias, name in found if is_allowed(name)]
    return reply({"aliases": listed})


@operations.add(
    "PUT",
    ONE,
    body=AliasRequest,
    returns={200: AliasReply, 201: AliasReply},
    example={"collection": "books"},
    also=(404, 409),
)
def set_alias(alias: str, body: AliasRequest) -> Response:
    """Let a name stand for a collection, everywhere and from the next request on.

    201 if the alias is new, 200 if it was switched, which takes one step: every search is
    answered by one collection or by the other. A collection and an alias cannot share a name.
    """
    check_new_name(context().data, alias, "alias")
    is_new = context().data.set_alias(alias, body.collection)
    return reply({"alias": alias, "collection": body.collection}, 201 if is_new else 200)


@operations.add("GET", ONE, returns={200: AliasReply}, also=(404,), own=True)
def show_alias(alias: str) -> Response:
    """Show what an alias stands for."""
    name = context().data.aliases().get(alias)
    if name is None or not is_allowed(name):
        raise UnknownAlias(f"There is no alias {alias[:80]!r}.", field="alias")
    return reply({"alias": alias, "collection": name})


@operations.add("DELETE", ONE, returns={204: None}, also=(404,))
def delete_alias(alias: str) -> Response:
    """Delete an alias; its collection stays."""
    context().data.drop_alias(alias)
    return Response(status=204)
