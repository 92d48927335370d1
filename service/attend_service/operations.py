"""Operations: each declares its input and its answers once, for Flask and for OpenAPI."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import UnionType
from typing import Any, Literal

from flask import Flask, Response, request
from werkzeug.routing import BaseConverter

from attend.api.base import Reply, Request
from attend.core.deadline import check_deadline, until
from attend.core.errors import Replaced
from attend.core.types import Json
from attend_service.bodies import ARROW, read_arrow, read_body, read_query
from attend_service.context import context
from attend_service.security import memory
from attend_service.security.access import resolved
from attend_service.security.keys import Scope
from attend_service.security.limits import MAX_BODY

View = Callable[..., Response]

ARRIVED = "attend.arrived"
"""The moment at which a request was received, in its environment, by `time.monotonic`."""

DEADLINE = "attend.deadline"
"""The moment at which its client has an answer, whatever becomes of the work."""

WORKING_SHARE, ANSWERED_SHARE = 0.9, 0.95
"""Shares of the deadline after which work stops, at its next check, and a client is answered at the
latest. The rest is for what lies between two checks, and for the answer's way."""

CONVERTERS = {"id": "id:", "version": "int:", "job": "int:"}
"""A document's id may be anything; versions and jobs are numbers."""


class IdConverter(BaseConverter):
    """The rest of the path, as it is.

    Werkzeug's own `path` refuses a slash at the beginning, and a file's path as an id has one.
    """

    regex = "(?s:.+)"
    part_isolating = False
    weight = 200  # as `path`: only where nothing more exact matches


@dataclass(frozen=True)
class Operation:
    """One method on one path.

    Attributes:
        path: as OpenAPI writes it, `/v1/collections/{collection}`.
        body, query: the models of what is sent; the view gets them under these names.
        bare: the field of the body that a bare list stands for.
        single: whether one item may stand for a list of one.
        arrow: whether the body may be documents in Arrow's format.
        returns: what each successful status answers; None for nothing at all.
        html: whether a browser gets a page instead.
        example: a body that works.
        also: statuses of problems besides those that follow from the rest.
        scope: what a key must allow; open to anyone without one; if absent, read to look at
            something and admin for the rest, so that what is forgotten stays closed.
        reads: whether it changes nothing, though it needs more than the scope read.
        media, upload: what is answered with 200, and what is sent, where it is no JSON.
        body_limit: the largest body in bytes; the server's `max_body` if None, and of an upload
            its `max_snapshot`.
        patience: how many times the server's `deadline` it may take.
        exact: whether `collection` in the path is a new name, or must be no alias.
        checks_collections: whether the view itself keeps to the collections that a key
            opens; otherwise what names no collection in its path is for keys to all.
        to_all: whether it is for keys to all collections, though its path names one.
    """

    method: str
    path: str
    tag: str
    view: View
    returns: Mapping[int, type[Reply] | UnionType | None]
    body: type[Request] | None = None
    bare: str | None = None
    single: bool = False
    arrow: bool = False
    query: type[Request] | None = None
    html: bool = False
    example: Json = None
    also: tuple[int, ...] = ()
    scope: Scope | Literal["open"] | None = None
    checks_collections: bool = False
    to_all: bool = False
    reads: bool = False
    media: str | None = None
    upload: str | None = None
    body_limit: int | None = MAX_BODY
    patience: int = 1
    exact: bool = False

    @cached_property
    def writes(self) -> bool:
        return not self.reads and self.need not in ("open", "read")

    @property
    def name(self) -> str:
        return self.view.__name__

    @cached_property
    def need(self) -> Scope | Literal["open"]:
        return self.scope or ("read" if self.method == "GET" else "admin")

    @property
    def summary(self) -> str:
        """The first line of the view's docstring; `description` is what follows it."""
        return (self.view.__doc__ or "").strip().split("\n")[0]

    @property
    def description(self) -> str:
        rest = (self.view.__doc__ or "").strip().split("\n")[1:]
        return " ".join(line.strip() for line in rest if line.strip())

    @property
    def parameters(self) -> list[str]:
        """Names in the path."""
        return re.findall(r"{(\w+)}", self.path)

    @property
    def rule(self) -> str:
        """The path as Flask writes it."""
        return re.sub(r"{(\w+)}", lambda m: f"<{CONVERTERS.get(m[1], '')}{m[1]}>", self.path)

    @property
    def errors(self) -> tuple[int, ...]:
        """The statuses of the problems that it may answer."""
        possible = {500, *self.also} | (set() if self.need == "open" else {401, 403})
        if self.body is not None or self.upload is not None:
            possible |= {400, 413, 415, 422}
        if self.query is not None or self.parameters:
            possible |= {422}
        if self.writes:
            possible |= {507}
        if self.query is not None:
            possible |= {414, 431}
        if "collection" in self.parameters or self.query is not None:
            possible |= {404, 409, 503}
        return tuple(sorted(possible))

    def call(self, **arguments: Any) -> Response:
        arrived = request.environ.get(ARRIVED) or time.monotonic()
        seconds = self.patience * context().settings.deadline
        request.environ[DEADLINE] = arrived + ANSWERED_SHARE * seconds
        end = arrived + WORKING_SHARE * seconds
        granted = max(memory.LIGHT, request.environ.get(memory.GRANTED, memory.MAX_MEMORY))
        # A write is never begun again with more memory: it may be stored.
        with until(end, math.inf if self.writes else granted, memory.need_to_read):
            if time.monotonic() > end:  # it waited for a thread as long
                check_deadline()
            if self.body is not None:
                if self.arrow and request.mimetype == ARROW:
                    arguments["body"] = read_arrow()
                else:
                    body = read_body(self.body, self.bare, single=self.single)
                    memory.need_memory(memory.working_size(body))
                    arguments["body"] = body if self.exact else _resolved(body)
            if self.query is not None:
                query = read_query(self.query, form=self.html)
                memory.need_memory(memory.working_size(query))
                arguments["query"] = _resolved(query)
            try:
                return self.view(**arguments)
            except Replaced:
                if self.upload is not None:
                    raise
                return self.view(**arguments)  # by its name, which leads to the new one


@dataclass
class Operations:
    """The operations of one subject."""

    tag: str
    all: list[Operation] = field(default_factory=list)

    def add(self, method: str, path: str, **options: Any) -> Callable[[View], View]:
        """Make a view an operation; `options` are the fields of `Operation`."""

        def added(view: View) -> View:
            self.all.append(Operation(method, path, self.tag, view, **options))
            return view

        return added

    def register(self, app: Flask) -> None:
        app.url_map.converters["id"] = IdConverter
        for operation in self.all:
            app.add_url_rule(
                operation.rule, operation.name, operation.call, methods=[operation.method]
            )


def _resolved(sent: Request) -> Request:
    """Return a body or parameters with collections in the place of aliases, once checked."""
    names: dict[str, Any] = {}
    if isinstance(several := getattr(sent, "collections", None), list):
        names["collections"] = [resolved(name) for name in several]
    if isinstance(one := getattr(sent, "collection", None), str):
        names["collection"] = resolved(one)
    same = all(getattr(sent, field) == name for field, name in names.items())
    return sent if same else sent.model_copy(update=names)
