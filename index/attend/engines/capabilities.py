"""What an engine can do, so that callers can ask before they are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from attend.errors import Unsupported
from attend.types import Json


@dataclass(frozen=True)
class Capabilities:
    """What one engine can do; whatever it cannot is refused with a sentence, never done by halves.

    Attributes:
        engine: its name.
        atomic_batches: a batch of documents lands whole or not at all; else document by document.
        lexical: words that a query and a document share can count.
        match: filters can ask for words of a text.
        attend_all: weights over all documents, matrices, mixtures and decoding, which read all.
        attend_most: the largest attended set; None where there is no bound of the engine's own.
        any_scorer: scorers that an index does not know see all keys; else candidates only, and
            the answer says that it is not exact.
        facets: values of fields can be counted.
        insertion_order: documents are listed in the order in which they came; else in any that
            stays.
        recommend: histories and interactions.
        examples: questions and what answers them can be stored.
        train: the parts of a version that can be learned from examples in place.
        jobs: trainings can be asked for over HTTP.
        snapshots: a collection can be written to a file while it serves.
        text_bytes, content_bytes: the most of a document's texts, and of its value and payload
            together, as JSON; None where only requests are bounded.
        window: documents that a build encodes and stores together, where it matters.
        consistency: whether reads differ in how fresh they are (`bounded`, `strong`).
    """

    engine: str
    atomic_batches: bool = True
    lexical: bool = True
    match: bool = True
    attend_all: bool = True
    attend_most: int | None = None
    any_scorer: bool = True
    facets: bool = True
    insertion_order: bool = True
    recommend: bool = True
    examples: bool = True
    train: tuple[str, ...] = ("matrices", "offsets", "examples", "words", "additive")
    jobs: bool = True
    snapshots: bool = True
    text_bytes: int | None = None
    content_bytes: int | None = None
    consistency: bool = False
    window: int | None = None

    def check(self, name: str, *, field: str | None = None) -> None:
        """Raises Unsupported where the engine cannot do what a capability is called for.

        Args:
            field: the request's, that asks for it.
        """
        if not getattr(self, name):
            raise unsupported(self.engine, *REFUSALS[name], field=field)

    def json(self) -> Mapping[str, Json]:
        return asdict(self)


REFUSALS = {
    "lexical": (
        "Words that a query and a document share (lexical)",
        "leave lexical out, or use a data folder",
    ),
    "match": ("Filters that ask for words ('match')", "filter by fields, or use a data folder"),
    "attend_all": (
        "Weights over all documents (attend 'all', matrices, mixtures, decoding)",
        "attend to a number of documents, or use a data folder",
    ),
    "facets": ("Facets", "count with a filter and limit 0, or use a data folder"),
    "recommend": (
        "Recommendations and predictions from histories",
        "search by documents ({'ids': […]}), or use a data folder",
    ),
    "examples": ("Examples", "keep them in a data folder"),
    "train": (
        "Trainings of anything but matrices for rankings",
        "train with parts ['matrices'], or in a data folder",
    ),
    "jobs": ("Jobs", "train in a data folder, and import its projection"),
    "snapshots": ("Snapshots and checks of files", "use the server's own backups"),
}
"""By capability: what is refused without it, as the subject of a sentence, and what to do."""


def unsupported(engine: str, what: str, instead: str, *, field: str | None = None) -> Unsupported:
    """The refusal of what an engine cannot do.

    Args:
        what: as the subject of a sentence, in the plural.
        instead: what to do, as the rest of a sentence.
    """
    return Unsupported(f"{what} are not to be had of the engine {engine}; {instead}.", field=field)
