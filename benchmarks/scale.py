"""Scale: a million keys on one machine, beside hnswlib, vector databases and the memory's speed.

The keys are real embeddings grown to size: two real ones mixed in a random share, a little noise,
scaled to length one. Queries are made so too, apart from the keys, and are others than those with
which either side is tuned. All get the same vectors. Seconds are the processor's, which
neighbours disturb less than the clock. Recall is of the exact ten nearest.

- `qps_over_hnswlib`: queries a second of one thread at recall 0.95 or more (hnswlib: M 16, the
  smallest of the ef that reach it; ours: what the index chose by itself, and scoring again by the
  keys).
- `learned_qps_over_hnswlib`: the same, ours in 128 learned dimensions, recall being of the exact
  ten there; `learned_ndcg_over_embeddings` is what these are worth (`scale_index.learned`).
- `hnswlib_build_seconds_over_ours`: ours with training and with measuring its parameters.
- `bytes_over_hnswlib`: what a search keeps in memory, per key: codes and bytes, against graph and
  vectors. Ours has the keys themselves in a mapped file besides, of which a search reads a few.
- `exact_attention_over_product`: one query attending to all keys, over NumPy's bare product of the
  matrix with it. `batch_of_16_over_one`: sixteen such queries, over one.
- `start_seconds`, `start_rss_over_index`: a fresh process from loading the index to its first
  answer, and all memory that it then has, over the index's files (keys, codes, bytes and ids).
- `recall_found_less_promised`: the worst share found over real sets, filtered and not, less what
  was promised (`scale_recall`; not when quick).
- `path_qps_over_…`: from a vector to weights and values, one query at a time (`scale_path`).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import scale_path
import scale_recall
from common import DATA, parser, progress, tell
from scale_data import NEAREST, QUERIES, WIDTH, asked, grow, grown, real, timed
from scale_index import hnswlib, learned, ours, start
from threadpoolctl import threadpool_limits

from attend.attention import Mechanism, attend_many, default_scale
from attend.core.arrays import KeyTable
from attend.core.types import Float32
from attend.keys import Delta, Segment, Snapshot
from attend.keys.vectors import FlatVectors

KEYS, QUICK_KEYS = 1_000_000, 200_000
PATH_SHARE = 10
"""Of the keys one in so many goes the whole path when quick: databases take long to fill."""


def main() -> None:
    options = _options()
    faiss.omp_set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.data) as folder, threadpool_limits(1, "blas"):
        figures = measured(Path(folder), options)
    tell(ratios(figures), figures, options.json)


def _options() -> argparse.Namespace:
    made = parser(__doc__.splitlines()[0])
    made.add_argument("--data", type=Path, help="where to write (12 GB for a million keys)")
    made.add_argument("--keys", type=int, help="how many; a million, or 200,000 with --quick")
    made.add_argument("--alone", action="store_true", help="without the peers")
    made.add_argument(
        "--peers",
        default="",
        help="on the whole path, of lancedb, chroma and qdrant; all, or the first when quick",
    )
    made.add_argument("--folder", "--sets", dest="sets", type=Path, default=DATA)
    return made.parse_args()


def measured(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    keys = options.keys or (QUICK_KEYS if options.quick else KEYS)
    pool = real(options.sets)
    progress(f"growing {keys} keys")
    vectors = grow(pool, keys, folder / "keys.npy")
    queries = next(grown(pool, 2 * QUERIES, 1))
    tuning, held = asked(vectors, queries)
    progress("ours: building")
    figures: dict[str, Any] = {"keys": keys, "ours": ours(folder, vectors, tuning, held)}
    progress("ours: starting, and attending to all")
    figures["start"] = start(folder)
    figures["attention"] = attention(vectors, held.queries)
    if not options.quick:
        figures["learned"] = learned(folder, options.sets, vectors, queries)
        figures["recall"] = scale_recall.promised(folder, options.sets)
    if not options.alone:
        progress("hnswlib: building")
        figures["hnswlib"] = hnswlib(folder, vectors, tuning, held, quick=options.quick)
        figures["path"] = _path(folder, vectors, queries, options)
    return figures


def _path(
    folder: Path, vectors: Float32, queries: Float32, options: argparse.Namespace
) -> dict[str, Any]:
    usual = ["chroma"] if options.quick else ["lancedb", "qdrant", "chroma"]
    peers = options.peers.split(",") if options.peers else usual
    vectors = vectors[: len(vectors) // PATH_SHARE] if options.quick else vectors
    tuning, held = asked(vectors, queries[:: 5 if options.quick else 2])
    return scale_path.whole_path(folder, vectors, tuning, held, ("ours", *peers))


def ratios(figures: dict) -> dict[str, float]:
    ours, start, attention = figures["ours"], figures["start"], figures["attention"]
    found = {
        "exact_attention_over_product": attention["one"] / attention["product"],
        "batch_of_16_over_one": attention["sixteen"] / attention["one"],
        "start_seconds": start["seconds"],
        "start_rss_over_index": start["resident"] / start["files"],
    }
    if "learned" in figures:
        learned = figures["learned"]
        found["learned_ndcg_over_embeddings"] = learned["ndcg"] / learned["ndcg_of_embeddings"]
        found |= scale_recall.ratios(figures["recall"])
    if "hnswlib" in figures:
        peer = figures["hnswlib"]
        found |= {
            "qps_over_hnswlib": ours["queries_a_second"] / peer["queries_a_second"],
            "hnswlib_build_seconds_over_ours": peer["build_seconds"] / ours["build_seconds"],
            "bytes_over_hnswlib": ours["bytes_a_key"] / peer["bytes_a_key"],
            **scale_path.ratios(figures["path"]),
        }
        if "learned" in figures:
            quick = figures["learned"]["queries_a_second"]
            found["learned_qps_over_hnswlib"] = quick / peer["queries_a_second"]
    return {name: round(value, 3) for name, value in found.items()}


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
        return timed(lambda: attend_many(queries[:count, None], blocks, by_dot, NEAREST))[1]

    product = timed(lambda: held @ queries[0])[1]  # (n, d) @ (d,) -> (n,)
    return {"product": product, "one": over_all(1), "sixteen": over_all(16)}


if __name__ == "__main__":
    main()
