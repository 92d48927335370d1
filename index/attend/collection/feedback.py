"""What people say and do: labels, interactions, and which hits of a logged search served."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attend.api.base import ABSENT, MAX_ROW, keywords_of, parse
from attend.api.feedback import (
    FeedbackAdded,
    FeedbackItem,
    InteractionItem,
    InteractionsAdded,
    LoggedHit,
    LoggedSearch,
    SearchesPage,
    Used,
    UsedRequest,
)
from attend.api.learning import LearnedFromUse, LogComparison, Review
from attend.api.search import SearchRequest
from attend.core.errors import InvalidRequest, UnknownDocument, UnknownProjection
from attend.core.progress import Progress, reported
from attend.core.types import Json
from attend.engines.engine import StoredCollection
from attend.learning.evidence import ROLLED_BACK, learned_from_use, sent_back
from attend.learning.used import examination
from attend.measure.uses import MAX_TEXTS, MAX_USED, compare_uses, rows_listed
from attend.search.answer import Answered
from attend.search.hits import cursor, decoded
from attend.store import USED
from attend.store.searches import FILE, SearchLog
from attend.write.feedback import add_feedback, add_interactions

MOST_INTERLEAVED = 2000
"""Interleaved searches with a report that are to tell two versions apart."""

EXAMPLES_AT_ONCE = 10_000
"""Examples that are read together where some of them are deleted."""

INTERLEAVED = "interleaved_since"
"""The setting with the time from which on two versions are interleaved."""


class TakesFeedback(StoredCollection):
    """The part of a collection that takes what people say and do, and logs its searches."""

    folder: Path
    read_only: bool

    if TYPE_CHECKING:

        def answered(
            self, requests: Sequence[SearchRequest], *, live: bool = True
        ) -> list[Answered]: ...

    def __init__(self) -> None:
        self._opened: SearchLog | None = None
        self._opening = threading.Lock()

    def teach(
        self,
        items: Iterable[FeedbackItem | Mapping[str, Any]],
        *,
        delete_stored: bool = False,
        progress: Progress = None,
    ) -> FeedbackAdded:
        """Add feedback: labels of documents for queries, which `train` learns from.

        Args:
            items: each with `query`, the `id` of a document, and a `label`: above 0 relevant, by
                degree; 0 or below not relevant; 1 if absent.
            delete_stored: delete the feedback stored before, in the same transaction.
            progress: see `train`.

        Raises:
            UnknownDocument: no document has an item's id.
            InvalidRequest: another fault of an item; the details name all.

        >>> books.teach([{"query": [0.9, 0.2], "id": "whale"}]).examples
        1
        """
        with reported(progress) as report:
            return add_feedback(self, items, delete_stored=delete_stored, progress=report)

    def add_interactions(
        self,
        items: Iterable[InteractionItem | Mapping[str, Any]],
        *,
        delete_stored: bool = False,
        liked_from: float | None = ABSENT,
    ) -> InteractionsAdded:
        """Store which users interacted with which documents; `recommend` and `train` use them.

        Args:
            items: each with `user`, the `id` of a document, and perhaps a `value` and a `time`.
            delete_stored: delete the interactions stored before, in the same transaction.
            liked_from: from now on numbers from here up are likes; None chooses the threshold from
                the data, as it is unless one was set.

        Raises:
            UnknownDocument: no document has an item's id.
            InvalidRequest: another fault of an item; the details name all.

        >>> added = books.add_interactions([{"user": "ann", "id": "whale", "value": 5}])
        >>> added.interactions, added.liked_from
        (1, 5.0)
        """
        return add_interactions(self, items, delete_stored=delete_stored, liked_from=liked_from)

    # -- the log of searches ----------------------------------------------------------------

    @property
    def log(self) -> SearchLog | None:
        """The log of searches; None where the collection keeps none and never did.

        >>> books.log is None
        True
        """
        if self._opened is None and (self.settings.log or (self.folder / FILE).exists()):
            with self._opening:
                if self._opened is None:
                    self._opened = SearchLog(
                        self.folder,
                        read_only=self.read_only,
                        days=self.settings.log_days,
                        most=self.settings.log_bytes,
                        expired=self._delete_expired,
                    )
        if self._opened is not None:
            self._opened.days = self.settings.log_days
            self._opened.most = self.settings.log_bytes
        return self._opened

    def close_log(self) -> None:
        """Write what is not written yet, and close the log of searches.

        >>> books.close_log()
        """
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def check_interleaving(self, change: Mapping[str, Any]) -> None:
        """Raise InvalidRequest if changed settings interleave versions that cannot be.

        >>> books.check_interleaving({"interleave": None})
        """
        versions = change.get("interleave", self.settings.interleave)
        if not versions:
            return
        field = "interleave" if "interleave" in change else "log"
        if not change.get("log", self.settings.log):
            raise InvalidRequest(
                "interleave compares versions by the log of searches, and none is kept; set log to "
                "true too, or interleave to null.",
                field=field,
            )
        if field == "interleave":
            if len(set(versions)) < 2:
                raise InvalidRequest(
                    f"interleave names version {versions[0]} twice; name two versions.", field=field
                )
            for version in versions:
                self.views.current(version)

    def rivals(self, requests: Sequence[SearchRequest]) -> dict[int, SearchRequest]:
        """Return the searches of the version that the active one is interleaved with, by place.

        >>> books.rivals([])
        {}
        """
        versions = list(self.settings.interleave or ())
        active = self.views.current().version.number if versions else 0
        if self.read_only or not self.settings.log or active not in versions:
            return {}
        versions.remove(active)
        try:
            self.views.current(versions[0])
        except UnknownProjection:  # a training has replaced it
            return {}
        # Of the other version the list alone is shown.
        change = {"projection": versions[0], "mode": "hard", "facets": None}
        return {
            place: request.model_copy(update=change)
            for place, request in enumerate(requests)
            if is_plain(request)
        }

    def logged(
        self,
        requests: Sequence[SearchRequest],
        answers: Sequence[Answered],
        rivals: Mapping[int, Answered],
    ) -> list[Answered]:
        """Log searches, and return their answers with their ids, as they are to be shown.

        Args:
            rivals: answers of the version that lists are interleaved with, by place.

        >>> books.logged([], [], {})
        []
        """
        results = list(answers)
        if self.read_only or self.log is None:
            return results
        for place, (request, result) in enumerate(zip(requests, answers, strict=True)):
            pair, draft, rival = None, None, rivals.get(place)
            if rival is not None and rival.answer.projection != result.answer.projection:
                result, draft = interleaved(result, rival)
            elif is_plain(request) and random.random() < self.settings.log_swaps:
                result, pair = swapped(result)
            rows, number = result.rows.tolist(), result.answer.projection
            refused = not result.answer.answered if result.answer.calibrated else None
            result.answer.search = self.log.add(
                request.query.text, number, rows, pair, draft, refused=refused
            )
            results[place] = result
        return results

    @keywords_of(UsedRequest)
    def used(
        self, search: str, ids: Sequence[str], *, value: float = 1.0, source: str | None = None
    ) -> Used:
        """Say which hits of a search served; the others that it showed did not.

        An earlier report about the same search is replaced, so that sending twice counts once.

        Args:
            search: the field `search` of an answer.
            ids: of documents that it listed; none says that nothing served.
            value: how much each served, above 0.
            source: who says so, such as a user: one that says far more than others, or what no
                others do, counts less.

        Raises:
            NotFound: the log has no such search, or no more.
            UnknownDocument: no document has one of the ids.
            InvalidRequest: the collection logs no searches, or the search did not list one of them.

        >>> books.configure(log=True)
        True
        >>> answer = books.search([1.0, 0.1], k=2)
        >>> books.used(answer.search, ["ship"])
        Used(used=1, replaced=0)
        """
        fields = {"search": search, "ids": ids, "value": value, "source": source}
        request = parse(UsedRequest, fields)
        if self.log is None:
            raise InvalidRequest(
                f"The collection {self.name!r} logs no searches; configure it with log = true "
                f"before you search.",
                field="search",
            )
        rows = self.store.rows_of(request.ids)
        missing = [id for id in request.ids if id not in rows]
        if missing:
            raise UnknownDocument(f"No document has the id {missing[0]!r}.", field="ids")
        stored, replaced = self.log.use(
            request.search, {rows[id]: request.value for id in request.ids}, request.source
        )
        return Used(stored, replaced)

    def searches(self, limit: int = 100, *, before: str | None = None) -> SearchesPage:
        """Return searches of the log, the newest first, with what they showed and what served.

        Documents that were deleted since are not among the hits.

        Args:
            before: `next` of the page before.

        >>> books.searches().items
        []
        """
        if self.log is None:
            return SearchesPage([], None, 0, 0)
        entries = self.log.latest(limit + 1, before)
        page = entries[:limit]
        rows = np.array(sorted({row for entry in page for row in entry.rows}), dtype=np.int64)
        documents = self.store.documents(rows, texts=False)
        items = [
            LoggedSearch(
                entry.id,
                entry.time,
                entry.version,
                entry.query,
                [
                    LoggedHit(documents[row].id, rank + 1, (entry.used or {}).get(rank))
                    for rank, row in enumerate(entry.rows)
                    if row in documents
                ],
                entry.used is not None,
                None if entry.pair is None else entry.pair + 1,
                None if entry.draft is None else list(entry.draft),
                entry.source,
            )
            for entry in page
        ]
        more = len(entries) > limit > 0
        return SearchesPage(items, page[-1].id if more else None, *self.log.counts())

    def delete_searches(self) -> int:
        """Delete the log of searches, and the labels that were made of it.

        Returns: the number of searches.

        >>> books.delete_searches()
        0
        """
        if self.log is None:
            return 0
        count = self.log.delete()
        self._delete_expired()
        return count

    def _delete_expired(self) -> None:
        """Delete labels that were made of the log, and whose queries it has no more."""
        before = MAX_ROW
        while examples := self.store.latest_examples(EXAMPLES_AT_ONCE, before):
            labels = {one.id: one.query for one in examples if one.source == USED}
            logged = set() if self.log is None else self.log.of_texts(set(labels.values()))
            self.store.delete_examples([id for id, text in labels.items() if text not in logged])
            before = examples[-1].id

    def compare_from_log(
        self, before: int | None, after: int | None = None, *, queries: int = MAX_TEXTS
    ) -> LogComparison:
        """Compare two versions by which hits of logged searches served.

        Args:
            before, after: versions; the active one if None.
            queries: the number of different texts, the newest, that both versions rank again.

        Raises:
            UnknownProjection: a version does not exist.
            InvalidRequest: the collection logs no searches, or a version answers none.

        >>> books.configure(log=True)
        True
        >>> books.compare_from_log(1, 1).sentence.split(";")[0]
        'No search was used yet that interleaved versions 1 and 1'
        """
        first, second = (self.views.current(version).version.number for version in (before, after))
        if self.log is None:
            raise InvalidRequest(
                f"The collection {self.name!r} logs no searches; configure it with log = true, and "
                f"say which hits are used.",
                field="from_log",
            )
        entries = self.log.latest(MAX_USED, judged=True)
        queries = queries if self.settings.encoder else 0  # a text without its vector ranks nothing
        ranker = partial(rows_listed, partial(self.answered, live=False))
        return compare_uses(entries, (first, second), ranker, examination(entries), queries=queries)

    def review(self, most: int = MOST_INTERLEAVED) -> Review | None:
        """Let the better of two interleaved versions answer, once use tells which one it is.

        Both have been drafted into one list for the same people, so that use tells what a version
        finds as well as how it ranks. The test holds however often it is made: of two equal
        versions the one that does not answer takes over with a chance of at most .05.

        Args:
            most: searches with a report after which versions that are not told apart are
                interleaved no longer.

        Returns: None where none are interleaved.

        Raises:
            Conflict: another version was activated meanwhile.

        >>> books.review() is None
        True
        """
        pair, active = self.settings.interleave, self.store.active("search")
        if not pair or self.log is None or active is None or active.version not in pair:
            return None
        first, second = sorted(pair)
        stored = {version.version: version.report for version in self.store.projections()}
        since = self.store.settings().get(INTERLEAVED)
        entries = self.log.latest(MAX_USED, judged=True)
        if not isinstance(since, float):  # a restored copy may have anything
            since = 0.0
        drafted = [entry for entry in entries if entry.time >= since]
        result = compare_uses(
            drafted,
            (first, second),
            lambda texts, version: [],
            examination(entries),
            queries=0,
            one_sided=True,
        )
        better = result.better if result.better in stored else None
        ended = better is not None or result.interleaved >= most or not stored.keys() >= set(pair)
        event: Literal["promoted", "rolled_back"] | None = None
        settings: dict[str, Json] = {"interleave": None} if ended else {}
        if settings and better in (None, active.version):
            self.store.put_settings(settings)
        elif better is not None:
            event = "promoted" if better == second else "rolled_back"
            report, why = stored[better], result.sentence
            if event == "promoted":
                report = {**report, "promoted": True, "kept": False, "by_use": why}
            else:
                settings[ROLLED_BACK] = {**sent_back(self.store.settings()), str(second): why}
            self.activate(better, active.version, report=report, settings=settings)
        self.views.refresh()
        return Review(self.views.current().version.number, event, ended, result)

    def learned(self) -> LearnedFromUse:
        """Tell what trainings by the log of searches have changed.

        >>> books.learned().sentence
        'Learned from use: 0 promotions, 0 rollbacks, +0.0 points'
        """
        return learned_from_use(self.store.projections(), self.store.settings())


def is_plain(request: SearchRequest) -> bool:
    """Return whether a request wants the first page of the active version's list, by score alone.

    >>> is_plain(SearchRequest(query="whales")), is_plain(SearchRequest(query="whales", offset=10))
    (True, False)
    """
    others = request.projection, request.cursor, request.group_by, request.coverage
    return not (any(others) or request.offset or request.diversity) and request.k > 1


def swapped(result: Answered) -> tuple[Answered, int | None]:
    """Draw two neighbouring hits, and exchange them with chance 1/2.

    Returns: the answer, and the rank of the upper one, from 0; None for fewer than two hits.
    """
    hits, rows = list(result.answer.hits), result.rows.copy()
    if len(hits) < 2:
        return result, None
    pair = random.randrange(len(hits) - 1)
    if random.getrandbits(1):
        hits[pair], hits[pair + 1] = hits[pair + 1], hits[pair]
        rows[[pair, pair + 1]] = rows[[pair + 1, pair]]
        result = result._replace(answer=replace(result.answer, hits=hits), rows=rows)
    return result, pair


def interleaved(result: Answered, other: Answered) -> tuple[Answered, dict[int, list[int]] | None]:
    """Return an answer with a list of both versions, drafted as two captains choose teams.

    A hit that the answer's own version does not list has the other version's score and weight. The
    cursor lies after the last hit above which nothing of the own list is missing: no document is
    missing on the next pages, and one that was drafted early may come again.

    Returns: None where a list could not be drafted without losing a document for good.
    """
    lists = [answered.rows.tolist() for answered in (result, other)]
    page = team_draft(*lists, size=len(result.answer.hits))
    contained = next((rank for rank, row in enumerate(lists[0]) if row not in page), len(lists[0]))
    following = result.answer.next
    if contained < len(lists[0]):
        if following is None:
            return result, None
        last = result.answer.hits[contained - 1], lists[0][contained - 1]
        belongs_to, _, _, *rest = json.loads(decoded(following))
        following = cursor(belongs_to, [last[0].score, last[1], *rest])
    hits = dict(zip(lists[1], other.answer.hits, strict=True))
    hits |= dict(zip(lists[0], result.answer.hits, strict=True))
    answer = replace(result.answer, hits=[hits[row] for row in page], next=following)
    ranks = [{row: rank for rank, row in enumerate(rows, start=1)} for rows in lists]
    draft = {
        answered.answer.projection: [side.get(row, 0) for row in page]
        for answered, side in zip((result, other), ranks, strict=True)
    }
    return result._replace(answer=answer, rows=np.array(page, dtype=np.int64)), draft


def team_draft(first: Sequence[int], second: Sequence[int], *, size: int) -> list[int]:
    """Interleave two lists (Radlinski, Kurup and Joachims 2008): in each round both choose their
    best that is not on the page yet, in an order by lot.

    >>> team_draft([1, 2, 3], [1, 2, 4], size=2)
    [1, 2]
    """
    page: dict[int, None] = {}
    lists = [list(reversed(rows)) for rows in (first, second)]
    while len(page) < size and any(lists):
        random.shuffle(lists)
        for rows in lists:
            while rows and rows[-1] in page:
                rows.pop()
            if rows and len(page) < size:
                page[rows.pop()] = None
    return list(page)
