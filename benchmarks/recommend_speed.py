"""Speed of recommendations, and whether their explanations name causes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from learning_rows import Row
from recommend_sets import Bench
from scale_data import grown, real

SAMPLES = 1000
"""Recommendations whose explanations are looked at."""


def speed(bench: Bench) -> Iterator[Row]:
    """Of one request with 50 documents as history."""
    collection = bench.data.collection("books")
    ids = [each["id"] for each in bench.books.documents]
    random = np.random.default_rng(bench.seed)
    histories = [random.choice(ids, 50, replace=False).tolist() for _ in range(100)]
    for history in histories[:10]:
        collection.recommend(history=history)
    yield _timed("speed.small", f"{len(ids)} items", collection.recommend, histories).wanted(
        "<=", 2
    )
    if bench.full:
        yield from _million(bench)


def _million(bench: Bench, count: int = 1_000_000, width: int = 384) -> Iterator[Row]:
    """Of keys grown as `benchmarks/scale.py` grows them.

    Quantised for a recall of 0.9, as what is promised is the list and not what one part finds.
    """
    random = np.random.default_rng(bench.seed)
    collection = bench.data.create("million", dimension=width, normalize=True, recall=0.9)
    pool, at = real(bench.folder), 0
    for block in grown(pool, count, bench.seed):
        for vectors in np.array_split(block, 5):  # of 10,000, as many as are taken at once
            collection.upsert(
                [{"id": str(at + row), "vector": each.tolist()} for row, each in enumerate(vectors)]
            )
            at += len(vectors)
    collection.publish()
    histories = [random.integers(0, count, 50).astype(str).tolist() for _ in range(30)]
    collection.recommend(history=histories[0])
    what = f"{count} items, which nobody met before"
    yield _timed("speed.million_first", what, collection.recommend, histories).wanted("<=", 20)
    met = [each for history in histories for each in history]
    others = [random.choice(met, 50, replace=False).tolist() for _ in histories]
    what = f"{count} items, which other histories held"
    yield _timed("speed.million", what, collection.recommend, others).wanted("<=", 20)
    recalls = []
    for history in histories:
        lists = (
            collection.recommend(history=history, recall=1),
            collection.recommend(history=history),
        )
        exact, found = ({hit.id for hit in answer.hits} for answer in lists)
        recalls.append(len(exact & found) / len(exact))
    yield Row("speed.million_recall", "recall of the exact list", float(np.mean(recalls))).wanted(
        ">=", 0.95
    )


def _timed(
    name: str, what: str, call: Callable[..., Any], histories: Sequence[Sequence[str]]
) -> Row:
    spent = []
    for history in histories:
        began = time.perf_counter()
        call(history=history)
        spent.append(1000 * (time.perf_counter() - began))
    return Row(name, f"{what}: ms of a request, p50", float(np.median(spent)))


def explanations(bench: Bench) -> Iterator[Row]:
    """Whether what is named as the cause is one."""
    collection = bench.data.collection("books")
    protocol = bench.protocol(bench.books)
    sums, lowered = [], []
    for user in protocol.relevant:
        history = [each.document for each in protocol.histories[user]]
        if len(history) < 2:
            continue
        hit = collection.recommend(history=history, k=1, explain=True).hits[0]
        shares = {str(each["id"]): float(each["weight"]) for each in hit.because or ()}
        sums.append(abs(sum(shares.values()) - 1))
        top = max(shares, key=shares.__getitem__)
        left = [id for id in history if id != top]
        # What was removed is no new rival: it stays masked.
        rest = collection.recommend(history=[*left, {"id": top, "weight": 0}], k=100)
        scores = {each.id: each.score for each in rest.hits}
        lowered.append(scores.get(hit.id, -np.inf) < hit.score)
        if len(sums) == SAMPLES:
            break
    yield Row("explained.sum", "largest error of a sum of shares", max(sums)).wanted("<=", 1e-6)
    share = float(np.mean(lowered))
    yield Row(
        "explained.lowered", f"scores lower without the first cause, of {len(sums)}", share
    ).wanted(">=", 1.0)
