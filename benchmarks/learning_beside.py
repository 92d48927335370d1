"""Rows of the peers of ranking, and how far ours is ahead of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import numpy as np
from common import progress
from learning_adapter import linear_adapter
from learning_contest import Contest, by_rows, by_vectors, difference
from learning_peers import Peer, Task
from learning_ranking import unseen
from learning_rows import Row, ahead, difference_row
from learning_sets import TITLES, Bench, Judged, RankingSet
from learning_tuned import fine_tuned

import attend
from attend.encoder import DEFAULT
from attend.measure.rankings import RankedQueries

Ranker = Callable[[Judged, Collection[str]], RankedQueries]
"""What a peer ranks for queries, leaving out these documents."""


def adapter(name: str) -> Callable[[Bench], Iterator[Row]]:
    """LlamaIndex's adapter on a set: its queries search the same keys that ours do."""

    def section(bench: Bench) -> Iterator[Row]:
        given = bench.ranking_set(name)
        peer = linear_adapter(_task(given))
        with bench.workshop.beir(given) as collection:

            def ranked(judged: Judged, left_out: Collection[str]) -> RankedQueries:
                queries = peer.embed_queries(list(judged.queries.values()))
                return by_vectors(collection, list(judged.queries), queries, left_out)

            yield from _peer_rows(bench, given, "adapter", peer, collection, ranked)

    return section


def tuned(name: str) -> Callable[[Bench], Iterator[Row]]:
    """The whole encoder fine-tuned on a set: its own keys, one for each document."""

    def section(bench: Bench) -> Iterator[Row]:
        given = bench.ranking_set(name)
        task = _task(given)
        progress(f"fine-tuning the encoder on {name}, at most {bench.options.minutes:g} minutes")
        peer = fine_tuned(task, minutes=bench.options.minutes)

        def ranked(judged: Judged, left_out: Collection[str]) -> RankedQueries:
            queries, ids = peer.embed_queries(list(judged.queries.values())), list(task.documents)
            rows = np.flatnonzero(~np.isin(ids, list(left_out)))
            kept = [ids[row] for row in rows]
            return by_rows(kept, peer.document_rows[rows], list(judged.queries), queries)

        with bench.workshop.beir(given) as collection:
            yield from _peer_rows(bench, given, "tuned", peer, collection, ranked)
        yield Row(
            f"{name}.tuned_live_seconds",
            f"  seconds until live ({len(task.documents)} documents embedded anew)",
            peer.live_seconds,
        )

    return section


def _task(given: RankingSet) -> Task:
    return Task(given.train.queries, given.texts(), given.train.qrels, DEFAULT)


def _peer_rows(
    bench: Bench,
    given: RankingSet,
    short: str,
    peer: Peer,
    collection: attend.Collection,
    ranked: Ranker,
) -> Iterator[Row]:
    """Rows among all documents and, for queries of new ones, among those that training lacks."""
    name, what = f"{given.name}.{short}", f"{TITLES[given.name]}, {peer.name}"
    told = ", ".join(f"{key} {value}" for key, value in peer.details.items())
    fresh = given.test.some(unseen(given))
    for end, judged, left_out in (("", given.test, ()), ("_new", fresh, given.train.documents())):
        contest = Contest(collection, judged)
        contest.enter("peer", ranked(judged, left_out))
        among = f", {len(judged.queries)} new among new" if end else ""
        yield contest.row(name + end, what + among, "peer")._replace(note=told)
        ours = bench.results.rows.get(f"{given.name}.trained{end}")
        if ours is not None:
            gain = difference(np.array(ours.values), contest.values("peer"))
            yield ahead(difference_row(f"{name}{end}_behind", "  ours less that", gain), gain.p)
    yield Row(f"{name}_seconds", "  seconds of training", peer.training_seconds)
