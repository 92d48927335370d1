"""Rows of a collection with very many judgements: a training's seconds, memory and gain."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from common import ROOT
from learning_contest import Contest
from learning_rows import Row
from learning_sets import Bench, Judged, encoder, taught

from attend import Collection
from attend.core.arrays import unit
from attend.core.types import Floats
from attend.encoder import DEFAULT
from attend.training.material import memory_of

DOCUMENTS, QUERIES, HELD = 3600, 2600, 300
"""Documents, queries to learn from, and queries that judge."""

GRADES = {3: 3, 2: 9, 1: 20, 0: 10}
"""Judgements of a query by grade: 110,000 of all."""

HIDDEN, SHARPNESS = 1.0, 30.0
"""How far the hidden W_Q is from the identity, and the scale of its scores."""

SEED = 20170612


def judgements(bench: Bench) -> Iterator[Row]:
    """Train on judgements that are drawn from a model over SciFact's abstracts."""
    texts = bench.ranking_set("scifact").texts()
    documents = list(texts)[:DOCUMENTS]

    def fill(collection: Collection) -> None:
        collection.upsert([{"id": id, "text": texts[id]} for id in documents])

    with bench.workshop.copy("scifact-judgements", fill) as collection:
        learned, held = drawn(documents, memory_of(collection, None).means(), sentences(texts))
        taught(collection, learned)
        contest = Contest(collection, held)
        version = collection.store.state().projection
        contest.search("frozen", projection=version, lexical=False, memory=0.0)
        report, seconds, peak = trained_apart(collection)
        contest.search("trained")
        what = f"{sum(map(len, learned.qrels.values())):,} judgements"
        yield contest.row("judgements.frozen", f"{what}, frozen", "frozen")
        row = contest.row("judgements.trained", f"{what}, trained", "trained")
        yield row._replace(note="promoted" if report["promoted"] else "not promoted")
        yield Row("judgements.seconds", f"{what}: seconds of train", seconds).wanted("<=", 60)
        yield Row("judgements.peak", f"{what}: GB of memory", peak / 1e9).wanted("<=", 1.2)


def sentences(texts: Mapping[str, str]) -> dict[str, str]:
    """Return a sentence of each of some documents, by the name of a query."""
    random = np.random.default_rng(SEED)
    queries = {}
    for id in random.permutation(sorted(texts))[: QUERIES + HELD].tolist():
        parts = [part for part in texts[id].split(". ") if len(part) > 20] or [texts[id]]
        queries[f"q{id}"] = parts[int(random.integers(len(parts)))]
    return queries


def drawn(
    documents: Sequence[str], embeddings: Floats, queries: Mapping[str, str]
) -> tuple[Judged, Judged]:
    """Draw judgements of queries, and divide them into those to learn and those that judge.

    Documents are drawn by a softmax over scores under a hidden W_Q; the first of them have grade 3.
    """
    random = np.random.default_rng(SEED)
    names, keys = list(queries), unit(embeddings)
    embedded = encoder(DEFAULT).encode_queries(list(queries.values()))
    width = keys.shape[1]
    hidden = np.eye(width) + HIDDEN * random.normal(size=(width, width)) / np.sqrt(width)
    noise = random.gumbel(size=(len(names), len(keys))) / SHARPNESS
    scores = unit(embedded @ hidden) @ keys.T + noise
    best = np.argsort(-scores, axis=1)[:, : sum(GRADES.values())]
    grades = np.repeat(list(GRADES), list(GRADES.values())).tolist()
    qrels = {
        name: dict(zip((documents[place] for place in row), grades, strict=True))
        for name, row in zip(names, best, strict=True)
    }
    whole = Judged(queries, qrels)
    return whole.some(names[:QUERIES]), whole.some(names[QUERIES:])


def trained_apart(collection: Collection) -> tuple[dict[str, Any], float, float]:
    """Train by the command line; return its report, its seconds, and the bytes it took at most."""
    folder = collection.folder.parent.parent
    command = [sys.executable, "-m", "index", "train", "--data", str(folder), "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    report = json.loads(done.stdout)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return report, float(report["seconds"]), float(peak)
