"""Formats: is the number format that a start chooses the fastest, and what does int8 gain?

Processes start one after the other, none with a choice that was kept, beside processes that
compute in bursts and rest, on none, one or two cores. Each then times all formats for longer, on
texts of SciFact: documents of some 1,000 tokens a call; queries alone, and in calls of sixteen.
All times are those of the processor, of one core, the least of many rounds in turns.

- `document_choice`, `query_choice`: the worst start's chosen format, its time over that of the
  fastest one.
- `int8_documents`, `int8_queries`: the time of the best other format over that of int8.
- `openvino_documents`, `openvino_queries`: the time of OpenVINO's int8 over that of the fastest
  format, where `openvino` and `nncf` are installed.

`--held ISA` holds oneDNN and torch to older instructions, while the processor still promises the
newer ones, so that a format that has become slow must be refused.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from common import data_set, json_lines, parser, progress, tell

from attend.encoder import DEFAULT, load
from attend.encoder.loading import find, in_formats
from attend.encoder.passages import using_cores
from attend.encoder.precision import USES

STARTS, QUICK_STARTS = 10, 3
LOADS = (0, 1, 2)
"""Cores that others take."""

SECONDS, QUICK_SECONDS, LEAST_ROUNDS = 4.0, 2.0, 4
"""Processor time for one use, and rounds at the least."""

DOCUMENTS, TOGETHER = 4, 16

HELD = {"AVX512_CORE_VNNI": "avx512", "AVX512_CORE": "avx512", "AVX2": "avx2"}
"""Instructions of oneDNN → those of torch's own operators."""

Calls = Mapping[str, Sequence[Sequence[str]]]
"""For each use the texts of its calls."""

Way = Callable[[list[str], str], object]


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--held", choices=HELD, help="hold oneDNN and torch to instructions")
    options.add_argument("--starts", type=int, help="processes, 10 or 3 where it is left out")
    options.add_argument("--child", choices=("start", "busy"), help="for this program alone")
    chosen = options.parse_args()
    if chosen.child == "busy":
        keep_busy()
        return
    if chosen.child == "start":
        seconds = QUICK_SECONDS if chosen.quick else SECONDS
        print(json.dumps(one_start(calls_of(chosen.folder), seconds)))
        return
    environment = dict(os.environ)
    if chosen.held:
        held = {"ONEDNN_MAX_CPU_ISA": chosen.held, "ATEN_CPU_CAPABILITY": HELD[chosen.held]}
        environment |= held
    starts = []
    for number in range(chosen.starts or (QUICK_STARTS if chosen.quick else STARTS)):
        with load_on(LOADS[number % len(LOADS)]):
            starts.append(started(chosen.folder, chosen.quick, environment))
        progress(f"start {number + 1}: {json.dumps(starts[-1])}")
    tell(*summary(starts), chosen.json)


def started(folder: Path, quick: bool, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what a process of its own chose and measured."""
    command = [sys.executable, __file__, "--child", "start", "--folder", str(folder)]
    command += ["--quick"] if quick else []
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    # nncf prints on stdout, too.
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def summary(starts: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the ratios, and the figures they are of.

    >>> times = {"float32": 3.0, "int8": 2.0}
    >>> one = {"document": {"chosen": "int8", "milliseconds": times}}
    >>> other = {"document": {"chosen": "float32", "milliseconds": times}}
    >>> summary([one, other])[0]
    {'document_choice': 1.5, 'int8_documents': 1.5}
    """
    ratios, figures = dict[str, float](), dict[str, Any]()
    for use in starts[0]:
        rows = [start[use]["milliseconds"] for start in starts]
        ours = [{name: time for name, time in row.items() if name != "openvino"} for row in rows]
        least = {name: min(row[name] for row in rows) for name in rows[0]}
        best = min(time for name, time in least.items() if name != "openvino")
        ratios[f"{use}_choice"] = max(
            row[start[use]["chosen"]] / min(row.values())
            for start, row in zip(starts, ours, strict=True)
        )
        plural = "documents" if use == "document" else "queries"
        others = [time for name, time in least.items() if name not in ("int8", "openvino")]
        if "int8" in least and others:
            ratios[f"int8_{plural}"] = min(others) / least["int8"]
        if "openvino" in least:
            ratios[f"openvino_{plural}"] = least["openvino"] / best
        choices = [start[use]["chosen"] for start in starts]
        figures[f"{plural}_choices"] = {name: choices.count(name) for name in set(choices)}
        figures |= {f"{plural}_ms_{name}": time for name, time in least.items()}
    return {name: round(value, 3) for name, value in ratios.items()}, figures


@contextmanager
def load_on(cores: int) -> Iterator[None]:
    """Let other processes compute beside the block, in bursts."""
    command = [sys.executable, __file__, "--child", "busy"]
    others = [subprocess.Popen(command) for _ in range(cores)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def keep_busy() -> None:
    """Compute and rest in turns, for a fraction of a second each, until somebody ends it."""
    numbers = bytearray(8 * 1024 * 1024)  # of the caches, too
    while True:
        until = time.monotonic() + random.uniform(0.05, 0.6)
        while time.monotonic() < until:
            numbers[::64] = bytes(len(numbers) // 64)
        time.sleep(random.uniform(0.0, 0.3))


def calls_of(folder: Path) -> dict[str, list[list[str]]]:
    """Return the calls of both uses, from SciFact."""
    place = data_set(folder, "scifact")
    rows = json_lines(place / "corpus.jsonl")[:: 5183 // DOCUMENTS][:DOCUMENTS]
    queries = [row["text"] for row in json_lines(place / "queries.jsonl")[:TOGETHER]]
    documents = [f"{row['title']} {row['text']}" for row in rows]
    return {"document": [documents], "query": [queries[:1], queries]}


def one_start(calls: Calls, seconds: float) -> dict[str, Any]:
    """Let this process choose, and time all formats then.

    Returns: by use the format `chosen`, and `milliseconds` by format: for one text, the geometric
        mean of the calls.
    """
    encoder = load(DEFAULT)
    chosen = encoder.precision, (encoder.for_queries or encoder).precision
    ways: dict[str, Way] = {other.precision: other.run for other in in_formats(DEFAULT)}
    with suppress(ImportError):
        ways["openvino"] = openvino_way(calls)
    return {
        use: {"chosen": name, "milliseconds": milliseconds(ways, use, calls[use], seconds)}
        for use, name in zip(USES, chosen, strict=True)
    }


def milliseconds(
    ways: Mapping[str, Way], use: str, calls: Sequence[Sequence[str]], seconds: float
) -> dict[str, float]:
    """Return the least milliseconds of one text by format."""
    least = {name: [math.inf] * len(calls) for name in ways}
    rounds, began = 0, time.process_time()
    while rounds < LEAST_ROUNDS or time.process_time() - began < seconds:
        for name, run in ways.items():
            for place, texts in enumerate(calls):
                with using_cores(1):
                    started = time.process_time()
                    run(list(texts), use)
                    spent = (time.process_time() - started) / len(texts)
                least[name][place] = min(least[name][place], spent if rounds else math.inf)
        rounds += 1
    return {
        name: round(1000 * math.prod(times) ** (1 / len(times)), 3) for name, times in least.items()
    }


def openvino_way(calls: Calls) -> Way:
    """Return OpenVINO's int8 way through the same model, fitted on the documents, on one core."""
    import nncf
    import numpy as np
    import openvino
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModel

    folder = find(DEFAULT).place
    tokenizer = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()

    def inputs(texts: Sequence[str]) -> dict[str, Any]:
        encodings = tokenizer.encode_batch_fast(list(texts))
        ids = np.array([encoding.ids for encoding in encodings], dtype=np.int64)
        mask = np.array([encoding.attention_mask for encoding in encodings], dtype=np.int64)
        return {"input_ids": ids, "attention_mask": mask}

    plain = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    example = {
        name: torch.from_numpy(array) for name, array in inputs(calls["document"][0]).items()
    }
    model = openvino.convert_model(plain, example_input=example)
    fitting = [inputs([text]) for texts in calls["document"] for text in texts]
    kind = nncf.ModelType.TRANSFORMER
    model = nncf.quantize(model, nncf.Dataset(fitting), model_type=kind)
    compiled = openvino.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1})

    def run(texts: list[str], use: str) -> object:
        feed = inputs(texts)
        states, mask = compiled(feed)[0], feed["attention_mask"][..., None]
        return (states * mask).sum(axis=1) / mask.sum(axis=1)

    return run


if __name__ == "__main__":
    main()
