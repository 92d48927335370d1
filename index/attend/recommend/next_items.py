"""What comes next: the attention of a history over the catalogue, and the list made of it."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from attend.api.answers import Recommendation, Recommended
from attend.api.recommend import RecommendRequest
from attend.arrays import locate, unit
from attend.attention import Attended
from attend.errors import InvalidRequest
from attend.recommend.history import Histories, History
from attend.recommend.reorder import diverse, penalised, reserved
from attend.search.attend import MAX_RANKED, Attention, attend, weigh_documents
from attend.search.explain import display_title, explain_parts
from attend.search.plan import AttentionOptions
from attend.search.schedule import Vanished, until_stable
from attend.search.scoring import Queries, Scoring
from attend.settings import Settings
from attend.store import CollectionStore, compile_filter
from attend.types import Float32, Float64, Int64
from attend.values import only
from attend.view import SnapshotSource, View

POOL = 1000
"""Documents that diversity chooses from, at most, and that are at hand beside those listed."""

POOLED = 10
"""For each place in the list, the documents that it is chosen from; at most `POOL`."""

FEWEST = 100
"""Documents that are ranked at least, of which a page is the beginning."""


class Asked(NamedTuple):
    """A request on its way to a view."""

    request: RecommendRequest
    view: View
    history: History
    rows: Int64 | None  # that the filter lets pass; None for all
    attend: int | Literal["all"]

    @property
    def listed(self) -> int:
        """How many places of the list must be known."""
        return self.request.k + self.request.offset

    @property
    def due(self) -> int:
        """How many of them are reserved for documents that nobody met."""
        return math.ceil(self.request.reserve * self.listed)


class Ranked(NamedTuple):
    """Documents with their weights, and the scores (n,) by which they are listed."""

    found: Attended
    scores: Float64


class Recommender:
    """Answers the recommendations of one collection; any thread may call it."""

    def __init__(
        self,
        store: CollectionStore,
        settings: Settings,
        views: SnapshotSource,
        histories: Histories,
    ) -> None:
        self._store = store
        self._settings = settings
        self._views = views
        self._histories = histories
        self._met: tuple[int, Int64] = (-1, np.empty(0, dtype=np.int64))

    def next_items(self, request: RecommendRequest) -> Recommended:
        """What may come next for a user.

        Raises:
            InvalidRequest: nothing is known of the user, or nothing but what they do not want.
            UnknownDocument: an id that no document has, unless those are skipped.
        """
        started = time.perf_counter()
        history = self._histories.of(request)
        if not (history.weights > 0).any():
            raise InvalidRequest(
                "There are only negative examples, and all but them could come next; send a "
                "history, positive examples or facts as well.",
                field="negative",
            )
        return self._next(request, history, started)

    @until_stable
    def _next(self, request: RecommendRequest, history: History, started: float) -> Recommended:
        view = self._views.current(request.projection, role="recommend")
        rows = self._store.matching(compile_filter(request.filter)) if request.filter else None
        asked = Asked(request, view, history, rows, request.attend)
        liked, ranked = self._ranked(asked)
        at = self._order(asked, ranked)[request.offset : asked.listed]
        return Recommended(
            hits=self._hits(asked, liked.scoring, ranked, at),
            history={"given": history.given, "used": len(history.parts)},
            missing=history.missing.json(),
            attended=ranked.found.total_documents,
            exact=liked.exact,
            generation=view.change,
            projection=view.version,
            took_ms=round((time.perf_counter() - started) * 1000, 3),
        )

    def _ranked(self, asked: Asked) -> tuple[Attention, Ranked]:
        """The history's attention, and the best documents: at least all those that are listed.

        Negative examples only take away. A document that is not looked at scores at most its log
        weight, which is below those that are: so many are looked at that none can be missed, or as
        many as memory is for.
        """
        positive = asked.history.weights > 0
        keep = max(FEWEST, min(POOL, POOLED * asked.listed), asked.listed)
        while True:
            liked = self._attention(asked, asked.history.chosen(positive), asked.rows, keep)
            found = liked.attended[0]
            ranked = Ranked(found, liked.scoring.log_weights(found))
            floor = ranked.scores.min(initial=np.inf)
            if not positive.all():
                ranked = self._penalised(asked, liked, ranked)
            sure = np.count_nonzero(ranked.scores >= floor) >= asked.listed
            if sure or len(found.documents) >= found.total_documents:
                break
            if found.logits.size * POOLED > MAX_RANKED:
                liked = replace(liked, exact=False)
                break
            keep *= POOLED
        if asked.request.reserve:
            ranked = self._with_fresh(asked, liked, ranked)
        return liked, ranked

    def _attention(
        self, asked: Asked, history: History, rows: Int64 | None, keep: int
    ) -> Attention:
        """The attention of a history, with its `keep` best documents at hand."""
        made = asked.view.made
        weights = np.abs(history.weights) * made.gates(history.rows)
        # Where every gate is shut there is nothing to go by but what was said.
        weights = weights if weights.sum() > 0 else np.abs(history.weights)
        options = AttentionOptions(
            attend=asked.attend,
            best=keep + 1,
            scorer=made.tuning.scorer,
            recall=asked.request.recall,
        )
        embeddings = made.asking(history.embeddings, history.rows)
        return attend(
            asked.view,
            self._settings,
            Queries(embeddings, parts=weights / weights.sum()),
            options,
            rows,
            without=history.seen if asked.request.exclude_seen else None,
            estimate=True,
        )

    def _penalised(self, asked: Asked, liked: Attention, ranked: Ranked) -> Ranked:
        """Scores less what negative examples take, which attend to the same documents."""
        history, weights = asked.history, asked.history.weights
        rows = asked.rows if asked.attend == "all" else np.sort(liked.attended[0].documents)
        negative = history.chosen(weights < 0)
        against = self._attention(asked._replace(attend="all"), negative, rows, 1)
        # One example counts as much on either side, however many there are on the other.
        force = float(np.abs(negative.weights).mean() / weights[weights > 0].mean())
        given = weigh_documents(against, ranked.found.documents)
        order = np.argsort(given.documents)
        at = order[np.searchsorted(given.documents, ranked.found.documents, sorter=order)]
        taken = against.scoring.log_weights(given)[at] + math.log(force)
        return ranked._replace(scores=penalised(ranked.scores, taken))

    def _with_fresh(self, asked: Asked, liked: Attention, ranked: Ranked) -> Ranked:
        """The same with the best documents that nobody met, as many as are due."""
        met = self._met_by_anybody(asked.view)
        known = np.isin(ranked.found.documents, met, invert=True)
        if np.count_nonzero(known) >= asked.due:
            return ranked  # and no other is better
        rows = np.setdiff1d(asked.view.keys.rows if asked.rows is None else asked.rows, met)
        positive = asked.history.chosen(asked.history.weights > 0)
        fresh = self._attention(asked, positive, rows, asked.due).attended[0].documents
        more = np.setdiff1d(fresh[: asked.due], ranked.found.documents)
        if not len(more):
            return ranked
        found = weigh_documents(liked, np.concatenate([ranked.found.documents, more]))
        both = Ranked(found, liked.scoring.log_weights(found))
        return self._penalised(asked, liked, both) if (asked.history.weights < 0).any() else both

    def _order(self, asked: Asked, ranked: Ranked) -> Int64:
        """Positions in the order of the list, as many as it has."""
        request, documents = asked.request, ranked.found.documents
        order = np.lexsort((documents, -ranked.scores))
        fresh = np.zeros(len(documents), dtype=bool)
        if request.reserve:
            fresh = np.isin(documents, self._met_by_anybody(asked.view), invert=True)
        if request.diversity:
            chosen = np.arange(len(order)) < max(asked.listed, min(POOL, POOLED * asked.listed))
            chosen[np.flatnonzero(fresh[order])[: asked.due]] = True
            pool = order[chosen]
            count = len(pool) if request.reserve else asked.listed
            vectors = _vectors(asked.view, documents[pool])
            order = pool[diverse(ranked.scores[pool], vectors, request.diversity, count)]
        return reserved(order, fresh, request.reserve, asked.listed)

    def _hits(
        self, asked: Asked, scoring: Scoring, ranked: Ranked, at: Int64
    ) -> list[Recommendation]:
        found, fields = ranked.found, asked.request.fields
        read = self._store.documents if asked.request.title else self._store.values
        documents = read(found.documents[at])
        if len(documents) < len(at):
            raise Vanished
        parts = [part.name for part in asked.history.parts if part.weight > 0]
        explain = asked.request.explain
        told = explain_parts(scoring, found, at, parts) if explain else [None] * len(at)
        return [
            Recommendation(
                id=(document := documents[row]).id,
                score=float(ranked.scores[place]),
                weight=float(found.weights[place]),
                value=document.value,
                payload=document.payload if fields is None else only(document.payload, fields),
                because=why,
                title=display_title(document) if asked.request.title else None,
            )
            for place, row, why in zip(at.tolist(), found.documents[at].tolist(), told, strict=True)
        ]

    def _met_by_anybody(self, view: View) -> Int64:
        """Rows of the documents that have interactions, ascending; read once in each state."""
        change, rows = self._met
        if change != view.change:
            rows, _ = self._store.popularity()
            self._met = view.change, rows
        return rows


def _vectors(view: View, rows: Int64) -> Float32:
    """Documents as directions, (n, d): the mean of their keys, at length one."""
    found = view.keys.lookup(rows)
    if len(found) < len(rows):
        raise Vanished
    order = np.argsort(found.rows)
    places, _ = locate(found.rows[order], rows)
    return unit(found.means())[order[places]]
