"""Scale: a million keys on one machine, beside graphs, vector databases and the memory's speed.

The keys are real embeddings grown to size: two real ones mixed in a random share, a little noise,
scaled to length one. Queries are made so too, apart from the keys, and are others than those with
which either side is tuned. All get the same vectors. Seconds are the processor's, which
neighbours disturb less than the clock. Recall is of the exact ten nearest.

- `qps_over_hnswlib`: queries a second of one thread, a thousand in a call, at recall 0.95 or more,
  over the faster of hnswlib with M 16 and 32 (the smallest ef that reaches it; ours: what the index
  chose by itself, and scoring again by the keys). `qps_one_by_one_over_hnswlib`: one query a call.
  `…_of_100`: the same of the hundred nearest. `…_over_fastest`: over the fastest of all peers in
  `scale_graphs`, most of which keep several times as much in memory (hnswlib alone when quick).
- `learned_qps_over_hnswlib`: ours in 128 learned dimensions, recall being of the exact
  ten there; `learned_ndcg_over_embeddings` is what these are worth (`learned`).
- `hnswlib_build_seconds_over_ours`: ours with training and with measuring its parameters.
- `bytes_over_hnswlib`: what a search keeps in memory, per key: codes and bytes, against graph and
  vectors. Ours has the keys themselves in a mapped file besides, of which a search reads a few.
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
from attend.keys.vectors import (
    FETCHED,
    MANY,
    MANY_FETCHED,
    FlatVectors,
    IndexTarget,
    Point,
    QuantisedVectors,
    share_found,
)
from attend.measure.rankings import evaluate
from attend.projection import Projection

RECALL, WIDTH = 0.95, 384
ONE_BY_ONE = "queries_a_second_one_by_one"
QUERIES = 1000
NOISE = 0.02
BLOCK = 50_000
POOL, CHARACTERS = 4000, 300


class Asked(NamedTuple):
    """Queries with the positions of their nearest keys, the nearest first."""

    queries: Float32
    truth: Int64

    def first(self, count: int) -> Asked:
        return Asked(self.queries[:count], self.truth[:count])

    def nearest(self, k: int) -> Asked:
        return Asked(self.queries, self.truth[:, :k])

    def recall(self, found: Int64) -> float:
        """The share of the nearest among what was found (q, k)."""
        return round(float(share_found(found, self.truth).mean()), 4)


def real(sets: Path, grown_from: str = "mixed") -> Float32:
    """Embeddings of texts that keys are grown from (see `TEXTS`)."""
    texts = list(TEXTS[grown_from](sets))
    chosen = np.random.default_rng(0).permutation(len(texts))[:POOL].tolist()
    progress(f"encoding {len(chosen)} texts")
    return load(DEFAULT).encode_documents([texts[at][:CHARACTERS] for at in chosen])


def _mixed(sets: Path) -> Iterator[str]:
    for name in ("scifact", "conala"):
        yield from (row["text"] for row in json_lines(data_set(sets, name) / "corpus.jsonl"))
    with open(data_set(sets, "banking77") / "train.csv", newline="") as file:
        yield from (row["text"] for row in csv.DictReader(file))


def _books(sets: Path) -> Iterator[str]:
    yield from (row["text"] for row in json_lines(data_set(sets, "nfcorpus") / "corpus.jsonl"))
    yield from map(_book, json_lines(data_set(sets, "goodbooks") / "books.jsonl"))


def _book(row: Mapping[str, Any]) -> str:
    return f"{row['title']} {row['authors']} {' '.join(row['tags'])}"


TEXTS = {"mixed": _mixed, "books": _books}
"""Abstracts, lines of code and questions; books with their tags, and medical abstracts."""


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
    truth = FlatVectors(vectors).search(queries, MANY, None).positions
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
    points = {}
    for k, fetched in ((NEAREST, FETCHED), (MANY, MANY_FETCHED)):
        point = made.point(None, fetched)
        assert point is not None  # such an index is chosen where one of them finds enough
        depth = [other for other in made.points if other.fetched == point.fetched]
        points[k] = depth[depth.index(point) :]
    search = partial(nearest, made)
    return {
        "index": described["type"],
        **rates(search, points, tuning, measured),
        "build_seconds": round(built, 2),
        "bytes_a_key": described["bytes_per_key"],
    }


def nearest(made: QuantisedVectors, queries: Float32, k: int, point: Point) -> Int64:
    """The nearest (q, k) of what the codes propose, by the keys themselves."""
    proposed = made.search_at(point, queries, FETCHED if k == NEAREST else MANY_FETCHED).positions
    best = np.empty((len(queries), k), np.int64)
    for at, (query, row) in enumerate(zip(queries, proposed, strict=True)):
        products = made.vectors[row] @ query  # (c, d) @ (d,) -> (c,)
        best[at] = row[np.argsort(-products)[:k]]
    return best


def rates(
    search: Callable[[Float32, int, Any], Int64],
    settings: Mapping[int, Sequence[Any]],
    tuning: Asked,
    measured: Asked,
) -> dict[str, Any]:
    """For ten and for a hundred nearest: queries a second at the first of its settings that finds
    enough of them for the tuning queries, or else at the last."""
    figures: dict[str, Any] = {}
    for k in settings:
        for setting in settings[k]:
            reached = tuning.nearest(k).recall(search(tuning.queries, k, setting)) >= RECALL
            if reached:
                break
        positions, together = fewest_seconds(partial(search, measured.queries, k, setting))
        single = [partial(search, query[None], k, setting) for query in measured.queries]
        _, alone = fewest_seconds(lambda calls=single: [call() for call in calls])
        figures[f"of_{k}"] = {
            "setting": setting,
            "reached": reached,
            "recall": measured.nearest(k).recall(positions),
            "queries_a_second": round(len(positions) / together),
            ONE_BY_ONE: round(len(single) / alone),
        }
    return figures


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


def graph(
    name: str, folder: Path, vectors: Float32, tuning: Asked, measured: Asked, *, quick: bool
) -> dict[str, Any]:
    """A library's usual construction (half of it when quick, on all processors)."""
    library, links = GRAPHS[name]
    threads = (os.cpu_count() or 1) if quick else 1
    with tempfile.TemporaryDirectory(dir=folder) as place:
        made = library(Path(place), vectors.shape, links, 100 if quick else 200, threads)
        _, built = timed(partial(made.fill, vectors), time.process_time)
        size = _size(made.save, Path(place))
        settings = dict.fromkeys((NEAREST, MANY), made.settings)
        figures = rates(made.search, settings, tuning, measured)
    return {
        **figures,
        "build_seconds": round(built, 2),
        "bytes_a_key": round(size / len(vectors), 1),
    }


def _size(save: Callable[[str], Any], place: Path) -> int:
    """Bytes of what is saved: a file, or for some libraries a folder, or several files."""
    (place / "files").mkdir()
    save(str(place / "files" / "index"))
    return sum(path.stat().st_size for path in (place / "files").rglob("*") if path.is_file())


def fastest(figures: Mapping[str, Any], names: Iterable[str], of: str, rate: str) -> dict[str, Any]:
    """The fastest peer of those that found as much as was asked for, or else the one that finds
    most."""
    peers: list[dict[str, Any]] = [figures[name] for name in names if name in figures]
    return max(peers, key=lambda peer: (peer[of]["reached"] or peer[of]["recall"], peer[of][rate]))


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
ASKED, READ = 500, 5


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
    keys = _embedded(map(_book, rows))
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
    made.add_argument(
        "--grown-from", choices=TEXTS, default="mixed", help="the texts that keys are grown from"
    )
    made.add_argument("--indexes", action="store_true", help="the indexes and graphs only")
    made.add_argument("--alone", action="store_true", help="without the peers")
    made.add_argument(
        "--graphs", help=f"of {', '.join(GRAPHS)}; all, or hnswlib's when quick; '' for none"
    )
    made.add_argument(
        "--peers",
        help=f"on the whole path, of {', '.join(DATABASES)}; all, or chroma when quick; '' for "
        "none",
    )
    options = made.parse_args()
    faiss.omp_set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.data) as folder, threadpool_limits(1, "blas"):
        figures = measured(Path(folder), options)
    tell(ratios(figures), figures, options.json)


def measured(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    keys = options.keys or (QUICK_KEYS if options.quick else KEYS)
    pool = real(options.folder, options.grown_from)
    progress(f"growing {keys} keys")
    vectors = grow(pool, keys, folder / "keys.npy")
    queries = next(grown(pool, 2 * QUERIES, 1))
    tuning, held = asked(vectors, queries)
    progress("ours: building")
    figures: dict[str, Any] = {"keys": keys, "ours": ours(folder, vectors, tuning, held)}
    progress(f"ours: {figures['ours']}")
    if not options.indexes:
        figures |= others(folder, options, vectors, queries)
    for name in _names(options, "graphs", [*GRAPHS], [*GRAPHS][:2]):
        progress(f"{name}: building")
        figures[name] = graph(name, folder, vectors, tuning, held, quick=options.quick)
        progress(f"{name}: {figures[name]}")
    if not options.indexes and (names := _names(options, "peers", [*DATABASES], ["chroma"])):
        some = vectors[: keys // PATH_SHARE] if options.quick else vectors
        halves = asked(some, queries[:: 5 if options.quick else 2])
        tuning, held = (half.nearest(NEAREST) for half in halves)
        figures["path"] = whole_path(folder, some, tuning, held, ("ours", *names))
    return figures


def others(
    folder: Path, options: argparse.Namespace, vectors: Float32, queries: Float32
) -> dict[str, Any]:
    """What is measured of the published index besides its rates."""
    progress("ours: starting, and attending to all")
    figures: dict[str, Any] = {"start": start(folder)}
    figures["attention"] = attention(vectors, queries[len(queries) // 2 :])
    progress("ours: looking up")
    with closing(Data(folder / "look-ups")) as data:
        figures["look_ups"] = look_ups(filled(data, vectors), vectors)
    if not options.quick:
        figures["learned"] = learned(folder, options.folder, vectors, queries)
        figures["recall"] = promised(folder, options.folder)
    return figures


def _names(
    options: argparse.Namespace, option: str, usual: list[str], quick: list[str]
) -> list[str]:
    chosen = getattr(options, option)
    if options.alone:
        return []
    if chosen is None:
        return quick if options.quick else usual
    return [name for name in chosen.split(",") if name]


def ratios(figures: dict[str, Any]) -> dict[str, float]:
    ours, found = figures["ours"], dict[str, float]()
    if "start" in figures:
        start, attention = figures["start"], figures["attention"]
        found = {
            "exact_attention_over_product": attention["one"] / attention["product"],
            "batch_of_16_over_one": attention["sixteen"] / attention["one"],
            "start_seconds": start["seconds"],
            "start_rss_over_index": start["resident"] / start["files"],
        }
    learned, peers = figures.get("learned"), [name for name in GRAPHS if name in figures]
    if learned:
        found["learned_ndcg_over_embeddings"] = learned["ndcg"] / learned["ndcg_of_embeddings"]
        worst = min(share for each in figures["recall"].values() for share in each.values())
        found["recall_found_less_promised"] = worst - RECALL
    hnswlib = [name for name in peers if name.startswith("hnswlib")]
    for against, names in (("hnswlib", hnswlib), ("fastest", peers)):
        for of in (f"of_{NEAREST}", f"of_{MANY}") if names else ():
            for place, rate in (("qps", "queries_a_second"), ("qps_one_by_one", ONE_BY_ONE)):
                peer = fastest(figures, names, of, rate)
                end = f"over_{against}" + ("" if of == f"of_{NEAREST}" else f"_{of}")
                found[f"{place}_{end}"] = ours[of][rate] / peer[of][rate]
    if hnswlib:
        peer = fastest(figures, hnswlib, f"of_{NEAREST}", ONE_BY_ONE)
        found["hnswlib_build_seconds_over_ours"] = peer["build_seconds"] / ours["build_seconds"]
        found["bytes_over_hnswlib"] = ours["bytes_a_key"] / peer["bytes_a_key"]
        if learned:
            rate, of = "queries_a_second", f"of_{NEAREST}"
            found["learned_qps_over_hnswlib"] = learned[of][rate] / peer[of][rate]
    if "path" in figures:
        quick = {name: path.get("queries_a_second") for name, path in figures["path"].items()}
        own = quick.pop("ours")
        found |= {f"path_qps_over_{name}": own / rate for name, rate in quick.items() if rate}
    return {name: round(value, 3) for name, value in found.items()}


if __name__ == "__main__":
    main()
