"""What a person sees: a page for each thing to look at, over the same API that programs use.

Templates are in `templates/pages`, one for each view; scripts and styles in `static`, modules that
the browser loads as they are. Searching works without scripts; the rest says that it needs them.
The start page has questions to begin with: those that a collection stores, or that its contents
suggest.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from flask import Response, render_template, request
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from attend import DEFAULT_COLLECTION, Collection
from attend.api.answers import Answer
from attend.api.learning import Evidence
from attend.api.search import PlainSearch
from attend.core.errors import OutOfFiles
from attend.core.types import Role
from attend.values.select import display_title
from attend_service.background import shown_work
from attend_service.context import collection_of, context
from attend_service.replies import HTML
from attend_service.security import resolved, visible

log = logging.getLogger("attend")

SETTING = "questions"
"""The setting of a collection that holds its questions."""

MOST = 8
TITLES = 4
LONGEST = 80
"""Characters of a title that is a question to click."""

FOREIGN = "who won the world cup in 1998"
"""A question that few collections answer."""


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


class StartQuestion(BaseModel):
    """A question to click, with the field that answers it and a remark for the reader.

    Its kind says what it shows: an answer, that nothing answers it, or what learning changed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    query: Annotated[str, Field(min_length=1, max_length=256)]
    value: Annotated[str, Field(max_length=256)] | None = None
    remark: Annotated[str, Field(max_length=80)] | None = None
    kind: Literal["ask", "unanswered", "learned"] = "ask"


_stored = TypeAdapter(list[StartQuestion])


def page(view: PageView) -> Response:
    """Render a view with the names of the collections; scripts fetch the rest."""
    return _rendered(f"pages/{view.path[1:]}.html", view, request.args.get("collection"))


def search_page(query: PlainSearch, answer: Answer | None) -> Response:
    """Render the search page with its answer, so that it works without scripts."""
    is_start = request.path == "/"
    return _rendered(
        "pages/search.html",
        SEARCH,
        query.collection,
        query=query,
        answer=answer,
        is_start=is_start,
        start=_start(query.collection) if is_start else None,
        base=request.host_url.rstrip("/"),
    )


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


def store_questions(collection: Collection, questions: Sequence[StartQuestion]) -> None:
    """Store the questions that the start page offers for a collection, in its settings."""
    dumped: list[Any] = [question.model_dump(exclude_defaults=True) for question in questions]
    collection.store.put_settings({SETTING: dumped})


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


def _start(name: str) -> Mapping[str, Any] | None:
    """Return the documents and the questions of a collection; None where it cannot be opened."""
    try:
        collection = collection_of(name)
        documents = collection.store.counts()[0]
        stored = collection.store.settings().get(SETTING) or []
        try:  # a restored snapshot may hold anything here
            questions = _stored.validate_python(stored)[:MOST]
        except ValidationError:
            questions = []
        return {"questions": questions or _suggested(collection), "documents": documents}
    except OutOfFiles:
        raise
    # A collection that cannot be opened must not take the start page away.
    except Exception as error:
        log.warning("The collection %r cannot be opened: %s", name, error)
        return None


def _suggested(collection: Collection) -> list[StartQuestion]:
    """Suggest titles, and a question that nothing answers.

    Queries of feedback are their users', and are shown to nobody else.
    """
    if collection.settings.encoder is None:
        return []
    titles = [display_title(*document[1:]) for document in collection.store.sample(TITLES)]
    texts = dict.fromkeys(text for text in titles if text and len(text) <= LONGEST)
    questions = [StartQuestion(query=text) for text in texts]
    active = collection.store.active("search")
    if questions and active is not None and active.tuning.get("null"):
        questions.append(StartQuestion(query=FOREIGN, remark="one that nothing here answers"))
    return questions
