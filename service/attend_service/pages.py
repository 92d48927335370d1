"""What a person sees: a page for each thing to look at, over the same API that programs use.

Templates are in `templates/pages`, one for each view; scripts and styles in `static`, modules that
the browser loads as they are. Searching works without scripts; the rest says that it needs them.
The start page has stories to begin with (`stories`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flask import Response, render_template, request

from attend import DEFAULT_COLLECTION
from attend.api.answers import Answer
from attend.api.learning import Evidence
from attend.api.search import PlainSearch
from attend.core.errors import OutOfFiles
from attend.core.types import Role
from attend_service.background import shown_work
from attend_service.context import collection_of, context
from attend_service.replies import HTML
from attend_service.security import may, resolved, visible
from attend_service.stories import (
    FOREIGN,
    Offer,
    StartQuestion,
    gather_stories,
    offer_of,
    store_questions,
)

__all__ = ["FOREIGN", "LINKED", "VIEWS", "PageView", "StartQuestion", "store_questions"]

log = logging.getLogger("attend")

MOST = 6
"""Questions that the start page offers of one collection."""

OPENED = 12
"""The most collections that the start page looks into."""


class PageView(NamedTuple):
    """A page of its own, as the menu has it; narrow windows fold those that are not main."""

    path: str
    title: str
    summary: str
    is_main: bool = False


SEARCH = PageView(
    "/search", "Search", "Search documents, and see the weights behind the answer.", True
)
VIEWS = (
    SEARCH,
    PageView("/collection", "Browse", "Browse a collection: documents, fields and values.", True),
    PageView("/recommend", "Recommend", "Pick what you like. Every suggestion says why.", True),
    PageView("/teach", "Teach", "Label documents, train on them, promote or roll back.", True),
    PageView("/attention", "Attention", "Which documents several queries attend to, head by head."),
    PageView("/compare", "Compare", "Compare two versions, rank by rank."),
    PageView("/map", "Map", "The documents in two dimensions, with the place of a query."),
    PageView("/add", "Add data", "Drop a file, choose its fields, search it."),
    PageView("/operate", "Operate", "Collections, jobs, and latency."),
)

LINKED = (
    PageView("/document", "Document", "One document: its texts, its value and its payload."),
    PageView("/user", "User", "One user: the history, and recommendations from it."),
)
"""Pages that others lead to; they are not in the menu."""


def page(view: PageView) -> Response:
    """Render a view with the names of the collections; scripts fetch the rest."""
    return _rendered(f"pages/{view.path[1:]}.html", view, request.args.get("collection"))


def search_page(query: PlainSearch, answer: Answer | None) -> Response:
    """Render the search page with its answer, so that it works without scripts."""
    is_start = request.path == "/"
    start = _start(query.collection) if is_start else None
    return _rendered(
        "pages/search.html",
        SEARCH,
        query.collection if start is None else start["target"],
        query=query,
        answer=answer,
        is_start=is_start,
        start=start,
        teaches=may("write") and not context().settings.read_only,
        base=request.host_url.rstrip("/"),
    )


def vector_query(line: str) -> list[float] | dict[str, str]:
    """Return what is typed where vectors are searched: their numbers, or a document's id."""
    parts = [part for part in re.split(r"[\s,;]+", line.strip().strip("[]")) if part]
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        return {"id": line}
    return numbers if len(numbers) > 1 else {"id": line}


def first_collection(names: list[str]) -> str:
    """Return the collection to use if none is named."""
    return DEFAULT_COLLECTION if DEFAULT_COLLECTION in names or not names else names[0]


def _rendered(template: str, view: PageView, collection: str | None, **more: Any) -> Response:
    names = visible(context().data.names())
    text = render_template(
        template,
        view=view,
        names=names,
        collection=collection or first_collection(names),
        read_only=context().settings.read_only,
        pictures=" ".join(context().settings.picture_origin),
        work=shown_work(),
        **more,
    )
    return Response(text, content_type=f"{HTML}; charset=utf-8")


def _start(first: str) -> Mapping[str, Any]:
    """Return what the start page shows: stories, and questions of the collection that is asked.

    Stories come from all collections that the request may see, `first` before the others.
    """
    names = visible(context().data.names())
    order = sorted(names, key=lambda name: name != first)[:OPENED]
    offers = [offer for offer in map(_offer_of, order) if offer is not None]
    stories = gather_stories(offers)
    target = next((story.collection for story in stories if story.kind == "ask"), first)
    questions = next((offer.asks for offer in offers if offer.collection == target), [])
    empty = [offer.collection for offer in offers if not offer.documents]
    return {"stories": stories, "target": target, "questions": questions[1:MOST], "empty": empty}


def roles_of(path: str) -> Sequence[Role]:
    """Return the roles of the versions that answer on a page; the first that was trained counts."""
    return ("recommend", "predict", "search") if path == "/recommend" else ("search",)


def evidence(name: str, roles: Sequence[Role]) -> Evidence | None:
    """Return what is proved of the version that answers in the first of some roles; None where the
    collection cannot be opened, or the request's key does not open it."""
    try:
        versions = collection_of(resolved(name)).projections()
    except OutOfFiles:
        raise
    except Exception as error:  # the page says what is wrong with it, if it needs it
        log.info("Nothing is said about the versions of %r: %s", name, error)
        return None
    active = {version.role: version.evidence for version in versions if version.active}
    return next((active[role] for role in roles if role in active), None)


def _offer_of(name: str) -> Offer | None:
    """Return what a collection has for the start page; None where it cannot be opened."""
    try:
        return offer_of(name, collection_of(name), may("write"))
    except OutOfFiles:
        raise
    # A collection that cannot be opened must not take the start page away.
    except Exception as error:
        log.warning("The collection %r cannot be opened: %s", name, error)
        return None
