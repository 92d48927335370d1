"""Indexes of the same vectors: ours, ours with fewer learned dimensions, and hnswlib's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, progress
from learning_sets import Workshop, ranking_set, taught, trained
from scale_data import BLOCK, NEAREST, RECALL, WIDTH, Asked, asked, timed

from attend.core.arrays import KeyTable
from attend.core.types import Float32, Int64
from attend.keys import IndexOrigin, IndexTarget, Progress, PublishedIndexes
from attend.keys.choose import FETCHED
from attend.keys.quantised import QuantisedVectors
from attend.measure.rankings import evaluate
from attend.projection import Projection

EFS = (20, 30, 40, 60, 80, 100, 120, 140, 160, 200, 300)

LEARNED, LEARNED_FROM = 128, "conala"
"""Dimensions, and the set whose training questions they are learned from."""


def ours(folder: Path, vectors: Float32, tuning: Asked, measured: Asked) -> dict[str, Any]:
    """The index that is chosen, its seconds with training and with measuring parameters."""
    ids = np.arange(len(vectors))
    parts = [slice(at, at + 8192) for at in range(0, len(vectors), 8192)]
    known: list[str] = []
    indexes = PublishedIndexes(folder, _origin(vectors.shape[1]))
    started = time.process_time()
    manifest = indexes.publish(
        (KeyTable.of_keys(vectors[part], ids[part], ids[part]) for part in parts),
        len(vectors),
        0,
        known.append,
        IndexTarget(RECALL, exact_below=1, questions=tuning.queries),
    )
    built = time.process_time() - started
    (folder / "known.json").write_text(json.dumps(known))
    segment, _ = indexes.load(lambda: Progress(len(vectors), 0, known)) or sys.exit(1)
    made = segment.vectors
    if not isinstance(made, QuantisedVectors):
        sys.exit(f"No quantised index was chosen: {manifest.index['why']}.")
    point, queries = made.point(None), measured.queries
    found, together = timed(lambda: _nearest(made, queries))
    _, alone = timed(lambda: [_nearest(made, query[None]) for query in queries])
    return {
        "index": manifest.index["type"],
        "parameters": point and point._asdict(),
        "recall": measured.recall(found),
        "queries_a_second": round(len(queries) / together),
        "queries_a_second_one_by_one": round(len(queries) / alone),
        "build_seconds": round(built, 2),
        "bytes_a_key": manifest.index["bytes_per_key"],
    }


def _origin(width: int) -> IndexOrigin:
    return IndexOrigin("benchmark", "none", width, "raw")


def _nearest(made: QuantisedVectors, queries: Float32) -> Int64:
    """The ten nearest of what is found, by the keys themselves."""
    found = made.search(queries, FETCHED, None).positions
    best = np.empty((len(queries), NEAREST), np.int64)
    for at, (query, row) in enumerate(zip(queries, found, strict=True)):
        best[at] = row[np.argsort(-(made.vectors[row] @ query))[:NEAREST]]
    return best


# -- fewer dimensions -----------------------------------------------------------------------------


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


# -- a fresh process ------------------------------------------------------------------------------


STARTED = """
import json, sys, time
from pathlib import Path
import numpy as np
from attend.keys import Delta, IndexOrigin, Progress, PublishedIndexes, Snapshot
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


# -- the peer -------------------------------------------------------------------------------------


def hnswlib(
    folder: Path, vectors: Float32, tuning: Asked, measured: Asked, *, quick: bool
) -> dict[str, Any]:
    """M 16 and the library's usual construction (half of it when quick, on all processors), at the
    smallest ef that finds enough."""
    import hnswlib as peer

    index = peer.Index("ip", WIDTH)
    index.init_index(len(vectors), M=16, ef_construction=100 if quick else 200)
    threads = (os.cpu_count() or 1) if quick else 1
    started = time.process_time()
    for at in range(0, len(vectors), BLOCK):
        index.add_items(vectors[at : at + BLOCK], num_threads=threads)
    built = time.process_time() - started
    index.save_index(str(folder / "peer"))

    def search(queries: Float32) -> Int64:
        return index.knn_query(queries, NEAREST, num_threads=1)[0].astype(np.int64)

    for ef in EFS:
        index.set_ef(ef)
        if tuning.recall(search(tuning.queries)) >= RECALL:
            break
    found, seconds = timed(lambda: search(measured.queries))
    return {
        "ef": ef,
        "recall": measured.recall(found),
        "queries_a_second": round(len(measured.queries) / seconds),
        "build_seconds": round(built, 2),
        "bytes_a_key": round((folder / "peer").stat().st_size / len(vectors), 1),
    }
