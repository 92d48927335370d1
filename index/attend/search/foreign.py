"""Queries that are foreign to a collection, told by its own texts and without labels.

Passages of some documents are asked as queries, each with its own document left out: their best
scores are those of queries that belong here. A query whose best score is lower than nearly all of
these is foreign. This is a conformal test (Vovk, Gammerman and Shafer 2005): of queries that are
like the passages, at most a share p has a confidence of p or less, however many there are.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from attend.encoder import Encoder
from attend.errors import AttendError
from attend.search.attend import Attention, attend
from attend.search.scoring import AttentionOptions, Queries, Scoring
from attend.settings import Number, Settings
from attend.store import CollectionStore, StoredDocument
from attend.types import Json
from attend.versions import SnapshotSource, View

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

PAUSE = 60.0
"""Seconds between two attempts in the background."""

SHARE = 2 / 3
"""The largest share of a document's words in its passage: a question repeats a part of its answer
only. (On training questions of SciFact, CoNaLa and banking77, at 5 %, in the worst case: own ones
refused 2.8 %, foreign ones recognised 99.0 %; without it 10.7 % and 99.5 %; with 1/2 2.7 % and
97.1 %.)"""

FEWEST_WORDS = 3

SEED = 20170612

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

    def confidence(self, score: float) -> float:
        """Return the share of own passages whose best score is as low or lower, query included.

        >>> test = ForeignTest(version=1, encoder="e", scorer="dot", documents=4, last_key=4,
        ...                    scores=(0.2, 0.4, 0.6, 0.8))
        >>> test.confidence(0.5), test.confidence(0.1)
        (0.6, 0.2)
        """
        return (1 + bisect_right(self.scores, score)) / (len(self.scores) + 1)

    def is_recent(self, view: View) -> bool:
        """Return whether it is of this version, and the collection about as large as then."""
        same = view.version.number == self.version
        return same and self.documents <= view.keys.documents * 2 <= self.documents * 3

    def applies(self, scoring: Scoring) -> bool:
        """Return whether scores are comparable with those of the passages."""
        mechanism = scoring.plan.mechanism
        return (
            scoring.view.version.number == self.version
            and scoring.parts is None
            and (mechanism.scorer, mechanism.pool, mechanism.heads) == (self.scorer, "max", 1)
        )

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

    Args:
        encoder: loads that of the collection.
        is_able: false in an engine without the capability.

    Attributes:
        settings: of the collection, as they are by now.
    """

    def __init__(
        self,
        store: CollectionStore,
        settings: Settings,
        views: SnapshotSource,
        encoder: Callable[[], Encoder],
        *,
        is_able: bool = True,
    ) -> None:
        self.settings, self._is_able = settings, is_able
        self._store, self._views = store, views
        self._encoder = encoder
        self._test: ForeignTest | None = None
        self._is_read = False
        self._next = 0.0
        self._making = threading.Lock()

    def of(self, scoring: Scoring) -> ForeignTest | None:
        """Return the test for a search; None if there is none that applies.

        A search waits for nothing: a test that is missing, or of a collection that was much
        smaller or larger, is made in the background.
        """
        if scoring.view.keys.documents < LEAST or not self._has_texts:
            return None
        if not self._is_read:
            self._read()
        test = self._test
        if (test is None or not test.is_recent(scoring.view)) and time.monotonic() > self._next:
            self._next = time.monotonic() + PAUSE
            threading.Thread(target=self._follow, name="attend-foreign", daemon=True).start()
        return test if test is not None and test.applies(scoring) else None

    def refresh(self) -> None:
        """Make the test of the active version, unless there is one and little has changed.

        An encoder that cannot be loaded, or a folder that cannot be written to, is logged.
        """
        if not self._has_texts:
            return
        try:
            self._make(PASSAGES)
        except (AttendError, OSError) as error:
            log.warning("Queries cannot be told to be foreign yet: %s", error)

    @property
    def _has_texts(self) -> bool:
        return self._is_able and self.settings.encoder is not None

    def figures(self) -> dict[str, Json] | None:
        """Return the figures of the stored test; None without one."""
        self._read()
        return None if self._test is None else self._test.figures()

    def _follow(self) -> None:
        try:
            self._make(BLOCK)
        except Exception as error:  # the collection may be closed or deleted meanwhile
            log.info("Queries cannot be told to be foreign yet: %s", error)

    def _make(self, block: int) -> None:
        with self._making:
            view, last_key = self._views.current(), self._store.state().last_key
            if view.keys.documents < LEAST:
                return
            self._read()  # another process may have made it
            test = self._test
            few = test is not None and last_key - test.last_key <= view.keys.keys // 2
            if few and test is not None and test.is_recent(view):
                return
            attention, scores = self._own_scores(view, block)
            if len(scores) < LEAST:
                return
            self._test = ForeignTest(
                version=view.version.number,
                encoder=self.settings.encoder or "",
                scorer=attention.scoring.mechanism.scorer,
                documents=view.keys.documents,
                last_key=last_key,
                scores=tuple(sorted(scores)),
            )
            self._store.put_settings({SETTING: self._test.model_dump(mode="json")})

    def _own_scores(self, view: View, block: int) -> tuple[Attention, list[float]]:
        """Ask passages, and return their best unscaled scores among the other documents."""
        documents = self._store.sample(PASSAGES)
        texts = list(passages(documents))
        encode, starts = self._encoder().encode_queries, range(0, len(texts), block)
        parts = [encode(texts[start : start + block]) for start in starts]
        queries = Queries(np.concatenate(parts))
        attention = attend(view, self.settings, queries, AttentionOptions(attend=2))
        scores = [
            best_score(attention, query, document.row)
            for query, (document, text) in enumerate(zip(documents, texts, strict=True))
            if text
        ]
        return attention, [round(score, 6) for score in scores if score is not None]

    def _read(self) -> None:
        """Read the stored test, if it is one of this encoder's."""
        stored: Mapping[str, Any] = self._store.settings()
        self._is_read = True
        if SETTING not in stored:
            return
        try:
            test = ForeignTest.model_validate(stored[SETTING])
        except ValidationError:  # of another version of this program
            self._test = None
            return
        self._test = test if test.encoder == self.settings.encoder else None


def best_score(attention: Attention, query: int, without: int | None = None) -> float | None:
    """Return the best unscaled score by keys among the documents that a query attends to.

    Args:
        without: a document that does not count.

    Returns: None where no document is attended to.
    """
    scoring, attended = attention.scoring, attention.attended[query]
    scores = attended.logits[0]
    if scoring.words is not None:
        bias = scoring.word_bias(attended.documents, slice(query, query + 1))
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
