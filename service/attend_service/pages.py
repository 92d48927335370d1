"""What a person sees: a page for each thing to look at, over the same API that programs use.

Templates are in `templates/pages`, one for each view; scripts and styles in `static`, modules that
the browser loads as they are. Searching works without scripts; the rest says that it needs them.
The start page has stories to begin with (`stories`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from flask import Response, render_template, request

from attend import DEFAULT_COLLECTION
from attend.api.answers import Answer
from attend.api.search import PlainSearch
from attend.core.errors import OutOfFiles
from attend_service.context import collection_of, context
from attend_service.replies import HTML
from attend_service.security import may, visible
from attend_service.stories import (
    FOREIGN,
    Offer,
    StartQuestion,
    gather_stories,
    offer_of,
    store_questions,
)

__all__ = ["DOCUMENT", "FOREIGN", "VIEWS", "PageView", "StartQuestion", "store_questions"]

log = logging.getLogger("attend")

MOST = 6
"""Questions that the start page offers of one collection."""

OPENED = 12
"""The most collections that the start page looks into."""


class PageView(NamedTuple):
    """A page of its own, as the menu has it."""

    path: str
    title: str
    summary: str


SEARCH = PageView("/search", "Search", "Search documents, and see the weights behind the answer.")
VIEWS = (
    SEARCH,
    PageView("/attention", "Attention", "Which documents several queries attend to, head by head."),
    PageView("/compare", "Compare", "Compare two versions, rank by rank."),
    PageView("/recommend", "Recommend", "Pick what you like. Every suggestion says why."),
    PageView("/teach", "Teach", "Label documents, train on the labels, promote or roll back."),
    PageView("/map", "Map", "The documents in two dimensions, with the place of a query."),
    PageView("/add", "Add data", "Drop a file, choose its fields, search it."),
    PageView("/operate", "Operate", "Collections, jobs, and latency."),
)

DOCUMENT = PageView("/document", "Document", "One document: its texts, its value and its payload.")
"""A page that hits lead to; it is not in the menu."""


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
