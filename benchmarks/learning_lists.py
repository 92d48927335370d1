"""Rows of lists that cover: the rate that they reach, and how long they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from common import Row, row_of
from learning_answers import banking
from learning_sets import SEED, TITLES, Bench, Judged, taught, trained

from attend import Collection, Document
from attend.api.base import parse
from attend.api.search import MAX_BATCH, SearchRequest
from attend.measure.statistics import mean_interval

RATES = (0.8, 0.9, 0.95)

SHARES_SEEN: Mapping[str, float] = {"conala": 0.0, "nfcorpus": 0.5, "scifact": 0.5}
"""How many queries ask for documents that training knows, as far as the division tells: of
CoNaLa's test documents it knows none."""

LABELLED = 3000
"""Texts of banking77 that are taught as questions whose answer is their label."""


def lists(name: str) -> Callable[[Bench], Iterator[Row]]:
    """Lists of a ranking set."""

    def section(bench: Bench) -> Iterator[Row]:
        given = bench.ranking_set(name)
        with bench.workshop.beir(given) as collection:
            taught(collection, given.train)
            run = trained(collection, share_seen=SHARES_SEEN[name], promote=False)
            yield from _rows(name, collection, given.test, run.report)

    return section


def labels(bench: Bench) -> Iterator[Row]:
    """Lists of labels: the documents are the names of banking77's intents."""
    memory, queries = banking(bench)
    drawn = np.random.default_rng(SEED).permutation(len(memory.texts)) < LABELLED
    known, asked = (
        Judged(
            {str(at): text for at, text in enumerate(part.texts)},
            {str(at): {label: 1} for at, label in enumerate(part.labels)},
        )
        for part in (memory.some(drawn), queries)
    )
    names = {label for grades in known.qrels.values() for label in grades}

    def fill(collection: Collection) -> None:
        collection.upsert([Document(name, {"text": name.replace("_", " ")}) for name in names])

    with bench.workshop.copy("banking77-labels", fill) as collection:
        taught(collection, known)
        run = trained(collection, share_seen=1.0, promote=False)
        yield from _rows("banking77", collection, asked, run.report)


def _rows(
    name: str, collection: Collection, asked: Judged, report: Mapping[str, Any]
) -> Iterator[Row]:
    """Rates and mean lengths, beside the least fixed length that reaches as much."""
    whole = _listed(collection, asked, report["version"])
    ranks = np.array([_rank(asked.relevant(id), ids) for id, ids in whole.items()])
    title = TITLES.get(name, name)
    for rate in RATES:
        found = _listed(collection, asked, report["version"], coverage=rate)
        there = np.array([_rank(asked.relevant(id), ids) > 0 for id, ids in found.items()], float)
        lengths = np.array([len(ids) for ids in found.values()], float)
        reached = float(there.mean())
        fixed = next(k for k in range(1, 101) if ((ranks > 0) & (ranks <= k)).mean() >= reached)
        key, what = f"lists.{name}.{100 * rate:g}", f"{title}, lists at {rate:g}"
        yield row_of(f"{key}.rate", f"{what}: rate", mean_interval(there))
        yield row_of(f"{key}.length", "  mean length", mean_interval(lengths))
        share = Row(f"{key}.share", "  over a fixed length of that rate", lengths.mean() / fixed)
        yield share.wanted("<=", 0.6)._replace(note=f"fixed {fixed}; {report['reason'][:40]}")


def _rank(relevant: set[str], ids: list[str]) -> int:
    """The rank of the first relevant document, from 1; 0 without one."""
    return next((rank for rank, id in enumerate(ids, start=1) if id in relevant), 0)


def _listed(
    collection: Collection, asked: Judged, version: int, **options: Any
) -> dict[str, list[str]]:
    requests = [
        parse(SearchRequest, {"query": text, "projection": version, **({"k": 100} | options)})
        for text in asked.queries.values()
    ]
    answers = [
        answer
        for at in range(0, len(requests), MAX_BATCH)
        for answer in collection.search_many(requests[at : at + MAX_BATCH])
    ]
    return {
        id: [hit.id for hit in answer.hits]
        for id, answer in zip(asked.queries, answers, strict=True)
    }
