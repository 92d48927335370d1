"""What people say and do: labels, interactions, and which hits of a logged search served."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attend.api.base import ABSENT, keywords_of, parse
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
from attend.api.search import SearchRequest
from attend.core.errors import InvalidRequest, UnknownDocument, UnknownProjection
from attend.core.progress import Progress, reported
from attend.engines.engine import StoredCollection
from attend.search.answer import Answered
from attend.search.drafts import interleaved, is_plain, swapped
from attend.store.searches import FILE, SearchLog
from attend.write.feedback import add_feedback, add_interactions


class TakesFeedback(StoredCollection):
    """The part of a collection that takes what people say and do, and logs its searches."""

    folder: Path
    read_only: bool

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
        return {
            place: request.model_copy(update={"projection": versions[0]})
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
            result.answer.search = self.log.add(request.query.text, number, rows, pair, draft)
            results[place] = result
        return results

    @keywords_of(UsedRequest)
    def used(self, search: str, ids: Sequence[str], *, value: float = 1.0) -> Used:
        """Say which hits of a search served; the others that it showed did not.

        An earlier report about the same search is replaced, so that sending twice counts once.

        Args:
            search: the field `search` of an answer.
            ids: of documents that it listed; none says that nothing served.
            value: how much each served, above 0.

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
        request = parse(UsedRequest, {"search": search, "ids": ids, "value": value})
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
            request.search, {rows[id]: request.value for id in request.ids}
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
                None if entry.draft is None else list(entry.draft.versions),
            )
            for entry in page
        ]
        more = len(entries) > limit > 0
        return SearchesPage(items, page[-1].id if more else None, *self.log.counts())
