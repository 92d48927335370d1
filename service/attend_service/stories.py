"""The stories of the start page: a question, one that nothing answers, what learning changed, and
recommendations for a user.

Each comes from the first collection that has it: of questions that were stored with a collection,
or that the texts of its documents suggest. Queries of feedback are their users': they are no
stories.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from attend import Collection
from attend.values.select import display_title

Kind: TypeAlias = Literal["ask", "unanswered", "learned"]

SETTING = "questions"
"""The setting of a collection that holds its questions."""

FOREIGN = "who won the world cup in 1998"
"""A question that few collections answer."""

FOREIGN_TOO = ("recipe for apple pie", "tallest mountain on mars")
"""Others, for collections that answer that one."""

LONGEST = 256
"""Characters of a question."""

SAMPLE = 12
"""Documents whose texts suggest questions."""

READ = 2000
"""Characters of a text that are looked at."""

SUGGESTED = 4
WORDS = range(2, 5)
"""Words of a suggested question."""

SHORT = 4
"""Letters from which a word may be a part of one: shorter ones are mostly articles, prepositions
and the like, in any language with spaces between its words."""

COMMON = frozenset({
    "about", "above", "after", "also", "because", "been", "before", "behind", "being", "below",
    "between", "both", "does", "each", "from", "have", "here", "into", "just", "like", "more",
    "most", "much", "near", "only", "other", "over", "same", "some", "such", "than", "that",
    "their", "them", "then", "there", "these", "they", "this", "those", "through", "under",
    "until", "used", "uses", "very", "were", "what", "when", "where", "which", "while", "will",
    "with", "without", "would", "your",
})  # fmt: skip

INTERACTIONS = 1000
"""Interactions whose users are counted."""

USERS = 20


class StartQuestion(BaseModel):
    """A question to click, with the field that answers it and a remark for the reader.

    Its kind says what it shows: an answer, that nothing answers it, or what learning changed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    query: Annotated[str, Field(min_length=1, max_length=LONGEST)]
    value: Annotated[str, Field(max_length=LONGEST)] | None = None
    remark: Annotated[str, Field(max_length=80)] | None = None
    kind: Kind = "ask"


_stored = TypeAdapter(list[StartQuestion])


class Offer(NamedTuple):
    """What one collection has for the start page."""

    collection: str
    documents: int
    asks: Sequence[StartQuestion]
    stored: bool
    """Whether the questions were stored with the collection, not suggested."""
    unanswered: StartQuestion | None
    learned: StartQuestion | None
    versions: tuple[int, int] | None
    """The version before a proved training, and the one that it made."""
    users: Sequence[str]
    """Those with most interactions first."""


class Story(NamedTuple):
    """A card of the start page; `address` is the page that shows the same without scripts."""

    kind: Literal["ask", "unanswered", "learned", "recommend"]
    collection: str
    title: str
    text: str
    path: str
    parameters: Mapping[str, Any]
    users: Sequence[str] = ()
    others: Sequence[str] = ()
    """Questions to try where this one is answered after all."""


def store_questions(collection: Collection, questions: Sequence[StartQuestion]) -> None:
    """Store the questions that the start page offers for a collection, in its settings."""
    dumped: list[Any] = [question.model_dump(exclude_defaults=True) for question in questions]
    collection.store.put_settings({SETTING: dumped})


def offer_of(name: str, collection: Collection, writes: bool) -> Offer:
    """Return what a collection has for the start page.

    Args:
        writes: whether the reader may learn who the users of the interactions are.
    """
    questions = _stored_questions(collection)
    kinds: dict[str, list[StartQuestion]] = {"ask": [], "unanswered": [], "learned": []}
    for question in questions:
        kinds["unanswered" if question.query == FOREIGN else question.kind].append(question)
    documents = collection.store.counts()[0]
    asks = kinds["ask"] or (_suggested(collection) if documents else [])
    unanswered = next(iter(kinds["unanswered"]), None)
    if unanswered is None and not questions and documents and collection.settings.encoder:
        unanswered = StartQuestion(query=FOREIGN, kind="unanswered")
    return Offer(
        collection=name,
        documents=documents,
        asks=asks,
        stored=bool(kinds["ask"]),
        unanswered=unanswered,
        learned=next(iter(kinds["learned"] or kinds["ask"]), None),
        versions=_proved(collection),
        users=_users(collection) if writes else [],
    )


def gather_stories(offers: Sequence[Offer]) -> list[Story]:
    """Return the stories of several collections, at most one of each kind; the first counts.

    Questions that were stored come before suggested ones, of whichever collection they are.
    """
    stored = [*(one for one in offers if one.stored), *(one for one in offers if not one.stored)]
    asks = (_ask(offer) for offer in stored if offer.asks)
    unanswered = (_unanswered(offer) for offer in stored if offer.unanswered)
    learned = (_learned(offer) for offer in offers if offer.learned and offer.versions)
    users = (_recommend(offer) for offer in offers if offer.users)
    first = [next(kind, None) for kind in (asks, unanswered, learned, users)]
    return [story for story in first if story is not None]


def _ask(offer: Offer) -> Story:
    question = offer.asks[0]
    return Story(
        "ask", offer.collection, f"Ask {offer.collection}", question.remark or question.query,
        "/search", _parameters(offer, question),
    )  # fmt: skip


def _unanswered(offer: Offer) -> Story:
    question = offer.unanswered
    assert question is not None
    others = FOREIGN_TOO if question.query == FOREIGN else ()
    return Story(
        "unanswered", offer.collection, "Ask what nothing answers", question.query,
        "/search", _parameters(offer, question), others=others,
    )  # fmt: skip


def _learned(offer: Offer) -> Story:
    question = offer.learned
    assert question is not None
    assert offer.versions is not None
    before, after = offer.versions
    parameters = {**_parameters(offer, question), "before": before, "after": after}
    return Story(
        "learned", offer.collection, "See it learn", question.query, "/compare", parameters
    )


def _recommend(offer: Offer) -> Story:
    user = offer.users[0]
    name = f"user {user}" if user.isdigit() else user
    parameters = {"collection": offer.collection, "user": user}
    text = f"from {offer.collection}, with the reasons"
    return Story(
        "recommend", offer.collection, f"Recommend for {name}", text,
        "/recommend", parameters, users=offer.users,
    )  # fmt: skip


def _parameters(offer: Offer, question: StartQuestion) -> dict[str, Any]:
    value = {} if question.value is None else {"value": question.value}
    return {"collection": offer.collection, "q": question.query, **value}


def _stored_questions(collection: Collection) -> list[StartQuestion]:
    stored = collection.store.settings().get(SETTING) or []
    try:  # a restored snapshot may hold anything here
        return _stored.validate_python(stored)
    except ValidationError:
        return []


def _proved(collection: Collection) -> tuple[int, int] | None:
    """Return the active version, if its training proved it better, after the one before it."""
    active = collection.store.active("search")
    if active is None or not active.report.get("promoted"):
        return None
    before = active.report.get("previous")
    versions = {one.version for one in collection.store.projections()}
    return (before, active.version) if before in versions else None


def _users(collection: Collection) -> list[str]:
    """Return the users of the first interactions, those with most first."""
    if not collection.store.interaction_counts()[0]:
        return []
    page, _ = collection.store.interaction_page((0, 0), INTERACTIONS)
    counts = Counter(interaction.user for interaction in page)
    return [user for user, _ in counts.most_common(USERS)]


def _suggested(collection: Collection) -> list[StartQuestion]:
    """Suggest parts of texts; of a collection of vectors, documents that are near to one."""
    documents = collection.store.sample(SAMPLE)
    if collection.settings.encoder is None:
        remark = "What is nearest to {}"
        return [
            StartQuestion(query=one.id, remark=remark.format(one.id[:40]))
            for one in documents[:SUGGESTED]
            if one.id.strip() and len(one.id) <= LONGEST
        ]
    phrases: dict[str, None] = {}
    for document in documents:
        title = display_title(*document[1:])
        for phrase in _phrases(document.fields.values(), title):
            phrases.setdefault(phrase)
            break
    return [StartQuestion(query=phrase) for phrase in list(phrases)[:SUGGESTED]]


def _phrases(texts: Iterable[str], title: str | None) -> Iterator[str]:
    """Yield runs of two to four telling words of texts, the best first; never the whole title."""
    heading = " ".join((title or "").casefold().split())
    runs = [run for text in texts for run in _runs(text[:READ])]
    best = sorted(runs, key=lambda run: (" ".join(run).casefold() in heading, -len(run)))
    for run in best:
        phrase = " ".join(run)
        if phrase.casefold() != heading:
            yield phrase


def _runs(text: str) -> Iterator[list[str]]:
    """Yield neighbouring words of a text that stand between short or common ones."""
    for sentence in re.split(r"[^\w\s'-]+|\n", text):
        run: list[str] = []
        for word in [*sentence.split(), ""]:
            if len(word) >= SHORT and word.isalpha() and word.casefold() not in COMMON:
                run.append(word)
                continue
            for start in range(0, len(run), WORDS[-1]):
                part = run[start : start + WORDS[-1]]
                if len(part) in WORDS:
                    yield part
            run = []
