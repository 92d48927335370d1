"""How soon drift is told, and how often it is told where there is none.

Queries of a data set are drawn with repetition; those of another set are the new topic. The encoder
is the default one, with noise on its embeddings as large as a share of their length, and with its
documents encoded in one number format and queries in another. Rows: queries until the alarm where a
fifth is new, after 0 and 10,000 quiet ones (median, largest, and the share told within 500); alarms
of quiet streams; and alarms of the encoder, as a server raises them at its start.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from functools import partial
from typing import Any, get_args

import numpy as np
from common import data_set, json_lines, parser, progress

from attend import Data
from attend.collection.drift import ALARM, REFERENCE, Nearness, check_encoder
from attend.core.types import Float32
from attend.encoder import Encoder, Precision, load

PAIRS = (("scifact", "conala"), ("conala", "scifact"), ("scifact", "nfcorpus"))
"""The quiet set, and that of the new topic: the last two are both of medicine."""

SHARE, WITHIN, QUIET = 0.2, 500, 10_000
NOISE = 0.01
SEED = 20170612


def drawn(queries: Float32, rng: np.random.Generator, count: int) -> Float32:
    return queries[rng.integers(0, len(queries), count)]


def until_alarm(quiet: Float32, new: Float32, rng: np.random.Generator, before: int) -> int | None:
    """Return the number of queries until the alarm; None for none within 2,000."""
    watch = Nearness(drawn(quiet, rng, REFERENCE))
    watch.add(drawn(quiet, rng, before))
    if watch.test.p <= ALARM:
        return 0
    is_new = rng.random(4 * WITHIN) < SHARE
    rows = np.where(is_new[:, None], drawn(new, rng, len(is_new)), drawn(quiet, rng, len(is_new)))
    for count, row in enumerate(rows, start=1):
        watch.add(row[None])
        if watch.test.p <= ALARM:
            return count
    return None


def delays(quiet: Float32, new: Float32, runs: int, before: int) -> dict[str, Any]:
    rng = np.random.default_rng(SEED)
    counts = [until_alarm(quiet, new, rng, before) for _ in range(runs)]
    late = [count if count is not None else 4 * WITHIN for count in counts]
    return {
        "median": float(np.median(late)),
        "most": max(late),
        "within": float(np.mean([0 < count <= WITHIN for count in late])),
    }


class Noisy:
    """The default encoder, with noise on embeddings as long as a share of them."""

    def __init__(self, encoder: Encoder, share: float, name: str) -> None:
        self._encoder, self._share, self.name = encoder, share, name
        self.dimension = encoder.dimension

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode_documents(self, texts: Sequence[str]) -> Float32:
        rows = self._encoder.encode_documents(texts)
        noise = np.random.default_rng(SEED).normal(size=rows.shape) / np.sqrt(rows.shape[1])
        noisy = rows + self._share * noise
        return np.asarray(noisy / np.linalg.norm(noisy, axis=1, keepdims=True), dtype=np.float32)


def encoder_alarms(documents: Sequence[dict[str, Any]]) -> dict[str, list[bool]]:
    """Return by the noise whether an alarm is raised, for each two number formats."""
    formats: tuple[Precision, ...] = get_args(Precision)[1:]
    loaded = {name: load(precision=name) for name in formats}
    result: dict[str, list[bool]] = {}
    for stored in formats:
        with tempfile.TemporaryDirectory() as folder:
            with Data(folder, precision=stored) as data:
                data.create("default").upsert(documents)
            for now in formats:
                for share in (0.0, NOISE):
                    noisy = partial(Noisy, loaded[now], share)
                    with Data(folder, load_encoder=noisy) as data:
                        told = check_encoder(data.collection("default")) is not None
                    result.setdefault(f"encoder.noise {share:g}", []).append(told)
    return result


def main() -> None:
    options = parser(__doc__ or "").parse_args()
    runs, result = 5 if options.quick else 50, dict[str, Any]()
    encoder, queries = load(), dict[str, Float32]()
    for name in {name for pair in PAIRS for name in pair}:
        entries = json_lines(data_set(options.folder, name) / "queries.jsonl")[:2000]
        queries[name] = encoder.encode_queries([entry["text"] for entry in entries])
        progress(f"{name}: {len(entries)} queries")
    for quiet, new in PAIRS:
        for before in (0, QUIET):
            key = f"{quiet} with {new}, after {before}"
            result[key] = delays(queries[quiet], queries[new], runs, before)
            progress(f"{key}: {result[key]}")
    for name, rows in queries.items():
        rng, alarms = np.random.default_rng(SEED + 1), 0
        for _ in range(runs):
            watch = Nearness(drawn(rows, rng, REFERENCE))
            watch.add(drawn(rows, rng, QUIET))
            alarms += watch.test.p <= ALARM
        result[f"{name}, quiet: alarms in {runs} × {QUIET}"] = alarms
        progress(f"{name}: {alarms} alarms in {runs} × {QUIET} quiet queries")
    documents = json_lines(data_set(options.folder, "scifact") / "corpus.jsonl")[:100]
    entries = [{"id": entry["_id"], "text": entry["text"]} for entry in documents]
    result |= encoder_alarms(entries)
    print(json.dumps(result, indent=None if options.json else 1))


if __name__ == "__main__":
    main()
