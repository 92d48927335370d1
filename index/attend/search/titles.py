"""What to call a document before people: a title that it has, or how its text begins."""

from __future__ import annotations

from collections.abc import Iterator

from attend.store import StoredDocument

NAMES = ("title", "name", "headline", "question")
"""Fields that are titles where they are texts, the likeliest first."""

LONGEST = 120
"""Characters; of a longer text only the beginning is a title."""


def title_of(document: StoredDocument) -> str:
    """A title of the payload, the value or the texts, else the first line of a text, else the id.

    >>> title_of(StoredDocument(1, "a", {"text": "Call me Ishmael. Some years ago"}, None, {}))
    'Call me Ishmael. Some years ago'
    >>> title_of(StoredDocument(1, "a", {"name": "Moby-Dick"}, 9.5, {"year": 1851}))
    'Moby-Dick'
    >>> title_of(StoredDocument(1, "a", {}, 9.5, {}))
    'a'
    """
    found = next(_titles(document), None)
    if found is None:
        found = next((text for text in document.fields.values() if text.strip()), document.id)
    return _begun(found)


def _titles(document: StoredDocument) -> Iterator[str]:
    places = (document.payload, document.value, document.fields)
    objects = [place for place in places if isinstance(place, dict)]
    for name in NAMES:
        for place in objects:
            text = place.get(name)
            if isinstance(text, str) and text.strip():
                yield text


def _begun(text: str) -> str:
    first = next(iter(text.strip().splitlines()), text)  # an id may be blank
    return first if len(first) <= LONGEST else f"{first[: LONGEST - 1].rstrip()}…"
