"""Queries that are foreign to a collection, told by its own texts and without labels.

Passages of some documents are asked as queries, each with its own document left out: their best
scores are those of queries that belong here. A query whose best score is lower than nearly all of
these is foreign. This is a conformal test (Vovk, Gammerman and Shafer 2005): of queries that are
like the passages, at most a share p has a confidence of p or less, however many there are.
"""

from __future__ import annotations

import logging
import math
import re
import threading
from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from attend.collection.versions import View
from attend.core.errors import AttendError
from attend.core.settings import Number
from attend.core.types import Json
from attend.engines.engine import StoredCollection
from attend.search.attend import Attention, attend
from attend.search.hits import unmoved_logits
from attend.search.queries import Queries
from attend.search.scoring import AttentionOptions
from attend.store import StoredDocument

log = logging.getLogger("attend")

SETTING = "foreign"
"""The name under which the store holds the test."""

ERROR_RATE = 0.05
"""The share of queries that belong here which a search refuses, unless it says otherwise."""

PASSAGES = 500
"""Passages that are asked: their encoding takes a second or two."""

LEAST = 100
"""With fewer documents, the strangest twentieth is five passages or less, and tells little."""

BLOCK = 16
"""Passages encoded at once while searches are answered: they wait for no more."""

NOTHING_DUE = (0.0, LEAST - 1.0)
"""Numbers of documents for which a version without a test needs none."""

EVER = (0.0, math.inf)

SHARE = 2 / 3
"""The largest share of a document's words in its passage: a question repeats a part of its answer
only. (On training questions of SciFact, CoNaLa and banking77, at 5 %, in the worst case: own ones
refused 2.8 %, foreign ones recognised 99.0 %; without it 10.7 % and 99.5 %; with 1/2 2.7 % and
97.1 %.)"""

FEWEST_WORDS = 3

SEED = 20170612

UNKNOWN = "Whether this collection answers a query is unknown: "

FEW = f"{UNKNOWN}the test of foreign queries needs {LEAST} documents with texts."

NOT_MADE = f"{UNKNOWN}the test of foreign queries is missing; a build or publish makes it."

_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


class ForeignTest(BaseModel):
    """The best scores of a collection's own passages, under one version.

    Attributes:
        version: the version that scored them.
        encoder: that of the collection.
        scorer: as it was computed: dot for a cosine of keys of length one.
        documents, last_key: the numbers of documents and of keys ever made, at that time.
        scores: unscaled, ascending.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int
    encoder: str
    scorer: str
    documents: int
    last_key: int
    scores: tuple[Number, ...] = Field(min_length=1)

    @property
    def settled(self) -> tuple[float, float]:
        """The numbers of documents, least and most, for which it is not made again."""
        return self.documents / 2, self.documents * 3 / 2

    def figures(self) -> dict[str, Json]:
        """Return its figures without the scores."""
        return {
            "passages": len(self.scores),
            "documents": self.documents,
            "projection": self.version,
            "score": self.scores[int(ERROR_RATE * (len(self.scores) + 1))],
        }


class ForeignTests:
    """Makes the foreign test of one collection, stores it and follows the collection with it.

    Attributes:
        test: the latest one; None without any.
        settled: by version, the numbers of documents for which nothing is to be made; NOTHING_DUE
            for a version that is not there. Searches compare it themselves: it takes no call.
    """

    def __init__(self, collection: StoredCollection) -> None:
        self.test: ForeignTest | None = None
        self.settled: dict[int, tuple[float, float]] = {}
        self._collection = collection
        self._making = threading.Lock()

    def follow(self, version: int) -> None:
        """Read the stored test, or make one in the background, as a version has none that fits.

        Once for a version: a test that cannot be made is tried again at the next publication.
        """
        self.settled[version] = EVER
        if not self._has_texts:
            return
        self._read()
        if self.settled.setdefault(version, EVER) == EVER:
            threading.Thread(target=self._follow, name="attend-foreign", daemon=True).start()

    def refresh(self, block: int = PASSAGES) -> None:
        """Make the test of the active version, unless there is one and little has changed.

        An encoder that cannot be loaded, or a folder that cannot be written to, is logged.
        """
        if not self._has_texts:
            return
        try:
            self._make(block)
        except (AttendError, OSError) as error:
            log.warning("Queries cannot be told to be foreign yet: %s", error)

    def figures(self) -> dict[str, Json] | None:
        """Return the figures of the stored test; None without one."""
        self._read()
        return None if self.test is None else self.test.figures()

    def missing(self, view: View) -> list[str] | None:
        """Say why a version has no test; None where it has one, needs none or can have none."""
        is_made = self.test is not None and self.test.version == view.version.number
        if is_made or not self._has_texts or view.version.tuning.null is not None:
            return None
        return [FEW if view.keys.documents < LEAST else NOT_MADE]

    @property
    def _has_texts(self) -> bool:
        here = self._collection
        return here.capabilities.foreign and here.settings.encoder is not None

    def _follow(self) -> None:
        try:
            self._make(BLOCK)
        except Exception as error:  # the collection may be closed or deleted meanwhile
            log.info("Queries cannot be told to be foreign yet: %s", error)

    def _make(self, block: int) -> None:
        here = self._collection
        with self._making:
            view, last_key = here.views.current(), here.store.state().last_key
            if view.keys.documents < LEAST:
                return
            self._read()  # another process may have made it
            if self._is_recent(view, last_key):
                return
            documents = here.store.sample(PASSAGES)
            texts = list(passages(documents))
            encode, starts = here.encoder().encode_queries, range(0, len(texts), block)
            parts = [encode(texts[start : start + block]) for start in starts]
            queries = Queries(np.concatenate(parts))
            attentions = attend(view, here.settings, queries, AttentionOptions(attend=2))
            best = [
                best_score(attention, document.row)
                for attention, document, text in zip(attentions, documents, texts, strict=True)
                if text
            ]
            scores = sorted(round(score, 6) for score in best if score is not None)
            if len(scores) < LEAST:
                return
            test = ForeignTest(
                version=view.version.number,
                encoder=here.settings.encoder or "",
                scorer=attentions[0].scoring.mechanism.scorer,
                documents=view.keys.documents,
                last_key=last_key,
                scores=tuple(scores),
            )
            self._use(test)
            here.store.put_settings({SETTING: test.model_dump(mode="json")}, soon=False)

    def _use(self, test: ForeignTest) -> None:
        # Under another version all others are due again, as one that is activated once more.
        same = self.test is not None and self.test.version == test.version
        self.test = test
        self.settled = {**(self.settled if same else {}), test.version: test.settled}

    def _is_recent(self, view: View, last_key: int) -> bool:
        """Return whether the test is of this version, and few keys are new since."""
        if self.test is None or self.test.version != view.version.number:
            return False
        low, high = self.test.settled
        few = last_key - self.test.last_key <= view.keys.keys // 2
        return few and low <= view.keys.documents <= high

    def _read(self) -> None:
        """Use the stored test, if it is one of this encoder's."""
        stored = self._collection.store.settings().get(SETTING)
        if stored is None:
            return
        try:
            test = ForeignTest.model_validate(stored)
        except ValidationError:  # of another version of this program
            self.test = None
            return
        if test.encoder == self._collection.settings.encoder:
            self._use(test)


def best_score(attention: Attention, without: int | None = None) -> float | None:
    """Return the best unscaled score by keys among the documents that a query attends to, before
    feedback moved it: passages are not moved either.

    Args:
        without: a document that does not count.

    Returns: None where no document is attended to.
    """
    scoring = attention.scoring
    attended = attention.plain or attention.first or attention.attended
    scores = attended.logits[0]
    if scoring.queries.before is not None:
        scores = unmoved_logits(scoring, attended.documents)[0]
    else:
        bias = scoring.added(attended.documents)
        scores = scores if bias is None else scores - bias[0, 0]
    if without is not None:
        scores = scores[attended.documents != without]
    return float(scores.max() / scoring.mechanism.scale[0]) if len(scores) else None


def passages(documents: Sequence[StoredDocument]) -> Iterator[str]:
    """Yield a passage of each document that could be a query: a sentence, or a part of one.

    A document without words has an empty one. The same documents have the same passages.
    """
    rng = np.random.default_rng(SEED)
    for document in documents:
        text = "\n".join(document.fields.values())
        sentences = [part for part in _SENTENCE_END.split(text) if _WORD.search(part)]
        if not sentences:
            yield ""
            continue
        sentence = sentences[int(rng.integers(len(sentences)))]
        most = max(FEWEST_WORDS, -int(-SHARE * len(_WORD.findall(text)) // 1))
        spans = [match.span() for match in _WORD.finditer(sentence)]
        if len(spans) > most:
            first = int(rng.integers(len(spans) - most + 1))
            sentence = sentence[spans[first][0] : spans[first + most - 1][1]]
        yield sentence
