"""Ten million keys on one machine: filled, built, searched, started anew and written to.

The keys are grown from real embeddings as in scale.py. Everything goes through the public interface
and lies on disk as a collection's documents do. Seconds are of the clock, on whatever else the
machine does; `processor` are those of the process, all threads together. Recall is of the exact ten
nearest, of queries that the index was not chosen by.

- `fill`: documents in calls of 10,000, with vectors and values. `publish`: the index of all.
- `search`: one query at a time, twenty hits with values; `batch`: 16 queries in a call.
- `start`: a process of its own, from opening the folder to the first answer, and its memory.
- `write`: one document, 1,000 and 10,000, each until a search finds the last of them.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, parser, progress, tell
from scale import NEAREST, WIDTH, grown, real
from scale_databases import SCALE, value_of

import attend
from attend.core.types import Document, Float32, Int64

QUERIES, TOGETHER, CALL = 200, 16, 10_000
STARTED = """
import json, sys, time
started = time.perf_counter()
import attend
books = attend.open(sys.argv[1]).collection("large")
books.search(json.loads(sys.argv[2]), k=10, attend=10)
seconds = time.perf_counter() - started
status = open("/proc/self/status").read()
print(json.dumps({"seconds": round(seconds, 2),
                  "resident": int(status.split("VmRSS:")[1].split()[0]) * 1024}))
"""


@contextmanager
def measured(figures: dict[str, Any], name: str) -> Iterator[None]:
    """Put down the seconds of the clock and of the processor, and the most memory so far."""
    clock, processor = time.perf_counter(), time.process_time()
    yield
    figures[name] = {
        "seconds": round(time.perf_counter() - clock, 2),
        "processor": round(time.process_time() - processor, 2),
        "most_resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    progress(f"{name}: {figures[name]}")


def exact(pool: Float32, count: int, queries: Float32) -> Int64:
    """Positions (q, 10) of the nearest of all keys, which are grown again block by block."""
    best = np.full((len(queries), NEAREST), -np.inf, np.float32)
    nearest = np.zeros(best.shape, np.int64)
    at = 0
    for block in grown(pool, count, 0):
        products = queries @ block.T  # (q, d) @ (d, m) -> (q, m)
        top = np.argpartition(-products, NEAREST, axis=1)[:, :NEAREST]
        both = np.hstack([best, np.take_along_axis(products, top, 1)])
        places = np.hstack([nearest, top + at])
        order = np.argsort(-both, axis=1)[:, :NEAREST]
        best, nearest = np.take_along_axis(both, order, 1), np.take_along_axis(places, order, 1)
        at += len(block)
    return nearest


def documents(vectors: Float32, first: int) -> list[Document]:
    rows = enumerate(vectors.tolist(), first)
    return [Document(str(at), vectors={"v": row}, value=value_of(at)) for at, row in rows]


def fill(books: attend.Collection, pool: Float32, count: int) -> None:
    at = 0
    for block in grown(pool, count, 0):
        for start in range(0, len(block), CALL):
            books.write(documents(block[start : start + CALL], at + start))
        at += len(block)
        if at % 500_000 == 0:
            progress(f"{at} documents")


def asked(books: attend.Collection, queries: Float32, truth: Int64, keys: int) -> dict[str, Any]:
    found, seconds = [], []
    for query in queries.tolist():
        started = time.perf_counter()
        hits = books.search(query, k=2 * NEAREST, attend=2 * NEAREST, scale=SCALE).hits
        seconds.append(time.perf_counter() - started)
        old = [int(hit.id) for hit in hits if int(hit.id) < keys]  # of those that the truth knows
        found.append(set(old[:NEAREST]))
    shares = [len(own & set(row)) / NEAREST for own, row in zip(found, truth.tolist(), strict=True)]
    p50, p99 = (np.quantile(seconds, [0.5, 0.99]) * 1000).tolist()
    return {
        "recall": round(float(np.mean(shares)), 4),
        "queries_a_second": round(len(queries) / sum(seconds), 1),
        "p50_ms": round(p50, 2),
        "p99_ms": round(p99, 2),
    }


def written(books: attend.Collection, vectors: Float32, first: int) -> float:
    """Seconds of a write, until its last document is found."""
    started = time.perf_counter()
    books.upsert(documents(vectors, first), progress=False)
    hits = books.search(vectors[-1].tolist(), k=1).hits
    if hits[0].id != str(first + len(vectors) - 1):
        sys.exit(f"The document {first + len(vectors) - 1} was written and is not found.")
    return round(time.perf_counter() - started, 3)


def all_of(folder: Path, pool: Float32, keys: int) -> dict[str, Any]:
    figures: dict[str, Any] = {"keys": keys}
    queries = next(grown(pool, QUERIES, 1))
    with closing(attend.open(folder)) as library:
        books = library.create("large", dimension=WIDTH, scorer="dot")
        with measured(figures, "fill"):
            fill(books, pool, keys)
        with measured(figures, "publish"):
            books.publish()
    figures["disk"] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    progress("the exact nearest")
    truth = exact(pool, keys, queries)
    command = [sys.executable, "-c", STARTED, str(folder), json.dumps(queries[0].tolist())]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT / "index")
    figures["start"] = json.loads(done.stdout)
    progress(f"start: {figures['start']}")
    with closing(attend.open(folder)) as library:
        books = library.collection("large")
        figures["index"] = dict(books.info().index)
        asked(books, queries[:20], truth[:20], keys)
        figures["search"] = asked(books, queries, truth, keys)
        progress(f"search: {figures['search']}")
        figures["batch"] = together(books, queries)
        new = next(grown(pool, 11_001, 2))
        figures["write"] = {}
        for size, rows in ((1, new[:1]), (1000, new[1:1001]), (10_000, new[1001:])):
            figures["write"][size] = written(books, rows, keys + 100_000 * size)
        progress(f"write: {figures['write']}")
        figures["search_beside_fresh"] = asked(books, queries, truth, keys)
    return figures


def together(books: attend.Collection, queries: Float32) -> dict[str, float]:
    requests = [
        {"query": query, "k": NEAREST, "attend": NEAREST, "scale": SCALE}
        for query in queries.tolist()
    ]
    started = time.perf_counter()
    for at in range(0, len(requests), TOGETHER):
        books.search_many(requests[at : at + TOGETHER])
    return {"queries_a_second": round(len(requests) / (time.perf_counter() - started), 1)}


def main() -> None:
    made = parser(__doc__.splitlines()[0])
    made.add_argument("--data", type=Path, help="where to write (50 GB for ten million keys)")
    made.add_argument("--keys", type=int, help="how many; ten million, or 100,000 with --quick")
    options = made.parse_args()
    keys = options.keys or (100_000 if options.quick else 10_000_000)
    pool = real(options.folder)
    with tempfile.TemporaryDirectory(dir=options.data) as folder:
        figures = all_of(Path(folder) / "library", pool, keys)
    ratios = {
        "recall": figures["search"]["recall"],
        "bytes_a_key_in_memory_over_embedding": round(
            figures["start"]["resident"] / keys / (4 * WIDTH), 3
        ),
        "start_seconds": figures["start"]["seconds"],
    }
    tell(ratios, figures, options.json)


if __name__ == "__main__":
    main()
