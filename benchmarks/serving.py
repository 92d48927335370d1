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

import json
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import serving_peers as peers
from common import DATA, data_set, parser, progress, tell
from serving_load import WRK, Request, Result, load

from attend.core.types import Float32

CONNECTIONS = 32
TEXTS = 20_000
"""Different ones: more than are asked in a run."""

QUESTIONS = 200
"""Vectors that are asked for, and whose answers are checked."""

Results = Mapping[str, list[Result]]


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


class Side(NamedTuple):
    """One server under load."""

    address: str
    requests: Sequence[Request]


def main() -> None:
    made = parser("Requests over HTTP beside txtai's and Chroma's servers.")
    made.add_argument("--folder", "--sets", dest="sets", type=Path, default=DATA)
    options = made.parse_args()
    plan = QUICK if options.quick else FULL
    if WRK is None:
        progress("wrk is not installed; the load comes from a client in Python.")
    with tempfile.TemporaryDirectory() as folder:
        ratios, figures, embeddings = text_queries(
            data_set(options.sets, "scifact"), plan, Path(folder)
        )
        of_chroma = []
        for size in plan.sizes:
            ratio, told = vector_queries(embeddings, size, plan, Path(folder))
            of_chroma.append(ratio)
            figures |= told
    ratios["requests_over_chroma"] = min(of_chroma)
    figures["load_by"] = "wrk" if WRK else "python"
    tell(ratios, figures, options.json)


def text_queries(
    scifact: Path, plan: Plan, work: Path
) -> tuple[dict[str, float], dict[str, Any], Float32]:
    """Ratios and figures beside txtai, and the documents' embeddings (n, d)."""
    texts, questions = read_scifact(scifact, plan.documents)
    progress(f"embedding {len(texts)} documents")
    embeddings = peers.build_texts(work / "ours", texts)
    (work / "txtai").mkdir()
    peers.build_txtai(work / "txtai", texts, embeddings)
    with ExitStack() as stack:
        ours = stack.enter_context(peers.our_server(work / "ours", work / "ours.log"))
        txtai = stack.enter_context(peers.txtai_server(work / "txtai", work / "txtai.log"))
        sides = {
            "ours": Side(ours, [peers.our_text(text) for text in questions]),
            "txtai": Side(txtai, [peers.txtai_text(text) for text in questions]),
        }
        many = in_turns(sides, CONNECTIONS, plan)
        one = in_turns(sides, 1, plan)
        same = agreement(sides, questions[: plan.checked])
    ratios = {
        "requests_over_txtai_c32": rate(many["ours"]) / rate(many["txtai"]),
        "p50_over_txtai_c1": p50(one["ours"]) / p50(one["txtai"]),
    }
    figures = {
        **described("text_c32", many),
        **described("text_c1", one),
        "text_same_hits_as_txtai": same,
    }
    return rounded(ratios), figures, embeddings


def vector_queries(
    embeddings: Float32, size: int, plan: Plan, work: Path
) -> tuple[float, dict[str, Any]]:
    """Our requests over Chroma's at so many keys, and the figures with the recall of both."""
    progress(f"{size} vectors")
    vectors = mixed(embeddings, size, seed=1)
    asked = mixed(embeddings, QUESTIONS, seed=2)
    best = np.argsort(-(asked @ vectors.T), axis=1)[:, : peers.HITS]  # (q, k)
    peers.build_vectors(work / f"ours-{size}", vectors)
    with ExitStack() as stack:
        ours = stack.enter_context(peers.our_server(work / f"ours-{size}", work / "ours.log"))
        chroma = stack.enter_context(peers.chroma_server(work / f"c-{size}", work / "chroma.log"))
        path = peers.fill_chroma(chroma, vectors)
        sides = {
            "ours": Side(ours, [peers.our_vector(each) for each in asked]),
            "chroma": Side(chroma, [peers.chroma_vector(path, each) for each in asked]),
        }
        many = in_turns(sides, CONNECTIONS, plan)
        recalls = {
            "ours": recall(sides["ours"], peers.our_ids, best),
            "chroma": recall(sides["chroma"], peers.chroma_ids, best),
        }
    name = f"vector_{size}"
    told = described(name, many) | {f"{name}_recall_{who}": r for who, r in recalls.items()}
    ratio = rate(many["ours"]) / rate(many["chroma"])
    return round(ratio, 3), told | {f"{name}_requests_over_chroma": round(ratio, 3)}


def in_turns(sides: Mapping[str, Side], connections: int, plan: Plan) -> Results:
    """Each side loaded alone, in alternation; the first round only warms them up."""
    found: dict[str, list[Result]] = {name: [] for name in sides}
    for turn in range(plan.rounds + 1):
        for name, side in list(sides.items())[:: 1 if turn % 2 else -1]:
            seconds = plan.seconds if turn else 2
            start = turn * len(side.requests) // (plan.rounds + 1)
            result = load(side.address, side.requests, connections, seconds, start)
            if turn:
                found[name].append(result)
                progress(f"{name} c{connections}: {result.rate:.1f}/s, {result.p50_ms:.1f} ms")
    return found


def rate(results: Sequence[Result]) -> float:
    return statistics.median(result.rate for result in results)


def p50(results: Sequence[Result]) -> float:
    return statistics.median(result.p50_ms for result in results)


def described(name: str, results: Results) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for who, each in results.items():
        told[f"{name}_{who}_requests_a_second"] = round(rate(each), 1)
        told[f"{name}_{who}_p50_ms"] = round(p50(each), 2)
        told[f"{name}_{who}_errors"] = sum(result.errors for result in each)
    return told


def rounded(ratios: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in ratios.items()}


def agreement(sides: Mapping[str, Side], questions: Sequence[str]) -> float:
    """Of our hits, the share that txtai lists too."""
    shares = []
    for at in range(len(questions)):
        ours = peers.our_ids(peers.ask(sides["ours"].address, sides["ours"].requests[at]))
        theirs = peers.txtai_ids(peers.ask(sides["txtai"].address, sides["txtai"].requests[at]))
        shares.append(len(set(ours) & set(theirs)) / len(ours))
    return round(statistics.mean(shares), 4)


def recall(side: Side, ids: Callable[[Any], list[str]], best: Any) -> float:
    found = (ids(peers.ask(side.address, request)) for request in side.requests)
    shares = [
        len({*map(int, each)} & {*row}) / len(row)
        for each, row in zip(found, best.tolist(), strict=True)
    ]
    return round(statistics.mean(shares), 4)


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
    with (folder / "corpus.jsonl").open() as lines:
        rows = [json.loads(line) for line in lines][:documents]
    texts = {row["_id"]: f"{row['title']} {row['text']}".strip() for row in rows}
    with (folder / "queries.jsonl").open() as lines:
        own = [json.loads(line)["text"] for line in lines]
    return texts, [*dict.fromkeys([*own, *_halves(own)])][:TEXTS]


def _halves(texts: Sequence[str]) -> Iterator[str]:
    rng = random.Random(1)
    for _ in range(2 * TEXTS):
        left, right = (text.split() for text in rng.sample(texts, 2))
        yield " ".join([*left[: len(left) // 2], *right[len(right) // 2 :]])


if __name__ == "__main__":
    main()
