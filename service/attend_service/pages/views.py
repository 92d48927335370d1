"""The views, and what all of them are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flask import Response, render_template, request

from attend import DEFAULT_COLLECTION
from attend.api.search import PlainSearch
from attend_service.context import context
from attend_service.replies import HTML, base_url
from attend_service.security.access import visible


class View(NamedTuple):
    """A page of its own, as the menu has it."""

    path: str
    title: str
    told: str
    """What it shows, in a few words."""


SEARCH = View("/search", "Search", "Ask, and see how the answer was weighed.")
VIEWS = (
    SEARCH,
    View("/attention", "Attention", "Which documents several queries attend to, head by head."),
    View("/compare", "Compare", "Two projections side by side, rank by rank."),
    View("/recommend", "Recommend", "Pick what is liked, and see what of it led to what."),
    View("/teach", "Teach", "Say what is relevant, train on it, promote or roll back."),
    View("/map", "Map", "The keys in two dimensions, and where a query falls among them."),
    View("/add", "Add data", "Drop a file, choose its fields, search it."),
    View("/operate", "Operate", "Collections, jobs, and where the time goes."),
)


def page(path: str) -> Response:
    """A view without anything of the collections but their names; scripts fetch the rest."""
    view = next(each for each in VIEWS if each.path == path)
    return _rendered(f"pages/{path[1:]}.html", view, request.args.get("collection"))


def search_page(query: PlainSearch, answer: Mapping[str, Any] | None) -> Response:
    """The first page: what was found is on it, so that it works without scripts."""
    start = request.path == "/"
    return _rendered(
        "pages/search.html",
        SEARCH,
        query.collection,
        query=query,
        answer=answer,
        start=start,
        base=base_url(),
    )


def first_collection(names: list[str]) -> str:
    """The one that is meant where none is named."""
    return DEFAULT_COLLECTION if DEFAULT_COLLECTION in names or not names else names[0]


def _rendered(template: str, view: View, collection: str | None, **more: Any) -> Response:
    names = visible(context().data.names())
    text = render_template(
        template,
        view=view,
        names=names,
        collection=collection or first_collection(names),
        read_only=context().settings.read_only,
        pictures=" ".join(context().settings.picture_origins),
        **more,
    )
    return Response(text, content_type=f"{HTML}; charset=utf-8")
