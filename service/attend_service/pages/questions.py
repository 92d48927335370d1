"""Questions to begin with: those that a collection stores, or that its contents suggest."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from attend import Collection
from attend.core.errors import OutOfFiles
from attend.values import display_title
from attend_service.context import collection_of

log = logging.getLogger("attend")

SETTING = "questions"
"""The setting of a collection that holds its questions."""

MOST = 8
TITLES = 4
LONGEST = 80
"""Characters of a title that is a question to click."""

FOREIGN = "who won the world cup in 1998"
"""A question that few collections answer."""


class StartQuestion(BaseModel):
    """A question to click, with the field that answers it and a remark for the reader."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    query: Annotated[str, Field(min_length=1, max_length=256)]
    value: Annotated[str, Field(max_length=256)] | None = None
    remark: Annotated[str, Field(max_length=80)] | None = None


_stored = TypeAdapter(list[StartQuestion])


class StartPage(NamedTuple):
    """What the start page shows of a collection."""

    questions: list[StartQuestion]
    documents: int


def store_questions(collection: Collection, questions: Sequence[StartQuestion]) -> None:
    """Store the questions that the start page offers for a collection, in its settings."""
    dumped: list[Any] = [question.model_dump(exclude_none=True) for question in questions]
    collection.store.put_settings({SETTING: dumped})


def start_page(name: str) -> StartPage | None:
    """Return the questions of a collection; None where it cannot be opened."""
    try:
        collection = collection_of(name)
        return StartPage(_questions(collection), collection.store.counts()[0])
    except OutOfFiles:
        raise
    # A collection that cannot be opened must not take the start page away.
    except Exception as error:
        log.warning("The collection %r cannot be opened: %s", name, error)
        return None


def _questions(collection: Collection) -> list[StartQuestion]:
    try:
        # A restored snapshot may hold anything here.
        return _stored.validate_python(collection.store.settings().get(SETTING) or [])[:MOST] or (
            _suggested(collection)
        )
    except ValidationError:
        return _suggested(collection)


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
