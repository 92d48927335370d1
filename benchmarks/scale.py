"""Scale: a million keys on one machine, beside graphs, vector databases and the memory's speed.

The keys are real embeddings grown to size: two real ones mixed in a random share, a little noise,
scaled to length one. Queries are made so too, apart from the keys, and are others than those with
which either side is tuned. All get the same vectors. Seconds are the processor's, which
neighbours disturb less than the clock. Recall is of the exact ten nearest.

- `qps_over_best_graph`: queries a second of one thread, a thousand in a call, at recall 0.95 or
  more, over the fastest of hnswlib with M 16 and 32, usearch with 16 and FAISS's HNSW with 32 (the
  smallest of the ef that reach it; ours: what the index chose by itself, and scoring again by the
  keys; hnswlib alone when quick). `qps_one_by_one_over_best_graph`: the same, one query a call.
- `learned_qps_over_best_graph`: ours in 128 learned dimensions, recall being of the exact
  ten there; `learned_ndcg_over_embeddings` is what these are worth (`learned`).
- `best_graph_build_seconds_over_ours`: ours with training and with measuring its parameters.
- `bytes_over_best_graph`: what a search keeps in memory, per key: codes and bytes, against graph
  and vectors. Ours has the keys themselves in a mapped file besides, of which a search reads a few.
- `look_ups`: what recommendations from 50 documents, and documents like one, take through the API,
  and how much of the exact ten they list.
- `exact_attention_over_product`: one query attending to all keys, over NumPy's bare product of the
  matrix with it. `batch_of_16_over_one`: sixteen such queries, over one.
- `start_seconds`, `start_rss_over_index`: a fresh process from loading the index to its first
  answer, and all memory that it then has, over the index's files (keys, codes, bytes and ids).
- `recall_found_less_promised`: the worst share found over real sets, filtered and not, less what
  was promised (not when quick).
- `path_qps_over_…`: from a vector to weights and values, one query at a time.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from common import ROOT, data_set, json_lines, pairs, parser, progress, tell, timed
from learning_sets import Workshop, ranking_set, taught, trained
from scale_databases import DATABASES, NEAREST, SCALE, Contestant, Hits, Search, batches, value_of
from scale_graphs import GRAPHS
from threadpoolctl import threadpool_limits

from attend import Data
from attend.attention import Mechanism, attend_many, default_scale
from attend.collection.collection import Collection
from attend.core.arrays import KeyTable
from attend.core.types import Document, Float32, Int64
from attend.encoder import DEFAULT, load
from attend.keys.files import IndexOrigin, Progress, PublishedIndexes
from attend.keys.segment import Delta, Segment
from attend.keys.snapshot import Snapshot
from attend.keys.vectors import FETCHED, FlatVectors, IndexTarget, QuantisedVectors, share_found
from attend.measure.rankings import evaluate
from attend.projection import Projection

RECALL, WIDTH = 0.95, 384
ONE_BY_ONE = "queries_a_second_one_by_one"
QUERIES = 1000
NOISE = 0.02
BLOCK = 50_000
POOL = 4000


class Asked(NamedTuple):
    """Queries with the positions of their ten nearest keys."""

    queries: Float32
    truth: Int64

    def first(self, count: int) -> Asked:
        return Asked(self.queries[:count], self.truth[:count])

    def recall(self, found: Int64) -> float:
        """The share of the ten nearest among what was found (q, k)."""
        return round(float(share_found(found, self.truth).mean()), 4)


def real(sets: Path) -> Float32:
    """Embeddings of SciFact's abstracts, CoNaLa's snippets and banking77's questions."""
    texts = [
        row["text"]
        for name in ("scifact", "conala")
        for row in json_lines(data_set(sets, name) / "corpus.jsonl")
    ]
    with open(data_set(sets, "banking77") / "train.csv", newline="") as file:
        texts += [row["text"] for row in csv.DictReader(file)]
    chosen = np.random.default_rng(0).permutation(len(texts))[:POOL].tolist()
    progress(f"encoding {len(chosen)} texts")
    return load(DEFAULT).encode_documents([texts[at][:300] for at in chosen])


def grown(pool: Float32, count: int, seed: int) -> Iterator[Float32]:
    """Blocks of vectors (m, d) that lie as those of the pool do."""
    rng = np.random.default_rng(seed)
    for at in range(0, count, BLOCK):
        size = min(BLOCK, count - at)
        one, other = pool[rng.integers(len(pool), size=(2, size))]
        share = rng.random((size, 1), dtype=np.float32)
        noise = rng.standard_normal(one.shape, dtype=np.float32)
        mixed = share * one + (1 - share) * other + np.float32(NOISE) * noise
        yield mixed / np.linalg.norm(mixed, axis=1, keepdims=True)


def grow(pool: Float32, count: int, path: Path) -> Any:
    """Vectors (count, d) in a mapped file."""
    written = np.lib.format.open_memmap(path, "w+", np.float32, (count, WIDTH))
    at = 0
    for block in grown(pool, count, 0):
        written[at : at + len(block)] = block
        at += len(block)
    written.flush()
    return np.load(path, mmap_mode="r")


def asked(vectors: Float32, queries: Float32) -> tuple[Asked, Asked]:
    """Half of the queries to tune with, and the others to measure with."""
    truth = FlatVectors(vectors).search(queries, NEAREST, None).positions
    half = len(queries) // 2
    return Asked(queries[:half], truth[:half]), Asked(queries[half:], truth[half:])


def fewest_seconds(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and the fewest seconds of the processor that three of it took."""
    return timed(call, time.process_time, repeats=3)


# -- ours -----------------------------------------------------------------------------------------


class Built(NamedTuple):
    """Keys as a collection publishes them, their index as described, and seconds to build it."""

    keys: FlatVectors
    described: Mapping[str, Any]
    seconds: float


def published(folder: Path, vectors: Float32, questions: Float32 | None = None) -> Built:
    """The index that Attend chooses for keys (n, d), whatever their number.

    Args:
        questions: queries (q, d) to choose by; None for some that are made of the keys.
    """
    ids, known = np.arange(len(vectors)), list[str]()
    parts = [slice(at, at + 8192) for at in range(0, len(vectors), 8192)]
    tables = (KeyTable.of_keys(vectors[part], ids[part], ids[part]) for part in parts)
    indexes = PublishedIndexes(folder, IndexOrigin("benchmark", "none", vectors.shape[1], "raw"))
    target = IndexTarget(RECALL, exact_below=1, questions=questions)
    manifest, seconds = timed(
        lambda: indexes.publish(tables, len(ids), 0, known.append, target), time.process_time
    )
    (folder / "known.json").write_text(json.dumps(known))
    loaded = indexes.load(lambda: Progress(len(ids), 0, known))
    assert loaded is not None  # it was published just now
    return Built(loaded[0].vectors, manifest.index, seconds)


def ours(folder: Path, vectors: Float32, tuning: Asked, measured: Asked) -> dict[str, Any]:
    """The index that is chosen, its seconds with training and with measuring parameters."""
    made, described, built = published(folder, vectors, tuning.queries)
    if not isinstance(made, QuantisedVectors):
        sys.exit(f"No quantised index was chosen: {described['why']}.")
    point, queries = made.point(None), measured.queries
    found, together = fewest_seconds(lambda: nearest(made, queries)[0])
    _, alone = fewest_seconds(lambda: [nearest(made, query[None]) for query in queries])
    return {
        "index": described["type"],
        "parameters": point and point._asdict(),
        "recall": measured.recall(found),
        "queries_a_second": round(len(queries) / together),
        ONE_BY_ONE: round(len(queries) / alone),
        "build_seconds": round(built, 2),
        "bytes_a_key": described["bytes_per_key"],
    }


def nearest(made: FlatVectors, queries: Float32) -> tuple[Int64, Float32]:
    """The ten nearest of what is found, by the keys themselves; their products with the queries."""
    found = made.search(queries, FETCHED, None).positions
    best = np.empty((len(queries), NEAREST), np.int64)
    products = np.empty(best.shape, np.float32)
    for at, (query, row) in enumerate(zip(queries, found, strict=True)):
        own = made.vectors[row] @ query  # (c, d) @ (d,) -> (c,)
        order = np.argsort(-own)[:NEAREST]
        best[at], products[at] = row[order], own[order]
    return best, products


# -- fewer dimensions -----------------------------------------------------------------------------


LEARNED, LEARNED_FROM = 128, "conala"
"""Dimensions, and the set whose training questions they are learned from."""


def learned(folder: Path, sets: Path, vectors: Float32, queries: Float32) -> dict[str, Any]:
    """The same in a space of fewer dimensions, learned from a real set's training questions.

    Their nDCG@10 on that set's test questions stands beside that of the embeddings.
    """
    projection, quality = _learned(sets)
    progress(f"ours, {LEARNED} dimensions: building")
    path = folder / "learned.npy"
    keys = np.lib.format.open_memmap(path, "w+", np.float32, (len(vectors), LEARNED))
    for at in range(0, len(vectors), BLOCK):
        keys[at : at + BLOCK] = projection.keys(vectors[at : at + BLOCK])[:, 0]
    tuning, measured = asked(keys, projection.queries(queries)[:, 0])
    (folder / "learned").mkdir()
    return {**quality, **ours(folder / "learned", keys, tuning, measured)}


def _learned(sets: Path) -> tuple[Projection, dict[str, float]]:
    given = ranking_set(sets, LEARNED_FROM, rehearse=False)
    asking = (dict(given.test.queries), given.test.qrels)
    with tempfile.TemporaryDirectory() as folder, Workshop(Path(folder)).beir(given) as collection:
        taught(collection, given.train)
        report = trained(collection, dimensions=LEARNED, promote=False).report
        whole, fewer = (
            evaluate(collection, *asking, projection=report[name], memory=0.0).measures["ndcg@10"]
            for name in ("previous", "version")
        )
        made = collection.views.current(int(report["version"])).version.projection.materialised()
    return made, {"ndcg": round(fewer, 4), "ndcg_of_embeddings": round(whole, 4)}


# -- attention ------------------------------------------------------------------------------------


def attention(vectors: Float32, queries: Float32) -> dict[str, float]:
    """Seconds of exact attention over all keys, beside those of the product alone."""
    ids = np.arange(len(vectors))
    held = np.asarray(vectors)
    snapshot = Snapshot(Segment.of(FlatVectors(held), ids, ids), Delta.empty(WIDTH), 0, 0, 0)
    scale = np.full(1, default_scale("dot", normalized=True, d_k=WIDTH))
    by_dot = Mechanism("dot", scale, gates=np.ones(1))

    def blocks() -> Iterator[KeyTable]:
        for table in snapshot.blocks(None):
            yield table.with_vectors(table.vectors[:, None, :])

    def over_all(count: int) -> float:
        keyed = queries[:count, None]
        return fewest_seconds(lambda: attend_many(keyed, blocks, by_dot, NEAREST))[1]

    product = fewest_seconds(lambda: held @ queries[0])[1]  # (n, d) @ (d,) -> (n,)
    return {"product": product, "one": over_all(1), "sixteen": over_all(16)}


# -- a fresh process ------------------------------------------------------------------------------


STARTED = """
import json, sys, time
from pathlib import Path
import numpy as np
from attend.keys.segment import Delta
from attend.keys.files import IndexOrigin, Progress, PublishedIndexes
from attend.keys.snapshot import Snapshot
folder, keys, width = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
known = json.loads((folder / "known.json").read_text())
started = time.perf_counter()
segment, _ = PublishedIndexes(folder, IndexOrigin("benchmark", "none", width, "raw")).load(
    lambda: Progress(keys, 0, known))
snapshot = Snapshot(segment, Delta.empty(width), 0, 0, 0)
snapshot.search(np.ones((1, 1, width), np.float32), None, 100)
seconds = time.perf_counter() - started
status = open("/proc/self/status").read()
kib = int(status.split("VmRSS:")[1].split()[0])
print(json.dumps({"seconds": round(seconds, 3), "resident": kib * 1024}))
"""


def start(folder: Path) -> dict[str, float]:
    """From loading the index to the first answer, in a process of its own, and its memory."""
    manifest = next(folder.glob("raw/*/manifest.json"))
    keys = json.loads(manifest.read_text())["keys"]
    command = [sys.executable, "-c", STARTED, str(folder), str(keys), str(WIDTH)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    files = sum(path.stat().st_size for path in manifest.parent.iterdir())
    return {**json.loads(done.stdout), "files": files}


# -- graphs --------------------------------------------------------------------------------------


EFS = (20, 30, 40, 60, 80, 100, 120, 140, 160, 200, 300, 500)
"""Candidates of a graph's search, of which the smallest number that finds enough is taken."""


def graph(
    name: str, folder: Path, vectors: Float32, tuning: Asked, measured: Asked, *, quick: bool
) -> dict[str, Any]:
    """A library's usual construction (half of it when quick, on all processors), at the smallest ef
    that finds enough."""
    library, links = GRAPHS[name]
    threads = (os.cpu_count() or 1) if quick else 1
    made = library(vectors.shape, links, 100 if quick else 200, threads)

    def fill() -> None:
        for at in range(0, len(vectors), BLOCK):
            made.add(vectors[at : at + BLOCK])

    _, built = timed(fill, time.process_time)
    made.save(str(folder / name))
    size = (folder / name).stat().st_size
    (folder / name).unlink()
    for ef in EFS:
        reached = tuning.recall(made.search(tuning.queries, NEAREST, ef)) >= RECALL
        if reached:
            break
    queries = measured.queries
    found, together = fewest_seconds(lambda: made.search(queries, NEAREST, ef))
    _, alone = fewest_seconds(lambda: [made.search(query[None], NEAREST, ef) for query in queries])
    return {
        "ef": ef,
        "reached": reached,
        "recall": measured.recall(found),
        "queries_a_second": round(len(queries) / together),
        ONE_BY_ONE: round(len(queries) / alone),
        "build_seconds": round(built, 2),
        "bytes_a_key": round(size / len(vectors), 1),
    }


def best_graph(figures: Mapping[str, Any], rate: str) -> dict[str, Any]:
    """The fastest graph of those that found as much as was asked for, or else the one that finds
    most."""
    graphs: list[dict[str, Any]] = [figures[name] for name in GRAPHS if name in figures]
    return max(graphs, key=lambda each: (each["reached"] or each["recall"], float(each[rate])))


# -- look-ups -------------------------------------------------------------------------------------


LIKED, LISTS = 50, 24


def look_ups(collection: Collection, vectors: Float32) -> dict[str, Any]:
    """Recommendations from histories of 50 documents, and documents like one, through the API.

    Returns: milliseconds of each, and the share of the exact ten among what is recommended, for
        histories at random, and of one subject: among the 500 documents nearest to one.
    """
    draw = np.random.default_rng(2)
    anywhere = [draw.choice(len(vectors), LIKED, replace=False) for _ in range(LISTS)]
    subjects = vectors[np.sort(draw.choice(len(vectors), LISTS, replace=False))]
    near = FlatVectors(vectors).search(subjects, 10 * LIKED, None).positions
    one_subject = [draw.choice(row, LIKED, replace=False) for row in near]
    figures: dict[str, Any] = {}
    for name, histories in (("random", anywhere), ("one_subject", one_subject)):
        shares, seconds = list[float](), list[float]()
        for history in histories:
            liked = [str(at) for at in history]
            exact = {
                hit.id for hit in collection.recommend(positive=liked, k=NEAREST, recall=1).hits
            }
            answer, took = timed(partial(collection.recommend, positive=liked, k=NEAREST))
            shares.append(len(exact & {hit.id for hit in answer.hits}) / NEAREST)
            seconds.append(took)
        figures[f"recommended_{name}"] = {
            "exact_ten": round(float(np.mean(shares)), 4),
            "ms": round(1000 * float(np.median(seconds)), 1),
        }
    seconds = [
        timed(partial(collection.search, {"id": str(at)}, k=NEAREST, exclude_self=True))[1]
        for at in anywhere[0]
    ]
    figures["like_one_ms"] = round(1000 * float(np.median(seconds)), 1)
    return figures


# -- the whole path -------------------------------------------------------------------------------


TUNING = 200

SLOW = 30
"""Queries are enough where each reads everything."""


def whole_path(
    folder: Path, vectors: Float32, tuning: Asked, asked: Asked, names: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    """Figures of each contestant, ours among them."""
    figures: dict[str, dict[str, Any]] = {}
    for name in names:
        progress(f"whole path: {name} takes {len(vectors)} vectors")
        try:
            fill = partial(CONTESTANTS[name], folder, vectors)
            (settings, search_with), built = timed(fill, time.process_time)
        except MemoryError as error:
            figures[name] = {"could not hold them": str(error)}
            continue
        setting, search = _tuned(settings, search_with, tuning.first(TUNING))
        some = asked.first(SLOW) if name == "qdrant" else asked
        search(some.queries[0])
        found, seconds = timed(partial(_positions, search, some.queries), time.process_time)
        figures[name] = {
            "recall": some.recall(found),
            "queries_a_second": round(len(found) / seconds, 1),
            "setting": setting,
            "build_seconds": round(built, 1),
        }
        progress(f"{name}: {figures[name]}")
    return figures


def _tuned(
    settings: Sequence[Any], search_with: Callable[[Any], Search], tuning: Asked
) -> tuple[Any, Search]:
    """The first setting that finds enough, or else the last."""
    for setting in settings:
        search, is_last = search_with(setting), setting == settings[-1]
        if is_last or tuning.recall(_positions(search, tuning.queries)) >= RECALL:
            break
    return setting, search


def _positions(search: Search, queries: Float32) -> Int64:
    return np.array([search(query)[0] for query in queries])


# -- the contestants ----------------------------------------------------------------------------


def filled(data: Data, vectors: Float32) -> Collection:
    # At equal recall: 100,000 keys would otherwise be searched exactly, in ten times the time.
    collection = data.create("path", dimension=WIDTH, scorer="dot", exact_below=1)
    for positions, part in batches(vectors):
        rows = zip(positions, part.tolist(), strict=True)
        collection.write(
            [Document(str(at), vectors={"v": vector}, value=value_of(at)) for at, vector in rows]
        )
    collection.publish()
    return collection


def ours_on_path(folder: Path, vectors: Float32) -> Contestant:
    collection = filled(Data(folder / "ours"), vectors)

    def answer(query: Float32) -> Hits:
        found = collection.search(query.tolist(), k=NEAREST, attend=NEAREST, scale=SCALE)
        positions = [int(hit.id) for hit in found.hits]
        return positions, [hit.weight for hit in found.hits], [hit.value for hit in found.hits]

    return [collection.info().index["type"]], lambda _: answer


CONTESTANTS = {"ours": ours_on_path, **DATABASES}


# -- the recall that is promised ------------------------------------------------------------------


SHARES = (1.0, 0.5, 0.1, 0.01, 0.001, 0.0001)
ASKED, READ, CHARACTERS = 500, 5, 300


def promised(folder: Path, sets: Path) -> dict[str, dict[str, float]]:
    """By set and by share that a filter leaves: the share of the ten nearest that was found."""
    tasks = {"scifact": _judged, "conala": _judged, "goodbooks": _read}
    figures = {}
    for name, read in tasks.items():
        progress(f"recall promised and found: {name}")
        (folder / name).mkdir()
        figures[name] = found(folder / name, *read(sets, name))
    return figures


def found(folder: Path, keys: Float32, queries: Float32) -> dict[str, float]:
    made, rng = published(folder, keys).keys, np.random.default_rng(0)
    by_share = {}
    for share in SHARES:
        allowed = rng.permutation(len(keys)) < max(1, round(share * len(keys)))
        positions = made.search(queries, FETCHED, None if share == 1 else allowed).positions
        products = np.where(allowed, queries @ keys.T, -np.inf)
        best = np.argsort(-products, axis=1)[:, : min(NEAREST, np.count_nonzero(allowed))]
        by_share[f"{share:g}"] = Asked(queries, best).recall(positions)
    return by_share


def _judged(sets: Path, name: str) -> tuple[Float32, Float32]:
    """Documents (n, d) and test questions (q, d)."""
    given = ranking_set(sets, name, rehearse=False)
    questions = list(given.test.queries.values())[:ASKED]
    return _embedded(given.texts().values()), load(DEFAULT).encode_queries(questions)


def _read(sets: Path, name: str) -> tuple[Float32, Float32]:
    """Books (n, d) and the means (q, d) of what users read first."""
    folder = data_set(sets, name)
    rows = json_lines(folder / "books.jsonl")
    keys = _embedded(f"{row['title']} {row['authors']} {' '.join(row['tags'])}" for row in rows)
    places = {str(row["id"]): at for at, row in enumerate(rows)}
    read: dict[str, list[int]] = {}
    for user, item in pairs(folder / "train.tsv"):
        read.setdefault(user, []).append(places[item])
    means = np.stack([keys[each[:READ]].mean(axis=0) for each in islice(read.values(), ASKED)])
    return keys, means / np.linalg.norm(means, axis=1, keepdims=True)


def _embedded(texts: Iterable[str]) -> Float32:
    return load(DEFAULT).encode_documents([text[:CHARACTERS] for text in texts])


# -- the run --------------------------------------------------------------------------------------


KEYS, QUICK_KEYS = 1_000_000, 200_000
PATH_SHARE = 10
"""Of the keys one in so many goes the whole path when quick: databases take long to fill."""


def main() -> None:
    made = parser(__doc__.splitlines()[0])
    made.add_argument("--data", type=Path, help="where to write (12 GB for a million keys)")
    made.add_argument("--keys", type=int, help="how many; a million, or 200,000 with --quick")
    made.add_argument("--alone", action="store_true", help="without the peers")
    made.add_argument(
        "--peers",
        default="",
        help="on the whole path, of lancedb, chroma and qdrant; all, or the first when quick",
    )
    options = made.parse_args()
    faiss.omp_set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.data) as folder, threadpool_limits(1, "blas"):
        figures = measured(Path(folder), options)
    tell(ratios(figures), figures, options.json)


def measured(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    keys = options.keys or (QUICK_KEYS if options.quick else KEYS)
    pool = real(options.folder)
    progress(f"growing {keys} keys")
    vectors = grow(pool, keys, folder / "keys.npy")
    queries = next(grown(pool, 2 * QUERIES, 1))
    tuning, held = asked(vectors, queries)
    progress("ours: building")
    figures: dict[str, Any] = {"keys": keys, "ours": ours(folder, vectors, tuning, held)}
    progress("ours: starting, and attending to all")
    figures["start"] = start(folder)
    figures["attention"] = attention(vectors, held.queries)
    progress("ours: looking up")
    with closing(Data(folder / "look-ups")) as data:
        figures["look_ups"] = look_ups(filled(data, vectors), vectors)
    if not options.quick:
        figures["learned"] = learned(folder, options.folder, vectors, queries)
        figures["recall"] = promised(folder, options.folder)
    if not options.alone:
        for name in [name for name in GRAPHS if name.startswith("hnswlib") or not options.quick]:
            progress(f"{name}: building")
            figures[name] = graph(name, folder, vectors, tuning, held, quick=options.quick)
            progress(f"{name}: {figures[name]}")
        usual = ["chroma"] if options.quick else ["lancedb", "qdrant", "chroma"]
        names = ("ours", *(options.peers.split(",") if options.peers else usual))
        some = vectors[: keys // PATH_SHARE] if options.quick else vectors
        halves = asked(some, queries[:: 5 if options.quick else 2])
        figures["path"] = whole_path(folder, some, *halves, names)
    return figures


def ratios(figures: dict[str, Any]) -> dict[str, float]:
    ours, start, attention = figures["ours"], figures["start"], figures["attention"]
    found = {
        "exact_attention_over_product": attention["one"] / attention["product"],
        "batch_of_16_over_one": attention["sixteen"] / attention["one"],
        "start_seconds": start["seconds"],
        "start_rss_over_index": start["resident"] / start["files"],
    }
    learned, has_peers = figures.get("learned"), "path" in figures
    if learned:
        found["learned_ndcg_over_embeddings"] = learned["ndcg"] / learned["ndcg_of_embeddings"]
        worst = min(share for each in figures["recall"].values() for share in each.values())
        found["recall_found_less_promised"] = worst - RECALL
    if has_peers:
        for place, rate in (("", "queries_a_second"), ("one_by_one_", ONE_BY_ONE)):
            peer = best_graph(figures, rate)
            found[f"qps_{place}over_best_graph"] = ours[rate] / peer[rate]
        found["best_graph_build_seconds_over_ours"] = peer["build_seconds"] / ours["build_seconds"]
        found["bytes_over_best_graph"] = ours["bytes_a_key"] / peer["bytes_a_key"]
        quick = {name: each.get("queries_a_second") for name, each in figures["path"].items()}
        own = quick.pop("ours")
        found |= {f"path_qps_over_{name}": own / each for name, each in quick.items() if each}
    if learned and has_peers:
        peer = best_graph(figures, "queries_a_second")
        found["learned_qps_over_best_graph"] = (
            learned["queries_a_second"] / peer["queries_a_second"]
        )
    return {name: round(value, 3) for name, value in found.items()}


if __name__ == "__main__":
    main()
