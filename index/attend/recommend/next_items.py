"""Recommend documents: the attention of a history over the catalogue, and the list made of it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from attend.api.answers import Recommendation, Recommended
from attend.api.base import MAX_DIVERSE
from attend.api.recommend import RecommendRequest
from attend.attention import Attended
from attend.collection.versions import View, until_stable
from attend.core.errors import InvalidRequest
from attend.core.types import Bool, Float64, Int64, Json
from attend.engines.engine import StoredCollection
from attend.recommend.history import Histories, History
from attend.search.attend import MAX_RANKED, Attention, attend, weigh_documents
from attend.search.hits import (
    contents_of,
    diversified,
    explain_parts,
    matches,
    read_documents,
)
from attend.search.queries import Queries
from attend.search.scoring import NOTHING, AttentionOptions, Scoring
from attend.store import compile_filter
from attend.store.filters import by_value

POOLED = 10
"""Documents that diversity chooses from for each place in the list, up to `MAX_DIVERSE`."""

FEWEST = 100
"""Documents that are ranked at least; a page is the beginning of them."""


class _Resolved(NamedTuple):
    """A request with the view that answers it."""

    request: RecommendRequest
    view: View
    history: History
    rows: Int64 | None  # that pass the filter; None for all
    attend: int | Literal["all"]

    @property
    def listed(self) -> int:
        """Return the number of places of the list up to the end of the page."""
        return self.request.k + self.request.offset

    @property
    def reserved(self) -> int:
        """Return the number of them that are for documents without interactions."""
        return math.ceil(self.request.reserve * self.listed)

    @property
    def positive(self) -> History:
        return self.history.select(self.history.weights > 0)


class _NegativeWeights(NamedTuple):
    """What negative examples give some documents (n,).

    Attributes:
        history: the negative examples.
        attended: the documents as these attend to them, in an order of its own.
        places: (n,) positions in it.
        log_weights: (n,) beside the log weights that positive examples give.
    """

    history: History
    scoring: Scoring
    attended: Attended
    places: Int64
    log_weights: Float64


class Recommender:
    """Answers the recommendations of one collection; any thread may call it."""

    def __init__(self, collection: StoredCollection, histories: Histories) -> None:
        self._store, self._settings = collection.store, collection.settings
        self._views, self._histories = collection.views, histories
        self._popular: tuple[int, Int64] = (-1, np.empty(0, dtype=np.int64))

    def next_items(self, request: RecommendRequest) -> Recommended:
        """Recommend documents to a user.

        Raises:
            InvalidRequest: nothing is known of the user, or only what they do not want.
            UnknownDocument: an id that no document has, unless those are skipped.
        """
        started = time.perf_counter()
        history = self._histories.of(request)
        if not (history.weights > 0).any():
            raise InvalidRequest(
                "Only negative examples were sent, and every other document could come next; send "
                "a history, positive examples or facts as well.",
                field="negative",
            )
        return self._next(request, history, started)

    @until_stable
    def _next(self, request: RecommendRequest, history: History, started: float) -> Recommended:
        view = self._views.current(request.projection, role="recommend")
        filter = by_value(request.filter, self._settings.value_name)
        rows = self._store.matching(compile_filter(filter)) if filter else None
        resolved = _Resolved(request, view, history, rows, request.attend)
        attention, scored = self._scored(resolved)
        page = self._order(resolved, scored)[request.offset : resolved.listed]
        return Recommended(
            hits=self._hits(resolved, attention, scored, page),
            history={"given": history.total, "used": len(history.parts)},
            missing=history.missing,
            attended=scored.total_documents,
            exact=attention.exact,
            generation=view.change,
            projection=view.version.number,
            took_ms=round((time.perf_counter() - started) * 1000, 3),
        )

    def _scored(self, resolved: _Resolved) -> tuple[Attention, Attended]:
        """Return the history's attention, and the best documents: at least all that are listed.

        Their scores order the list: log weights, less what negative examples take away.

        A document that is not ranked scores at most its log weight, which is below that of those
        that are ranked: more are ranked until none can be missed, or until memory is full.
        """
        keep = max(FEWEST, min(MAX_DIVERSE, POOLED * resolved.listed), resolved.listed)
        while True:
            attention = self._attention(resolved, resolved.positive, resolved.rows, keep)
            attended = attention.attended
            scored = attended._replace(scores=attention.scoring.log_weights(attended))
            floor = scored.scores.min(initial=np.inf)
            scored = self._penalised(resolved, attention, scored)
            sure = np.count_nonzero(scored.scores >= floor) >= resolved.listed
            if sure or len(attended.documents) >= attended.total_documents:
                break
            if attended.logits.size * POOLED > MAX_RANKED:
                attention = replace(attention, exact=False)
                break
            keep *= POOLED
        if resolved.request.reserve:
            scored = self._with_new(resolved, attention, scored)
        return attention, scored

    def _attention(
        self,
        resolved: _Resolved,
        history: History,
        rows: Int64 | None,
        keep: int,
        *,
        approximate: bool = True,
    ) -> Attention:
        """Return the attention of a history, with its `keep` best documents."""
        version = resolved.view.version
        weights = np.abs(history.weights) * version.gates(history.rows)
        # Where every gate is shut the weights that were sent remain.
        weights = weights if weights.sum() > 0 else np.abs(history.weights)
        options = AttentionOptions(
            attend=resolved.attend,
            best=keep + 1,
            scorer=version.tuning.scorer,
            recall=resolved.request.recall,
        )
        embeddings = version.asking(history.embeddings, history.rows)
        scores = version.items and version.items.scores(history.rows, weights)
        [attention] = attend(
            resolved.view,
            self._settings,
            Queries(embeddings, parts=weights / weights.sum(), items=scores),
            options,
            rows,
            without=history.seen if resolved.request.exclude_seen else NOTHING,
            approximate=approximate,
        )
        return attention

    def _penalised(self, resolved: _Resolved, attention: Attention, scored: Attended) -> Attended:
        """Lower the scores by the attention of negative examples to the same documents."""
        if (resolved.history.weights > 0).all():
            return scored
        negative = self._negative(resolved, attention, scored.documents)
        return scored._replace(scores=penalised(scored.scores, negative.log_weights))

    def _negative(
        self, resolved: _Resolved, attention: Attention, documents: Int64
    ) -> _NegativeWeights:
        """Return what negative examples give documents (n,), by the same measure as positive ones
        give them theirs."""
        history, weights = resolved.history, resolved.history.weights
        is_over_all = attention.all_weights is not None
        rows = resolved.rows if is_over_all else np.sort(attention.attended.documents)
        negative, everything = history.select(weights < 0), resolved._replace(attend="all")
        against = self._attention(everything, negative, rows, 1, approximate=False)
        # An example counts the same on either side, whatever their numbers.
        force = float(np.abs(negative.weights).mean() / weights[weights > 0].mean())
        weighed = weigh_documents(against, documents)
        order = np.argsort(weighed.documents)
        places = order[np.searchsorted(weighed.documents, documents, sorter=order)]
        taken = against.scoring.log_weights(weighed)[places] + math.log(force)
        return _NegativeWeights(negative, against.scoring, weighed, places, taken)

    def _with_new(self, resolved: _Resolved, attention: Attention, scored: Attended) -> Attended:
        """Add the best documents without interactions, as many as are reserved."""
        documents, popular = scored.documents, self._with_interactions(resolved.view)
        if np.count_nonzero(np.isin(documents, popular, invert=True)) >= resolved.reserved:
            return scored  # and no other is better
        allowed = resolved.view.keys.rows if resolved.rows is None else resolved.rows
        rows = np.setdiff1d(allowed, popular, assume_unique=True)
        among = self._attention(resolved, resolved.positive, rows, resolved.reserved).attended
        more = np.setdiff1d(among.documents[: resolved.reserved], documents)
        if not len(more):
            return scored
        weighed = weigh_documents(attention, np.concatenate([documents, more]))
        both = weighed._replace(scores=attention.scoring.log_weights(weighed))
        return self._penalised(resolved, attention, both)

    def _order(self, resolved: _Resolved, scored: Attended) -> Int64:
        """Return positions in the order of the list, up to the end of the page."""
        request, documents = resolved.request, scored.documents
        order = np.lexsort((documents, -scored.scores))
        new = np.zeros(len(documents), dtype=bool)
        if request.reserve:
            new = np.isin(documents, self._with_interactions(resolved.view), invert=True)
        if request.diversity:
            size = max(resolved.listed, min(MAX_DIVERSE, POOLED * resolved.listed))
            in_pool = np.arange(len(order)) < size
            in_pool[np.flatnonzero(new[order])[: resolved.reserved]] = True
            pool = order[in_pool]
            count = len(pool) if request.reserve else resolved.listed
            diverse = diversified(
                resolved.view, documents[pool], scored.scores[pool], request.diversity, count
            )
            order = pool[diverse]
        return reserved(order, new, request.reserve, resolved.listed)

    def _hits(
        self, resolved: _Resolved, attention: Attention, scored: Attended, places: Int64
    ) -> list[Recommendation]:
        request, rows, scoring = resolved.request, scored.documents[places], attention.scoring
        with_texts = request.title or bool(request.include) or request.fields is not None
        listed = read_documents(self._store, rows, texts=with_texts)
        matched = matches(self._store, scoring, listed) if request.include else ()
        columns: dict[str, Sequence[Any]] = {
            "score": scored.scores[places].tolist(),
            "weight": scored.weights[places].tolist(),
            "value": [document.value for document in listed],
            "because": [None] * len(listed),
            "against": [None] * len(listed),
        }
        if request.explain:
            names = [part.name for part in resolved.positive.parts]
            columns["because"] = explain_parts(scoring, scored, places, names)
            if (resolved.history.weights < 0).any():
                columns["against"] = self._against(resolved, attention, scored, places)
        contents = contents_of(listed, matched, request, columns)
        return [Recommendation(**content) for content in contents]

    def _against(
        self, resolved: _Resolved, attention: Attention, scored: Attended, places: Int64
    ) -> list[list[dict[str, Json]]]:
        """Return by document each negative example with its share of what positive and negative
        ones give it together."""
        log_weights = attention.scoring.log_weights(scored)[places]
        negative = self._negative(resolved, attention, scored.documents[places])
        names = [part.name for part in negative.history.parts]
        parts = explain_parts(negative.scoring, negative.attended, negative.places, names)
        shares = np.exp(-np.logaddexp(0, log_weights - negative.log_weights))
        return [
            [{**part, "weight": part["weight"] * share} for part in listed]
            for listed, share in zip(parts, shares.tolist(), strict=True)
        ]

    def _with_interactions(self, view: View) -> Int64:
        """Return the rows of documents with interactions, ascending; read once in each state."""
        change, rows = self._popular
        if change != view.change:
            rows, _ = self._store.popularity()
            self._popular = view.change, rows
        return rows


# -- the order of a list --------------------------------------------------------------------


def penalised(log_weights: Float64, negative: Float64) -> Float64:
    """Score documents (n,) of positive weight w and negative weight v by log w²/(w + v).

    That is w times the share that positive examples have of both weights. It never rewards: far
    from all negative examples the score is log w, near them it sinks without bound.

    Args:
        log_weights, negative: (n,) log w and log v.
    """
    scores: Float64 = log_weights - np.logaddexp(0, negative - log_weights)
    return scores


def reserved(order: Int64, new: Bool, share: float, count: int) -> Int64:
    """Return the first `count` of an order, every beginning of which has a share of new ones.

    Args:
        order: (n,) positions, best first.
        new: by position.
        share: of each beginning of the list, rounded down, while new ones remain.
    """
    if not share:
        return order[:count]
    queue, taken = order[new[order]].tolist(), set[int]()
    listed: list[int] = []
    rest, placed = iter(order.tolist()), 0
    while len(listed) < min(count, len(order)):
        due = placed < math.floor(share * (len(listed) + 1) + 1e-9)
        if due and placed < len(queue):
            position = queue[placed]
        else:
            position = next(candidate for candidate in rest if candidate not in taken)
        taken.add(position)
        placed += bool(new[position])
        listed.append(position)
    return np.array(listed, dtype=np.int64)
