"""Rows of the peers of ranking, and how far ours is ahead of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from common import progress
from learning_adapter import linear_adapter
from learning_contest import Contest, by_rows, by_vectors, difference
from learning_peers import Peer, Task
from learning_rows import Row, ahead, difference_row
from learning_sets import TITLES, Bench, RankingSet
from learning_tuned import fine_tuned

from attend.encoder import DEFAULT


def adapter(name: str) -> Callable[[Bench], Iterator[Row]]:
    """LlamaIndex's adapter on a set: its queries search the same keys that ours do."""

    def section(bench: Bench) -> Iterator[Row]:
        given = bench.ranking_set(name)
        peer = linear_adapter(_task(given))
        with bench.workshop.beir(given) as collection:
            contest = Contest(collection, given.test)
            queries = peer.embed_queries(list(given.test.queries.values()))
            contest.enter("peer", by_vectors(collection, list(given.test.queries), queries))
        yield from _peer_rows(bench, name, "adapter", peer, contest)

    return section


def tuned(name: str) -> Callable[[Bench], Iterator[Row]]:
    """The whole encoder fine-tuned on a set: its own keys, one for each document."""

    def section(bench: Bench) -> Iterator[Row]:
        given = bench.ranking_set(name)
        task = _task(given)
        progress(f"fine-tuning the encoder on {name}, at most {bench.options.minutes:g} minutes")
        peer = fine_tuned(task, minutes=bench.options.minutes)
        with bench.workshop.beir(given) as collection:
            contest = Contest(collection, given.test)
            queries = peer.embed_queries(list(given.test.queries.values()))
            ranked = by_rows(
                list(task.documents), peer.document_rows, list(given.test.queries), queries
            )
            contest.enter("peer", ranked)
        yield from _peer_rows(bench, name, "tuned", peer, contest)
        yield Row(
            f"{name}.tuned_live_seconds",
            f"  seconds until live ({len(task.documents)} documents embedded anew)",
            peer.live_seconds,
        )

    return section


def _task(given: RankingSet) -> Task:
    return Task(given.train.queries, given.texts(), given.train.qrels, DEFAULT)


def _peer_rows(bench: Bench, set: str, short: str, peer: Peer, contest: Contest) -> Iterator[Row]:
    name = f"{set}.{short}"
    told = ", ".join(f"{key} {value}" for key, value in peer.details.items())
    yield contest.row(name, f"{TITLES[set]}, {peer.name}", "peer")._replace(note=told)
    ours = bench.results.rows.get(f"{set}.trained")
    if ours is not None:
        gain = difference(np.array(ours.values), contest.values("peer"))
        yield ahead(difference_row(f"{name}_behind", "  ours less that", gain), gain.p)
    yield Row(f"{name}_seconds", "  seconds of training", peer.training_seconds)
