"""Recall promised and recall found: real sets and their questions, filtered and not.

Each set's documents are quantised as a collection of theirs would be without a question to measure
with, and searched for what people asked: SciFact's and CoNaLa's test queries, and of goodbooks the
mean of what a user read. Filters leave a random share of the documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import DATA, data_set, parser, progress, tell
from scale_data import NEAREST, RECALL

from attend.core.arrays import KeyTable
from attend.core.types import Bool, Float32
from attend.encoder import DEFAULT, load
from attend.keys import IndexOrigin, IndexTarget, Progress, PublishedIndexes
from attend.keys.choose import FETCHED
from attend.measure.rankings import read_qrels, read_queries

SHARES = (1.0, 0.5, 0.1, 0.01, 0.001, 0.0001)
QUERIES, READ, CHARACTERS = 500, 5, 300


class Task(NamedTuple):
    """Documents, and what is asked of them."""

    keys: Float32  # (n, d)
    queries: Float32  # (q, d)


def main() -> None:
    made = parser(__doc__.splitlines()[0])
    made.add_argument("--folder", "--sets", dest="sets", type=Path, default=DATA)
    made.add_argument("--data", type=Path, required=True, help="where to write")
    options = made.parse_args()
    figures = promised(options.data, options.sets)
    tell(ratios(figures), figures, options.json)


def promised(folder: Path, sets: Path) -> dict[str, dict[str, float]]:
    """By set and by share that a filter leaves: the share of the ten nearest that was found."""
    tasks = {"scifact": _judged, "conala": _judged, "goodbooks": _read}
    figures = {}
    for name, task in tasks.items():
        progress(f"recall promised and found: {name}")
        figures[name] = found(folder / name, task(data_set(sets, name)))
    return figures


def ratios(figures: dict[str, dict[str, float]]) -> dict[str, float]:
    """The worst of what was found, less what was promised: at least -0.01."""
    worst = min(share for each in figures.values() for share in each.values())
    return {"recall_found_less_promised": round(worst - RECALL, 4)}


def found(folder: Path, task: Task) -> dict[str, float]:
    folder.mkdir(parents=True)
    ids, known = np.arange(len(task.keys)), list[str]()
    indexes = PublishedIndexes(folder, IndexOrigin("benchmark", "none", task.keys.shape[1], "raw"))
    wanted = IndexTarget(RECALL, exact_below=1)
    indexes.publish([KeyTable.of_keys(task.keys, ids, ids)], len(ids), 0, known.append, wanted)
    loaded = indexes.load(lambda: Progress(len(ids), 0, known))
    assert loaded is not None  # it was published just now
    made, rng = loaded[0].vectors, np.random.default_rng(0)
    by_share = {}
    for share in SHARES:
        allowed = rng.permutation(len(ids)) < max(1, round(share * len(ids)))
        positions = made.search(task.queries, FETCHED, None if share == 1 else allowed).positions
        by_share[f"{share:g}"] = _recall(task, positions, allowed)
    return by_share


def _recall(task: Task, positions: np.ndarray, allowed: Bool) -> float:
    products = np.where(allowed, task.queries @ task.keys.T, -np.inf)
    nearest = np.argsort(-products, axis=1)[:, : min(NEAREST, np.count_nonzero(allowed))]
    shares = [np.isin(true, row).mean() for true, row in zip(nearest, positions, strict=True)]
    return round(float(np.mean(shares)), 4)


# -- the sets ------------------------------------------------------------------------------------


def _judged(folder: Path) -> Task:
    queries = read_queries(folder / "queries.jsonl")
    asked = [str(queries[id]) for id in read_qrels(folder / "qrels" / "test.tsv")]
    rows = map(json.loads, (folder / "corpus.jsonl").read_text().splitlines())
    texts = [f"{row.get('title', '')} {row['text']}".strip() for row in rows]
    return Task(_embedded(texts), load(DEFAULT).encode_queries(asked[:QUERIES]))


def _read(folder: Path) -> Task:
    rows = [json.loads(line) for line in (folder / "books.jsonl").read_text().splitlines()]
    keys = _embedded(f"{row['title']} {row['authors']} {' '.join(row['tags'])}" for row in rows)
    places = {str(row["id"]): at for at, row in enumerate(rows)}
    read: dict[str, list[int]] = {}
    for line in (folder / "train.tsv").read_text().splitlines()[1:]:
        user, item = line.split("\t")
        read.setdefault(user, []).append(places[item])
    means = np.stack([keys[each[:READ]].mean(axis=0) for each in islice(read.values(), QUERIES)])
    return Task(keys, means / np.linalg.norm(means, axis=1, keepdims=True))


def _embedded(texts: Iterable[str]) -> Float32:
    return load(DEFAULT).encode_documents([text[:CHARACTERS] for text in texts])


if __name__ == "__main__":
    main()
