"""Scale: a million keys on one machine, beside hnswlib and beside the memory's own speed.

The keys are real embeddings grown to size: two real ones mixed in a random share, a little noise,
scaled to length one. Queries are made so too, apart from the keys, and are others than those with
which either side is tuned. Both sides get the same vectors, and one thread; seconds are the
processor's, which neighbours disturb less than the clock. Recall is of the exact ten nearest.

- `qps_over_hnswlib`: queries a second at recall 0.95 or more (hnswlib: M 16, the smallest of the
  ef that reach it; ours: what the index chose by itself, and scoring again by the keys).
- `hnswlib_build_seconds_over_ours`: ours with training and with measuring its parameters.
- `bytes_over_hnswlib`: what a search keeps in memory, per key: codes and bytes, against graph and
  vectors. Ours has the keys themselves in a mapped file besides, of which a search reads a few.
- `exact_attention_over_product`: one query attending to all keys, over NumPy's bare product of the
  matrix with it. `batch_of_16_over_one`: sixteen such queries, over one.
- `start_seconds`, `start_rss_over_index`: a fresh process from loading the index to its first
  answer, and all memory that it then has, over the index's files (keys, codes, bytes and ids).
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from common import DATA, ROOT, data_set, parser, progress, tell

from index.attention import Block, Blocks, attend_many, mechanism
from index.encoder import DEFAULT, load
from index.keys import DenseVectors, Origin, Progress, PublishedIndexes, Segment, Snapshot, Wanted
from index.keys.choose import FETCHED, share_found
from index.keys.quantised import QuantisedVectors
from index.keys.segment import FlatVectors
from index.types import Float32, Int64

RECALL, NEAREST, WIDTH = 0.95, 10, 384
QUERIES = 1000
NOISE = 0.02
BLOCK = 50_000
POOL = 4000
EFS = (20, 30, 40, 60, 80, 100, 140, 200, 300)
ORIGIN = Origin("benchmark", "none", WIDTH, "raw")


class Asked(NamedTuple):
    """Queries with the positions of their ten nearest keys."""

    queries: Float32
    truth: Int64


def main() -> None:
    options = _options()
    keys = options.keys or (200_000 if options.quick else 1_000_000)
    faiss.omp_set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.data) as folder:
        figures = measured(Path(folder), real(options.sets), keys, alone=options.alone)
    tell(ratios(figures), figures, options.json)


def _options() -> argparse.Namespace:
    made = parser(__doc__.splitlines()[0])
    made.add_argument("--data", type=Path, help="where to write (4 GB for a million keys)")
    made.add_argument("--keys", type=int, help="how many; a million, or 200,000 with --quick")
    made.add_argument("--alone", action="store_true", help="without the peer")
    made.add_argument("--folder", "--sets", dest="sets", type=Path, default=DATA)
    return made.parse_args()


def measured(folder: Path, pool: Float32, keys: int, *, alone: bool) -> dict[str, Any]:
    progress(f"growing {keys} keys")
    grow(pool, keys, folder / "keys.npy")
    vectors = np.load(folder / "keys.npy", mmap_mode="r")
    queries = next(grown(pool, 2 * QUERIES, 1))
    truth = FlatVectors(vectors).search(queries, NEAREST, None).positions
    tuning, asked = (Asked(queries[half], truth[half]) for half in
                     (slice(QUERIES), slice(QUERIES, None)))  # fmt: skip
    progress("ours: building")
    figures: dict[str, Any] = {"keys": keys, "ours": ours(folder, vectors, tuning, asked)}
    progress("ours: starting, and attending to all")
    figures["start"] = start(folder)
    figures["attention"] = attention(vectors, asked.queries)
    if not alone:
        progress("hnswlib: building")
        figures["hnswlib"] = hnswlib(folder, vectors, tuning, asked)
    return figures


def ratios(figures: dict) -> dict[str, float]:
    ours, start, attention = figures["ours"], figures["start"], figures["attention"]
    found = {
        "exact_attention_over_product": attention["one"] / attention["product"],
        "batch_of_16_over_one": attention["sixteen"] / attention["one"],
        "start_seconds": start["seconds"],
        "start_rss_over_index": start["resident"] / start["files"],
    }
    if "hnswlib" in figures:
        peer = figures["hnswlib"]
        found |= {
            "qps_over_hnswlib": ours["queries_a_second"] / peer["queries_a_second"],
            "hnswlib_build_seconds_over_ours": peer["build_seconds"] / ours["build_seconds"],
            "bytes_over_hnswlib": ours["bytes_a_key"] / peer["bytes_a_key"],
        }
    return {name: round(value, 3) for name, value in found.items()}


# -- data ---------------------------------------------------------------------------------------


def real(sets: Path) -> Float32:
    """Embeddings of SciFact's abstracts, CoNaLa's snippets and banking77's questions."""
    texts = [json.loads(line)["text"] for name in ("scifact", "conala") for line in
             (data_set(sets, name) / "corpus.jsonl").read_text().splitlines()]  # fmt: skip
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


def grow(pool: Float32, count: int, path: Path) -> None:
    written = np.lib.format.open_memmap(path, "w+", np.float32, (count, WIDTH))
    at = 0
    for block in grown(pool, count, 0):
        written[at : at + len(block)] = block
        at += len(block)
    written.flush()


def timed(call: Callable[[], Any], repeats: int = 3) -> tuple[Any, float]:
    """What a call returns, and the fewest seconds of this processor that it took."""
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        found = call()
        seconds.append(time.process_time() - started)
    return found, min(seconds)


# -- ours ---------------------------------------------------------------------------------------


def ours(folder: Path, vectors: Float32, tuning: Asked, asked: Asked) -> dict[str, Any]:
    ids = np.arange(len(vectors))
    parts = [slice(at, at + 8192) for at in range(0, len(vectors), 8192)]
    known: list[str] = []
    indexes = PublishedIndexes(folder, ORIGIN)
    started = time.process_time()
    manifest = indexes.publish(
        ((vectors[part], ids[part], ids[part]) for part in parts),
        len(vectors),
        0,
        known.append,
        Wanted(RECALL, exact_below=1, questions=tuning.queries),
    )
    built = time.process_time() - started
    (folder / "known.json").write_text(json.dumps(known))
    segment, _ = indexes.load(lambda: Progress(len(vectors), 0, known)) or sys.exit(1)
    made = segment.vectors
    if not isinstance(made, QuantisedVectors):
        sys.exit(f"No quantised index was chosen: {manifest.index['why']}.")
    point = made.point(None)
    found, together = timed(lambda: nearest(made, asked.queries))
    _, alone = timed(lambda: [nearest(made, query[None]) for query in asked.queries])
    return {
        "index": manifest.index["type"],
        "parameters": point and point._asdict(),
        "recall": recall(found, asked),
        "queries_a_second": round(QUERIES / together),
        "queries_a_second_one_by_one": round(QUERIES / alone),
        "build_seconds": round(built, 2),
        "bytes_a_key": manifest.index["bytes_per_key"],
    }


def nearest(made: QuantisedVectors, queries: Float32) -> Int64:
    """The ten nearest of what is found, by the keys themselves."""
    found = made.search(queries, FETCHED, None).positions
    best = np.empty((len(queries), NEAREST), np.int64)
    for at, (query, row) in enumerate(zip(queries, found, strict=True)):
        best[at] = row[np.argsort(-(made.all()[row] @ query))[:NEAREST]]
    return best


def recall(found: Int64, asked: Asked) -> float:
    return round(float(share_found(found, asked.truth).mean()), 4)


STARTED = """
import json, sys, time
from pathlib import Path
import numpy as np
from index.keys import Origin, Progress, PublishedIndexes, Snapshot
folder, keys, width = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
known = json.loads((folder / "known.json").read_text())
started = time.perf_counter()
segment, _ = PublishedIndexes(folder, Origin("benchmark", "none", width, "raw")).load(
    lambda: Progress(keys, 0, known))
Snapshot((segment,), 0, 0, 0).search(np.ones((1, 1, width), np.float32), None, 100)
seconds = time.perf_counter() - started
status = open("/proc/self/status").read()
kib = int(status.split("VmRSS:")[1].split()[0])
print(json.dumps({"seconds": round(seconds, 3), "resident": kib * 1024}))
"""


def start(folder: Path) -> dict[str, float]:
    """In a process of its own."""
    manifest = next(folder.glob("raw/*/manifest.json"))
    keys = json.loads(manifest.read_text())["keys"]
    command = [sys.executable, "-c", STARTED, str(folder), str(keys), str(WIDTH)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    files = sum(path.stat().st_size for path in manifest.parent.iterdir())
    return {**json.loads(done.stdout), "files": files}


def attention(vectors: Float32, queries: Float32) -> dict[str, float]:
    """Seconds of exact attention over all keys, beside those of the product alone."""
    ids, none = np.arange(len(vectors)), np.empty(0, np.int64)
    fresh = Segment.of(DenseVectors(np.empty((0, WIDTH), np.float32)), none, none)
    held = np.asarray(vectors)
    snapshot = Snapshot((Segment.of(FlatVectors(held), ids, ids), fresh), 0, 0, 0)
    by_dot = mechanism(scorer_name="dot", d_k=WIDTH, normalized=True)
    blocks = Blocks(
        lambda: (
            Block(found.documents, found.starts, found.keys[:, None, :])
            for found in snapshot.blocks(None)
        )
    )

    def over_all(count: int) -> float:
        return timed(lambda: attend_many(queries[:count, None], blocks, by_dot, NEAREST))[1]

    product = timed(lambda: held @ queries[0])[1]  # (n, d) @ (d,) -> (n,)
    return {"product": product, "one": over_all(1), "sixteen": over_all(16)}


# -- the peer -----------------------------------------------------------------------------------


def hnswlib(folder: Path, vectors: Float32, tuning: Asked, asked: Asked) -> dict[str, Any]:
    import hnswlib as peer

    index = peer.Index("ip", WIDTH)
    index.init_index(len(vectors), M=16, ef_construction=200)
    index.set_num_threads(1)
    started = time.process_time()
    for at in range(0, len(vectors), BLOCK):
        index.add_items(vectors[at : at + BLOCK], num_threads=1)
    built = time.process_time() - started
    index.save_index(str(folder / "peer"))

    def search(queries: Float32) -> Int64:
        return index.knn_query(queries, NEAREST, num_threads=1)[0].astype(np.int64)

    for ef in EFS:
        index.set_ef(ef)
        if recall(search(tuning.queries), tuning) >= RECALL:
            break
    found, seconds = timed(lambda: search(asked.queries))
    return {
        "ef": ef,
        "recall": recall(found, asked),
        "queries_a_second": round(QUERIES / seconds),
        "build_seconds": round(built, 2),
        "bytes_a_key": round((folder / "peer").stat().st_size / len(vectors), 1),
    }


if __name__ == "__main__":
    main()
